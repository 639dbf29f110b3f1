# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard_rotation, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import ROTATION_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh


class ActionModule(HostAction):
    """Determines the peers for the key rotation of the host, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options(ROTATION_OPTIONS)
        record = self.resolve_record(module_args.pop("record", None))
        rotation_step = action_options["step"]
        if record is None:
            return self.run_module("gpumesh.cluster.wireguard_rotation", {**module_args, "step": rotation_step})
        mesh.refuse_rotation(record, record["mesh"]["backend"], self.active_hosts)
        if self.machine not in mesh.enrolled_machines(record):
            return {"skipped": True, "skip_reason": f"{self.machine} has no tunnel yet, so it has no key to rotate."}
        prepared_results = (
            self.registered_results(action_options["prepared"], self.active_hosts) if action_options["prepared"] else {}
        )
        rotation_args = mesh.rotation_options(
            record, self.machine, self.options("mesh_relays")["mesh_relays"], rotation_step, prepared_results
        )
        result = self.run_module("gpumesh.cluster.wireguard_rotation", {**rotation_args, **module_args})
        registration_entry = mesh.key_registration(record, self.machine, result.get("public_key"))
        return {**result, "registration": registration_entry} if registration_entry else result
