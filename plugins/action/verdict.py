# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of verdict. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.derive import pods
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import reach_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import RECORD, ControllerAction, stats
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import html, junit, prometheus, terminal, volumes
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.evidence import judge
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.rdma import Limits
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report.verdict import Verdict

#: The tags that choose parts of the check.
_PARTS = ("reachability", "health", "storage", "tracking", "slurm", "collectives")
#: Of one result each.
_NAMES = ("reachability", "health", "tracking", "slurm", "job", "collectives")
_NOTHING_VERIFIED = "Check mode: nothing was changed, so the check was not performed."
_NUMBER = {"type": "float", "default": 0}


class ActionModule(ControllerAction):
    """Evaluates the results that the tasks of a check registered on all hosts of the play, and writes the reports."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        given = self.arguments(
            record=RECORD,
            registered={
                "type": "dict",
                "default": {},
                "options": {
                    **{name: {"type": "str"} for name in _NAMES},
                    "volumes": {"type": "dict", "options": {phase: {"type": "str"} for phase in volumes.PHASES}},
                },
            },
            report_dir={"type": "path", "required": True},
            level={"type": "str", "choices": ["quick", "full", "burn"], "default": "quick"},
            max_clock_offset={"type": "float", "default": 5},
            min_bandwidth_gbps=_NUMBER,
            min_rdma_gbps=_NUMBER,
            max_rdma_latency_us=_NUMBER,
            min_volume_write_mbps=_NUMBER,
            min_volume_read_mbps=_NUMBER,
            min_volume_files=_NUMBER,
            max_used_percent={"type": "float", "default": 95},
        )
        if self.check_mode:
            self.print_text(_NOTHING_VERIFIED)
            return {"changed": False, "text": _NOTHING_VERIFIED}
        record = self.record()
        evidence = self._evidence(record, given["registered"])
        part = self._is_part(record, evidence)
        folder = Path(self.controller_path(given["report_dir"]), record["name"], "part" if part else "")
        previous = folder / "verdict.json"
        verdict = judge(
            record,
            evidence,
            generated_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            level=given["level"],
            max_clock_offset=given["max_clock_offset"],
            min_bandwidth_gbps=given["min_bandwidth_gbps"],
            volume_limits={
                "write_mbps": given["min_volume_write_mbps"],
                "read_mbps": given["min_volume_read_mbps"],
                "files_per_second": given["min_volume_files"],
                "max_used_percent": given["max_used_percent"],
            },
            rdma_limits=Limits(given["min_rdma_gbps"], given["max_rdma_latency_us"]),
            # A partial run has no history, since the previous one may have covered another part.
            previous=previous.read_text(encoding="utf-8", errors="replace") if previous.is_file() and not part else "",
            partial=part,
        )
        write(folder, verdict)
        text = f"{terminal.render(verdict)}\n\nReport: {folder}/report.html"
        self._show(verdict, text)
        return {"changed": False, "verdict": verdict, "text": text, **stats(artifacts(verdict))}

    def _evidence(self, record: Record, names: Mapping[str, Any]) -> dict[str, Any]:
        """The evidence in the form that ``judge`` takes."""
        asked, answered = self.variables["ansible_play_hosts_all"], self.variables["ansible_play_hosts"]
        machines = {member["machine"] for member in record["members"]}
        collectives = self.variables.get(names["collectives"] or "") or {}
        return {
            "asked": asked,
            "answered": answered,
            "userspace_only": [machine for machine in self.userspace_only if machine in machines],
            "reachability": self.variables.get(names["reachability"] or "") or {},
            "health": self.registered(names["health"], answered) if names["health"] in self.variables else None,
            "volumes": self._volumes(record, names["volumes"] or {}),
            "tracking": self.registered(names["tracking"], answered) if names["tracking"] in self.variables else None,
            "slurm": self.variables.get(names["slurm"] or ""),
            "job": self.variables.get(names["job"] or ""),
            "collectives": collectives.get("results", [collectives] if collectives else []),
        }

    def _volumes(self, record: Record, names: Mapping[str, str]) -> dict[str, Any] | None:
        if names.get("write") not in self.variables:
            return None
        answered = set(self.variables["ansible_play_hosts"])
        members = [
            member["machine"] for member in record["members"] if member["machine"] in answered - set(pods(record))
        ]
        return {"members": members, **{phase: self.registered(names[phase], members) for phase in volumes.PHASES}}

    def _is_part(self, record: Record, evidence: Mapping[str, Any]) -> bool:
        """Whether tags or a limit exclude something, so that the result does not cover the whole cluster."""
        # Tags that are misspelt, or of a playbook around this one, leave out everything that is not always performed.
        if evidence["health"] is None:
            return True
        tags = {*self.variables.get("ansible_run_tags", ()), *self.variables.get("ansible_skip_tags", ())}
        present = {*self.variables["ansible_play_hosts_all"], *evidence["userspace_only"]}
        return bool(tags & set(_PARTS)) or any(member["machine"] not in present for member in record["members"])

    def _show(self, verdict: Verdict, text: str) -> None:
        """Print the pairs, and the result if all checks pass; failures are in the message of the failing task."""
        # For a large cluster, the verdict only has the faulty pairs, and the text names them.
        if len(verdict["cluster"]["members"]) > 1 and "summary" not in verdict["reachability"]:
            self.print_text(reach_matrix.draw(verdict["reachability"]["pairs"]))
        if verdict["status"] == "pass":
            self.print_text(text)


def artifacts(verdict: Verdict) -> dict[str, Any]:
    """The artifacts for the next job of a workflow."""
    bad = [check for check in verdict["checks"] if check["status"] in ("fail", "error")]
    return {
        "gpumesh_cluster": verdict["cluster"]["name"],
        "gpumesh_status": verdict["status"],
        "gpumesh_counts": verdict["counts"],
        "gpumesh_failing": [f"{check['id']}@{check['host'] or 'cluster'}" for check in bad],
    }


def write(folder: Path, verdict: Verdict) -> None:
    """Write the reports, each in one step. Raises GpumeshError."""
    contents = {
        "verdict.json": json.dumps(verdict, indent=2) + "\n",
        "report.html": html.render(verdict),
        "junit.xml": junit.render(verdict),
        "gpumesh.prom": prometheus.render(verdict),
    }
    files = [{"path": str(folder / name), "content": content} for name, content in contents.items()]
    host_files.see_to([{"path": str(folder), "state": "directory"}, *files], check_mode=False)
