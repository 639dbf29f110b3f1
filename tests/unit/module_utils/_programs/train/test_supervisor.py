# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A supervisor while Slurm's controller does not answer, or the shared volume fails."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import supervisor
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    Cause,
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

AWAY = CommandResult(1, "", "error: Unable to contact slurm controller (connect failure)")


class Slurm:
    """Slurm, whose controller does not answer this many queries. ``squeue``, ``job`` and ``sinfo``: what it prints.

    ``steps``: those of the job, until they are cancelled.
    """

    steps = ""
    requeued = False
    on_requeue = staticmethod(lambda: None)

    def __init__(self, away: int, squeue: str = "", job: str = "", sinfo: str = "n1|idle\n") -> None:
        self.away = away
        self.sinfo = sinfo
        self.squeue = squeue
        self.job = job
        self.asked: list[str] = []

    def __call__(self, argv: list[str], **options: object) -> CommandResult:
        program = next(word for word in argv if word in ("sbatch", "scancel", "sinfo", "squeue", "scontrol", "srun"))
        self.away -= 1
        if self.away >= 0:
            if options.get("check", True):
                raise supervisor.CommandError(argv, "exited 1", rc=1, stderr=AWAY.stderr)
            return AWAY
        self.asked.append(program)
        if "requeue" in argv:
            self.requeued = True
            self.on_requeue()
        if program == "scancel" and "--signal=KILL" in argv:
            self.killed = argv[argv.index("--signal=KILL") + 1 :]
            self.steps = ""
        if "--steps" in argv:
            return CommandResult(0, self.steps, "")
        return CommandResult(
            0,
            {"sbatch": "42\n", "sinfo": self.sinfo, "squeue": self.squeue, "scontrol": self.job}.get(program, ""),
            "",
        )


OPEN = Attempt(1, 41, ("n1",), 1, "n1", 0.0)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(supervisor.time, "sleep", lambda _seconds: None)
    monkeypatch.setattr(supervisor.EarlyStandbys, "start", lambda _self: None)
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    folder.write_submission(Submission("token", 41))
    return folder


def leave_run(folder: RunDirectory, kind: str, slurm: Slurm) -> int:
    """The exit status of a supervisor whose only attempt has ended in this way."""
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause(kind))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), slurm)
    return made._leave(supervisor.decide.verdict(folder.read_request(), made._counted_attempts()) or pytest.fail(kind))


def test_a_job_without_a_batch_script_ends_once_the_controller_answers(folder: RunDirectory) -> None:
    """Nothing else would end it: its nodes would be occupied forever."""
    slurm = Slurm(3)
    made = make_supervisor(folder)
    made._runner = slurm
    made._replace_last_attempt(made._run.attempts[-1]._replace(end=1.0, cause=Cause("finished")))
    assert made.supervise() == 0
    assert slurm.asked[-1] == "scancel"
    assert folder.read().state == "finished"


def test_a_job_requeued_after_the_end_of_the_run_starts_no_attempt(folder: RunDirectory) -> None:
    slurm = Slurm(0)
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause("finished"))
    folder.write(TrainingRun("nano", "finished", "token", 41, attempts=(attempt,)))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], 0)
    assert supervisor.Supervisor(folder, post, slurm).supervise() == 0
    assert slurm.asked == []
    assert (folder.read().state, len(folder.read().attempts)) == ("finished", 1)


@pytest.mark.parametrize(("limit", "state"), [("1:30", "failed"), ("UNLIMITED", "finished"), ("1:31", "finished")])
def test_a_job_too_short_to_train_does_not_resubmit(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, limit: str, state: str
) -> None:
    """The jobs of the run would submit each other forever. --grace is 60 s."""
    slurm = Slurm(0, squeue=limit)
    monkeypatch.setattr(supervisor.Supervisor, "_placement", lambda _self: supervisor.decide.Decision("finish"))
    folder.write(TrainingRun("nano", "queued", "token", 41))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), slurm)
    assert made.supervise() == (1 if state == "failed" else 0)
    assert (folder.read().state, slurm.asked) == (state, ["squeue"])
    assert ("90 s are reserved for a checkpoint" in folder.read().detail) == (state == "failed")


#: Jobs as Slurm 24.11 shows them: running, in the grace time of a preemption, requeued after it, cancelled, after the time
#: limit, while they end after a cancellation, and after their batch script was killed.
RUNNING = "JobId=41 JobName=nano JobState=RUNNING Reason=None Requeue=1 Restarts=0 PreemptTime=None"
PREEMPTED = "JobId=41 JobName=nano JobState=RUNNING Reason=None Requeue=1 Restarts=0 PreemptTime=2026-11-25T03:17:57"
REQUEUED = "JobId=41 JobName=nano JobState=COMPLETING Reason=None Requeue=1 Restarts=1 EndTime=Unknown"
CANCELLED = "JobId=41 JobName=nano JobState=CANCELLED Reason=None Requeue=1 Restarts=2 PreemptTime=None"
TIMEOUT = "JobId=41 JobName=nano JobState=TIMEOUT Reason=TimeLimit Requeue=1 Restarts=0 PreemptTime=None"
#: The job after the time limit, as long as one of its processes remains, and after it was requeued meanwhile.
EXPIRING = "JobId=41 JobName=nano JobState=COMPLETING Reason=TimeLimit Requeue=1 Restarts=0 ExitCode=0:0"
CAUGHT = "JobId=41 JobName=nano JobState=COMPLETING Reason=TimeLimit Requeue=1 Restarts=1 ExitCode=0:0"
ENDING = "JobId=41 JobName=nano JobState=COMPLETING Reason=None Requeue=1 Restarts=0 ExitCode=0:0 PreemptTime=None"
KILLED = "JobId=41 JobName=nano JobState=COMPLETING Reason=RaisedSignal:9(Killed) Requeue=1 Restarts=0 ExitCode=0:9"


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (RUNNING, "crash"),
        (PREEMPTED, "warned"),
        (REQUEUED, "warned"),
        (CANCELLED, "crash"),
        (TIMEOUT, "warned"),
        (EXPIRING, "warned"),
        (CAUGHT, "warned"),
        (ENDING, "crash"),
        (KILLED, "warned"),
    ],
)
def test_preempted_ranks_are_not_reported_as_crashed(folder: RunDirectory, job: str, kind: str) -> None:
    folder.write(TrainingRun("nano", "running", "token", 41))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"])
    made = supervisor.Supervisor(folder, post, Slurm(0, job=job))
    cause = made.explain_cause(Cause("crash", "rank 0 on n1: killed by SIGTERM", 0, "n1"))
    assert (cause.kind, cause.rank, cause.node) == ((kind, None, "") if kind == "warned" else (kind, 0, "n1"))
    assert made.explain_cause(Cause("finished")).kind == "finished"


