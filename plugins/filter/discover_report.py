# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: discover_report
short_description: Put what was detected on all hosts into one document
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Takes the registered results of M(gpumesh.cluster.interface_info) and gives the facts of the hosts that answered, the
    others with their reason, and the subnets as P(gpumesh.cluster.shared_subnets#filter) ranks them.
extends_documentation_fragment:
  - gpumesh.cluster.subnets
options:
  _input:
    description: The registered results, by host name. Those of hosts that failed or cannot be reached belong to them.
    type: dict
    required: true
  subnet:
    description: The only subnet to take, as C(ip addr) prints it.
    type: str
"""

EXAMPLES = r"""
- name: Look at every host
  gpumesh.cluster.interface_info:
  register: detected
  ignore_unreachable: true
  failed_when: false

- name: Show the document
  ansible.builtin.debug:
    msg: "{{ results | gpumesh.cluster.discover_report }}"
  vars:
    results: "{{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'detected'))) }}"
  run_once: true
"""

RETURN = r"""
_value:
  description: The document.
  type: dict
  contains:
    schema_version:
      description: The version of this shape.
      type: int
      sample: 1
    candidates:
      description: As in P(gpumesh.cluster.shared_subnets#filter), of the hosts that answered.
      type: list
      elements: dict
    rejected:
      description: As in P(gpumesh.cluster.shared_subnets#filter), of the hosts that answered.
      type: list
      elements: dict
    hosts:
      description: By host, C(interfaces) and C(host) as M(gpumesh.cluster.interface_info) returns them.
      type: dict
    unreachable:
      description: By host, why it cannot be reached.
      type: dict
    failed:
      description: By host, why nothing could be detected.
      type: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.discovery import report
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.filtering import as_filter
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from


@as_filter
def discover_report(results: Mapping[str, Any], subnet: str | None = None, **options: Any) -> dict[str, Any]:
    """Draw up the document; see DOCUMENTATION."""
    return report(results, options_from(subnet, **options))


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Its name and function."""
        return {"discover_report": discover_report}
