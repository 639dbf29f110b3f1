# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role check says where there is nothing to check."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.module_runs import write_programs
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
ROLE = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.check"}}
NOTHING_VERIFIED = "Check mode: nothing was changed, so the check was not performed."


@pytest.mark.parametrize("options", [[], ["--tags", "slurm"]], ids=["all", "a part"])
def test_check_mode_reports_once_that_nothing_is_verified(tmp_path: Path, options: list[str]) -> None:
    variables = {"check_report_dir": str(tmp_path), "cluster_record": RECORD}
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, variables, [ROLE], "--check", *options)
    assert run.exit_status == 0, run.output
    assert run.flat_output.count(NOTHING_VERIFIED) == 1
    assert not list(tmp_path.glob("*/verdict.json"))


def test_a_member_without_jobs_is_not_among_the_nodes_of_the_check(tmp_path: Path) -> None:
    members = [{**RECORD["members"][0], "slurm_node": False, "gpus": 1}, {**RECORD["members"][1], "gpus": 1}]
    show = {"ansible.builtin.debug": {"msg": "nodes {{ __check_nodes | list }}, GPUs {{ __check_gpu_nodes | list }}"}}
    tasks = [
        {"ansible.builtin.include_vars": str(ROOT / "roles" / "check" / "vars" / "main.yml")},
        {**show, "run_once": True},
    ]
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, {"cluster_record": {**RECORD, "members": members}}, tasks)
    assert "nodes ['n2'], GPUs ['n2']" in run.flat_output, run.output


PART_TAGS = ["all", "reachability", "health", "storage", "tracking", "slurm", "collectives"]


@pytest.mark.parametrize("part", PART_TAGS)
def test_without_a_record_the_error_explains_how_to_load_it(tmp_path: Path, part: str) -> None:
    variables = {
        "check_report_dir": str(tmp_path),
        "check_level": "full",
        "check_collective_source": "/nonexistent" if part == "collectives" else "",
    }
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, variables, [ROLE], "--tags", part)
    assert run.exit_status == 2, run.output
    assert "Run the role gpumesh.cluster.cluster with tasks_from=load first" in run.flat_output


def test_a_build_that_fails_leaves_the_other_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other checks may have taken an hour."""
    programs = write_programs(tmp_path / "bin", {"sinfo": "echo 'n1|idle|None|none'; echo 'n2|idle|None|none'"})
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    variables = {
        "check_report_dir": str(tmp_path / "report"),
        "check_level": "full",
        "check_collective_source": "/nonexistent",
        "__check_sources": str(tmp_path / "sources"),
        "cluster_record": RECORD,
    }
    run = run_tasks(tmp_path, {"n1": {}, "n2": {}}, variables, [ROLE], "--tags", "collectives")
    assert run.exit_status == 2, run.output
    assert all(f"{machine}: the collective tests were not built: " in run.flat_output for machine in ("n1", "n2"))
    assert list((tmp_path / "report").glob("**/verdict.json"))