@pytest.mark.parametrize(
    ("job", "kind", "state", "submits"),
    [
        (PREEMPTED, "warned", "queued", True),
        (REQUEUED, "warned", "queued", False),
        (REQUEUED, "cancelled", "queued", False),
        (CANCELLED, "cancelled", "cancelled", False),
        (ENDING, "cancelled", "cancelled", False),
        # Between two attempts, while the controller was away until its time limit had passed.
        (EXPIRING, "cancelled", "queued", True),
        (CAUGHT, "cancelled", "queued", False),
        (PREEMPTED, "cancelled", "queued", True),
        (KILLED, "cancelled", "queued", True),
    ],
)
def test_a_preempted_run_continues_in_one_job(
    folder: RunDirectory, job: str, kind: str, state: str, submits: bool
) -> None:
    slurm = Slurm(0, job=job)
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause(kind))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], 1), slurm)
    made.supervise()
    assert (folder.read().state, "sbatch" in slurm.asked) == (state, submits)


def test_the_next_job_is_submitted_once_the_controller_answers(folder: RunDirectory) -> None:
    slurm = Slurm(5)
    assert leave_run(folder, "warned", slurm) == 0
    assert slurm.asked[-1] == "sbatch"
    assert (folder.read().state, folder.read_submission().job) == ("queued", 42)


def test_a_job_that_is_cancelled_does_not_wait_for_the_controller(folder: RunDirectory) -> None:
    slurm = Slurm(10**6)
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause("warned"))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), slurm)
    made.cancel(15, None)
    with pytest.raises(supervisor.GpumeshError):
        made._leave(supervisor.decide.Decision("resubmit", "the time limit is near"))
    assert folder.read().state == "failed"


def test_a_temporary_volume_error_does_not_end_the_run(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause("crash"))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))

    def fail(_path: Path) -> bool:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "is_dir", fail)
    monkeypatch.setattr(Path, "glob", lambda path, _pattern: fail(path))
    assert made._next_profile() == ""
    made.request = made.request._replace(profile="torch:5")
    assert made._next_profile() == "torch:5"


class Refusing(Slurm):
    """Slurm, which refuses so many jobs, such as for a limit of the user. ``requeues``: whether it requeues one."""

    def __init__(self, refused: int, requeues: bool = True) -> None:
        super().__init__(0)
        self.refused = refused
        self.requeues = requeues

    def __call__(self, argv: list[str], **options: object) -> CommandResult:
        done = super().__call__(argv, **options)
        if self.asked[-1] == "sbatch":
            self.refused -= 1
            if self.refused >= 0:
                return CommandResult(1, "", "sbatch: error: AssocMaxSubmitJobLimit")
        if "requeue" in argv and not self.requeues:
            raise supervisor.CommandError(argv, "exited 1", rc=1)
        return done


def leave_without_script(folder: RunDirectory, slurm: Slurm) -> int:
    """The exit status of an agent that submits the next job."""
    make_supervisor(folder)
    # Claims of heirs do not matter in a job that ends.
    for turn in (0, 1, 2):
        folder.claim(1, turn, "n2")
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], 1, ends=True)
    return supervisor.Supervisor(folder, post, slurm).supervise()


def test_a_job_whose_script_was_killed_is_followed_by_another(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    slurm = Slurm(0, job=KILLED)
    assert leave_without_script(folder, slurm) == 0
    assert (steps.begun, slurm.asked) == ([], ["sinfo", "sbatch"])
    found = folder.read()
    assert (found.state, found.detail, folder.read_submission().job) == ("queued", "the batch script was killed", 42)
    (attempt,) = found.attempts
    assert attempt.end and attempt.cause == Cause("supervisor", "the batch script was killed")


def test_the_job_after_a_killed_script_waits_for_its_nodes(folder: RunDirectory) -> None:
    folder.write_request(folder.read_request()._replace(nodes=2, min_nodes=1))
    slurm = Waiting()
    assert leave_without_script(folder, slurm) == 0
    (options,) = slurm.options
    assert "--dependency=afterany:41" in options, options


def test_a_job_with_a_killed_script_is_requeued_if_slurm_refuses_another(folder: RunDirectory) -> None:
    """Slurm kills what is left of the job in a moment."""
    slurm = Refusing(10**6)
    assert leave_without_script(folder, slurm) == 0
    assert slurm.asked == ["sinfo", "sbatch", "sbatch", "scontrol"]
    assert (folder.read_submission(), folder.read().state) == (Submission("token", 41), "queued")


def test_another_job_is_requested_until_slurm_accepts_it(folder: RunDirectory) -> None:
    slurm = Refusing(9)
    assert leave_run(folder, "warned", slurm) == 0
    assert slurm.asked.count("sbatch") == 10
    assert folder.read_submission().job == 42 and folder.read().state == "queued"


def test_a_job_is_requeued_if_slurm_refuses_a_successor(folder: RunDirectory) -> None:
    assert leave_run(folder, "warned", Refusing(10**6)) == 0
    assert folder.read_submission() == Submission("token", 41), "the job itself remains in charge"
    assert folder.read().state == "queued"


def test_a_standby_requeues_its_job_if_slurm_refuses_another(folder: RunDirectory) -> None:
    """A standby cancels only a job that is not needed any more."""
    slurm = Refusing(10**6)
    made = make_supervisor(folder)
    made._runner = slurm
    made._replace_last_attempt(
        made._run.attempts[-1]._replace(end=1.0, cause=Cause("warned", "the time limit is near"))
    )
    assert made.supervise() == 0
    assert slurm.requeued and "scancel" not in slurm.asked
    assert folder.read_submission() == Submission("token", 41) and folder.read().state == "queued"


def test_a_run_fails_with_the_reason_of_the_refusal(folder: RunDirectory) -> None:
    with pytest.raises(supervisor.GpumeshError, match="AssocMaxSubmitJobLimit"):
        leave_run(folder, "warned", Refusing(10**6, requeues=False))
    found = folder.read()
    assert found.state == "failed" and "AssocMaxSubmitJobLimit" in found.detail


def make_unwritable(monkeypatch: pytest.MonkeyPatch, number: int, *methods: str) -> None:
    """The volume refuses these writes with an error."""

    def refuse(*_given: object) -> None:
        raise OSError(number, os.strerror(number))

    for method in methods:
        monkeypatch.setattr(RunDirectory, method, refuse)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.ESTALE, errno.EDQUOT, errno.ENOENT])
@pytest.mark.parametrize("inherited", [0, 1])
def test_a_job_is_requeued_while_the_submission_cannot_be_recorded(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int, inherited: int
) -> None:
    """Slurm starts it again without a word on the volume; an heir, too, must not cancel it then."""
    slurm = Slurm(0, job=RUNNING)
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=Cause("warned", "the time limit is near"))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    make_unwritable(monkeypatch, number, "write", "write_submission")
    monkeypatch.setattr(supervisor, "_VOLUME_TIMEOUT", 0.0)
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], inherited)
    made = supervisor.Supervisor(folder, post, slurm)
    monkeypatch.setattr(made, "_too_short", lambda: "")
    monkeypatch.setattr(made, "_placement", lambda: supervisor.decide.Decision("resubmit", "nodes are lost"))
    assert made.supervise() == 0
    assert "sbatch" not in slurm.asked and slurm.requeued and "scancel" not in slurm.asked
    assert folder.read_submission() == Submission("token", 41)


