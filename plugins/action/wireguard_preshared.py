# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of wireguard_preshared, whose documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.options import RECORD_OPTIONS
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction


class ActionModule(HostAction):
    """Determines the peers with which the host shares a key, and runs the module."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        options, given = self.own_options(RECORD_OPTIONS)
        record = self.named(given.pop("record", None))
        if record is not None:
            given = {
                "interface": record["mesh"]["interface"],
                "machine": self.machine,
                "peers": mesh.pairs(record, self.machine, options["relays"], self.present),
                **given,
            }
        return self.module("gpumesh.cluster.wireguard_preshared", given)
