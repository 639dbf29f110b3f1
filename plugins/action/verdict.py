# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action of verdict. Its documentation is in the module of the same name."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.derive import find_pods
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks import reachability_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import (
    html,
    junit,
    prometheus,
    terminal,
    volumes,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.evidence import (
    judge_cluster,
    split_job_result,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.rdma import RdmaLimits
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report.verdict import Verdict
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import (
    RECORD_OPTION,
    ControllerAction,
    build_stats,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.awx import AWX_JOB_VARIABLE

#: The tags that choose parts of the check.
_PART_TAGS = ("reachability", "health", "storage", "tracking", "slurm", "collectives")
#: Each of these is the name of one registered result.
_RESULT_NAMES = ("reachability", "health", "tracking", "job", "collectives")
_REPORT_IS_DELETED = (
    "AWX deletes the report with this job. To keep it, set check_report_dir in the inventory to a directory that AWX exposes "
    "to its jobs (AWX_ISOLATION_SHOW_PATHS), or run the playbook check outside AWX."
)
_HOW_TO_EXPOSE = "the setting AWX_ISOLATION_SHOW_PATHS has to expose the directory to jobs."
_NOTHING_VERIFIED = "Check mode: nothing was changed, so the check was not performed."


class ActionModule(ControllerAction):
    """Evaluates the results that the tasks of a check registered on all hosts of the play, and writes the reports."""

    def work(self) -> dict[str, Any]:
        """See the documentation of the module."""
        task_args = self.arguments(
            record=RECORD_OPTION,
            registered={
                "type": "dict",
                "default": {},
                "options": {
                    **{name: {"type": "str"} for name in _RESULT_NAMES},
                    "volumes": {"type": "dict", "options": {phase: {"type": "str"} for phase in volumes.PHASES}},
                },
            },
        )
        if self.check_mode:
            self.print_message(_NOTHING_VERIFIED)
            return {"changed": False, "text": _NOTHING_VERIFIED}
        options = self.options(
            "check_report_dir",
            "check_level",
            "check_max_clock_offset",
            "check_min_bandwidth_gbps",
            "check_min_rdma_gbps",
            "check_max_rdma_latency_us",
            "check_min_volume_write_mbps",
            "check_min_volume_read_mbps",
            "check_min_volume_files",
            "check_max_disk_percent",
        )
        record = self.record()
        evidence = self._collect_evidence(record, task_args["registered"])
        is_partial = self._is_partial(record, evidence)
        report_directory = Path(
            self.controller_path(options["check_report_dir"]), record["name"], "part" if is_partial else ""
        )
        previous_path = report_directory / "verdict.json"
        verdict = judge_cluster(
            record,
            evidence,
            generated_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            level=options["check_level"],
            max_clock_offset=options["check_max_clock_offset"],
            min_bandwidth_gbps=options["check_min_bandwidth_gbps"],
            volume_limits={
                "write_mbps": options["check_min_volume_write_mbps"],
                "read_mbps": options["check_min_volume_read_mbps"],
                "files_per_second": options["check_min_volume_files"],
                "max_used_percent": options["check_max_disk_percent"],
            },
            rdma_limits=RdmaLimits(options["check_min_rdma_gbps"], options["check_max_rdma_latency_us"]),
            # A partial run has no history, since the previous one may have covered another part.
            previous=previous_path.read_text(encoding="utf-8", errors="replace")
            if previous_path.is_file() and not is_partial
            else "",
            partial=is_partial,
        )
        write_reports(report_directory, verdict)
        report_text = f"{terminal.render(verdict)}\n\n{self._describe_place(report_directory)}"
        self._show(verdict, report_text)
        return {"changed": False, "verdict": verdict, "text": report_text, **build_stats(artifacts(verdict))}

    def _describe_place(self, report_directory: Path) -> str:
        """Say where the report is, or in a job of AWX, whose own directories are deleted with it, how to keep it."""
        report_path = f"Report: {report_directory}/report.html"
        if AWX_JOB_VARIABLE not in self.variables:
            return report_path
        # PWD has the links of the path, which the option then has, too.
        job_directories = {Path.cwd(), Path(os.environ.get("PWD") or Path.cwd())}
        if any(report_directory.is_relative_to(directory / "gpumesh-report") for directory in job_directories):
            return _REPORT_IS_DELETED
        return f"{report_path}, unless AWX has deleted it with this job: {_HOW_TO_EXPOSE}"

    def _collect_evidence(self, record: Record, variable_names: Mapping[str, Any]) -> dict[str, Any]:
        """Return the evidence in the form that ``judge_cluster`` expects."""
        play_hosts, answering_hosts = self.variables["ansible_play_hosts_all"], self.variables["ansible_play_hosts"]
        member_machines = {member["machine"] for member in record["members"]}
        sinfo_result, job_result = split_job_result(self.variables.get(variable_names["job"] or "") or {})
        collective_results = self.variables.get(variable_names["collectives"] or "") or {}
        return {
            "queried": play_hosts,
            "answered": answering_hosts,
            "userspace_only": [machine for machine in self.userspace_only if machine in member_machines],
            "reachability": self.variables.get(variable_names["reachability"] or "") or {},
            "health": self.registered_results(variable_names["health"], answering_hosts)
            if variable_names["health"] in self.variables
            else None,
            "volumes": self._collect_volume_results(record, variable_names["volumes"] or {}),
            "tracking": self.registered_results(variable_names["tracking"], answering_hosts)
            if variable_names["tracking"] in self.variables
            else None,
            "slurm": sinfo_result,
            "job": job_result,
            "collectives": collective_results.get("results", [collective_results] if collective_results else []),
        }

    def _collect_volume_results(self, record: Record, variable_names: Mapping[str, str]) -> dict[str, Any] | None:
        if variable_names.get("write") not in self.variables:
            return None
        answering_hosts = set(self.variables["ansible_play_hosts"])
        probing_members = [
            member["machine"]
            for member in record["members"]
            if member["machine"] in answering_hosts - set(find_pods(record))
        ]
        return {
            "members": probing_members,
            **{phase: self.registered_results(variable_names[phase], probing_members) for phase in volumes.PHASES},
        }

    def _is_partial(self, record: Record, evidence: Mapping[str, Any]) -> bool:
        """Whether tags or a limit exclude something, so that the result does not cover the whole cluster."""
        # Misspelt tags, and tags of an outer playbook, leave out everything that is not tagged always.
        if evidence["health"] is None:
            return True
        run_tags = {*self.variables.get("ansible_run_tags", ()), *self.variables.get("ansible_skip_tags", ())}
        reached_hosts = {*self.variables["ansible_play_hosts_all"], *evidence["userspace_only"]}
        return bool(run_tags & set(_PART_TAGS)) or any(
            member["machine"] not in reached_hosts for member in record["members"]
        )

    def _show(self, verdict: Verdict, report_text: str) -> None:
        """Print the pairs, and the result if all checks pass; failures are in the message of the failing task."""
        # For a large cluster, the verdict only has the faulty pairs, and the text names them.
        if len(verdict["cluster"]["members"]) > 1 and "summary" not in verdict["reachability"]:
            self.print_text(reachability_matrix.draw_matrix(verdict["reachability"]["pairs"], describes_faults=False))
        if verdict["status"] == "pass":
            self.print_message(report_text)


def artifacts(verdict: Verdict) -> dict[str, Any]:
    """Return the artifacts for the next job of a workflow."""
    failed_checks = [check for check in verdict["checks"] if check["status"] in ("fail", "error")]
    return {
        "gpumesh_cluster": verdict["cluster"]["name"],
        "gpumesh_status": verdict["status"],
        "gpumesh_counts": verdict["counts"],
        "gpumesh_failing": [f"{check['id']}@{check['host'] or 'cluster'}" for check in failed_checks],
    }


def write_reports(directory: Path, verdict: Verdict) -> None:
    """Write the reports, each in one step. Raises GpumeshError."""
    texts_by_name = {
        "verdict.json": json.dumps(verdict, indent=2) + "\n",
        "report.html": html.render(verdict),
        "junit.xml": junit.render(verdict),
        "gpumesh.prom": prometheus.render(verdict),
    }
    file_entries = [
        {"path": str(directory / file_name), "content": content} for file_name, content in texts_by_name.items()
    ]
    managed_files.ensure_files([{"path": str(directory), "state": "directory"}, *file_entries], check_mode=False)
