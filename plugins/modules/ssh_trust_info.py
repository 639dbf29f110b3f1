#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_trust_info
short_description: What a host has of a cluster's SSH trust
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Reads the accounts, the settings and host keys of the SSH server, and which users have a key that this host's signing
    key of the cluster certifies. Private keys are not read.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  folder:
    description: Where the keys of the cluster are.
    type: path
    required: true
  users:
    description: The accounts that are to be trusted.
    type: list
    elements: str
    required: true
  identifier:
    description: The key id that certificates have to carry. C({user}) in it becomes the user's name.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: See which users still need a key
  gpumesh.cluster.ssh_trust_info:
    folder: /etc/gpumesh/ssh/lab
    users: [root, alice]
    identifier: "{user}@n1 gpumesh lab"
"""

RETURN = r"""
accounts:
  description: For each of O(users) C(uid), C(gid) and C(home), or null where this host has no such account.
  type: dict
  returned: success
server:
  description:
    - Settings of the SSH server. C(public_key_login) says whether keys are accepted, C(root_login) is PermitRootLogin,
      C(authorized_keys) the files of AuthorizedKeysFile.
  type: dict
  returned: success
host_keys:
  description: The public keys of the SSH server, without comments.
  type: list
  elements: str
  returned: success
signing_key:
  description: The public half of the key with which this host certifies its users. Null where there is none yet.
  type: str
  returned: success
uncertified:
  description: Those of O(users) without a key, or with one that is not certified as it should be.
  type: list
  elements: str
  returned: success
trusted:
  description: Everybody who has a key in O(folder), with the values of RV(accounts).
  type: dict
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh.trust import look


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "users": {"type": "list", "elements": "str", "required": True},
            "identifier": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    exit_with(module, lambda: Outcome(False, look(run, given["folder"], given["users"], given["identifier"])))


if __name__ == "__main__":
    main()