@pytest.mark.parametrize(
    ("job", "inherited", "state"),
    [
        ("RUNNING", 0, "queued"),
        ("ENDING", 0, "cancelled"),
        ("CANCELLED", 0, "cancelled"),
        ("KILLED", 0, "queued"),
        ("TIMEOUT", 0, "queued"),
        # Its batch script may have ended in any way.
        ("ENDING", 1, "queued"),
    ],
)
def test_a_job_that_was_cancelled_before_its_supervisor_could_hear_of_it_is_not_followed_by_another(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, job: str, inherited: int, state: str
) -> None:
    """SIGTERM has come while the shell was starting the process. Slurm no longer starts anything on the nodes."""
    slurm = Slurm(0, job=globals()[job])
    lacks_nodes = supervisor.decide.Decision("resubmit", "no nodes")
    monkeypatch.setattr(supervisor.Supervisor, "_placement", lambda _self: lacks_nodes)
    folder.write(TrainingRun("nano", "queued", "token", 41))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], inherited)
    made = supervisor.Supervisor(folder, post, slurm)
    assert made._leave(made._defer_to_slurm(made._placement())) == (1 if state == "cancelled" else 0)
    assert (folder.read().state, "sbatch" in slurm.asked) == (state, state == "queued")


@pytest.mark.parametrize(("job", "requeued"), [("EXPIRING", True), ("ENDING", False), ("CANCELLED", False)])
def test_a_job_that_ends_is_requeued_unless_its_user_has_cancelled_it(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, job: str, requeued: bool
) -> None:
    """Slurm would do it for a cancelled one, too."""
    slurm = Slurm(0, job=globals()[job])
    made = make_supervisor(folder, inherited=0)
    made._runner = slurm
    made.cancel(signal.SIGTERM, None)
    make_unwritable(monkeypatch, errno.EIO, "write", "write_submission")
    made._submit_next_job(())
    assert slurm.requeued == requeued


@pytest.mark.parametrize(
    ("job", "state"), [("ENDING", "cancelled"), ("CANCELLED", "cancelled"), ("EXPIRING", "queued")]
)
@pytest.mark.parametrize("refused", [0, 10**6])
def test_a_user_who_cancels_the_job_ends_the_run_and_the_next_job(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, job: str, state: str, refused: int
) -> None:
    """While the supervisor submits another one, or tries to."""
    slurm = Refusing(refused)
    slurm.job = globals()[job]
    make_supervisor(folder)
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), slurm)
    submit = supervisor.scheduler.submit

    def cancel_meanwhile(*given: object, **named: object) -> Submission:
        made.cancel(signal.SIGTERM, None)
        return submit(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor.scheduler, "submit", cancel_meanwhile)
    status = made._leave(supervisor.decide.Decision("resubmit", "the time limit is near"))
    assert (folder.read().state, status) == (state, 1 if state == "cancelled" else 0)
    assert slurm.requeued == (bool(refused) and state == "queued")
    assert ("scancel" in slurm.asked) == (not refused and state == "cancelled")


def test_the_next_job_continues_although_its_id_was_not_recorded(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job is in charge, and records its ID when it starts."""
    slurm, write = Slurm(0, job=RUNNING), RunDirectory.write_submission

    def be_full(self: RunDirectory, submission: Submission) -> None:
        if submission.job:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, submission)

    monkeypatch.setattr(RunDirectory, "write_submission", be_full)
    assert leave_run(folder, "warned", slurm) == 0
    assert slurm.asked.count("sbatch") == 1 and "scancel" not in slurm.asked
    assert folder.read_submission().token not in ("", "token")


@pytest.mark.parametrize(
    ("job", "action", "status"),
    [("REQUEUED", "requeue", 0), ("EXPIRING", "resubmit", 0), ("CANCELLED", "cancel", 1), ("ENDING", "cancel", 1)],
)
def test_the_wait_for_the_volume_ends_with_the_job(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, job: str, action: str, status: int
) -> None:
    """A job that Slurm ends, and may have requeued, must not wait the 15 minutes of a full volume."""
    slurm = Slurm(0, job=globals()[job])
    slept: list[float] = []
    made = make_supervisor(folder, inherited=0)
    made._runner = slurm
    write = RunDirectory.write
    make_unwritable(monkeypatch, errno.ENOSPC, "write")

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            made.cancel(signal.SIGTERM, None)
        if len(slept) == 5:
            monkeypatch.setattr(RunDirectory, "write", write)

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    assert made._leave(supervisor.decide.Decision("resubmit", "the time limit is near")) == status
    assert ("sbatch" in slurm.asked, made._is_requeued) == (action == "resubmit", action == "requeue")
    assert len(slept) == (5 if action == "cancel" else 3)


@pytest.mark.parametrize(
    ("left", "settled", "requeued"), [("0:05", False, True), ("0:05", True, False), ("5:00", False, False)]
)
def test_a_job_without_a_successor_is_requeued_before_its_time_limit(
    monkeypatch: pytest.MonkeyPatch, left: str, settled: bool, requeued: bool
) -> None:
    """Whatever blocks its main thread, such as a hard mount."""
    monkeypatch.setattr(supervisor, "_POLL_INTERVAL", 0.01)
    slurm = Slurm(1, squeue=left)
    limit = supervisor.TimeLimitGuard(slurm, 41)
    if settled:
        limit.settle()
    thread = supervisor.threading.Thread(target=limit._watch)
    thread.start()
    thread.join(1.0)
    assert slurm.requeued == requeued
    limit.settle()
    thread.join(5.0)
    assert not thread.is_alive()


def test_the_time_limit_is_watched_while_a_job_waits_for_its_volume(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(0, squeue="0:05")
    monkeypatch.setattr(supervisor, "_POLL_INTERVAL", 0.01)
    monkeypatch.setattr(supervisor, "run", slurm)
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_given: None)
    asked = supervisor.threading.Event()
    slurm.on_requeue = asked.set
    monkeypatch.setattr(supervisor, "_await_volume", lambda *_given: not asked.wait(10.0))
    assert supervisor.main(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"])) == 1
    assert slurm.requeued


class Steps:
    """Stands in for the job steps of attempts; ``begun``: those that have been started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cause: Cause) -> None:
        self.begun: list[int] = []
        monkeypatch.setattr(
            supervisor, "AgentStep", lambda _program, _job, task, _gpus: self.begun.append(task.attempt)
        )
        monkeypatch.setattr(supervisor.AttemptRunner, "follow", lambda _self: cause)
        monkeypatch.setattr(supervisor.AttemptRunner, "end_ranks", lambda _self: None)


