# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of cluster_overview. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.evidence import parse_previous_verdict
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.overview import build_overview, render_overview
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import read_responses
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import ControllerAction, build_stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.terminal import available_width


class ActionModule(ControllerAction):
    """Combines the results of the hosts of the play, and shows them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            registered={"type": "str", "required": True},
            copies={"type": "str", "required": True},
            tailnet={"type": "str", "required": True},
            host={"type": "str", "required": True},
            volumes={"type": "str", "required": True},
        )
        options = self.options("cluster_name", "cluster_output", "check_report_dir")
        copies_result = self.variables[task_args["copies"]]
        variables_by_host = self.variables_by_host(
            *(task_args[variable_name] for variable_name in ("registered", "tailnet", "host", "volumes"))
        )
        results_by_machine = {
            **{
                machine: host_variables[task_args["registered"]] or {}
                for machine, host_variables in variables_by_host.items()
            },
            **copies_result["outside"],
        }
        states_by_machine = {
            machine: {
                "mesh": host_variables[task_args["tailnet"]] or {},
                "host": host_variables[task_args["host"]] or {},
                "volumes": (host_variables[task_args["volumes"]] or {}).get("volumes", {}),
            }
            for machine, host_variables in variables_by_host.items()
        }
        checked_at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        last_verdict = (
            parse_previous_verdict(_read_last_verdict(options["check_report_dir"], copies_result["record"]["name"]))
            if copies_result["record"]
            else None
        )
        clusters = build_overview(
            results_by_machine, checked_at, states_by_machine, last_verdict, copies_result["records"]
        )
        if options["cluster_output"] == "json":
            # The JSON is one line that starts with a bracket, so that a program can find it in the output.
            text = json.dumps(clusters, ensure_ascii=False)
        else:
            responses = read_responses(results_by_machine)
            unreachable_reasons = {
                machine: response.unreachable_reason
                for machine, response in responses.items()
                if response.unreachable_reason is not None
            }
            text = render_overview(clusters, unreachable_reasons, available_width(0), options["cluster_name"])
        self.print_text(text)
        return {"changed": False, "text": text, "clusters": clusters, **build_stats({"gpumesh_clusters": clusters})}


def _read_last_verdict(given_directory: str | None, cluster_name: str) -> str:
    """Return the verdict of the role check, from the machine that runs Ansible; empty if there is none."""
    report_directory = given_directory or f"{os.environ.get('PWD', '')}/gpumesh-report"
    verdict_path = Path(report_directory, cluster_name, "verdict.json")
    return verdict_path.read_text(encoding="utf-8") if verdict_path.is_file() else ""
