# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: job_environment
short_description: What a node has to know to set the environment of the jobs on it
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes the content of C(/etc/gpumesh/job_environment.json) of one member from the cluster record and its interfaces.
positional: machine, interfaces
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  machine:
    description: The member.
    type: str
    required: true
  interfaces:
    description: Its interfaces, as M(gpumesh.cluster.interface_info) returns them.
    type: list
    elements: dict
    required: true
  port_range:
    description: The first and the last port that a job's C(MASTER_PORT) is chosen from.
    type: list
    elements: int
    required: true
  dialects:
    description: Other platforms whose variables are set too.
    type: list
    elements: str
    default: []
  variables:
    description: Variables of the site's own that every job gets.
    type: dict
    default: {}
  rdma:
    description: Whether the active RDMA devices are used by jobs within one site.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Show what jobs on n1 will find
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.job_environment('n1', [], port_range=[15000, 24999]) }}"
"""

RETURN = r"""
_value:
  description:
    - C(cluster), C(members) (address by machine), C(interface), C(port_range), C(reserved_ports), C(dialects),
      C(rdma) with C(devices) and C(peers), C(variables).
  type: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.job_environment import settings


@as_filter
def job_environment(
    record: object,
    machine: str,
    interfaces: Sequence[Mapping[str, Any]],
    port_range: Sequence[int],
    dialects: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
    rdma: bool = True,
) -> dict[str, Any]:
    """See DOCUMENTATION."""
    return settings(model.parse(record), machine, interfaces, port_range, dialects, variables, rdma)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"job_environment": job_environment}
