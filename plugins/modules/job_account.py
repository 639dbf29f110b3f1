#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_account
short_description: Refuse an account that can become root
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Fails if the account as which commands of users are to run is root, or can become root on the host. These are members
    of groups such as C(sudo) and C(docker), accounts that sudo lets run commands, and those of munge and Slurm.
  - Run it as root. Otherwise, sudo names only what an account may do without a password.
  - The variable that O(option) names allows it nevertheless, if it is set in the inventory. It does not count as an extra
    variable, since whoever starts a job may set these, as in a survey of AWX.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  user:
    description: The account. Empty means the one as which Ansible connects.
    type: str
    default: ""
  option:
    description: The name of the variable with which the inventory allows such accounts.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Refuse an account that can become root
  gpumesh.cluster.job_account:
    user: alice
    option: train_privileged
"""

RETURN = r"""
user:
  description: The account.
  type: str
  returned: success
  sample: alice
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.privileges import explain_root_access


def work(module: AnsibleModule) -> ModuleResult:
    """Refuse an account that can become root."""
    user, option = module.params["user"], module.params["option"]
    root_reason = explain_root_access(run, find_program, user)
    if root_reason:
        account_name = f"The account {user}" if user else "The account as which Ansible connects"
        raise HostStateError(
            f"{account_name} can become root on {os.uname().nodename}: {root_reason}. Commands of users do not run as such an account.",
            f"Choose an account that cannot. Or set {option}: true in the inventory, not as an extra variable, if whoever "
            "may start this playbook may be root.",
        )
    return ModuleResult(False, {"user": user})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"user": {"type": "str", "default": ""}, "option": {"type": "str", "required": True}},
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
