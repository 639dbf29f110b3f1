# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a session, with an srun that is a script: the stage of the session, and why it has failed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import (
    job,
    node,
    plan,
    sessions,
    spec,
    supervise,
)

DEMO_SPEC = spec.parse_spec({"name": "demo", "roles": [{"name": "main", "image": "x"}, {"name": "sub", "image": "x"}]})
TOKEN = "+;demo;main,sub;1,0+0,1"
#: What each step does.
_SRUN = """#!/bin/sh
echo "$*" >> {top}/seen
case "$*" in
  *" prepare") {prepare} ;;
  *" container "*) {container} ;;
  *" await") {watch} ;;
esac
"""


@pytest.fixture(name="top", autouse=True)
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node, "RUN_DIRECTORY", str(tmp_path))
    # The output of this process is that of pytest.
    monkeypatch.setattr(supervise, "redirect_output", lambda _path: None)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "7" / "1").mkdir(parents=True)
    session = plan.place_containers(plan.parse_token(TOKEN), 5, ["n1", "n2"], {}, ["10.192.0.0/10"])
    (tmp_path / "7" / "plan.json").write_text(
        json.dumps({"containers": [one._asdict() for one in session], "here": ["sub1"]})
    )
    return tmp_path


def make_batch(
    top: Path,
    prepare: str = "true",
    container: str = "true",
    watch: str = "true",
    limit: int = 0,
    word: str = "",
    away: Callable[[str], bool] = lambda _stage: False,
) -> tuple[int, list[str]]:
    """The exit status, and the stages that the controller has taken. ``away``: whether it does not take one."""
    (top / "srun").write_text(_SRUN.format(top=top, prepare=prepare, container=container, watch=watch))
    (top / "srun").chmod(0o755)
    told: list[str] = []

    def run(argv: list[str], **_options: object) -> CommandResult:
        if argv[0] == "ssh-keygen":
            Path(argv[-1]).write_text("a key\n")
            return CommandResult(0, "", "")
        stage = argv[-1].partition(f"{TOKEN} ")[2]
        if away(stage):
            raise CommandError(argv, "did not end within 30 s")
        told.append(stage)
        return CommandResult(0, "", "")

    variables = {**os.environ, "SLURM_JOB_ID": "7", job.SESSION_VARIABLE: TOKEN}
    word = word or job.encode_spec(DEMO_SPEC._replace(time=limit))
    return supervise.SessionBatch(run, "/bin/gpumesh-session", word, variables, f"{top}/logs").work(), told


def test_session_is_running_once_its_containers_run(top: Path) -> None:
    assert make_batch(top, container="sleep 1", watch="sleep 0.3") == (0, ["fetching", "starting", "running"])
    # As long as no node has reported it, it does not.
    status, told = make_batch(top, container="sleep 0.4; exit 3", watch="exec sleep 60")
    assert (status, told[:2], "running" in told) == (3, ["fetching", "starting"], False)


@pytest.fixture(name="soon")
def _short_retry_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "_RETRY_INTERVAL", 0.05)


@pytest.mark.usefixtures("soon")
def test_stage_is_published_again_until_accepted(top: Path) -> None:
    """The controller is away from before the session runs until a while later."""
    refused: list[str] = []

    def away(stage: str) -> bool:
        if stage == "fetching":
            return False
        refused.append(stage)
        return len(refused) < 6

    container = f"while ! test -e {top}/enough; do sleep 0.1; done"
    Timer(0.0, lambda: _wait_until(lambda: len(refused) > 5) and (top / "enough").touch()).start()
    status, told = make_batch(top, container=container, away=away)
    assert (status, told) == (0, ["fetching", "running"])
    assert set(refused) == {"starting", "running"} and refused[-1] == "running"


