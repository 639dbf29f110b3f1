# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_settings. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.downloads import unverified
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room

_SETTINGS = {
    "backend": {"type": "str", "choices": ["", "none", "wireguard", "tailscale"], "default": ""},
    "subnet": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 0},
    "interface": {"type": "str", "default": ""},
    "mtu": {"type": "int", "default": 0},
}
_QUESTIONS = {"rotate_keys": {"type": "bool", "default": False}, "list_relayed": {"type": "bool", "default": False}}


class ActionModule(ControllerAction):
    """Compares the given settings with the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options({**RECORD_OPTIONS, **_SETTINGS, **_QUESTIONS})
        record = self.named(given["record"])
        settings = {name: options[name] for name in _SETTINGS}
        refusals = unverified("mesh", self.machine, self.variable)
        if refusals:
            raise InputError(" ".join(refusals))
        if options["rotate_keys"]:
            mesh.refuse_rotation(record, settings["backend"] or record["mesh"]["backend"], self.present)
        wanted = mesh.wanted_settings(record, settings)
        mesh.refuse_unconnected({**record, "mesh": {**record["mesh"], **wanted}}, options["relays"])
        result = {"changed": False, "wanted": wanted}
        if not options["list_relayed"]:
            return result
        pairs = mesh.relayed(record, options["relays"])
        if pairs:
            self.print_text(printable(render(pairs, ["a", "b", "relay"], width=room(0))))
        return {**result, "relayed": pairs}
