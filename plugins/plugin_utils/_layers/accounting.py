# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's accounting in a host's MariaDB, for the actions that create, save and delete it."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.database import DATABASE_NAME
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.slurm_run import run_slurm_module

_DATABASE_MODULE = "gpumesh.cluster.slurm_database"
_DATABASE_ACCOUNT: dict[str, Any] = {"name": "slurm", "host": "localhost", "column_case_sensitive": True}
#: MariaDB's own databases.
_SYSTEM_DATABASES = {"information_schema", "mysql", "performance_schema", "sys"}


class SlurmAccounting:
    """The accounting database. MariaDB is started with it, since only MariaDB can read, change or delete the data."""

    def __init__(self, action: HostAction) -> None:
        """Run MariaDB. Raises ModuleFailedError if that is impossible."""
        self._action = action
        self._slurm_result = run_slurm_module(action, {"state": "stored", "programs": list(slurm.DATABASE_PROGRAMS)})
        self.socket = str(self._slurm_result["socket"])
        self._login_options = {"login_unix_socket": self.socket}
        self.changed = bool(self._slurm_result["changed"])

    def create(self) -> None:
        """Create the database or its account if missing, and load the accounting saved by the former manager."""
        if not self._slurm_result["database"]:
            return
        self._run_module(
            "community.mysql.mysql_user",
            **self._login_options,
            **_DATABASE_ACCOUNT,
            plugin="unix_socket",
            priv=f"{DATABASE_NAME}.*:ALL",
        )
        # The database is created last, followed only by loading, after which the file is deleted: an interrupted run
        # is continued here.
        self._run_module("community.mysql.mysql_db", **self._login_options, name=DATABASE_NAME)
        self._transfer("loaded")

    def save(self) -> None:
        """Write the accounting to a file next to the queue."""
        self._transfer("saved")

    def delete(self) -> None:
        """Delete the database and its account, and stop MariaDB unless it has other databases."""
        self._run_module("community.mysql.mysql_db", **self._login_options, name=DATABASE_NAME, state="absent")
        self._run_module("community.mysql.mysql_user", **self._login_options, **_DATABASE_ACCOUNT, state="absent")
        self.stop()

    def stop(self) -> None:
        """Stop MariaDB, unless it has other databases. The accounting is kept."""
        query_options = {
            "filter": ["databases"],
            "exclude_fields": ["db_size"],
            "return_empty_dbs": True,
            **self._login_options,
        }
        existing_databases = self._action.run_module("community.mysql.mysql_info", query_options)["databases"]
        if set(existing_databases) <= {*_SYSTEM_DATABASES, DATABASE_NAME}:
            self.changed = self._action.stop_daemon("mariadb") or self.changed

    def _transfer(self, state: str) -> None:
        # The database may not exist yet in check mode.
        if not self._action.check_mode:
            self._run_module(_DATABASE_MODULE, socket=self.socket, state=state)

    def _run_module(self, module_name: str, **arguments: Any) -> None:
        module_result = self._action.run_module(module_name, arguments)
        self.changed = self.changed or bool(module_result.get("changed"))
