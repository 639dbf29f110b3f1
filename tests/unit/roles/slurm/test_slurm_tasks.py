# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role slurm would do on new hosts, and the number of tasks on each of them."""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import Run
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
STAMP = plan.Stamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)


def check(folder: Path, entry: str = "main", **variables: object) -> Run:
    """Run the role in check mode, on the members n1, the manager, and n2."""
    role = {"ansible.builtin.include_role": {"name": "gpumesh.cluster.slurm", "tasks_from": entry}}
    given = {"cluster_record": RECORD, **variables}
    return run_tasks(folder, {"n1": {}, "n2": {}}, given, [role], "--check", "--diff")


def recap(run: Run, host: str) -> dict[str, int]:
    line = re.search(rf"^{host} +: (.*)$", run.output, re.MULTILINE)
    assert line, run.output
    return {name: int(count) for name, count in (pair.split("=") for pair in line.group(1).split())}


def test_check_mode_says_what_would_come(tmp_path: Path) -> None:
    run = check(tmp_path, slurm_rest=True)
    assert run.code == 0, run.output
    for file in ("node/slurmd.env", "slurm.conf"):
        assert f"+## {file}" in run.output
    assert "+slurmd" in run.output and "+slurmrestd" in run.output


def test_a_member_takes_part_in_few_tasks(tmp_path: Path) -> None:
    run = check(tmp_path)
    assert run.code == 0, run.output
    # Two of them are Ansible's own, for the role.
    assert recap(run, "n2")["ok"] == 3, run.output
    assert recap(run, "n2")["skipped"] == 2, run.output


def test_slurm_may_come_after_a_hand_over(tmp_path: Path) -> None:
    run = check(tmp_path, cluster_record=plan.commit(plan.hand_over(RECORD, "n2"), STAMP))
    assert run.code == 0, run.output
    assert "Check whether the former manager has the queue" in run.words
    assert recap(run, "n2")["ok"] > recap(run, "n1")["ok"]


def test_fresh_hosts_can_leave(tmp_path: Path) -> None:
    run = check(tmp_path, entry="leave")
    assert run.code == 0, run.output
