# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: tailnet_paths
short_description: Which way the packets go between the members in a tailnet
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes rows for a table of what the members found with O(gpumesh.cluster.tailscale#module:peers).
positional: tailnet
options:
  _input:
    description: The cluster record.
    type: dict
    required: true
  tailnet:
    description: What M(gpumesh.cluster.tailscale) returned on each machine, by inventory hostname.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Show which way the packets go
  gpumesh.cluster.print_text:
    text: "{{ cluster_record | gpumesh.cluster.tailnet_paths({'n1': result_of_n1}) | gpumesh.cluster.table }}"
"""

RETURN = r"""
_value:
  description:
    - One entry an ordered pair, with C(from), C(to), C(path) as the module returns it, and C(by), which is the endpoint
      or the relay.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.tailscale import path_rows
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter


@as_filter
def tailnet_paths(record: Mapping[str, Any], tailnet: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """See DOCUMENTATION."""
    return path_rows(record, tailnet)


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"tailnet_paths": tailnet_paths}
