# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_addresses
short_description: Get the address of each member in its cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns the address at which the other members reach each member. This is the mesh address if the cluster has a mesh,
    otherwise the member's own address in the subnet.
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show the addresses of the members
  ansible.builtin.debug:
    msg: "{{ cluster_record | gpumesh.cluster.cluster_addresses }}"

# {"n1": "10.99.0.1", "n2": "10.99.0.2"}
"""

RETURN = r"""
_value:
  description: The address of each machine, in joining order.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.filter_errors import convert_errors


@convert_errors
def cluster_addresses(record: object) -> dict[str, str]:
    """Return the address of each machine; see DOCUMENTATION."""
    return membership.cluster_addresses(model.parse(record))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the name and the function of the filter."""
        return {"cluster_addresses": cluster_addresses}
