# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is found of jobs on a node, and what is removed when Slurm no longer knows them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
import sys
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import node
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings


@pytest.fixture(name="top", autouse=True)
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("RUN_DIRECTORY", "run"), ("STORAGE_ROOT", "lib"), ("_NAMESPACE_DIRECTORY", "netns")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(node, name, str(tmp_path / folder))
    return tmp_path


def list_leftovers(top: Path) -> list[str]:
    found = sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.parent != top)
    return [path for path in found if not TRASH.search(path)]


#: What a directory of a job has in its name once it was discarded.
TRASH = re.compile(r"\.trash-([0-9]+)-[0-9a-f]{16}")


def list_discarded(top: Path) -> list[str]:
    """The deepest paths, as they were."""
    found = [str(path.relative_to(top)) for path in top.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return sorted(TRASH.sub(r"\1", path) for path in found if TRASH.search(path))


def test_leftovers_of_ended_jobs_are_removed(top: Path) -> None:
    for path in ("run/5/0", "run/6/0", "lib/7/0/root", "lib/6/0", "run/8"):
        (top / path).mkdir(parents=True)
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, "6|RUNNING\n5|DEADLINE\n7|PENDING\n", "")

    assert node.remove_ended_jobs(run, "n1", current_job=8) == [5, 7]
    assert list_discarded(top) == ["lib/7/0/root", "run/5/0"]
    assert list_leftovers(top) == ["lib/6", "lib/6/0", "run/6", "run/6/0", "run/8"]
    assert "--nodelist=n1" in asked[0]


def test_nothing_is_removed_while_slurm_does_not_respond(top: Path) -> None:
    (top / "run" / "5").mkdir()

    def run(argv: list[str], **_options: object) -> CommandResult:
        raise CommandError(argv, "did not end within 30 s")

    assert node.remove_ended_jobs(run, "n1") == []
    assert list_leftovers(top) == ["run/5"]


def test_subnet_of_another_session_on_the_node_is_refused(top: Path) -> None:
    (top / "run" / "5").mkdir()
    (top / "run" / "5" / "plan.json").write_text('{"slot": 17, "job": 5}')
    node._refuse_used_slot(18, 9)
    node._refuse_used_slot(17, 5)
    with pytest.raises(HostStateError, match="used by job 5"):
        node._refuse_used_slot(17, 9)


def test_prolog_failure_is_reported_to_the_tasks(top: Path) -> None:
    with pytest.raises(HostStateError, match="session_enabled"):
        node.read_plan(5)
    (top / "run" / "5").mkdir()
    (top / "run" / "5" / "error").write_text("n1: no VXLAN.\n")
    with pytest.raises(HostStateError, match="n1: no VXLAN"):
        node.read_plan(5)


