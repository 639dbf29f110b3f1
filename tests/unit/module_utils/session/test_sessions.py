# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before anything is submitted, and two sessions with the same name that start at the same time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings

HERE = Settings("n1", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp/{user}")
DEMO = spec.parse({"name": "demo", "roles": [{"name": "main", "image": "docker.io/library/x:1"}]})


def queued(number: int) -> job.Session:
    (found,) = job.parse_queue(f"{number}|alice|PENDING||n/a|None|gpumesh-session {number};demo;main;1 waiting\n")
    return found


@pytest.fixture(name="cancelled")
def _cancelled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sessions, "own_name", lambda: "alice")
    monkeypatch.setattr(job, "fit", lambda *_given: job.Fit((), job.plan.Size()))
    monkeypatch.setattr(job, "submit", lambda *_given: 8)
    return []


def start(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]], first: int) -> sessions.Started:
    looks = iter([None, queued(first)])
    monkeypatch.setattr(job, "own", lambda _run, _name: next(looks))

    def run(argv: list[str], **_options: object) -> Completed:
        cancelled.append(argv)
        return Completed(0, "", "")

    return sessions.start(run, "/bin/gpumesh-session", DEMO, HERE)


def test_the_later_one_steps_back(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    with pytest.raises(InputError, match="There is already a session 'demo'"):
        start(monkeypatch, cancelled, 7)
    assert cancelled == [["scancel", "8"]]


def test_the_earlier_one_goes_on(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    assert start(monkeypatch, cancelled, 8).job == 8
    assert cancelled == []


def test_the_log_is_in_a_folder_that_only_the_user_writes_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "own_name", lambda: "alice")
    for name in ("all", "team", "mine"):
        (tmp_path / name / "alice").mkdir(parents=True)
    (tmp_path / "all" / "alice").chmod(0o1777)
    (tmp_path / "team" / "alice").chmod(0o2775)
    (tmp_path / "mine" / "alice").chmod(0o755)
    here = HERE._replace(volumes=[f"{tmp_path}/{name}" for name in ("none", "all", "team", "mine")])
    assert sessions._logs(here) == f"{tmp_path}/mine/alice"
    assert sessions._logs(here._replace(volumes=here.volumes[:-1])) == "/var/tmp/alice"


def test_the_log_of_a_session_is_told(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    assert start(monkeypatch, cancelled, 8).log == "/var/tmp/alice/gpumesh-session-demo-8.log"


def refused(monkeypatch: pytest.MonkeyPatch, image: str, found: job.Session | None = None) -> str:
    """Why a session with this image is refused. Slurm is only queried for existing sessions."""
    monkeypatch.setattr(job, "own", lambda _run, _name: found)
    monkeypatch.setattr(job, "fit", lambda *_given: job.Fit((), job.plan.Size()))
    wanted = spec.parse({"name": "demo", "roles": [{"name": "main", "image": image}]})
    try:
        sessions.refuse(lambda *_given: pytest.fail("a command was run"), "/bin/gpumesh-session", wanted, HERE)
    except InputError as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize("transport", ["docker-archive:", "oci-archive:", "oci:", "dir:"])
def test_an_image_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]], tmp_path: Path, transport: str
) -> None:
    assert f"there is no image {tmp_path}/none" in refused(monkeypatch, f"{transport}{tmp_path}/none")
    # A relative path means a different folder on each node.
    assert "there is no image here.tar" in refused(monkeypatch, f"{transport}here.tar")
    assert refused(monkeypatch, f"{transport}{tmp_path}:tag") == ""
    assert refused(monkeypatch, "docker.io/library/x:1") == ""


def test_a_name_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    said = refused(monkeypatch, "docker.io/library/x:1", queued(7))
    assert "There is already a session 'demo'. Choose another name, or: gpumesh-session stop demo" in said


def test_root_has_no_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "root cannot own a session" in refused(monkeypatch, "docker.io/library/x:1")


def test_the_sessions_that_have_ended_last_say_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "own_name", lambda: "alice")
    folder = tmp_path / "alice"
    folder.mkdir()
    here = HERE._replace(volumes=[str(tmp_path)])

    def run(argv: list[str], **_options: object) -> Completed:
        prefix = argv[2].removeprefix("--format=").partition("|")[0]
        return Completed(0, f"{prefix}|19|alice|RUNNING|n1|n1|None|gpumesh-session +;demo;main;1 running\n", "")

    assert sessions.ended(run, here) == []
    for number in range(1, 20):
        log = folder / f"gpumesh-session-{'demo' if number % 2 else 'a-7'}-{number}.log"
        log.write_text(f"output\ngpumesh-session: failed: attempt\ngpumesh-session: failed: reason {number}\nlate\n")
        os.utime(log, (number * 60, number * 60))
    (folder / "gpumesh-session-demo-17.log").write_text("x" * 200_000 + "\ngpumesh-session: ended\n")
    os.utime(folder / "gpumesh-session-demo-17.log", (1020, 1020))
    (folder / "gpumesh-session-demo-15.log").write_text("killed\n  gpumesh-session: ended\n")
    os.utime(folder / "gpumesh-session-demo-15.log", (900, 900))
    (folder / "gpumesh-session-demo-13.log").unlink()
    (folder / "gpumesh-session-demo-13.log").symlink_to("nowhere")
    (folder / "notes.log").write_text("")
    found = sessions.ended(run, here)
    assert [one.job for one in found] == [18, 17, 16, 15, 14, 12, 11, 10, 9, 8]
    assert [one.said for one in found[:3]] == ["failed: reason 18", "ended", "failed: reason 16"]
    assert "does not say why" in found[3].said
    assert [one.job for one in sessions.ended(run, here, "a-7")][:2] == [18, 16]
    first, log_line = sessions.ended_lines(found[0])
    assert re.fullmatch(r"a-7: job 18 · \d{4}-\d\d-\d\d \d\d:\d\d · failed: reason 18", first)
    assert log_line == f"log {folder}/gpumesh-session-a-7-18.log"
