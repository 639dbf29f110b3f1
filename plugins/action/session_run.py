# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of session_run. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import sessions
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import session
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, HostAction

_MODULE = "gpumesh.cluster.session_run"
#: Seconds between two queries.
_SPACING = 2.0
_OWN = {
    "record": RECORD,
    "wait": {"type": "bool", "default": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "roles": {"type": "raw", "default": []},
}


class ActionModule(HostAction):
    """Starts the session on the host, and follows it until its containers run."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.refuse_converted("session", "run")
        own, given = self.own_options(_OWN)
        record = self.record()
        options = self.options("session", *session.OPTIONS)
        if not options["enabled"]:
            raise InputError(
                "There are no sessions on this cluster.",
                "Set session_enabled: true for all members, and run the playbook site.",
            )
        given.update(state=own["state"], settings=session.settings(record, record["manager"], options))
        roles = session.roles(own["roles"])
        # One string, which the module keeps out of every log.
        given.update({"roles": json.dumps(roles, default=str)} if roles else {})
        result = self.module(_MODULE, given)
        changed, log = result["changed"], result["log"]
        follows = own["wait"] and own["state"] == "present" and not self.check_mode
        if follows:
            look = {"name": given["name"], "state": "followed", "job": result["job"]}
            result = self.follow(result, _begins, lambda: {**self.module(_MODULE, look), "log": log}, _SPACING)
        if follows and result["session_state"] == "failed":
            raise HostStateError(
                f"The session '{given['name']}' has failed: {result['reason']}",
                sessions.where_to_look(log, result["host"]),
            )
        return {**result, "changed": changed}


def _begins(result: Mapping[str, Any]) -> bool:
    return result["session_state"] in ("waiting", "fetching", "starting")
