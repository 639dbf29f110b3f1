# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of munge. Its documentation is in the module of the same name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import munge
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    STATE_OPTION,
    HostAction,
)

_MODULE = "gpumesh.cluster.munge"


class ActionModule(HostAction):
    """Processes the manager first, then each member with the manager's key."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            manager={"type": "dict", "no_log": True},
            state=STATE_OPTION,
        )
        if task_args["state"] == "absent":
            return self.run_module(
                _MODULE, {"state": "absent", **_owner_args(self.record()), **self.supervisor_options()}
            )
        record = self.record()
        if task_args["manager"] is None:
            return self._configure_manager(record)
        return self._distribute_key(record, task_args["manager"])

    def _configure_manager(self, record: model.Record) -> dict[str, Any]:
        """Run munge on the manager. Returns its key, and a credential with its clock for the others to compare."""
        options = self.options("munge_key_file", "munge_rotate_key")
        key_path, rotate = options["munge_key_file"], options["munge_rotate_key"]
        if rotate:
            self._refuse_absent(record)
        key_args: dict[str, Any] = {"generate": not rotate, "rotate": rotate}
        if key_path:
            key_args = {"content": self._read_key_file(key_path), "replace": not self._find_absent_members(record)}
        # A manager outside the play is only queried.
        in_play = record["manager"] in self.variables["ansible_play_batch"]
        result = self._run_munge({**_owner_args(record), **key_args, "sign": True, "start": in_play}, in_play)
        if result["missing"] and not (in_play or self.check_mode):
            raise HostStateError("munge is not installed.", f"Run this with {record['manager']}.")
        return result

    def _distribute_key(self, record: model.Record, manager: Mapping[str, Any]) -> dict[str, Any]:
        """Write the key of the manager on a member, and run munge there."""
        if "fingerprint" not in manager:
            reason = manager.get("msg") or "the munge key cannot be read"
            raise HostStateError(f"{record['manager']}: {reason}")
        if not (manager.get("credential") or self.check_mode):
            raise HostStateError(
                f"The manager {record['manager']} did not sign a credential: "
                f"{manager.get('reason') or 'it was not queried'}.",
                "Check munged there.",
            )
        key_path = self.options("munge_key_file")["munge_key_file"]
        # Ansible masks a given secret wherever it is returned, so the manager does not return a given key.
        encoded_key = self._read_key_file(key_path) if key_path else manager["content"]
        module_args = {
            **_owner_args(record),
            "content": encoded_key,
            "verify": manager.get("credential"),
            "manager_name": record["manager"],
            "manager_clock_ahead": manager["clock_ahead"],
        }
        return self._run_munge(module_args, True)

    def _run_munge(self, module_args: Mapping[str, Any], install_missing: bool) -> dict[str, Any]:
        """Run the module, with the time of each call, and again after installing missing packages."""

        def timed_args() -> dict[str, Any]:
            return {**module_args, **self.supervisor_options(), "controller_time": time.time()}

        result = self.run_module(_MODULE, timed_args())
        if not result["missing"] or not install_missing or self.check_mode:
            return result
        self.install_packages(result["missing"])
        result = self.run_module(_MODULE, timed_args())
        self.refuse_missing_programs(result["missing"])
        return result

    def _read_key_file(self, key_path: str) -> str:
        """Return the key in a file as base64. Raises InputError."""
        try:
            with open(self.controller_path(key_path), "rb") as stream:
                encoded_key = munge.encode_key(stream.read())
        except OSError as failure:
            raise InputError(
                f"munge_key_file: {key_path} cannot be read: {failure.strerror}.", "Correct the path."
            ) from failure
        munge.decode_key(encoded_key)
        return encoded_key

    def _find_absent_members(self, record: model.Record) -> list[str]:
        """Return the members with munge that are not in the play, or unreachable."""
        members = {member["machine"] for member in record["members"]} - set(self.userspace_only)
        return sorted(members - set(self.variables["ansible_play_batch"]))

    def _refuse_absent(self, record: model.Record) -> None:
        """Refuse to rotate the key unless all members are in the play. Raises InputError."""
        absent_members = self._find_absent_members(record)
        if absent_members:
            raise InputError(
                f"Not in this play, or unreachable: {', '.join(absent_members)}. A new key on the others would cut them off.",
                "Run this without --limit when all members are up.",
            )


def _owner_args(record: model.Record) -> dict[str, str]:
    return {"cluster": record["name"], "cluster_id": record["id"]}
