# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of mesh_settings. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.downloads import (
    describe_unverified,
    download_options,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import mesh


class ActionModule(ControllerAction):
    """Compares the given settings with the record."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        own_args, other_args = self.split_own_options({"list_relayed": {"type": "bool", "default": False}})
        record = self.resolve_record(other_args["record"])
        options = self.options(*mesh.SETTING_OPTIONS, "mesh_relays", "mesh_rotate_keys", *download_options("mesh"))
        given_settings = mesh.select_settings(options)
        refusals = describe_unverified("mesh", self.machine, options)
        if refusals:
            raise InputError(" ".join(refusals))
        if options["mesh_rotate_keys"]:
            mesh.refuse_rotation(record, given_settings["backend"] or record["mesh"]["backend"], self.active_hosts)
        desired_settings = mesh.changed_settings(record, given_settings)
        mesh.refuse_unconnected({**record, "mesh": {**record["mesh"], **desired_settings}}, options["mesh_relays"])
        result = {"changed": False, "settings": desired_settings}
        if not own_args["list_relayed"]:
            return result
        relayed_pairs = mesh.relayed_member_pairs(record, options["mesh_relays"])
        if relayed_pairs:
            self.print_text(printable(render_table(relayed_pairs, ["a", "b", "relay"], width=available_width(0))))
        return {**result, "relayed": relayed_pairs}
