#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_drain
short_description: Drain machines of a cluster in Slurm before they leave it or reboot, or refuse to
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Run it on the manager, with C(run_once) and C(delegate_to).
  - Fails while jobs run on O(machines), unless C(cluster_drain_timeout) or C(cluster_force) is set. Without O(machines),
    it fails while the cluster is in use by a job or one of the users in O(usage).
  - Without a controller, or with one that belongs to another cluster, there is nothing to drain.
  - "Reads these options of roles: C(cluster_drain_timeout), C(cluster_force)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.internal
options:
  record:
    description: The cluster record, or the name of the variable that holds it.
    type: raw
    required: true
  machines:
    description: The machines to remove, to reboot or to withdraw from Slurm. If not set, the whole cluster is deleted.
    type: list
    elements: str
  unreachable:
    description: Unreachable machines, which are deleted from Slurm.
    type: list
    elements: str
    default: []
  handing_over:
    description: Whether this machine hands over the cluster, so that it must have the current queue.
    type: bool
    default: false
  drain:
    description: Whether to drain. V(false) only checks if there is a scheduler.
    type: bool
    default: true
  purpose:
    description:
      - Why O(machines) are drained, which is the reason in Slurm.
      - For a V(reboot), the jobs that have not ended in time are named, and a node that an earlier run has drained for
        that returns to service as well.
      - V(withdrawal) is for members that stay in the cluster, but run no jobs any more.
    type: str
    choices: [removal, reboot, withdrawal]
    default: removal
  usage:
    description: The name of the variable in which M(gpumesh.cluster.usage_info) is registered on the hosts.
    type: str
"""

EXAMPLES = r"""
- name: Drain a machine
  gpumesh.cluster.cluster_drain:
    record: cluster_record
    machines: [gpu2]
  delegate_to: "{{ cluster_record.manager }}"
  run_once: true
"""

RETURN = r"""
scheduler:
  description: Whether the cluster's Slurm is set up on the host.
  returned: success
  type: bool
foreign:
  description: Whether the Slurm of the host belongs to another cluster. It is not changed.
  returned: success
  type: bool
nodes:
  description: The nodes among the machines.
  returned: success
  type: list
  elements: str
drained:
  description: The nodes that were drained, or would be.
  returned: success
  type: list
  elements: str
left_alone:
  description: With O(purpose=reboot), the nodes that others had taken out of service, with their reasons.
  returned: success
  type: dict
  sample: {gpu3: replacing the fan}
jobs:
  description: The jobs that were running there.
  returned: success
  type: list
  elements: str
"""

# The work is done by the action plugin of the same name.
