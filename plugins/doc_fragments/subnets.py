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
      - What M(gpumesh.cluster.interface_info) returned, by host name. Only C(interfaces) is looked at.
    type: dict
    required: true
  min_hosts:
    description: How many hosts must be in the subnet. V(0) means every one.
    type: int
    default: 0
  prefer:
    description: Patterns of interface names. A subnet that stands on such interfaces everywhere comes first.
    type: list
    elements: str
    default: []
  exclude:
    description: Patterns of interface names that are out, besides those of container runtimes and hypervisors.
    type: list
    elements: str
    default: []
  include:
    description: Patterns of interface names that are in, although they look like those of a container runtime or
      are bridges without a physical port.
    type: list
    elements: str
    default: []
  own_tunnels:
    description: Patterns of the names of the cluster's own tunnels, which are never the network below it.
    type: list
    elements: str
    default: [gpumesh*]
"""
