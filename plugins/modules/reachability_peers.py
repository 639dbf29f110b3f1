#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: reachability_peers
short_description: List the members to probe
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates the peers of M(gpumesh.cluster.reachability) from the members and the results of their listeners. Run it
    once, not on every host.
  - A member without a listener is also a peer, so that a member that cannot be reached over SSH is probed by the
    others.
  - Runs only on the controller and makes no connection.
  - "Reads these options of roles: C(reachability_layer)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.reachability
  - gpumesh.cluster.internal
options:
  members:
    description: The cluster record, or a list of mappings with C(machine), C(address) and C(interface).
    type: raw
    required: true
  registered:
    description: The variable in which the task of M(gpumesh.cluster.reachability_listener) has registered its result.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Collect the ports of the listeners
  gpumesh.cluster.reachability_peers:
    members: "{{ cluster_record }}"
    registered: listening
  run_once: true
  register: reachability_peers
"""

RETURN = r"""
peers:
  description: The peers, each with C(machine), C(address), C(ports) and C(rdma).
  returned: success
  type: list
  elements: dict
"""

# The work is done by the action plugin of the same name.
