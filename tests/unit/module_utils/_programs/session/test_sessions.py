# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is refused before anything is submitted, and two sessions with the same name that start at the same time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, sessions, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

HOST_SETTINGS = SessionSettings("n1", "n1", "eth0", {}, ["10.192.0.0/10"], [], True, [], [], [], "/var/tmp/{user}")
DEMO_SPEC = spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "docker.io/library/x:1"}]})


def make_session(number: int) -> job.QueuedSession:
    (found,) = job.parse_queue(f"{number}|alice|PENDING||n/a|None|gpumesh-session {number};demo;main;1 waiting\n")
    return found


@pytest.fixture(name="cancelled")
def _cancelled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sessions, "current_user_name", lambda: "alice")
    monkeypatch.setattr(job, "fit_session", lambda *_given: job.SessionFit((), job.plan.NodeSize()))
    monkeypatch.setattr(job, "submit", lambda *_given: 8)
    return []


def start_session(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]], first: int) -> sessions.StartedSession:
    looks = iter([None, make_session(first)])
    monkeypatch.setattr(job, "find_own_session", lambda _run, _name: next(looks))

    def run(argv: list[str], **_options: object) -> CommandResult:
        cancelled.append(argv)
        return CommandResult(0, "", "")

    return sessions.start_session(run, "/bin/gpumesh-session", DEMO_SPEC, HOST_SETTINGS)


def test_later_duplicate_is_cancelled(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    with pytest.raises(InputError, match="There is already a session 'demo'"):
        start_session(monkeypatch, cancelled, 7)
    assert cancelled == [["scancel", "8"]]


def test_earlier_duplicate_continues(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    assert start_session(monkeypatch, cancelled, 8).job_id == 8
    assert cancelled == []


def test_log_directory_is_writable_only_by_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "current_user_name", lambda: "alice")
    for name in ("all", "team", "mine"):
        (tmp_path / name / "alice").mkdir(parents=True)
    (tmp_path / "all" / "alice").chmod(0o1777)
    (tmp_path / "team" / "alice").chmod(0o2775)
    (tmp_path / "mine" / "alice").chmod(0o755)
    here = HOST_SETTINGS._replace(volumes=[f"{tmp_path}/{name}" for name in ("none", "all", "team", "mine")])
    assert sessions._find_log_directory(here) == f"{tmp_path}/mine/alice"
    assert sessions._find_log_directory(here._replace(volumes=here.volumes[:-1])) == "/var/tmp/alice"


def test_log_path_is_returned(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    assert start_session(monkeypatch, cancelled, 8).log_path == "/var/tmp/alice/gpumesh-session-demo-8.log"


def refusal_message(
    monkeypatch: pytest.MonkeyPatch, image: str, existing_session: job.QueuedSession | None = None
) -> str:
    """Why a session with this image is refused. Slurm is only queried for existing sessions."""
    monkeypatch.setattr(job, "find_own_session", lambda _run, _name: existing_session)
    monkeypatch.setattr(job, "fit_session", lambda *_given: job.SessionFit((), job.plan.NodeSize()))
    wanted = spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": image}]})
    try:
        sessions.refuse_session(
            lambda *_given: pytest.fail("a command was run"), "/bin/gpumesh-session", wanted, HOST_SETTINGS
        )
    except InputError as failure:
        return str(failure)
    return ""


@pytest.mark.parametrize("transport", ["docker-archive:", "oci-archive:", "oci:", "dir:"])
def test_missing_image_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]], tmp_path: Path, transport: str
) -> None:
    assert f"there is no image {tmp_path}/none" in refusal_message(monkeypatch, f"{transport}{tmp_path}/none")
    # A relative path means a different folder on each node.
    assert "there is no image here.tar" in refusal_message(monkeypatch, f"{transport}here.tar")
    assert refusal_message(monkeypatch, f"{transport}{tmp_path}:tag") == ""
    assert refusal_message(monkeypatch, "docker.io/library/x:1") == ""


def test_duplicate_name_is_refused(monkeypatch: pytest.MonkeyPatch, cancelled: list[list[str]]) -> None:
    said = refusal_message(monkeypatch, "docker.io/library/x:1", make_session(7))
    assert "There is already a session 'demo'. Choose another name, or: gpumesh-session stop demo" in said


def test_root_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "root cannot own a session" in refusal_message(monkeypatch, "docker.io/library/x:1")


def test_ended_sessions_are_listed_with_their_outcome(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sessions, "current_user_name", lambda: "alice")
    folder = tmp_path / "alice"
    folder.mkdir()
    here = HOST_SETTINGS._replace(volumes=[str(tmp_path)])

    def run(argv: list[str], **_options: object) -> CommandResult:
        prefix = argv[2].removeprefix("--format=").partition("|")[0]
        return CommandResult(0, f"{prefix}|19|alice|RUNNING|n1|n1|None|gpumesh-session +;demo;main;1 running\n", "")

    assert sessions.list_ended(run, here) == []
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
    found = sessions.list_ended(run, here)
    assert [one.job_id for one in found] == [18, 17, 16, 15, 14, 12, 11, 10, 9, 8]
    assert [one.outcome for one in found[:3]] == ["failed: reason 18", "ended", "failed: reason 16"]
    assert "does not say why" in found[3].outcome
    assert [one.job_id for one in sessions.list_ended(run, here, "a-7")][:2] == [18, 16]
    first, log_line = sessions.format_ended(found[0])
    assert re.fullmatch(r"a-7: job 18 · \d{4}-\d\d-\d\d \d\d:\d\d · failed: reason 18", first)
    assert log_line == f"log {folder}/gpumesh-session-a-7-18.log"
