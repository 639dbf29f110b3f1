#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh
short_description: Connect a host as the mesh of the cluster record says
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - With the backend C(wireguard), sets up the tunnel as M(gpumesh.cluster.wireguard) does with O(record).
  - With the backend C(tailscale), changes the settings of a host that is logged in, as M(gpumesh.cluster.tailscale) does
    with O(record) and C(login=false). The host does not log in.
  - With the backend C(none), does nothing.
  - Decides on the controller, and runs the module of the backend on the host.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.mesh
  - gpumesh.cluster.internal
options:
  record:
    required: true
  preshared:
    description: As O(gpumesh.cluster.wireguard#module:preshared).
    type: bool
seealso:
  - module: gpumesh.cluster.wireguard
  - module: gpumesh.cluster.tailscale
"""

EXAMPLES = r"""
- name: Connect the members as far as they are set up
  gpumesh.cluster.mesh:
    record: cluster_record
  register: connection
"""

RETURN = r"""
ready:
  description:
    - As RV(gpumesh.cluster.wireguard#module:ready) or RV(gpumesh.cluster.tailscale#module:ready). True without a mesh.
    - All other values are those of the module of the backend.
  returned: success
  type: bool
registration:
  description: The values to register in the cluster record, for O(gpumesh.cluster.cluster_member#module:registered).
  returned: if the record does not have them
  type: dict
"""

# The work is done by the action plugin of the same name.
