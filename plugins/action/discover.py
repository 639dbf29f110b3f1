# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of discover. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.addresses import normalise_subnet
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction, stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.discovery import page, report
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room

_PATTERNS = {"type": "list", "elements": "str", "default": []}


class ActionModule(ControllerAction):
    """Reads the results of interface_info on all hosts of the play, and shows them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            registered={"type": "str", "required": True},
            output={"type": "str", "choices": ["table", "json"], "default": "table"},
            facts_file={"type": "path", "default": ""},
            subnet={"type": "str", "default": ""},
            prefer=_PATTERNS,
            exclude=_PATTERNS,
            include=_PATTERNS,
            table_style={"type": "str", "choices": ["unicode", "ascii"], "default": "unicode"},
            table_width={"type": "int", "default": 0},
        )
        patterns = {name: given[name] for name in ("prefer", "exclude", "include")}
        if given["subnet"]:
            # Under the name by which people have set it.
            normalise_subnet(given["subnet"], "discover_subnet")
        options = options_from(given["subnet"], **patterns)
        found = report(self.registered(given["registered"], self.variables["ansible_play_hosts_all"]), options)
        # One line, so that a program can find it among those of the callback: it is the one that starts with a brace.
        text = (
            page(found, options, style=given["table_style"], width=room(given["table_width"]))
            if given["output"] == "table"
            else json.dumps(found, ensure_ascii=False)
        )
        shown = printable(text)
        self.print_text(shown)
        chosen = {
            "discover_subnets": [candidate["subnet"] for candidate in found["candidates"]],
            "discover_silent_hosts": [*found["unreachable"], *found["failed"]],
        }
        return {"changed": self._write(given["facts_file"], found), "text": shown, **stats(chosen)}

    def _write(self, path: str, found: dict[str, Any]) -> bool:
        """Whether the file of facts has changed, or would."""
        if not path:
            return False
        content = json.dumps(found, ensure_ascii=False, indent=4, sort_keys=True) + "\n"
        entry = {"path": self.controller_path(path), "content": content, "mode": "0644"}
        return bool(host_files.see_to([entry], self.check_mode))
