#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_settings
short_description: Compare the settings of a mesh with the cluster record
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Says which settings of the mesh differ from the cluster record, and refuses what cannot work, such as other settings for a
    mesh that is in use, or a WireGuard mesh in which two members have no way to each other.
  - Runs on the controller alone; no connection is made, and nothing is changed.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.mesh
options:
  record:
    required: true
  backend:
    description: What connects the members. Empty, it is as in the record, as with all that follow.
    type: str
    choices: ["", none, wireguard, tailscale]
    default: ""
  subnet:
    description: Network of the members' addresses in the mesh.
    type: str
    default: ""
  port:
    description: UDP port of each member. V(0) means as in the record.
    type: int
    default: 0
  interface:
    description: Name of the interface.
    type: str
    default: ""
  mtu:
    description: Largest packet through the tunnel, in bytes. V(0) means as in the record. It may change at any time.
    type: int
    default: 0
  rotate_keys:
    description: Refuse, too, what keys cannot be rotated with, which is another backend, or a play without all members.
    type: bool
    default: false
  list_relayed:
    description: Show the pairs of members that are relayed, and return them.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Look what the settings would change
  gpumesh.cluster.mesh_settings:
    record: cluster_record
    backend: wireguard
  register: settings
  run_once: true
"""

RETURN = r"""
wanted:
  description: The settings that differ, as O(gpumesh.cluster.cluster#module:mesh) takes them.
  returned: success
  type: dict
  sample:
    backend: wireguard
relayed:
  description: Every pair of members that is relayed, as C(a), C(b) and C(relay).
  returned: with O(list_relayed)
  type: list
  elements: dict
  sample:
    - a: n2
      b: n4
      relay: n1
"""

# The work is done by the action plugin of the same name.