def make_supervisor(folder: RunDirectory, turn: int = 0, inherited: int = 1) -> supervisor.Supervisor:
    """A supervisor of the run whose first attempt is open; by default, an heir."""
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0)
    folder.attempt_dir(1).mkdir(exist_ok=True)
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], inherited, turn)
    return supervisor.Supervisor(folder, post, Slurm(0))


def test_logging_to_a_full_volume_does_not_end_the_supervisor() -> None:
    """The log is on the same volume. Python flushes its buffers at the end of a program."""
    code = f"from {supervisor.__name__} import _log; _log('run.json cannot be written now')"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_standby_of_a_live_supervisor_starts_nothing(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standby claimed the run just when the supervisor started another attempt."""
    steps = Steps(monkeypatch, Cause("finished"))
    make_supervisor(folder)
    attempts = (*folder.read().attempts, Attempt(2, 41, ("n1",), 1, "n1", 0.0))
    folder.write(folder.read()._replace(attempts=attempts))
    slurm = Slurm(0)
    folder.claim(1, 0, "n2")
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n2", ["n1"], 1), slurm)
    assert made.supervise() == 1
    assert (steps.begun, slurm.asked, folder.read().attempts) == ([], [], attempts)


def test_a_standby_ends_once_a_later_epoch_continues_the_run(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby needed more than a minute before its first attempt."""
    steps = Steps(monkeypatch, Cause("finished"))
    heir = make_supervisor(folder)
    folder.claim(1, 0, "n2")
    folder.claim(1, 1, "n3")
    assert heir.supervise() == 1
    assert (steps.begun, heir._runner.asked) == ([], [])
    # The later one continues.
    later = make_supervisor(folder, turn=1)
    assert later.supervise() == 0
    assert (steps.begun, [attempt.number for attempt in folder.read().attempts]) == ([2], [1, 2])


def test_a_supervisor_does_not_restart_a_run_that_a_standby_continues(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("crash", "", 0, "n1"))
    made = make_supervisor(folder, inherited=0)
    made._started_attempt = 1
    folder.claim(1, 0, "n2")
    with pytest.raises(supervisor.DismissedError):
        made._run_attempt(["n1"])
    assert (steps.begun, len(folder.read().attempts)) == ([], 1)


def test_no_standby_takes_over_from_a_supervisor_that_restarts(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that restarts claims the run like a standby: only one of them can."""
    steps = Steps(monkeypatch, Cause("crash", "", 0, "n1"))
    made = make_supervisor(folder, inherited=0)
    for _restart in range(2):
        made._run_attempt(["n1"])
    assert steps.begun == [2, 3] and not folder.claim(2, 0, "n2")


def test_no_later_standby_takes_over_from_one_that_restarts(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both might see the other one, so that neither would continue the run."""
    steps = Steps(monkeypatch, Cause("finished"))
    heir = make_supervisor(folder)
    folder.claim(1, 0, "n1")
    heir._run_attempt(["n1"])
    assert steps.begun == [2] and not folder.claim(1, 1, "n2")
    late = make_supervisor(folder)
    late._run = late._run._replace(attempts=late._run.attempts[:1])
    with pytest.raises(supervisor.DismissedError):
        late._run_attempt(["n1"])
    assert steps.begun == [2]


def test_a_supervisor_checks_for_standbys_again_after_recording_its_attempt(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("crash"))
    made = make_supervisor(folder, inherited=0)
    made._started_attempt = 1
    write = RunDirectory.write

    def be_late(here: RunDirectory, run: TrainingRun) -> None:
        # The supervisor has taken so long since the claim that an agent considers it lost.
        here.claim(1, 1, "n2")
        write(here, run)

    monkeypatch.setattr(RunDirectory, "write", be_late)
    with pytest.raises(supervisor.DismissedError):
        made._run_attempt(["n1"])
    assert steps.begun == []


def test_a_volume_that_fails_does_not_dismiss_a_supervisor(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("crash"))
    made = make_supervisor(folder, inherited=0)
    made._started_attempt = 1

    def fail(*_given: object) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(RunDirectory, "claim", fail)
    made._run_attempt(["n1"])
    monkeypatch.setattr(RunDirectory, "has_successor", fail)
    made._require_in_charge()
    monkeypatch.undo()
    # Whoever has claimed it since is another process.
    folder.claim(1, 0, "n2")
    with pytest.raises(supervisor.DismissedError):
        made._require_in_charge()
    assert steps.begun == [2]


def test_a_standby_counts_unrecorded_attempts(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The volume was full when they began. Otherwise, another attempt would have the same number."""
    steps = Steps(monkeypatch, Cause("finished"))
    assert make_supervisor(folder, inherited=3).supervise() == 0
    assert steps.begun == [4] and [attempt.number for attempt in folder.read().attempts] == [1, 2, 3, 4]


def test_a_standby_that_cannot_submit_a_job_ends_its_own(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job would occupy its nodes until its time limit, although the run has failed."""
    slurm = Slurm(0)
    made = make_supervisor(folder)
    made._runner = slurm
    made._replace_last_attempt(
        made._run.attempts[-1]._replace(end=1.0, cause=Cause("warned", "the time limit is near"))
    )

    def refuse(*_given: object, **_options: object) -> None:
        raise supervisor.GpumeshError("Slurm refuses the job.")

    monkeypatch.setattr(supervisor.scheduler, "submit", refuse)
    with pytest.raises(supervisor.GpumeshError, match="refuses the job"):
        made.supervise()
    assert slurm.asked[-1] == "scancel" and folder.read().state == "failed"


def test_a_job_refuses_a_run_directory_of_another_user(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.signal, "signal", lambda *_given: None)
    monkeypatch.setattr(supervisor.Supervisor, "supervise", lambda _self: 0)
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"])

    def be_full() -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    assert supervisor.main(folder, post) == 0
    folder.writer_uid = be_full  # type: ignore[method-assign]
    assert supervisor.main(folder, post) == 0
    folder.path.parent.chmod(0o777)
    (folder.path / "request.json").write_text("what is not to be read", encoding="ascii")
    with pytest.raises(supervisor.GpumeshError, match="may rename what is in"):
        supervisor.main(folder, post)


@pytest.mark.parametrize(
    ("allocated", "sinfo", "refusal", "excluded"),
    [
        (["n1", "n2"], "n1|alloc\nn2|alloc\n", "", "n1"),
        (["n1"], "n1|alloc\nn2|idle\n", "", "n1"),
        (["n1"], "n1|alloc\nn2|down*\n", "", ""),
        # The run goes on, and asks again, once the controller answers.
        (["n1"], "", AWAY.stderr, "n1"),
        # The request may be for this node only, or for GPUs that no other node has.
        (["n1"], "n1|alloc\nn2|idle\n", "Requested node configuration is not available", ""),
        (["n1"], "n1|alloc\nn2|idle\n", "AssocMaxSubmitJobLimit", "n1"),
    ],
)
def test_a_faulty_node_is_excluded_if_the_run_can_continue_without_it(
    folder: RunDirectory, allocated: list[str], sinfo: str, refusal: str, excluded: str
) -> None:
    cause = Cause("crash", "rank 0 on n1: CUDA error: uncorrectable ECC error encountered", 0, "n1", hardware=True)
    attempt = Attempt(1, 41, ("n1",), 1, "n1", 0.0, end=1.0, cause=cause)
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", allocated)
    slurm = Slurm(1 if refusal == AWAY.stderr else 0, sinfo=sinfo)

    def answer(argv: list[str], **options: object) -> CommandResult:
        refused = refusal and "--test-only" in argv and "--exclude=n1" in argv
        return CommandResult(1, "", f"sbatch: error: {refusal}") if refused else slurm(argv, **options)

    made = supervisor.Supervisor(folder, post, answer)
    assert made._decide_end() is None
    # The exclusion is recorded for a standby.
    assert folder.read().attempts[-1].excluded == excluded


def make_waiting_supervisor(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, full_for: int
) -> supervisor.Supervisor:
    """A supervisor whose volume is full for this many writes of run.json."""
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))
    left, write = [full_for], RunDirectory.write

    def be_full(self: RunDirectory, run: TrainingRun) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, run)

    monkeypatch.setattr(RunDirectory, "write", be_full)
    return made


