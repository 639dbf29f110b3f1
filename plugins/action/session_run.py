# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of session_run. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import sessions
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import RECORD_OPTION, HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import session

_MODULE, _INFO_MODULE = "gpumesh.cluster.session_run", "gpumesh.cluster.session_run_info"
#: Seconds between two queries.
_POLL_INTERVAL = 2.0
_ACTION_OPTIONS = {
    "record": RECORD_OPTION,
    "wait": {"type": "bool", "default": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "roles": {"type": "raw", "default": []},
}


class ActionModule(HostAction):
    """Starts the session on the host, and follows it until its containers run."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        self.refuse_converted_options("session", "run")
        action_options, module_args = self.split_own_options(_ACTION_OPTIONS)
        record = self.record()
        session_options = self.options(*session.ROLE_OPTIONS)
        if not session_options["session_enabled"]:
            raise InputError(
                "There are no sessions on this cluster.",
                "Set session_enabled: true for all members, and run the playbook site.",
            )
        module_args.update(
            state=action_options["state"], settings=session.session_settings(record, record["manager"], session_options)
        )
        roles = session.parse_roles(action_options["roles"])
        # The roles are passed as one string, which the module keeps out of every log.
        module_args.update({"roles": json.dumps(roles, default=str)} if roles else {})
        result = self.run_module(_MODULE, module_args)
        changed, log_path = result["changed"], result["log"]
        is_followed = action_options["wait"] and action_options["state"] == "present" and not self.check_mode
        if is_followed:
            info_args = {"name": module_args["name"], "job": result["job"]}
            result = self.follow_progress(
                result,
                _is_starting,
                lambda: {**self.run_module(_INFO_MODULE, info_args), "log": log_path},
                _POLL_INTERVAL,
            )
        if is_followed and result["session_state"] == "failed":
            raise HostStateError(
                f"The session '{module_args['name']}' has failed: {result['reason']}",
                sessions.log_remedy(log_path, result["host"]),
            )
        return {**result, "changed": changed}


def _is_starting(result: Mapping[str, Any]) -> bool:
    return result["session_state"] in ("waiting", "fetching", "starting")
