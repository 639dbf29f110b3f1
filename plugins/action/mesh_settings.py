# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_settings. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.options import RECORD_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.downloads import describe_unverified
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh

_SETTING_OPTIONS = {
    "backend": {"type": "str", "choices": ["", "none", "wireguard", "tailscale"], "default": ""},
    "subnet": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 0},
    "interface": {"type": "str", "default": ""},
    "mtu": {"type": "int", "default": 0},
}
_QUERY_OPTIONS = {"rotate_keys": {"type": "bool", "default": False}, "list_relayed": {"type": "bool", "default": False}}


class ActionModule(ControllerAction):
    """Compares the given settings with the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        action_options, module_args = self.split_own_options({**RECORD_OPTIONS, **_SETTING_OPTIONS, **_QUERY_OPTIONS})
        record = self.resolve_record(module_args["record"])
        given_settings = {name: action_options[name] for name in _SETTING_OPTIONS}
        refusals = describe_unverified("mesh", self.machine, self.resolve_variable)
        if refusals:
            raise InputError(" ".join(refusals))
        if action_options["rotate_keys"]:
            mesh.refuse_rotation(record, given_settings["backend"] or record["mesh"]["backend"], self.active_hosts)
        desired_settings = mesh.changed_settings(record, given_settings)
        mesh.refuse_unconnected({**record, "mesh": {**record["mesh"], **desired_settings}}, action_options["relays"])
        result = {"changed": False, "wanted": desired_settings}
        if not action_options["list_relayed"]:
            return result
        relayed_pairs = mesh.relayed_member_pairs(record, action_options["relays"])
        if relayed_pairs:
            self.print_text(printable(render_table(relayed_pairs, ["a", "b", "relay"], width=available_width(0))))
        return {**result, "relayed": relayed_pairs}
