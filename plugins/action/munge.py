# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of munge. Its documentation is in the module of the same name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import munge
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction

_MODULE = "gpumesh.cluster.munge"


class ActionModule(HostAction):
    """Processes the manager first, then each member with the manager's key."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            key_file={"type": "path", "no_log": False},
            rotate_key={"type": "bool", "default": False, "no_log": False},
            max_clock_skew={"type": "int", "default": 60},
            manager={"type": "dict", "no_log": True},
            state=STATE,
        )
        if given["state"] == "absent":
            return self.module(_MODULE, {"state": "absent", **_owner(self.record()), **self.supervisor()})
        record = self.record()
        if given["manager"] is None:
            return self._manager(record, given["key_file"], given["rotate_key"])
        return self._member(record, given["key_file"], given["max_clock_skew"], given["manager"])

    def _manager(self, record: model.Record, path: str | None, rotate: bool) -> dict[str, Any]:
        """The manager's key, and a credential with the manager's clock for the others to compare."""
        if rotate:
            self._refuse_absent(record)
        key: dict[str, Any] = {"generate": not rotate, "rotate": rotate}
        if path:
            key = {"content": self._read(path), "replace": not self._absent(record)}
        # If it is not in the play, it is only queried.
        start = record["manager"] in self.variables["ansible_play_batch"]
        result = self._run({**_owner(record), **key, "sign": True, "start": start}, start)
        if result["missing"] and not (start or self.check_mode):
            raise HostStateError("munge is not installed.", f"Run this with {record['manager']}.")
        return result

    def _member(self, record: model.Record, path: str | None, most: int, manager: Mapping[str, Any]) -> dict[str, Any]:
        """The key of the manager on a member."""
        if "fingerprint" not in manager:
            reason = manager.get("msg") or "the munge key cannot be read"
            raise HostStateError(f"{record['manager']}: {reason}")
        if not (manager.get("credential") or self.check_mode):
            raise HostStateError(
                f"The manager {record['manager']} has not signed a credential: "
                f"{manager.get('reason') or 'it was not asked'}.",
                "Check munged there.",
            )
        # Ansible masks a given secret wherever it is returned, so the manager does not return a given key.
        content = self._read(path) if path else manager["content"]
        parameters = {
            **_owner(record),
            "content": content,
            "verify": manager.get("credential"),
            "manager_name": record["manager"],
            "manager_ahead": manager["ahead"],
            "max_clock_skew": most,
        }
        return self._run(parameters, True)

    def _run(self, parameters: Mapping[str, Any], equip: bool) -> dict[str, Any]:
        """Run the module, with the time of each call, and again after installing missing packages."""

        def asked() -> dict[str, Any]:
            return {**parameters, **self.supervisor(), "asked_at": time.time()}

        result = self.module(_MODULE, asked())
        if not result["missing"] or not equip or self.check_mode:
            return result
        self.install(result["missing"])
        result = self.module(_MODULE, asked())
        self.refuse_missing(result["missing"])
        return result

    def _read(self, path: str) -> str:
        """The key in base64. Raises InputError."""
        try:
            with open(self.controller_path(path), "rb") as stream:
                content = munge.encode(stream.read())
        except OSError as failure:
            raise InputError(
                f"munge_key_file: {path} cannot be read: {failure.strerror}.", "Correct the path."
            ) from failure
        munge.decode(content)
        return content

    def _absent(self, record: model.Record) -> list[str]:
        """The members with munge that are not in the play, or unreachable."""
        members = {member["machine"] for member in record["members"]} - set(self.userspace_only)
        return sorted(members - set(self.variables["ansible_play_batch"]))

    def _refuse_absent(self, record: model.Record) -> None:
        """Refuse to rotate the key unless all members are in the play. Raises InputError."""
        absent = self._absent(record)
        if absent:
            raise InputError(
                f"Not in this play, or unreachable: {', '.join(absent)}. A new key on the others would cut them off.",
                "Run this without --limit when all members are up.",
            )


def _owner(record: model.Record) -> dict[str, str]:
    return {"cluster": record["name"], "cluster_id": record["id"]}