@pytest.mark.usefixtures("soon")
def test_failure_is_published_before_the_job_ends(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []

    def away(stage: str) -> bool:
        refused.append(stage)
        return len(refused) < 8

    steps = {"prepare": "echo 'gpumesh-session: no such image' >&2; exit 1"}
    assert make_batch(top, **steps, away=away) == (1, ["failed no such image"])
    # A controller that stays away does not keep the job for ever.
    monkeypatch.setattr(supervise, "_FINAL_TIMEOUT", 0.2)
    assert make_batch(top, **steps, away=lambda _stage: True) == (1, [])


def _wait_until(holds: Callable[[], bool]) -> bool:
    while not holds():
        time.sleep(0.05)
    return True


def test_steps_know_their_container_index(top: Path) -> None:
    assert make_batch(top, container=f"echo $GPUMESH_SESSION_PLACE >> {top}/places; sleep 0.5", watch="exit 0")[0] == 0
    assert sorted((top / "places").read_text().split()) == ["0", "1"]


def test_image_fetch_is_limited_in_time(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "FETCH_MINUTES", 0.01)
    status, told = make_batch(top, prepare="exec sleep 60", limit=5)
    assert (status, told[0], told[1][:45]) == (1, "fetching", "failed The images took longer than 30 minutes")
    # Without a limit, Slurm counts nothing.
    assert make_batch(top, prepare="sleep 1")[0] == 0


def test_spec_and_key_are_sent_on_standard_input(top: Path) -> None:
    assert make_batch(top, prepare=f"tee {top}/given; exit 0")[0] == 0
    assert (top / "given").read_text() == f"{job.encode_spec(DEMO_SPEC)}\na key\n"


def test_secrets_are_not_in_process_arguments(top: Path) -> None:
    assert make_batch(top, prepare="true", container="sleep 0.5", watch="true")[0] == 0
    seen = (top / "seen").read_text()
    assert "container" in seen and job.encode_spec(DEMO_SPEC) not in seen
    command, *rest = job.format_script("/bin/gpumesh-session", DEMO_SPEC, "/mnt/a b").splitlines()[1:]
    assert command == "exec /bin/gpumesh-session supervise '/mnt/a b' <<'END'"
    assert rest == [job.encode_spec(DEMO_SPEC), "END"]


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ({"prepare": "echo 'gpumesh-session: no such image' >&2; exit 1"}, "no such image"),
        ({"container": "echo 'gpumesh-session: main1 ended' >&2; exit 127", "watch": "exec sleep 60"}, "main1 ended"),
        ({"container": "exec sleep 60", "watch": "echo noise >&2; echo 'gpumesh-session: late' >&2; exit 1"}, "late"),
        ({"prepare": "exit 9"}, "a step of the job exited 9."),
    ],
)
def test_failure_reason_is_in_the_comment(
    top: Path, steps: dict[str, str], why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    status, told = make_batch(top, **steps)
    assert status
    assert told[-1] == f"failed {why}"
    # The log contains everything, and at its end why.
    assert capfd.readouterr().err.splitlines()[-1] == f"gpumesh-session: failed: {why}"
    assert make_batch(top) == (0, ["fetching", "starting", "running"])
    assert capfd.readouterr().err.splitlines()[-1] == "gpumesh-session: ended"


def test_failure_of_a_running_session_is_published(top: Path) -> None:
    container = f"touch {top}/up; sleep 1; echo 'gpumesh-session: sub1 ended with status 137' >&2; exit 137"
    status, told = make_batch(top, container=container, watch=f"while ! test -e {top}/up; do sleep 0.1; done")
    assert (status, told[2:]) == (137, ["running", "failed sub1 ended with status 137"])


def test_prolog_failure_is_the_failure_of_the_session(top: Path) -> None:
    (top / "7" / "error").write_text("n1: The subnet of the session is used by job 5. Start the session again.\n")
    assert make_batch(top) == (1, ["failed n1: The subnet of the session is used by job 5. Start the session again."])


def test_full_log_volume_does_not_stop_containers(top: Path) -> None:
    """The log is on a shared volume, which may be full. A process that writes to a closed pipe is killed."""
    reading, writing = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    errors = supervise.StderrCopier(os.fdopen(reading, "rb", buffering=0), full)
    for _part in range(40):
        os.write(writing, b"x" * 8191 + b"\n")
    os.write(writing, b"gpumesh-session: no such image\n")
    os.close(writing)
    errors.join(240.0)
    os.close(full)
    assert errors.first_message == "no such image"


_REDIRECT_PROGRAM = """
import os, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import supervise
os.umask(0)
try:
    supervise.redirect_output(sys.argv[1])
except GpumeshError as failure:
    sys.exit(str(failure))
print("output", flush=True)
os.system("echo error >&2")
"""


def run_redirected(path: Path) -> str:
    """What a process says that has its output written to this file."""
    done = subprocess.run(
        [sys.executable, "-c", _REDIRECT_PROGRAM, str(path)], capture_output=True, text=True, check=False
    )
    assert not done.stdout
    return done.stderr.strip()


def test_log_is_private_and_requeued_jobs_append(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    log = shared / "gpumesh-alice" / "demo.log"
    assert run_redirected(log) == ""
    assert (log.parent.stat().st_mode & 0o777, log.stat().st_mode & 0o777) == (0o700, 0o600)
    log.chmod(0o644)
    assert run_redirected(log) == ""
    assert (log.read_text(), log.stat().st_mode & 0o777) == ("output\nerror\n" * 2, 0o600)


def test_log_directory_writable_by_others_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("")
    (tmp_path / "demo.log").symlink_to(other)
    assert f"The log {tmp_path}/demo.log cannot be written" in run_redirected(tmp_path / "demo.log")
    tmp_path.chmod(0o1777)
    assert f"{tmp_path} is open to other users" in run_redirected(tmp_path / "demo.log")
    assert other.read_text() == ""


def test_unwritable_log_is_reported_in_the_comment(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_to(path: str) -> None:
        raise HostStateError(f"no {path}.")

    monkeypatch.setattr(supervise, "redirect_output", write_to)
    assert make_batch(top) == (1, [f"failed no {top}/logs/gpumesh-session-demo-7.log."])


def test_invalid_spec_is_reported_in_the_comment(top: Path) -> None:
    status, (told,) = make_batch(top, word="e30=")
    assert (status, told.partition(".")[0]) == (1, "failed session_name '' is an invalid session name")


def test_slurm_output_is_discarded(top: Path) -> None:
    words = job.sbatch_options(DEMO_SPEC, plan.parse_token(TOKEN), plan.NodeSize(0, 1, 0, 1))
    assert [word for word in words if word.startswith(("--output", "--error"))] == ["--output=/dev/null"]


def make_session(state: str, comment: str, nodes: str = "n1", reason: str = "None") -> job.QueuedSession:
    (found,) = job.parse_queue(f"7|alice|{state}|{nodes}|{nodes or 'n/a'}|{reason}|gpumesh-session {TOKEN} {comment}\n")
    return found


def test_failure_reason_of_each_state() -> None:
    assert sessions.failure_reason(make_session("RUNNING", "running")) == ""
    assert sessions.failure_reason(make_session("COMPLETED", "running")) == ""
    assert sessions.failure_reason(make_session("COMPLETING", "failed no such image.")) == "no such image."
    assert sessions.failure_reason(make_session("CANCELLED", "running")) == "its job is cancelled."
    assert "ended" in sessions.failure_reason(None)
    # A session that is restarted is not running yet.
    assert make_session("PENDING", "running").stage == "waiting"
    assert (
        make_session("PENDING", "failed x").stage,
        sessions.failure_reason(make_session("PENDING", "failed x")),
    ) == ("waiting", "")
    assert sessions.format_session(make_session("FAILED", "failed x"), "demo") == "demo: job 7 · failed"


def test_status_line_of_a_waiting_session() -> None:
    waits = "demo: job 7, main:1, sub:1 · waiting"
    assert sessions.format_session(make_session("PENDING", "waiting", ""), "demo") == waits
    assert sessions.format_session(make_session("RUNNING", "waiting"), "demo") == waits
    assert (
        sessions.format_session(make_session("PENDING", "waiting", "", "Resources"), "demo") == f"{waits} (Resources)"
    )
    assert sessions.format_session(make_session("RUNNING", "fetching"), "demo").endswith("· fetching on n1")
    assert sessions.format_session(make_session("SUSPENDED", "running"), "demo").endswith("· suspended")


def test_remedy_names_the_node_with_the_log() -> None:
    assert sessions.log_remedy("/x.log", make_session("FAILED", "failed x", "n2").log_node) == "See /x.log on n2."
    assert sessions.log_remedy("/x.log", make_session("CANCELLED", "waiting", "").log_node) == ""
    assert sessions.log_remedy("", "n2") == ""
