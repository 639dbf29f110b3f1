#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesh_paths
short_description: Show the paths between the members of a tailnet
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Prints and returns a table of the paths that all hosts of the play found with
    O(gpumesh.cluster.tailscale#module:probe). Run it once, not on every host.
  - Runs only on the controller and makes no connection.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  record:
    required: true
  registered:
    description: The name of the variable in which the hosts have registered the result of M(gpumesh.cluster.tailscale).
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Probe the paths
  gpumesh.cluster.tailscale:
    record: cluster_record
    probe: true
  register: probed

- name: Show the paths
  gpumesh.cluster.mesh_paths:
    record: cluster_record
    registered: probed
  run_once: true
"""

RETURN = r"""
paths:
  description:
    - One entry for each ordered pair, with C(from), C(to), C(path) as returned by M(gpumesh.cluster.tailscale), and
      C(by), the endpoint or the relay.
  returned: success
  type: list
  elements: dict
  sample:
    - from: gpu1
      to: gpu2
      path: direct
      by: 203.0.113.20:41641
"""

# The work is done by the action plugin of the same name.
