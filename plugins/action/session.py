# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of session. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import session
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, STATE, HostAction

_MODULE = "gpumesh.cluster.session"
_RUNTIME = "session_runtime"
_NO_RUNTIME = (
    f"{_RUNTIME} has no effect: podman runs the containers of all sessions, since the other runtimes made root run texts "
    f"of users. Remove {_RUNTIME} from the inventory. The users of sessions need subordinate IDs (/etc/subuid)."
)


class ActionModule(HostAction):
    """Derives the settings from the record and the options of the role, and installs packages and the program."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(record=RECORD, state=STATE)
        if given["state"] == "absent":
            return self.module(_MODULE, {"state": "absent"})
        result = self._present()
        return (
            {**result, "warnings": [*result.get("warnings", []), _NO_RUNTIME]} if _RUNTIME in self.variables else result
        )

    def _present(self) -> dict[str, Any]:
        parameters = session.desired(self.record(), self.machine, self.options("session", *session.OPTIONS))
        if parameters["state"] == "absent":
            # The module slurm, which runs anyway, reports whether anything is here, and its action removes it.
            return {"changed": False, "missing": []}
        result = self.equipped_module(_MODULE, parameters, lambda found: session.packages(found["missing"]))
        self.refuse_missing(result["missing"])
        return self.supply(_MODULE, parameters, result, session.contents)
