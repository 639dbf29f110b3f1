# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action verdict: which answers it judges, where it writes the reports, and what it returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from ansible_collections.gpumesh.cluster.plugins.action.verdict import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.tests.unit.action.test_storage import RECORD
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

SCHEMA = Path(__file__).resolve().parents[3] / "plugins" / "plugin_utils" / "_checks" / "report" / "verdict.schema.json"
REGISTERED = {
    "health": "seen",
    "volumes": {"write": "wrote", "compare": "compared"},
    "reachability": "reached",
    "job": "ran",
    "collectives": "summed",
}
HEALTHY = {"checks": [samples.check("health.disk", None)]}
UNHEALTHY = {"checks": [samples.check("health.disk", None, "fail", reason="It is full.")]}


def run_verdict(
    folder: Path,
    registered_results: dict[str, dict[str, Any]],
    present: tuple[str, ...] = ("n1", "n2"),
    **variables: Any,
) -> dict[str, Any]:
    """Judge a play on n1 and n2, with their registered results; the task runs on n1."""
    play_variables = {
        "ansible_play_hosts_all": list(present),
        "ansible_play_hosts": list(present),
        "hostvars": {machine: registered_results.get(machine, {}) for machine in present},
        **registered_results.get("n1", {}),
        "inventory_hostname": "n1",
        "check_report_dir": str(folder),
        **variables,
    }
    arguments = {"record": RECORD, "registered": REGISTERED}
    return play_action(ActionModule, arguments, {}, play_variables).result


def statuses_of_check(result: dict[str, Any], name: str) -> dict[str | None, str]:
    return {one["host"]: one["status"] for one in result["verdict"]["checks"] if one["id"] == name}


def test_the_results_of_all_hosts_are_judged_together(tmp_path: Path) -> None:
    result = run_verdict(tmp_path, {"n1": {"seen": HEALTHY}, "n2": {"seen": UNHEALTHY}})
    assert statuses_of_check(result, "health.disk") == {"n1": "pass", "n2": "fail"}
    assert result["verdict"]["status"] == "fail"
    assert not result["changed"] and not result.get("failed")
    assert "It is full." in result["text"]
    assert result["ansible_stats"]["data"] == {
        "gpumesh_cluster": "lab",
        "gpumesh_status": "fail",
        "gpumesh_counts": result["verdict"]["counts"],
        "gpumesh_failing": ["health.disk@n2"],
    }


def test_complete_reports_are_written(tmp_path: Path) -> None:
    result = run_verdict(tmp_path, {"n1": {"seen": HEALTHY}, "n2": {"seen": HEALTHY}})
    folder = tmp_path / "lab"
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict == result["verdict"]
    jsonschema.validate(verdict, json.loads(SCHEMA.read_text()))
    assert int(ElementTree.parse(folder / "junit.xml").getroot().attrib["tests"]) == len(verdict["checks"])
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert (folder / "gpumesh.prom").read_text().startswith("# HELP gpumesh_cluster_ok")
    assert result["text"].endswith(f"Report: {folder}/report.html")


def test_in_awx_no_path_is_named_that_is_gone_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", str(tmp_path))
    healthy = {"n1": {"seen": HEALTHY}, "n2": {"seen": HEALTHY}}
    text = run_verdict(tmp_path / "gpumesh-report", healthy, awx_job_id=7)["text"]
    assert "AWX_ISOLATION_SHOW_PATHS" in text and str(tmp_path) not in text
    kept = run_verdict(tmp_path / "exposed", healthy, awx_job_id=7)["text"]
    assert f"Report: {tmp_path}/exposed/lab/report.html, unless AWX has deleted it with this job" in kept


def test_a_verdict_has_the_history_of_earlier_runs(tmp_path: Path) -> None:
    for _run in range(2):
        result = run_verdict(tmp_path, {"n1": {"seen": UNHEALTHY}, "n2": {"seen": HEALTHY}})
    assert [run["failing"] for run in result["verdict"]["history"]] == [["health.disk@n1"]]
    (tmp_path / "lab" / "verdict.json").write_bytes(b"\xff no verdict")
    assert run_verdict(tmp_path, {"n1": {"seen": UNHEALTHY}})["verdict"]["history"] == []


@pytest.mark.parametrize(
    "limited",
    [{"present": ("n1",)}, {"ansible_run_tags": ["health"]}, {"ansible_skip_tags": ["slurm"]}],
)
def test_a_partial_run_does_not_replace_the_full_verdict(tmp_path: Path, limited: dict[str, Any]) -> None:
    healthy = {"n1": {"seen": HEALTHY}, "n2": {"seen": HEALTHY}}
    run_verdict(tmp_path, healthy, ansible_run_tags=["all"])
    whole = (tmp_path / "lab" / "verdict.json").read_bytes()
    result = run_verdict(tmp_path, healthy, **limited)
    assert result["verdict"]["history"] == []
    assert (tmp_path / "lab" / "part" / "verdict.json").exists()
    assert (tmp_path / "lab" / "verdict.json").read_bytes() == whole
    assert result["text"].startswith("Partial check: ")


def test_a_misspelt_tag_does_not_replace_the_full_verdict(tmp_path: Path) -> None:
    run_verdict(tmp_path, {"n1": {"seen": HEALTHY}, "n2": {"seen": HEALTHY}})
    whole = (tmp_path / "lab" / "verdict.json").read_bytes()
    result = run_verdict(tmp_path, {}, ansible_run_tags=["helth"])
    assert (tmp_path / "lab" / "verdict.json").read_bytes() == whole
    assert result["verdict"]["partial"]
    assert "Ready to train" not in result["text"]


def test_parts_that_were_not_checked_are_skipped(tmp_path: Path) -> None:
    result = run_verdict(tmp_path, {})
    assert statuses_of_check(result, "health.node") == {None: "skipped"}
    assert statuses_of_check(result, "slurm.node") == {None: "skipped"}
    assert statuses_of_check(result, "collective.run") == {None: "skipped"}
    assert statuses_of_check(result, "members.answer") == {"n1": "pass", "n2": "pass"}


def test_userspace_only_members_are_skipped(tmp_path: Path) -> None:
    listed = ["n2", "elsewhere"]
    result = run_verdict(tmp_path, {"n1": {"seen": HEALTHY}}, present=("n1",), cluster_userspace_only=listed)
    assert statuses_of_check(result, "health.disk") == {"n1": "pass"}
    assert statuses_of_check(result, "health.node") == {"n2": "skipped"}
    assert (tmp_path / "lab" / "verdict.json").exists()


def test_check_mode_judges_nothing_and_needs_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"record": "cluster_record", "registered": REGISTERED}
    result = play_action(ActionModule, arguments, {}, {}, check_mode=True).result
    text = "Check mode: nothing was changed, so the check was not performed."
    assert result == {"changed": False, "text": text}
    assert text in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
