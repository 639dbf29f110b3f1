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
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import node
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings


@pytest.fixture(name="top", autouse=True)
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, folder in (("FOLDER", "run"), ("STORAGE", "lib"), ("_NAMESPACES", "netns")):
        (tmp_path / folder).mkdir()
        monkeypatch.setattr(node, name, str(tmp_path / folder))
    return tmp_path


def leftovers(top: Path) -> list[str]:
    found = sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.parent != top)
    return [path for path in found if not TRASH.search(path)]


#: What a directory of a job has in its name once it was discarded.
TRASH = re.compile(r"\.trash-([0-9]+)-[0-9a-f]{16}")


def discarded(top: Path) -> list[str]:
    """The deepest paths, as they were."""
    found = [str(path.relative_to(top)) for path in top.rglob("*") if path.is_dir() and not any(path.iterdir())]
    return sorted(TRASH.sub(r"\1", path) for path in found if TRASH.search(path))


def test_what_is_left_of_jobs_that_are_over_is_removed(top: Path) -> None:
    for path in ("run/5/0", "run/6/0", "lib/7/0/root", "lib/6/0", "run/8"):
        (top / path).mkdir(parents=True)
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> Completed:
        asked.append(argv)
        return Completed(0, "6|RUNNING\n5|DEADLINE\n7|PENDING\n", "")

    assert node.sweep(run, "n1", current=8) == [5, 7]
    assert discarded(top) == ["lib/7/0/root", "run/5/0"]
    assert leftovers(top) == ["lib/6", "lib/6/0", "run/6", "run/6/0", "run/8"]
    assert "--nodelist=n1" in asked[0]


def test_nothing_is_removed_while_slurm_does_not_answer(top: Path) -> None:
    (top / "run" / "5").mkdir()

    def run(argv: list[str], **_options: object) -> Completed:
        raise CommandError(argv, "did not end within 30 s")

    assert node.sweep(run, "n1") == []
    assert leftovers(top) == ["run/5"]


def test_a_subnet_that_another_session_has_here_is_refused(top: Path) -> None:
    (top / "run" / "5").mkdir()
    (top / "run" / "5" / "plan.json").write_text('{"slot": 17, "job": 5}')
    node._refuse_taken(18, 9)
    node._refuse_taken(17, 5)
    with pytest.raises(HostStateError, match="used by job 5"):
        node._refuse_taken(17, 9)


def test_the_tasks_of_a_job_are_told_why_its_prolog_has_failed(top: Path) -> None:
    with pytest.raises(HostStateError, match="session_enabled"):
        node.read_plan(5)
    (top / "run" / "5").mkdir()
    (top / "run" / "5" / "error").write_text("n1: no VXLAN.\n")
    with pytest.raises(HostStateError, match="n1: no VXLAN"):
        node.read_plan(5)


