# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Processes that the kernel has killed, by the counts of the step's cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import processes

V2 = "0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n"
V1 = "9:memory:/slurm/uid_1000/job_12/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n0::/\n"


@pytest.fixture(name="host")
def _host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(processes, "_PROC_DIR", str(tmp_path / "proc"))
    monkeypatch.setattr(processes, "_CGROUP_ROOT", str(tmp_path / "cgroup"))
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def test_the_innermost_cgroup_that_counts_is_read(host: Path) -> None:
    write(host / "proc/self/cgroup", V2)
    job = host / "cgroup/system.slice/slurmstepd.scope/job_12"
    write(job / "memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 3\noom_group_kill 0\n")
    write(job / "step_0/memory.events", "low 0\nhigh 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert processes.oom_kill_count() == 1


def test_cgroup_v1_counts_in_another_file(host: Path) -> None:
    write(host / "proc/self/cgroup", V1)
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    write(host / "cgroup/memory/slurm/uid_1000/job_12/step_0/memory.oom_control", text)
    assert processes.oom_kill_count() == 2


def test_cgroups_of_other_jobs_are_ignored(host: Path) -> None:
    write(host / "proc/self/cgroup", V2)
    write(host / "cgroup/system.slice/slurmstepd.scope/memory.events", "oom_kill 7\n")
    assert processes.oom_kill_count() == 0


def test_without_cgroups_no_kills_are_counted(host: Path) -> None:
    assert processes.oom_kill_count() == 0
    write(host / "proc/self/cgroup", "0::/user.slice\n")
    assert processes.oom_kill_count() == 0
