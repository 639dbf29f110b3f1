# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_members
short_description: Get the properties of each member of a cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns for each machine its C(rank) (from 0, in joining order), C(address) and C(interface) in the cluster, C(site),
    C(endpoint), number of C(gpus), whether it is the C(manager), and whether it runs jobs (C(slurm_node)).
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the properties of this host
  ansible.builtin.debug:
    msg: "{{ (cluster_record | gpumesh.cluster.cluster_members)[inventory_hostname] }}"

# {"machine": "n2", "rank": 1, "address": "10.99.0.2", "interface": "gpumesh0", "site": "default",
#  "endpoint": null, "gpus": 8, "manager": false, "slurm_node": true}
"""

RETURN = r"""
_value:
  description: A mapping for each machine, in joining order.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.filter_errors import convert_errors


@convert_errors
def cluster_members(record: object) -> dict[str, derive.MemberView]:
    """Return the member view of each machine; see DOCUMENTATION."""
    return derive.member_views(model.parse(record))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the name and the function of the filter."""
        return {"cluster_members": cluster_members}
