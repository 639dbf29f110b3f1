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
  - "Reads these options of roles: C(mesh_backend), C(mesh_interface), C(mesh_mtu), C(mesh_port), C(mesh_relays),
    C(mesh_rotate_keys), C(mesh_subnet), C(mesh_tailscale_archive), C(mesh_tailscale_checksum),
    C(mesh_tailscale_repository), C(mesh_tailscale_repository_checksum)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  record:
    required: true
  list_relayed:
    description: Whether to print and return the pairs of members that are relayed.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Compare the settings with the record
  gpumesh.cluster.mesh_settings:
    record: cluster_record
  register: settings
  run_once: true
"""

RETURN = r"""
settings:
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
