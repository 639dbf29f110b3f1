# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard_rotation, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD_OPTIONS, ROTATION_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction


class ActionModule(HostAction):
    """Determines the peers for the key rotation of the host, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({**RECORD_OPTIONS, **ROTATION_OPTIONS})
        record = self.named(given.pop("record", None))
        step = options["step"]
        if record is None:
            return self.module("gpumesh.cluster.wireguard_rotation", {**given, "step": step})
        mesh.refuse_rotation(record, record["mesh"]["backend"], self.present)
        if self.machine not in mesh.enrolled(record):
            return {"skipped": True, "skip_reason": f"{self.machine} has no tunnel yet, and so no key to change."}
        prepared = self.registered(options["prepared"], self.present) if options["prepared"] else {}
        arguments = mesh.rotation(record, self.machine, options["relays"], step, prepared)
        result = self.module("gpumesh.cluster.wireguard_rotation", {**arguments, **given})
        entry = mesh.key_registration(record, self.machine, result.get("public_key"))
        return {**result, "registration": entry} if entry else result
