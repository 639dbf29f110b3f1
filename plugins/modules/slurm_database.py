#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_database
short_description: Save the accounting of slurmdbd to a file, or load it from there
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Transfers the accounting from one manager to another, with MariaDB's own tools on both.
  - The file comes from another machine. It is loaded by a client with its commands disabled, with the rights of
    O(user), which has access to one database only.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: none
    details:
      - A diff would contain the whole database.
  idempotent:
    support: partial
    details:
      - V(saved) saves the accounting on every run. V(loaded) deletes the file, so that the next run has nothing to do.
options:
  state:
    description:
      - V(saved) writes the database to O(path), readable only by O(user).
      - V(loaded) loads O(path) into the database and deletes it. If there is no file, nothing is done.
    type: str
    choices: [saved, loaded]
    required: true
  path:
    description: The file.
    type: path
    default: /var/lib/slurm/slurmctld/accounting.sql
  database:
    description: The name of the database, which must exist.
    type: str
    default: slurm_acct_db
  socket:
    description: The socket on which MariaDB listens.
    type: path
    default: /run/mysqld/mysqld.sock
  user:
    description: The system account, also an account in MariaDB, that owns the database and the directory of O(path).
    type: str
    default: slurm
"""

EXAMPLES = r"""
- name: Save the accounting on the former manager
  gpumesh.cluster.slurm_database:
    state: saved
  delegate_to: n1

- name: Load it on the new manager
  gpumesh.cluster.slurm_database:
    state: loaded
"""

RETURN = r"""
path:
  description: The file.
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import database


def work(module: AnsibleModule) -> ModuleResult:
    """Save or load the database."""
    params = module.params
    path = params["path"]
    target_database = database.AccountingDatabase(params["database"], params["socket"], params["user"])
    is_saving = params["state"] == "saved"
    changed = is_saving or database.dump_exists(path)
    if changed and not module.check_mode:
        (database.save_dump if is_saving else database.load_dump)(target_database, path)
    return ModuleResult(changed, {"path": path})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["saved", "loaded"], "required": True},
            "path": {"type": "path", "default": "/var/lib/slurm/slurmctld/accounting.sql"},
            "database": {"type": "str", "default": database.DATABASE_NAME},
            "socket": {"type": "path", "default": "/run/mysqld/mysqld.sock"},
            "user": {"type": "str", "default": "slurm"},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
