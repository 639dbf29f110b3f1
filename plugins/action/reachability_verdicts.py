# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of reachability_verdicts. Its documentation is in the module of the same name."""

from __future__ import annotations

from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils import reach_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_verdicts import judge
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reachability import LAYER, ReachabilityAction

_NAME = {"type": "str", "required": True}


class ActionModule(ReachabilityAction):
    """Reads and evaluates the results of the hosts of the play about each other."""

    _requires_connection = False

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            members={"type": "raw", "required": True},
            layer=LAYER,
            run={"type": "str", "default": ""},
            registered={
                "type": "dict",
                "required": True,
                "options": {"listen": _NAME, "probe": _NAME, "throughput": {"type": "str"}},
            },
            max_clock_offset={"type": "float", "default": 5},
            show={"type": "bool", "default": False},
        )
        members = self.targets(given["members"], given["layer"])
        asked = self.asked(members)
        results = {phase: self.registered(name, asked) for phase, name in given["registered"].items() if name}
        verdicts = {
            **judge(results, members, max_clock_offset=given["max_clock_offset"]),
            "layer": given["layer"],
            "run": given["run"],
        }
        text = reach_matrix.draw(verdicts["pairs"])
        if given["show"]:
            self.print_text(text)
        return {"changed": False, "verdicts": verdicts, "text": text}
