#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: layer_plan
short_description: Decide which layers a run has to enter
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Decides from the comparisons of all hosts with the record which layers have anything to do.
  - Runs only on the controller, once for all hosts of the play. Set C(run_once).
  - A layer in which any host differs is entered on all hosts, and so are all later ones, which may depend on it. A layer of which a
    part cannot be compared is always entered.
  - "Reads these options of roles: C(mesh_backend), C(mesh_interface), C(mesh_mtu), C(mesh_port), C(mesh_preshared_keys),
    C(mesh_rotate_keys), C(mesh_rotate_preshared_keys), C(mesh_subnet), C(munge_key_file), C(munge_rotate_key),
    C(slurm_rest), C(slurm_rest_address), C(storage_backend), C(storage_volumes), C(tracking_server)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  record:
    description: The cluster record, or the name of the variable that holds it.
    type: raw
    required: true
  registered:
    description: The variable in which M(gpumesh.cluster.layer_info) was registered.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Compare the layers with the record
  gpumesh.cluster.layer_info:
    record: cluster_record
  register: layer_states

- name: Plan the layers
  gpumesh.cluster.layer_plan:
    record: cluster_record
    registered: layer_states
  register: layer_plan
  run_once: true
"""

RETURN = r"""
layers:
  description: The layers to enter, in the order of their setup.
  type: list
  elements: str
  returned: success
  sample: [storage, ssh_trust, munge, job_environment, session, slurm, train]
generation:
  description: The generation of the record for which this was decided.
  type: int
  returned: success
  sample: 7
reasons:
  description: Why each of them is entered. Empty for one that is entered in any case.
  type: dict
  returned: success
  sample: {storage: "n2: /etc/exports.d/gpumesh-lab.exports differs"}
"""
