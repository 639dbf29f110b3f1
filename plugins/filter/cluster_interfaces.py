# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_interfaces
short_description: The interface of each member that has its cluster address
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - The interface to bind and to name to NCCL and Gloo on each member. It is the tunnel interface where the cluster has
    a mesh, else the one with the member's address in the subnet.
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say which interface this host uses
  ansible.builtin.debug:
    msg: "{{ (cluster_record | gpumesh.cluster.cluster_interfaces)[inventory_hostname] }}"

# gpumesh0
"""

RETURN = r"""
_value:
  description: The interface of each machine, in joining order.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def cluster_interfaces(record: object) -> dict[str, str]:
    """See DOCUMENTATION."""
    return {machine: seat["interface"] for machine, seat in derive.seats(model.parse(record)).items()}


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"cluster_interfaces": cluster_interfaces}
