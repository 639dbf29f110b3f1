#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_overview
short_description: Show every cluster in the records of the hosts of a play
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Shows the subnet, manager, generation and members of each cluster, the state of each member's copy, and the differences
    from the record. Unreachable hosts are listed.
  - Passes the clusters to the next job of a workflow as C(gpumesh_clusters).
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - "Reads these options of roles: C(check_report_dir), C(cluster_name), C(cluster_output)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  registered:
    description: The name of the variable in which a task has registered M(gpumesh.cluster.cluster_info) on the hosts.
    type: str
    required: true
  copies:
    description: The name of the variable in which M(gpumesh.cluster.cluster_copies) is registered.
    type: str
    required: true
  tailnet:
    description: The name of the variable in which M(gpumesh.cluster.tailscale) is registered in check mode.
    type: str
    required: true
  host:
    description: The name of the variable in which M(gpumesh.cluster.layer_info) is registered.
    type: str
    required: true
  volumes:
    description: The name of the variable in which M(gpumesh.cluster.volume_probe) is registered.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Show the clusters
  gpumesh.cluster.cluster_overview:
    registered: cluster_info
    copies: copies
    tailnet: tailnet
    host: layers
    volumes: volumes
  run_once: true
"""

RETURN = r"""
text:
  description: What was printed.
  returned: success
  type: str
clusters:
  description: The clusters, by name.
  returned: success
  type: list
  elements: dict
"""

# The work is done by the action plugin of the same name.
