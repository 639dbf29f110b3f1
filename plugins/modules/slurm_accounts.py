#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_accounts
short_description: Manage accounts, users and qualities of service in slurmdbd
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Creates qualities of service (QOS), accounts and users in slurmdbd, and sets their limits.
  - Never deletes anything, since the job history of an account is deleted with it.
  - A setting that is not given is left unchanged. A given list of TRES, such as C(MaxTRESPerUser), is complete. Limits
    that are not in it are lifted.
  - The order of the entries does not matter. Accounts are added after their C(Parent), and a QOS preempts others once all
    of them exist.
  - Slurm enforces the limits only if C(AccountingStorageEnforce) is set in C(slurm.conf).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.internal
options:
  cluster:
    description: The name of the cluster to which the accounts belong.
    type: str
    required: true
  qos:
    description: The settings of each QOS by name, as in C(sacctmgr).
    type: dict
    default: {}
  accounts:
    description:
      - The settings of each account by name, as in C(sacctmgr), and C(users), a list of names.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Let alice and bob run long jobs on four GPUs each
  gpumesh.cluster.slurm_accounts:
    cluster: lab
    qos:
      long:
        MaxWall: 7-00:00:00
        MaxTRESPerUser: gres/gpu=4
    accounts:
      research:
        Description: The research group
        QOS: [normal, long]
        users: [alice, bob]
"""

RETURN = r"""
commands:
  description: The commands that were run, or would be run in check mode.
  type: list
  elements: str
  returned: success
  sample: [sacctmgr --immediate add qos long maxwall=7-00:00:00]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(argument_spec=dict(accounts.OPTIONS), supports_check_mode=True)
    exit_with(module, lambda: accounts.work(module.params, module.check_mode))


if __name__ == "__main__":
    main()
