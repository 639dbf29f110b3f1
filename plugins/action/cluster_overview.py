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

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import ControllerAction, stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.overview import overview, page
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.evidence import earlier
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.terminal import room


class ActionModule(ControllerAction):
    """Combines the results of the hosts of the play, and shows them."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            registered={"type": "str", "required": True},
            found={"type": "str", "required": True},
            tunnel={"type": "str", "required": True},
            tailnet={"type": "str", "required": True},
            host={"type": "str", "required": True},
            volumes={"type": "str", "required": True},
            output={"type": "str", "choices": ["table", "json"], "default": "table"},
        )
        found = self.variables[given["found"]]
        backend = found["record"]["mesh"]["backend"] if found["record"] else "none"
        mesh = given["tailnet"] if backend == "tailscale" else given["tunnel"]
        hosts = self.of_hosts(mesh, *(given[name] for name in ("registered", "host", "volumes")))
        results = {**{machine: own[given["registered"]] or {} for machine, own in hosts.items()}, **found["outside"]}
        states = {
            machine: {
                "mesh": own[mesh] or {},
                "host": own[given["host"]] or {},
                "volumes": (own[given["volumes"]] or {}).get("volumes", {}),
            }
            for machine, own in hosts.items()
        }
        at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        verdict = earlier(self._verdict(found["record"]["name"])) if found["record"] else None
        clusters = overview(results, at, states, verdict, found["records"])
        if given["output"] == "json":
            # One line, so that a program can find it among those of the callback: the one that starts with a bracket.
            text = json.dumps(clusters, ensure_ascii=False)
        else:
            answers = read_answers(results)
            silent = {machine: answer.silence for machine, answer in answers.items() if answer.silence is not None}
            text = page(clusters, silent, room(0), str(self.variable("cluster_name") or ""))
        self.print_text(text)
        return {"changed": False, "text": text, "clusters": clusters, **stats({"gpumesh_clusters": clusters})}

    def _verdict(self, name: str) -> str:
        """The report of the role check, on the machine that runs Ansible."""
        folder = self.variable("check_report_dir") or f"{os.environ.get('PWD', '')}/gpumesh-report"
        path = Path(str(folder), name, "verdict.json")
        return path.read_text(encoding="utf-8") if path.is_file() else ""
