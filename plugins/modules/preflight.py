#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight
short_description: Check that a host has what the layers need but cannot set up
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Finds what the roles would refuse on this host, before the cluster record is written or a layer is set up.
  - Reports all problems at once. Changes nothing.
  - The options of the module are derived from the options of the roles and the decision of
    M(gpumesh.cluster.cluster_registration). This happens on the controller.
  - "Reads these options of roles: C(cluster_name), C(cluster_unsupported_release), C(session_allow), C(session_enabled),
    C(session_mounts_allowed), C(session_nat), C(session_storage_dir), C(session_subnets), C(slurm_accounting),
    C(slurm_rest), C(slurm_rest_address), C(ssh_trust_users), C(storage_backend)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  cluster:
    description: The name of the cluster.
    type: str
    required: true
  registration:
    description: The name of the variable with the result of M(gpumesh.cluster.cluster_registration).
    type: str
  users:
    description: The users that must exist.
    type: list
    elements: str
    default: []
  external:
    description: The volumes without a server, each with C(volume), C(mount_point), C(filesystem) and C(read_only).
    type: list
    elements: dict
    default: []
  quotas:
    description: The volumes with a quota that this host serves, each with C(name), C(path) and C(quota).
    type: list
    elements: dict
    default: []
  programs:
    description:
      - The programs that must be there or in packages, each with the names of its packages.
      - Packages are only looked for where apt has read its sources since they were changed.
    type: dict
    default: {}
  slurm:
    description: Whether the host gets Slurm, which must not be older than the first release with dynamic nodes.
    type: bool
    default: false
  unsupported_release:
    description: Whether the release of the host may be another one than those on which the collection is known to run.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Check what the layers will need
  gpumesh.cluster.preflight:
    registration: decision
  any_errors_fatal: true
  when: inventory_hostname in decision.preflight.machines
"""

RETURN = r"""
error:
  description: Why the layers could not be set up on this host.
  returned: failure
  type: dict
  contains:
    refusals:
      description: Each reason, with its remedy. RV(ignore:msg) has all of them.
      type: list
      elements: str
  sample:
    refusals:
      - "ssh_trust_users: there is no user alice. Create the account on every member, or remove the name from
        ssh_trust_users."
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks import preflight
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree


def work(params: Dict[str, Any]) -> ModuleResult:
    """Refuse a host that lacks something that the layers need."""
    preflight.refuse_unmet(
        run,
        Tree(),
        preflight.HostRequirements(
            params["cluster"],
            params["users"],
            params["external"],
            params["quotas"],
            params["programs"],
            params["slurm"],
            params["unsupported_release"],
        ),
    )
    return ModuleResult(False, {})


def main() -> None:
    """The module's entry point."""
    entries_option = {"type": "list", "elements": "dict", "default": []}
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            # The action of the same name reads this option.
            "registration": {"type": "str"},
            "users": {"type": "list", "elements": "str", "default": []},
            "external": entries_option,
            "quotas": entries_option,
            "programs": {"type": "dict", "default": {}},
            "slurm": {"type": "bool", "default": False},
            "unsupported_release": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()