@pytest.mark.parametrize("name", ["SLURM_JOB_NODELIST", "SLURM_NODELIST"])
def test_the_nodes_of_a_job_are_read_as_each_release_of_slurm_tells_them(
    top: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Slurm 22.05 only has the older name."""
    monkeypatch.setattr(node, "guard", lambda _run: None)
    monkeypatch.setattr(node, "_make_folders", lambda *_given: None)
    settings = Settings(
        "n2", "n1", "eth0", {"n1": "10.0.0.1", "n2": "10.0.0.2"}, ["10.192.0.0/10"], [], True, [], [], [], "/x"
    )
    given = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "2001", node.VARIABLE: "-;demo;main,sub;1,0+0,1", name: "n[1-2]"}
    node.prolog(lambda *_argv, **_options: Completed(0, "", ""), settings, given)
    assert node.read_plan(5)["here"] == ["sub1"]


def test_a_job_that_has_fewer_nodes_than_its_session_needs(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "guard", lambda _run: None)
    settings = Settings("n2", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")
    given = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "2001", node.VARIABLE: "-;demo;main,sub;1,0+0,1"}
    node.prolog(lambda *_argv, **_options: Completed(0, "", ""), settings, given)
    with pytest.raises(HostStateError, match="n2: The session needs 2 nodes, but its job has 0"):
        node.read_plan(5)


@pytest.mark.parametrize(("cpus", "fits"), [("3", False), ("4", True), ("", True)])
def test_a_job_has_no_more_containers_on_a_node_than_cpus(
    top: Path, monkeypatch: pytest.MonkeyPatch, cpus: str, fits: bool
) -> None:
    """Two on each of two nodes; nothing is known of the job where Slurm does not answer."""
    monkeypatch.setattr(node, "guard", lambda _run: None)
    monkeypatch.setattr(node, "_make_folders", lambda *_given: None)
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: object) -> Completed:
        asked.append(argv)
        return Completed(0, f"{cpus}\n" if argv[0] == "squeue" else "", "")

    settings = Settings("n2", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")
    given = {"SLURM_JOB_ID": "5", "SLURM_JOB_UID": "2001", "SLURM_JOB_NODELIST": "n[1-2]"}
    node.prolog(run, settings, {**given, node.VARIABLE: "-;demo;main,sub;1,1+0,3"})
    assert ["squeue", "--noheader", "--jobs=5", "--format=%C"] in asked
    if cpus == "4":
        with pytest.raises(HostStateError, match="too few for 3 containers"):
            node.read_plan(5)
        node.prolog(run, settings, {**given, node.VARIABLE: "-;demo;main,sub;1,1+0,2"})
    if fits:
        node.read_plan(5)
    else:
        with pytest.raises(HostStateError, match="n2: The job has 3 CPUs on 2 nodes, too few for 3 containers"):
            node.read_plan(5)


def watched(top: Path, monkeypatch: pytest.MonkeyPatch, queue: str, stepping: Collection[int] = ()) -> list[float]:
    """The seconds of each wait until the watcher ended. It is interrupted at the fourth.

    ``stepping``: the jobs with steps here; this machine may have those of a lab.
    """
    waited: list[float] = []

    def wait(_notices: object, seconds: float) -> None:
        waited.append(seconds)
        clock[0] += seconds
        for thread in threading.enumerate():
            if thread.name == node._REMOVAL:
                thread.join()
        if len(waited) > 3:
            raise KeyboardInterrupt

    clock = [1000.0]
    monkeypatch.setattr(node, "_stepping", lambda: set(stepping))
    monkeypatch.setattr(node.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(node.routing.Notices, "wait", wait)
    settings = Settings("n1", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/x")

    def run_it(argv: list[str], **options: Any) -> Completed:
        return run(argv, **options) if "rm" in argv else Completed(0, queue, "")

    with contextlib.suppress(KeyboardInterrupt):
        node.watch(run_it, settings)
    return waited


def test_what_a_killed_epilog_leaves_is_removed_without_another_session(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (top / "run" / "5" / "0").mkdir(parents=True)
    waited = watched(top, monkeypatch, "5|COMPLETED\n")
    assert leftovers(top) == ["run/.lock", "run/.watch"]
    assert discarded(top) == []
    assert len(waited) == 2 and waited[0] < 60


def test_a_job_that_goes_on_is_watched_and_left_alone(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (top / "run" / "5").mkdir()
    assert len(watched(top, monkeypatch, "5|RUNNING\n")) == 4
    assert "run/5" in leftovers(top)
    # On the node of its own steps, the controller is not queried.
    assert len(watched(top, monkeypatch, "5|COMPLETED\n", stepping={5})) == 4
    assert "run/5" in leftovers(top)


def test_the_steps_of_a_node_are_found_by_their_names() -> None:
    argv = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(["bash", "-c", 'exec -a "slurmstepd: [4294901.extern]" "$@"', "x", *argv]) as process:
        try:
            end = time.monotonic() + 120
            while 4294901 not in node._stepping():
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            process.kill()


def test_a_program_of_a_user_is_not_taken_for_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    argv = ["bash", "-c", 'exec -a "slurmstepd: [4294902.extern]" sleep 60']
    with subprocess.Popen(argv) as process:
        try:
            end = time.monotonic() + 120
            while 4294902 not in node._stepping():
                assert time.monotonic() < end
                time.sleep(0.1)
            monkeypatch.setattr(node.os, "geteuid", lambda: 4242)
            assert 4294902 not in node._stepping()
        finally:
            process.kill()


def test_users_cannot_hold_up_the_prologs_of_others(top: Path) -> None:
    """Anyone who can open a file, even only for reading, can lock it."""
    (top / "run" / ".lock").touch(0o644)
    node.epilog(lambda *_argv, **_options: Completed(0, "", ""), {"SLURM_JOB_ID": "5"})
    assert (top / "run" / ".lock").stat().st_mode & 0o777 == 0o600


def test_the_playbook_waits_for_a_prolog_that_is_under_way(top: Path) -> None:
    (top / "run" / "5").mkdir()
    seen: list[bool] = []

    def run(argv: list[str], **_options: object) -> Completed:
        with (top / "run" / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                seen.append(True)
        return Completed(0, "5|PENDING\n", "")

    assert node.clean(run, "n1") == [5]
    assert node.clean(run, "n1") == []
    assert seen == [True]
    (top / "lib" / "6").mkdir()
    node.clear(run)
    assert node.jobs_here() == []


def test_what_cannot_be_removed_holds_up_nothing_else(top: Path) -> None:
    for path in ("netns/gms5.0", "run/6/0"):
        (top / path).mkdir(parents=True)

    def run(argv: list[str], **_options: object) -> Completed:
        if argv[0] == "ip":
            raise CommandError(argv, "did not end within 30 s")
        return Completed(0, "", "")

    assert node.sweep(run, "n1") == [5, 6]
    assert leftovers(top) == ["netns/gms5.0"]


def test_directories_that_a_user_has_nested_deeply_hold_up_nothing(top: Path) -> None:
    """Otherwise, each later prolog on the node would fail, and so would each session."""
    deepest = os.open(top / "lib", os.O_RDONLY)
    for name in ("5", "0", *["d"] * 1200):
        os.mkdir(name, dir_fd=deepest)
        below = os.open(name, os.O_RDONLY, dir_fd=deepest)
        os.close(deepest)
        deepest = below
    os.close(deepest)

    def run_it(argv: list[str], **options: Any) -> Completed:
        return Completed(0, "", "") if argv[0] == "squeue" else run(argv, **options)

    assert node.clean(run_it, "n1") == [5]
    assert sorted(path.name for path in top.rglob("*")) == [".lock", "lib", "netns", "run"]