@pytest.mark.parametrize("name", ["SLURM_JOB_NODELIST", "SLURM_NODELIST"])
def test_nodes_are_read_from_the_variables_of_each_slurm_release(
    top: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Slurm 22.05 only has the older name."""
    monkeypatch.setattr(node, "start_watching", lambda _run: None)
    monkeypatch.setattr(node, "_make_directories", lambda *_given: None)
    settings = SessionSettings(
        "n2", "n1", "eth0", {"n1": "10.0.0.1", "n2": "10.0.0.2"}, ["10.192.0.0/10"], [], True, [], [], [], "/x"
    )
    given = {
        "SLURM_JOB_ID": "5",
        "SLURM_JOB_UID": "2001",
        node.SESSION_VARIABLE: "-;demo;main,sub;1,0+0,1",
        name: "n[1-2]",
    }
    node.prolog(lambda *_argv, **_options: CommandResult(0, "", ""), settings, given)
    assert node.read_plan(5)["here"] == ["sub1"]


def test_job_with_too_few_nodes_is_refused(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "start_watching", lambda _run: None)
    settings = SessionSettings("n2", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")
    given = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "2001", node.SESSION_VARIABLE: "-;demo;main,sub;1,0+0,1"}
    node.prolog(lambda *_argv, **_options: CommandResult(0, "", ""), settings, given)
    with pytest.raises(HostStateError, match="n2: The session needs 2 nodes, but its job has 0"):
        node.read_plan(5)


@pytest.mark.parametrize(("cpus", "fits"), [("3", False), ("4", True), ("", True)])
def test_more_containers_than_cpus_are_refused(
    top: Path, monkeypatch: pytest.MonkeyPatch, cpus: str, fits: bool
) -> None:
    """Two on each of two nodes; nothing is known of the job where Slurm does not answer."""
    monkeypatch.setattr(node, "start_watching", lambda _run: None)
    monkeypatch.setattr(node, "_make_directories", lambda *_given: None)
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, f"{cpus}\n" if argv[0] == "squeue" else "", "")

    settings = SessionSettings("n2", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")
    given = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "2001", "SLURM_JOB_NODELIST": "n[1-2]"}
    node.prolog(run, settings, {**given, node.SESSION_VARIABLE: "-;demo;main,sub;1,1+0,3"})
    assert ["squeue", "--noheader", "--jobs=5", "--format=%C"] in asked
    if cpus == "4":
        with pytest.raises(HostStateError, match="too few for 3 containers"):
            node.read_plan(5)
        node.prolog(run, settings, {**given, node.SESSION_VARIABLE: "-;demo;main,sub;1,1+0,2"})
    if fits:
        node.read_plan(5)
    else:
        with pytest.raises(HostStateError, match="n2: The job has 3 CPUs on 2 nodes, too few for 3 containers"):
            node.read_plan(5)


def run_watch(top: Path, monkeypatch: pytest.MonkeyPatch, queue: str, stepping: Collection[int] = ()) -> list[float]:
    """The seconds of each wait until the watcher ended. It is interrupted at the fourth.

    ``stepping``: the jobs with steps here; this machine may have those of a lab.
    """
    waited: list[float] = []

    def wait(_notices: object, seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds
        for thread in threading.enumerate():
            if thread.name == node._REMOVAL_THREAD:
                thread.join()
        if len(waited) > 3:
            raise KeyboardInterrupt

    clock = [1000.0]
    monkeypatch.setattr(node, "_jobs_with_steps", lambda: set(stepping))
    monkeypatch.setattr(node.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(node.routing.RouteNotices, "wait", wait)
    settings = SessionSettings("n1", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")

    def run_it(argv: list[str], **options: Any) -> CommandResult:
        return run(argv, **options) if "rm" in argv else CommandResult(0, queue, "")

    with contextlib.suppress(KeyboardInterrupt):
        node.watch_leftovers(run_it, settings)
    return waited


def test_leftovers_of_a_killed_epilog_are_removed_by_the_watcher(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "run" / "5" / "0").mkdir(parents=True)
    waited = run_watch(top, monkeypatch, "5|COMPLETED\n")
    assert list_leftovers(top) == ["run/.lock", "run/.watch"]
    assert list_discarded(top) == []
    assert len(waited) == 2 and waited[0] < 60


def test_watcher_does_not_touch_running_jobs(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "run" / "5").mkdir()
    assert len(run_watch(top, monkeypatch, "5|RUNNING\n")) == 4
    assert "run/5" in list_leftovers(top)
    # On the node of its own steps, the controller is not queried.
    assert len(run_watch(top, monkeypatch, "5|COMPLETED\n", stepping={5})) == 4
    assert "run/5" in list_leftovers(top)


def test_steps_are_found_by_their_process_names() -> None:
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(3600)"]
    with subprocess.Popen(["bash", "-c", 'exec -a "slurmstepd: [4294901.extern]" "$@"', "x", *argv]) as process:
        try:
            wait_until("the step is found", lambda: 4294901 in node._jobs_with_steps())
        finally:
            process.kill()


def test_user_process_is_not_mistaken_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["bash", "-c", 'exec -a "slurmstepd: [4294902.extern]" sleep 3600']
    with subprocess.Popen(argv) as process:
        try:
            wait_until("the step is found", lambda: 4294902 in node._jobs_with_steps())
            monkeypatch.setattr(node.os, "geteuid", lambda: 4242)
            assert 4294902 not in node._jobs_with_steps()
        finally:
            process.kill()


def test_lock_file_is_inaccessible_to_users(top: Path) -> None:
    """Anyone who can open a file, even only for reading, can lock it."""
    (top / "run" / ".lock").touch(0o644)
    node.epilog(lambda *_argv, **_options: CommandResult(0, "", ""), {"SLURM_JOB_ID": "5"})
    assert (top / "run" / ".lock").stat().st_mode & 0o777 == 0o600


def test_cleanup_waits_for_a_running_prolog(top: Path) -> None:
    (top / "run" / "5").mkdir()
    seen: list[bool] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        with (top / "run" / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append(True)
        return CommandResult(0, "5|PENDING\n", "")

    assert node.clean_up(run, "n1") == [5]
    assert node.clean_up(run, "n1") == []
    assert seen == [True]
    (top / "lib" / "6").mkdir()
    node.remove_all_jobs(run)
    assert node.leftover_jobs() == []


def test_failed_removal_does_not_block_others(top: Path) -> None:
    for path in ("netns/gms5.0", "run/6/0"):
        (top / path).mkdir(parents=True)

    def run(argv: list[str], **_options: object) -> CommandResult:
        if argv[0] == "ip":
            raise CommandError(argv, "did not end within 30 s")
        return CommandResult(0, "", "")

    assert node.remove_ended_jobs(run, "n1") == [5, 6]
    assert list_leftovers(top) == ["netns/gms5.0"]


def test_deeply_nested_directories_do_not_block_the_epilog(top: Path) -> None:
    """Otherwise, each later prolog on the node would fail, and so would each session."""
    deepest = os.open(top / "lib", os.O_RDONLY)
    for name in ("5", "0", *["d"] * 1200):
        os.mkdir(name, dir_fd=deepest)
        below = os.open(name, os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = below
    os.close(deepest)

    def run_it(argv: list[str], **options: Any) -> CommandResult:
        return CommandResult(0, "", "") if argv[0] == "squeue" else run(argv, **options)

    assert node.clean_up(run_it, "n1") == [5]
    assert sorted(path.name for path in top.rglob("*")) == [".lock", "lib", "netns", "run"]
