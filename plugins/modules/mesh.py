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
  - "Reads these options of roles: C(mesh_accept_dns), C(mesh_accept_routes), C(mesh_advertise_routes),
    C(mesh_auth_key_file), C(mesh_ephemeral), C(mesh_hostname), C(mesh_login_server), C(mesh_preshared_keys),
    C(mesh_proxy_port), C(mesh_relays), C(mesh_ssh), C(mesh_tags), C(mesh_userspace), C(mesh_userspace_nodes)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  record:
    required: true
seealso:
  - module: gpumesh.cluster.wireguard
  - module: gpumesh.cluster.tailscale
"""

EXAMPLES = r"""
- name: Connect the members that are set up
  gpumesh.cluster.mesh:
    record: cluster_record
  register: connection
"""

RETURN = r"""
ready:
  description:
    - Whether the interface is up, or the host is in the tailnet, now and at boot. True without a mesh. See
      RV(gpumesh.cluster.wireguard#module:ready) and RV(gpumesh.cluster.tailscale#module:ready).
    - All other values are those of the module of the backend.
  returned: success
  type: bool
registration:
  description: The values to register in the cluster record, for O(gpumesh.cluster.cluster_member#module:registered).
  returned: if the record does not have them
  type: dict
"""

# The work is done by the action plugin of the same name.
