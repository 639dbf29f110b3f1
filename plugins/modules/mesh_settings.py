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
  - Reports which settings of the mesh differ from the cluster record, and refuses settings that cannot work, such as
    different settings for a mesh that is in use, or a WireGuard mesh in which two members have no path to each other.
  - Runs only on the controller and makes no connection. Nothing is changed.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.mesh
  - gpumesh.cluster.internal
options:
  record:
    required: true
  backend:
    description: The backend that connects the members. Empty means the value in the record, also for the following
      options.
    type: str
    choices: ["", none, wireguard, tailscale]
    default: ""
  subnet:
    description: The subnet of the members' mesh addresses.
    type: str
    default: ""
  port:
    description: The UDP port on each member. V(0) means the value in the record.
    type: int
    default: 0
  interface:
    description: The name of the interface.
    type: str
    default: ""
  mtu:
    description: The MTU of the tunnel in bytes. V(0) means the value in the record. It can be changed at any time.
    type: int
    default: 0
  rotate_keys:
    description: Whether to also refuse conditions under which keys cannot be rotated, that is, another backend or a
      play without all members.
    type: bool
    default: false
  list_relayed:
    description: Whether to print and return the pairs of members that are relayed.
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
  description: The settings that differ, in the form of O(gpumesh.cluster.cluster#module:mesh).
  returned: success
  type: dict
  sample:
    backend: wireguard
relayed:
  description: The pairs of members that are relayed, each with C(a), C(b) and C(relay).
  returned: with O(list_relayed)
  type: list
  elements: dict
  sample:
    - a: n2
      b: n4
      relay: n1
"""

# The work is done by the action plugin of the same name.