def test_no_attempt_starts_while_the_volume_is_full(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt could not save a checkpoint, and three attempts that fail for that would be blamed on the program."""
    steps = Steps(monkeypatch, Cause("finished"))
    made = make_waiting_supervisor(folder, monkeypatch, 5)
    slept: list[float] = []
    monkeypatch.setattr(supervisor.time, "sleep", slept.append)
    assert made.supervise() == 0
    assert steps.begun == [1] and len(slept) == 5
    assert [attempt.number for attempt in folder.read().attempts] == [1]


NO_SPACE = Cause("crash", "rank 0 on n1: exit status 1: OSError: [Errno 28] No space left on device", 0, "n1")


def make_failing(
    monkeypatch: pytest.MonkeyPatch,
    ends: list[Cause],
    slept: list[float],
    state: supervisor.volume_fault.VolumeState,
    lasts: float,
) -> Steps:
    """Attempts that end in this way, on a volume that is in this state for so many seconds afterwards, then in order."""
    steps, left, until = Steps(monkeypatch, Cause("finished")), iter(ends), [0.0]

    def follow(course: supervisor.AttemptRunner) -> Cause:
        until[0] = sum(slept) + lasts
        return course._supervisor.explain_cause(next(left))

    monkeypatch.setattr(supervisor.AttemptRunner, "follow", follow)
    monkeypatch.setattr(
        supervisor.volume_fault,
        "probe_volume",
        lambda _folder: state if sum(slept) < until[0] else supervisor.volume_fault.VolumeState(),
    )
    monkeypatch.setattr(supervisor.time, "sleep", slept.append)
    return steps


FULL = supervisor.volume_fault.VolumeState(True, "is full")


def test_failures_of_a_full_volume_are_waited_out_and_not_counted(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume has space for run.json, but not for a checkpoint of rank 0."""
    slept: list[float] = []
    steps = make_failing(monkeypatch, [NO_SPACE] * 12 + [Cause("finished")], slept, FULL, 15.0)
    folder.write(TrainingRun("nano", "queued", "token", 41))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1", "n2"])
    assert supervisor.Supervisor(folder, post, Slurm(0, sinfo="n1|alloc\nn2|alloc\n")).supervise() == 0
    found = folder.read()
    assert steps.begun == list(range(1, 14)) and found.state == "finished"
    assert {(one.cause.kind, one.cause.node, one.excluded, one.nodes) for one in found.attempts[:-1] if one.cause} == {
        ("volume", "", "", ("n1",))
    }
    # The first one goes on as soon as there is room, later ones wait longer.
    assert sum(slept) == 15.0 + 60.0 + 120.0 + 240.0 + 480.0 + 7 * 900.0


def test_a_full_local_disk_is_attributed_to_its_node(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = make_failing(monkeypatch, [NO_SPACE] * 3 + [Cause("finished")], [], FULL, 0.0)
    folder.write(TrainingRun("nano", "queued", "token", 41))
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1", "n2"])
    assert supervisor.Supervisor(folder, post, Slurm(0, sinfo="n1|alloc\nn2|alloc\n")).supervise() == 0
    found = folder.read()
    assert steps.begun == [1, 2, 3, 4] and found.attempts[2].excluded == "n1"
    assert found.attempts[3].nodes == ("n2",)


def test_a_run_on_a_volume_that_does_not_recover_can_be_cancelled(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cause = NO_SPACE._replace(detail="rank 0 on n1: exit status 1: OSError: [Errno 30] Read-only file system")
    slept: list[float] = []
    read_only = supervisor.volume_fault.VolumeState(False, "fails: Read-only file system")
    steps = make_failing(monkeypatch, [cause], slept, read_only, 1e9)
    folder.write(TrainingRun("nano", "queued", "token", 41))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if sum(slept) > 7200.0:
            made.cancel(15, None)

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    assert made.supervise() == 1
    assert steps.begun == [1] and folder.read().state == "cancelled"


def test_a_volume_too_full_for_a_checkpoint_is_retried(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program may need less than its largest checkpoint."""
    slept: list[float] = []
    steps = make_failing(monkeypatch, [NO_SPACE, Cause("finished")], slept, FULL, 1e9)
    folder.write(TrainingRun("nano", "queued", "token", 41))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))
    assert made.supervise() == 0
    assert steps.begun == [1, 2] and sum(slept) == 900.0


def test_a_run_that_waits_for_room_can_be_cancelled(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    made = make_waiting_supervisor(folder, monkeypatch, 3)
    monkeypatch.setattr(supervisor.time, "sleep", lambda _seconds: made.cancel(15, None))
    assert made.supervise() == 1
    assert steps.begun == [] and folder.read().state == "cancelled"
    # The next job, such as that of a time limit, counts no attempt that has not begun.
    assert folder.with_unrecorded_attempts(folder.read()).attempts == ()


def test_numbers_of_unrecorded_attempts_are_not_reused(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claims of that one are in its folder: the new one would be taken for a supervisor that was lost."""
    steps = Steps(monkeypatch, Cause("finished"))
    for number in (1, 2):
        folder.attempt_dir(number).mkdir()
        folder.claim(number, 0, "n2")
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))
    assert made.supervise() == 0
    assert steps.begun == [3]
    assert "run.json could not be written" in folder.read().attempts[1].cause.detail  # type: ignore[union-attr]


@pytest.mark.parametrize(("outage", "action"), [(True, "restart"), (False, "resubmit")])
def test_a_standby_waits_for_nodes_after_a_controller_outage(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, outage: bool, action: str
) -> None:
    """The controller does not know its nodes yet, and starts no step there."""
    slurm, clock = Slurm(0, sinfo="n1|down*\n"), [0.0]

    def sleep(_seconds: float) -> None:
        clock[0] += 5.0
        if clock[0] == 30.0:
            slurm.sinfo = "n1|idle\n"

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], 1, outage=outage)
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(OPEN,)))
    assert supervisor.Supervisor(folder, post, slurm)._placement().action == action


