# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: slurm_leftover
short_description: What becomes of the queue of a machine that does not manage the cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - The queue and the accounting of a former manager may be deleted once those of the manager have grown out of them. Where
    they have not, as after that machine was lost, they are kept aside.
positional: machine, own, manager
options:
  _input:
    description: The record of the cluster.
    type: dict
    required: true
  machine:
    description: The machine.
    type: str
    required: true
  own:
    description: What M(gpumesh.cluster.slurm_state) with V(state=inspected) has returned there.
    type: dict
    required: true
  manager:
    description: What it has returned on the manager.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show whether it may be deleted
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.slurm_leftover(inventory_hostname, own, managers) }}"
"""

RETURN = r"""
_value:
  description: V(keep), V(delete), or empty where the manager itself has not got the queue that counts.
  type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import succession
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def slurm_leftover(record: Mapping[str, Any], machine: str, own: Mapping[str, Any], manager: Mapping[str, Any]) -> str:
    """See DOCUMENTATION."""
    look = succession.read_look(own)
    if look is None:
        return ""
    return succession.leftover(model.parse(dict(record)), machine, look, succession.read_look(manager))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"slurm_leftover": slurm_leftover}
