#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: host_owner
short_description: Record which cluster owns the unique parts of a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - A host can be in several clusters, but has only one munge key, one job environment and one Slurm. This module records
    the cluster that sets them up, and refuses other clusters while the host is a member of the first one.
  - The owners are stored in C(owners.json), next to the directory of the records.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record
  - gpumesh.cluster.internal
options:
  cluster:
    description: The name of the cluster.
    type: str
    required: true
  cluster_id:
    description: The id of the cluster in the record.
    type: str
    required: true
  claims:
    description: The parts of the host that the cluster takes ownership of. Without any, nothing is changed.
    type: list
    elements: str
    choices: [munge, job_environment, slurm]
    default: []
  state:
    description: V(absent) releases everything that the cluster owns on the host.
    type: str
    choices: [present, absent]
    default: present
"""

EXAMPLES = r"""
- name: Take ownership of the munge key of this host
  gpumesh.cluster.host_owner:
    cluster: "{{ cluster_record.name }}"
    cluster_id: "{{ cluster_record.id }}"
    claims: [munge]
"""

RETURN = r"""
member:
  description: Whether the host has a copy of the cluster's record, or anything that the cluster owned.
  type: bool
  returned: success
foreign_claims:
  description: The parts of the host that other clusters own, or a Slurm that this collection has not set up.
  type: list
  elements: str
  returned: success
  sample: [munge, slurm]
"""

from typing import List

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster import claims
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import interface
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import configure


def work(module: AnsibleModule) -> ModuleResult:
    """Read the claims of the clusters on this host, and write or remove those of this cluster."""
    params = module.params
    cluster_owner = claims.Owner(params["cluster"], params["cluster_id"])
    claim = claims.plan_claims(params["path"], cluster_owner, None if params["state"] == "absent" else params["claims"])
    if not module.check_mode:
        claims.write_claims(claim)
    values = {"member": claim.is_member, "foreign_claims": list_other_claims(claim)}
    return ModuleResult(claim.changed, values, claim.before or "", claim.after or "", claim.path)


def list_other_claims(claim: claims.ClaimsPlan) -> List[str]:
    """Return what belongs to others on this host.

    A Slurm that somebody else has set up has no owner in the file, and must not be removed with a cluster of ours.
    """
    foreign_services = ["munge", "slurm"] if configure.find_foreign_config(configure.CONFIG_DIRECTORY, Tree()) else []
    return sorted({*claim.foreign_claims, *foreign_services})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "cluster_id": {"type": "str", "required": True},
            "claims": {"type": "list", "elements": "str", "choices": list(claims.CLAIMABLE_LAYERS), "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            **interface.STORE_OPTIONS,
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