class Resting:
    """The step of an attempt that has ended; ``orders``: its orders, in common with those of others."""

    def __init__(self, orders: list[str], name: str) -> None:
        self.orders = orders
        self.name = name

    def order(self, order: str) -> None:
        self.orders.append(f"{self.name} {order}")

    def over(self) -> bool:
        return True

    def kill(self) -> None:
        self.orders.append(f"{self.name} killed")


def test_the_agents_of_an_attempt_stay_until_the_next_attempt_starts(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    causes = [Cause("crash", "", 0, "n1"), Cause("finished")]
    monkeypatch.setattr(supervisor, "AgentStep", lambda _program, _job, task, _gpus: Resting(said, str(task.attempt)))
    monkeypatch.setattr(supervisor.AttemptRunner, "follow", lambda _self: causes.pop(0))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))
    place = made._placement

    def placement() -> supervisor.decide.Decision:
        said.append("placement")
        return place()

    monkeypatch.setattr(made, "_placement", placement)
    assert made.supervise() == 0
    first = ["placement", "1 rest", "1 end", "placement", "1 leave", "1 killed"]
    assert said == [*first, "2 rest", "2 end", "2 leave", "2 killed"]


def restart_supervisor(folder: RunDirectory, attempts: list[Attempt], state: str = "running") -> supervisor.Supervisor:
    """The supervisor that the batch script starts after one was killed."""
    for attempt in attempts:
        folder.attempt_dir(attempt.number).mkdir(exist_ok=True)
    folder.write(TrainingRun("nano", state, "token", 41, attempts=tuple(attempts)))
    post = supervisor.SupervisorId("/bin/gpumesh-train", 41, "token", "n1", ["n1"], killed=9)
    slurm = Slurm(0)
    slurm.steps = "41.batch|batch\n41.3|gpumesh-train\n41.4|bash\n41.extern|extern\n"
    return supervisor.Supervisor(folder, post, slurm)


def test_a_killed_supervisor_is_replaced_without_blaming_a_node(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    made = restart_supervisor(folder, [OPEN])
    assert made.supervise() == 0
    killed = folder.read().attempts[0].cause
    assert killed == Cause("supervisor", "the supervisor was killed (SIGKILL)")
    assert supervisor.decide.suspect_nodes(folder.read().attempts) == []
    # First, nothing is left of the attempt; what the user has started in the job is.
    assert (steps.begun, cast("Slurm", made._runner).killed) == ([2], ["41.3"])
    # No agent of it becomes an heir.
    assert not folder.claim(1, 0, "n2") and not folder.claim(1, 1, "n2")
    assert "scancel" not in cast("Slurm", made._runner).asked[2:], "the end of the batch script ends the job"


class Answering(Slurm):
    """Slurm with two nodes, of which the one of the lost supervisor answers, or not."""

    def __init__(self, answers: bool) -> None:
        super().__init__(0, sinfo="n1|idle\nn2|idle\n")
        self.answers = answers

    def __call__(self, argv: list[str], **options: object) -> CommandResult:
        if argv[0] == "srun" and "--nodelist=n1" in argv and not self.answers:
            raise supervisor.CommandError(argv, "timed out")
        return super().__call__(argv, **options)


@pytest.mark.parametrize("answers", [True, False])
def test_a_standby_blames_only_an_unresponsive_supervisor_node(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """A supervisor that was stopped for a while is no reason to go on without its node."""
    Steps(monkeypatch, Cause("finished"))
    make_supervisor(folder)
    folder.write_request(folder.read_request()._replace(nodes=2, min_nodes=1))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(OPEN._replace(nodes=("n1", "n2")),)))
    folder.claim(1, 0, "n2")
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n2", ["n1", "n2"], 1)
    assert supervisor.Supervisor(folder, post, Answering(answers)).supervise() == 0
    first, second = folder.read().attempts
    stopped = Cause("supervisor", "the supervisor has stopped, but n1 responds")
    assert first.cause == (
        stopped if answers else Cause("node", "n1, the node of the supervisor, was lost", None, "n1")
    )
    assert second.nodes == (("n1", "n2") if answers else ("n2",))


def test_a_pause_of_the_supervisor_is_excused_once(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(supervisor, "_log", said.append)
    made = make_supervisor(folder, inherited=0)
    watch = supervisor.AttemptMonitor(made.request, ["n1"], 0.0)
    step = SimpleNamespace(stopped=0.0, over=lambda: False)
    course = supervisor.AttemptRunner(made, cast("supervisor.AgentStep", step), watch)
    # The second time is that of another thread, which notices it a little later.
    for stopped in (0.0, 100.0, 100.01):
        step.stopped = stopped
        course._excuse_pause(100.0 + stopped)
    assert watch.silent_nodes(201.0) == [] and said == ["the supervisor was stopped for 100 s"]


@pytest.mark.parametrize(("nodes", "node"), [(("n1", "n2"), ""), (("n1",), "n1")])
def test_no_node_is_blamed_for_the_loss_of_all(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, nodes: tuple[str, ...], node: str
) -> None:
    """Slurm starts the job again. Three power cuts are no reason to leave out a node."""
    Steps(monkeypatch, Cause("finished"))
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(OPEN._replace(nodes=nodes),)))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"]), Slurm(0))
    assert made.supervise() == 0
    cause = folder.read().attempts[0].cause
    assert cause is not None and (cause.kind, cause.node) == ("node", node)


