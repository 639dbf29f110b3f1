# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: layer_questions
short_description: What a cluster's record makes of the files and services of a member
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Gives the parameters with which M(gpumesh.cluster.layer_info) compares a member with the record.
positional: machine
options:
  _input:
    description: The cluster record, as RV(gpumesh.cluster.cluster#module:record).
    type: dict
    required: true
  machine:
    description: The member.
    type: str
    required: true
  ssh_users:
    description: The users who reach the other members.
    type: list
    elements: str
    default: [root]
  ssh_port:
    description: The port of the members' SSH servers.
    type: int
    default: 22
  serves_volumes:
    description: Whether volumes are exported and mounted.
    type: bool
    default: true
  volume_server:
    description: The program that serves this member's volumes.
    type: str
    choices: [kernel, ganesha]
    default: kernel
  accounting:
    description: Whether the manager runs slurmdbd.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: See what the record makes of this host
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.layer_questions(inventory_hostname) }}"
"""

RETURN = r"""
_value:
  description: A dictionary with C(files) and C(services).
  type: dict
"""

from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def layer_questions(
    record: object,
    machine: str,
    ssh_users: Sequence[str] = ("root",),
    ssh_port: int = 22,
    serves_volumes: bool = True,
    accounting: bool = True,
    volume_server: str = "kernel",
) -> dict[str, list[dict[str, Any]]]:
    """See DOCUMENTATION."""
    return drift.questions(model.parse(record), machine, ssh_users, ssh_port, serves_volumes, accounting, volume_server)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"layer_questions": layer_questions}
