# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations


class ModuleDocFragment:
    """The options of the filters that look for a shared subnet."""

    DOCUMENTATION = r"""
options:
  _input:
    description:
      - The results of M(gpumesh.cluster.interface_info), by host name. Only C(interfaces) is used.
    type: dict
    required: true
  min_hosts:
    description: The number of hosts that must be in the subnet. V(0) means all hosts.
    type: int
    default: 0
  prefer:
    description: Patterns of interface names to prefer. A subnet that uses such interfaces on all hosts comes first.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of interface names to ignore, in addition to those of container runtimes and hypervisors.
    type: list
    elements: str
    default: []
  include:
    description: Patterns of interface names to use even if they look like those of a container runtime or are bridges
      without a physical port.
    type: list
    elements: str
    default: []
  own_tunnels:
    description: Patterns of the interface names of the cluster's own tunnels, which are never used as its network.
    type: list
    elements: str
    default: [gpumesh*]
"""