def test_repeated_kills_without_a_new_checkpoint_stop_the_run(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    cause = Cause("supervisor", "the supervisor was killed (SIGKILL)")
    ended = [OPEN._replace(number=number, end=1.0, cause=cause, checkpoint=40) for number in range(1, 11)]
    assert restart_supervisor(folder, [*ended, OPEN._replace(number=11)]).supervise() == 1
    assert steps.begun == [] and "10 restarts since the last new checkpoint" in folder.read().detail


def test_a_supervisor_killed_between_attempts_keeps_its_claim(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    made = restart_supervisor(folder, [OPEN._replace(end=1.0, cause=Cause("crash", "", 0, "n1"))])
    folder.claim(1, 0, "n1")
    assert made.supervise() == 0
    assert steps.begun == [2] and folder.read().attempts[0].cause == Cause("crash", "", 0, "n1")


@pytest.mark.parametrize("begun", [False, True])
def test_a_killed_supervisor_stands_by_while_a_standby_runs(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The heir needs the batch script, whose end would end the job."""
    steps = Steps(monkeypatch, Cause("finished"))
    heir = OPEN._replace(number=2, supervisor="n1", heir=True)
    made = restart_supervisor(
        folder, [OPEN._replace(end=1.0, cause=Cause("node", "", None, "n1")), heir] if begun else [OPEN]
    )
    folder.claim(1, 0, "n1")
    slept: list[float] = []

    def finish(seconds: float) -> None:
        slept.append(seconds)
        folder.write(folder.read()._replace(state="finished"))

    monkeypatch.setattr(supervisor.time, "sleep", finish)
    assert made.supervise() == 0
    assert (steps.begun, len(slept), cast("Slurm", made._runner).asked) == ([], 1, [])


@pytest.mark.parametrize(("state", "status"), [("finished", 0), ("failed", 1), ("cancelled", 1)])
def test_a_supervisor_killed_after_the_end_of_the_run_ends_the_job(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, state: str, status: int
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    made = restart_supervisor(folder, [OPEN._replace(end=1.0, cause=Cause("crash"))], state)
    assert (made.supervise(), steps.begun, folder.read().state) == (status, [], state)


def test_a_supervisor_killed_before_its_first_attempt_starts_normally(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch, Cause("finished"))
    before = OPEN._replace(job=40, end=1.0, cause=Cause("warned", "the time limit is near"))
    assert restart_supervisor(folder, [before], "queued").supervise() == 0
    assert steps.begun == [2]


def test_an_abandoned_job_is_replaced_by_another_one(folder: RunDirectory) -> None:
    """The daemon that ran the batch script was killed: Slurm requeues the job, but only after many minutes."""
    daemon = subprocess.Popen(["sleep", "100"])
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(OPEN,)))
    slurm = Slurm(0)
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], daemon=daemon.pid)
    made = supervisor.Supervisor(folder, post, slurm)
    assert made.find_interruption(["n1"]) is None
    daemon.kill()
    daemon.wait()
    cause = made.find_interruption(["n1"])
    assert cause is not None and (cause.kind, cause.node) == ("warned", "")
    made._replace_last_attempt(OPEN._replace(end=1.0, cause=cause))
    assert made.supervise() == 0
    # Nothing else would end this job.
    assert slurm.asked[-2:] == ["sbatch", "scancel"] and folder.read_submission().job == 42


def test_a_daemon_of_another_user_counts_as_alive(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_process: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(supervisor.os, "kill", refuse)
    post = supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1"], daemon=1)
    assert not supervisor.Supervisor(folder, post, Slurm(0))._is_abandoned()


@pytest.mark.parametrize(("stop", "kind"), [(True, "diverged"), (False, None)])
def test_stop_on_nan_stops_the_run(folder: RunDirectory, stop: bool, kind: str | None) -> None:
    made = make_supervisor(folder, inherited=0)
    made.request = made.request._replace(stop_on_nan=stop)
    watch = supervisor.AttemptMonitor(made.request, ["n1"], 0.0)
    for step, nan in ((5001, True), (5002, True)):
        beat = {"ranks": {"0": {"step": step, "nan": nan}}, "printed": 0}
        watch.process_message(supervisor.protocol.AgentMessage("beat", "n1", beat), 1.0)
        made.record_progress(watch, None)
    assert folder.read().nan_since == 5001
    course = supervisor.AttemptRunner(made, cast("supervisor.AgentStep", SimpleNamespace(over=lambda: False)), watch)
    cause = course._find_end(2.0)
    assert (cause and cause.kind) == kind
    if cause:
        made._replace_last_attempt(made._run.attempts[-1]._replace(end=1.0, cause=cause))
        decision = made._decide_end()
        assert decision is not None and (decision.action, decision.reason) == ("fail", cause.detail)
    # The loss is a number again.
    watch.process_message(
        supervisor.protocol.AgentMessage("beat", "n1", {"ranks": {"0": {"step": 5003, "loss": 2.0}}, "printed": 0}), 3.0
    )
    made.record_progress(watch, None)
    assert folder.read().nan_since is None


def test_the_time_limit_is_tracked_during_a_controller_outage(folder: RunDirectory) -> None:
    """The last answer of the controller must not be taken for the current one, until Slurm kills the ranks."""
    made = make_supervisor(folder, inherited=0)
    made.prober._runner = Slurm(0, squeue="2:00\n")
    made.prober._update_controller()
    assert made.find_interruption(["n1"]) is None
    made.prober._runner = Slurm(10**6)
    made.prober._update_controller()
    assert made.prober._time_limit_at is not None
    made.prober._time_limit_at -= 60
    cause = made.find_interruption(["n1"])
    assert cause is not None and cause.kind == "warned"


def test_the_cause_says_why_a_node_is_drained(folder: RunDirectory) -> None:
    reason = "gpumesh health: health.gpu_xid: Xid 79 (fell off the bus) on 0000:3d:00, 1 ×"

    def runner(argv: list[str], **_options: object) -> CommandResult:
        if argv[0] == "sinfo" and "--nodes=n1" in argv:
            return CommandResult(0, f"n1|{reason}\nn1|{reason}\n", "")
        return CommandResult(0, "n1|draining\nn2|allocated\n" if argv[0] == "sinfo" else "UNLIMITED\n", "")

    made = make_supervisor(folder, inherited=0)
    made.prober._runner = runner
    made.prober._update_controller()
    assert made.find_interruption(["n2"]) is None
    assert made.find_interruption(["n1"]) == Cause("warned", f"n1 is to be drained: {reason}", None, "n1")
    # An administrator may give no reason.
    made.prober.drain_reasons = {}
    assert made.find_interruption(["n1"]) == Cause("warned", "n1 is to be drained", None, "n1")


@pytest.mark.parametrize(
    ("squeue", "words"),
    [("2:00\n", "the time limit is near"), ("2-00:00:00\n", "Slurm has announced the end of the job")],
)
def test_a_warning_near_the_time_limit_is_attributed_to_it(folder: RunDirectory, squeue: str, words: str) -> None:
    made = make_supervisor(folder, inherited=0)
    made.prober._runner = Slurm(0, squeue=squeue)
    made.prober._update_controller()
    assert made.find_interruption(["n1"]) is None
    made.preempt(signal.SIGUSR1, None)
    cause = made.find_interruption(["n1"])
    assert cause is not None and (cause.kind, cause.detail) == ("warned", words)


class Waiting(Slurm):
    """Slurm, in which a job waits for this reason. ``options``: those of the jobs that are submitted; ``refusal``: what it
    answers to them; ``said``: what is requested of it."""

    def __init__(self, reason: str = "Dependency", refusal: str = "") -> None:
        super().__init__(0, squeue=reason, job=RUNNING, sinfo="n1|allocated\nn2|idle\n")
        self.refusal = refusal
        self.options: list[list[str]] = []
        self.said: list[str] = []

    def __call__(self, argv: list[str], **options: object) -> CommandResult:
        self.said += [" ".join(argv)] if argv[0] in ("scancel", "scontrol") else []
        if "sbatch" in argv and self.refusal:
            return CommandResult(1, "", f"sbatch: error: {self.refusal}")
        if "sbatch" in argv:
            self.options.append(argv)
        return super().__call__(argv, **options)


def make_growing(folder: RunDirectory, slurm: Slurm, elsewhere: bool = True) -> tuple[supervisor.Supervisor, bool]:
    """A supervisor of two nodes that has lost one, which is back; and whether the attempt ends for that."""
    folder.write_request(folder.read_request()._replace(nodes=2, min_nodes=1))
    attempts = (
        Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0, end=1.0, cause=Cause("node", "n2 was lost", None, "n2")),
        Attempt(2, 41, ("n1",), 1, "n1", 0.0),
    )
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=attempts))
    made = supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1", "n2"]), slurm)
    growth = supervisor.Growth(("n2",), elsewhere)
    made.prober._update_queue()
    ends = made.accepts_growth(growth)
    if ends:
        made._replace_last_attempt(attempts[1]._replace(end=2.0, cause=growth.cause))
    return made, ends


def test_the_job_that_regains_a_node_requires_as_many_nodes(folder: RunDirectory) -> None:
    slurm = Waiting()
    made, ends = make_growing(folder, slurm)
    (options,) = slurm.options
    # Slurm has accepted it before the attempt ends, for which another process must not take charge yet.
    assert ends and folder.read_submission() == Submission("token", 41)
    decision = made._decide_end()
    assert decision is not None and decision.action == "resubmit"
    assert made._leave(decision) == 0
    # Slurm does not see the last of the nodes as free yet when the dependency is fulfilled.
    assert {"--nodes=1-2", "--dependency=afterany:41", "--begin=now+10"} <= set(options), options
    assert slurm.options == [options] and "scontrol update job=42 starttime=now+10" in slurm.said
    assert folder.read().state == "queued" and folder.read_submission().job == 42
    made._withdraw_successor()
    assert "scancel 42" not in slurm.said


@pytest.mark.parametrize("kind", ["crash", "finished", "cancelled"])
def test_a_successor_is_withdrawn_if_the_attempt_ends_otherwise(folder: RunDirectory, kind: str) -> None:
    """It would end as soon as it starts."""
    slurm = Waiting()
    made, _ends = make_growing(folder, slurm)
    made._replace_last_attempt(made._run.attempts[-1]._replace(cause=Cause(kind)))
    made._decide_end()
    assert "scancel 42" in slurm.said and folder.read_submission() == Submission("token", 41)


def test_another_job_is_submitted_if_the_successor_cannot_be_put_in_charge(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Waiting()
    made, _ends = make_growing(folder, slurm)
    write = RunDirectory.write_submission

    def fail_once(run_directory: RunDirectory, submission: Submission) -> None:
        monkeypatch.setattr(RunDirectory, "write_submission", write)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(RunDirectory, "write_submission", fail_once)
    decision = made._decide_end()
    assert decision is not None and made._leave(decision) == 0
    assert "scancel 42" in slurm.said and len(slurm.options) == 2
    assert (folder.read().state, folder.read_submission().job) == ("queued", 42)


def test_growing_within_the_job_needs_no_other_job(folder: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    Steps(monkeypatch, Cause("grown", "n2 is back"))
    made, _ends = make_growing(folder, Waiting())
    made._run_attempt(["n1"])
    assert made._decide_end() is None


@pytest.mark.parametrize(
    ("reason", "refusal"),
    [
        ("Resources", ""),
        ("Priority", ""),
        ("None", "AssocMaxSubmitJobLimit"),
        ("None", "Requested node configuration is not available"),
    ],
)
def test_the_job_does_not_grow_while_other_jobs_wait_or_slurm_refuses(
    folder: RunDirectory, reason: str, refusal: str
) -> None:
    """The attempt goes on: its nodes are not given up for a job that Slurm has not accepted."""
    slurm = Waiting(reason, refusal)
    made, ends = make_growing(folder, slurm)
    assert not ends and slurm.options == [] and folder.read_submission() == Submission("token", 41)
    # A limit may be lifted. Other refusals are final.
    slurm.refusal = ""
    slurm.squeue = "Dependency"
    made.prober._update_queue()
    assert made.accepts_growth(supervisor.Growth(("n2",), True)) == (not refusal.startswith("Requested"))
    # A node within the job needs no other job.
    made, ends = make_growing(folder, slurm, elsewhere=False)
    assert ends and made._decide_end() is None


def test_an_attempt_does_not_grow_just_before_the_time_limit(folder: RunDirectory) -> None:
    made, ends = make_growing(folder, Waiting(), elsewhere=False)
    assert ends
    made.prober._time_limit_at = supervisor.time.monotonic() + 200
    assert not made.accepts_growth(supervisor.Growth(("n2",), False))


def make_leaving(folder: RunDirectory, slurm: Slurm, least: int) -> supervisor.Supervisor:
    """A supervisor of two nodes, of which the run needs this many, whose attempt has ended."""
    folder.write_request(folder.read_request()._replace(nodes=2, min_nodes=least))
    folder.write(
        TrainingRun("nano", "running", "token", 41, attempts=(Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0, end=1.0),))
    )
    return supervisor.Supervisor(folder, supervisor.SupervisorId("/bin/x", 41, "token", "n1", ["n1", "n2"]), slurm)


@pytest.mark.parametrize(
    ("least", "excluded", "lost", "waits"),
    [
        (1, (), [], True),
        # A job that needs all nodes waits anyway.
        (2, (), [], False),
        # Slurm may end this job minutes later.
        (1, ("n2",), [], False),
        (1, (), ["n2"], False),
    ],
)
def test_the_next_job_waits_for_the_nodes_of_this_job(
    folder: RunDirectory, least: int, excluded: tuple[str, ...], lost: list[str], waits: bool
) -> None:
    slurm = Waiting()
    made = make_leaving(folder, slurm, least)
    made._lost_nodes = lost
    made._submit_next_job(excluded)
    (options,) = slurm.options
    for option in ("--dependency=afterany:41", "--begin=now+10"):
        assert (option in options) == waits, options


def test_a_job_unknown_to_slurm_is_not_waited_for(folder: RunDirectory) -> None:
    class Forgetful(Waiting):
        def __call__(self, argv: list[str], **options: object) -> CommandResult:
            done = super().__call__(argv, **options)
            if "--dependency=afterany:41" in argv:
                return CommandResult(1, "", "sbatch: error: Batch job submission failed: Job dependency problem")
            return done

    slurm = Forgetful()
    make_leaving(folder, slurm, 1)._submit_next_job(())
    assert len(slurm.options) == 2 and "--dependency=afterany:41" not in slurm.options[1]
