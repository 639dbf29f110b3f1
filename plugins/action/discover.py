# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of discover. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.addresses import normalise_subnet
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.discovery import build_report, render_page
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import build_options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction, build_stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width


class ActionModule(ControllerAction):
    """Reads the results of interface_info on all hosts of the play, and shows them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            registered={"type": "str", "required": True},
        )
        options = self.options(
            "discover_output",
            "discover_facts_file",
            "discover_subnet",
            "discover_prefer",
            "discover_exclude",
            "discover_include",
            "discover_table_width",
        )
        if options["discover_subnet"]:
            # An error names the variable that people have set.
            normalise_subnet(options["discover_subnet"], "discover_subnet")
        subnet_options = build_options(
            options["discover_subnet"],
            prefer=options["discover_prefer"],
            exclude=options["discover_exclude"],
            include=options["discover_include"],
        )
        discovery_report = build_report(
            self.registered_results(task_args["registered"], self.variables["ansible_play_hosts_all"]), subnet_options
        )
        # The JSON is one line that starts with a brace, so that a program can find it in the output.
        text = (
            render_page(
                discovery_report,
                subnet_options,
                width=available_width(options["discover_table_width"]),
            )
            if options["discover_output"] == "table"
            else json.dumps(discovery_report, ensure_ascii=False)
        )
        printed_text = printable(text)
        self.print_text(printed_text)
        job_stats = {
            "discover_subnets": [candidate["subnet"] for candidate in discovery_report["candidates"]],
            "discover_silent_hosts": [*discovery_report["unreachable"], *discovery_report["failed"]],
        }
        return {
            "changed": self._write_facts(options["discover_facts_file"], discovery_report),
            "text": printed_text,
            **build_stats(job_stats),
        }

    def _write_facts(self, facts_path: str, discovery_report: dict[str, Any]) -> bool:
        """Write the file of facts. Returns whether it has changed, or would change in check mode."""
        if not facts_path:
            return False
        content = json.dumps(discovery_report, ensure_ascii=False, indent=4, sort_keys=True) + "\n"
        file_entry = {"path": self.controller_path(facts_path), "content": content, "mode": "0644"}
        return bool(managed_files.ensure_files([file_entry], self.check_mode))
