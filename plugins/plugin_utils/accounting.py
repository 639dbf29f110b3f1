# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's accounting in a host's MariaDB, for the actions that create, save and delete it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.slurm_run import run_slurm

_MODULE = "gpumesh.cluster.slurm_database"
_ACCOUNT: dict[str, Any] = {"name": "slurm", "host": "localhost", "column_case_sensitive": True}
#: MariaDB's own databases.
_SYSTEM = {"information_schema", "mysql", "performance_schema", "sys"}


class Accounting:
    """The accounting. MariaDB is started with it, since only MariaDB can read, change or delete the data."""

    def __init__(self, action: HostAction) -> None:
        """Raises ModuleFailedError if MariaDB cannot be run."""
        self._action = action
        self._run = run_slurm(action, {"state": "stored", "programs": ["mariadbd"]})
        self.socket = str(self._run["socket"])
        self._login = {"login_unix_socket": self.socket}
        self.changed = bool(self._run["changed"])

    def create(self) -> None:
        """Create the database if it is missing, and load the accounting saved by the former manager."""
        if not self._run["database"]:
            return
        self._do(
            "community.mysql.mysql_user",
            **self._login,
            **_ACCOUNT,
            plugin="unix_socket",
            priv=f"{slurm.DATABASE}.*:ALL",
        )
        # Created last, followed only by loading: if the database exists, everything before has been done, and the file
        # is deleted once it is loaded.
        self._do("community.mysql.mysql_db", **self._login, name=slurm.DATABASE)
        self._carry("loaded")

    def save(self) -> None:
        """Write the accounting to a file next to the queue."""
        self._carry("saved")

    def delete(self) -> None:
        """Delete the database and its account, and stop MariaDB unless it has other databases."""
        self._do("community.mysql.mysql_db", **self._login, name=slurm.DATABASE, state="absent")
        self._do("community.mysql.mysql_user", **self._login, **_ACCOUNT, state="absent")
        self.stop()

    def stop(self) -> None:
        """Stop MariaDB, unless it has other databases. The accounting is kept."""
        asked = {"filter": ["databases"], "exclude_fields": ["db_size"], "return_empty_dbs": True, **self._login}
        found = self._action.module("community.mysql.mysql_info", asked)["databases"]
        if set(found) <= {*_SYSTEM, slurm.DATABASE}:
            self.changed = self._action.stop_daemon("mariadb") or self.changed

    def _carry(self, state: str) -> None:
        # In check mode, the database may not exist yet.
        if not self._action.check_mode:
            self._do(_MODULE, socket=self.socket, state=state)

    def _do(self, module: str, **arguments: Any) -> None:
        done = self._action.module(module, arguments)
        self.changed = self.changed or bool(done.get("changed"))
