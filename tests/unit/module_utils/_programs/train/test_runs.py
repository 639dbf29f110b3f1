# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs whose job cannot be determined from their folder alone, and folders that cannot be written to."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    logs,
    preflight,
    program,
    runs,
    show,
    store,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    Cause,
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory


class Slurm:
    """Slurm with these jobs: their names and states by ID."""

    def __init__(self, **jobs: tuple[str, str]) -> None:
        self.jobs = {int(number[1:]): job for number, job in jobs.items()}
        self.ended: list[int] = []
        self.away = 0
        #: What Slurm says about jobs that have ended, by program.
        self.final: dict[str, str] = {}

    def __call__(self, argv: list[str], **_options: object) -> CommandResult:
        given = dict(word.lstrip("-").partition("=")[::2] for word in argv if word.startswith("--"))
        if self.away:
            self.away -= 1
            return CommandResult(1, "", "Unable to contact slurm controller")
        if argv[0] == "squeue":
            name, state = self.jobs.get(int(given["jobs"]), ("", ""))
            return CommandResult(0, f"{state}\n" if state and given.get("name", name) == name else "", "")
        if argv[0] in self.final:
            return CommandResult(0, self.final[argv[0]], "")
        if argv[0] in ("scontrol", "sacct"):
            raise CommandError(argv, "exited 1", rc=1)
        if argv[0] == "scancel":
            self.ended.append(int(argv[-1]))
            return CommandResult(0, "", "") if self.ended[-1] else CommandResult(1, "", "Invalid job id 0")
        return CommandResult(0, "43\n", "")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(preflight, "check", lambda *_given: None)
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    return folder


def host(slurm: Any) -> runs.SubmitHost:
    return runs.SubmitHost(slurm, "/bin/gpumesh-train", [])


def test_a_job_with_a_lost_id_is_identified_by_its_token(folder: RunDirectory) -> None:
    """Slurm has accepted the job, but sbatch was interrupted, or has timed out."""
    folder.write_submission(Submission("token"))
    folder.write(TrainingRun("nano", "running", "token", 41))
    slurm = Slurm(j41=("nano", "RUNNING|None"))
    assert runs.inspect_run(host(slurm), folder)[1] == "running"
    assert not runs.resume_run(host(slurm), folder)[1]

    def end(_seconds: float) -> None:
        folder.write(TrainingRun("nano", "cancelled", "token", 41))

    assert runs.cancel_run(host(slurm), folder, end).state == "cancelled"
    assert slurm.ended == [41]
    # The job of an earlier submission must not be cancelled.
    folder.write(TrainingRun("nano", "queued", "other", 41))
    assert runs.inspect_run(host(slurm), folder) == (folder.read(), "")


@pytest.mark.parametrize(
    ("final", "state"),
    [
        ({"scontrol": "JobId=41 JobName=nano UserId=alice(2001) JobState=CANCELLED Reason=None\n"}, "cancelled"),
        ({"sacct": "nano|CANCELLED by 2001\n"}, "cancelled"),
        ({"scontrol": "JobId=41 JobName=nano UserId=alice(2001) JobState=FAILED Reason=NonZeroExitCode\n"}, "failed"),
        ({"sacct": "nano|TIMEOUT\n"}, "failed"),
        # The controller has lost its queue, and given the ID to the job of somebody else.
        ({"scontrol": "JobId=41 JobName=other JobState=CANCELLED\n", "sacct": "other|CANCELLED by 0\n"}, "failed"),
        ({}, "failed"),
    ],
)
def test_a_cancelled_job_that_has_not_started_cancels_the_run(
    folder: RunDirectory, final: dict[str, str], state: str
) -> None:
    """No process of the run could record it."""
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "queued", "earlier", 40))
    slurm = Slurm()
    slurm.final = final
    run, job_state = runs.inspect_run(host(slurm), folder)
    assert (run.state, job_state) == (state, "")
    assert run.detail.startswith("job 41 was cancelled" if state == "cancelled" else "job 41 has ended, but")


def test_an_unrecorded_job_does_not_continue_a_cancelled_run(folder: RunDirectory) -> None:
    folder.write_submission(Submission("token"))
    slurm = Slurm()
    assert runs.cancel_run(host(slurm), folder).state == "cancelled"
    assert slurm.ended == [] and folder.read_submission().token != "token"


def test_a_run_cancelled_during_submission_stays_cancelled(folder: RunDirectory) -> None:
    folder.write(TrainingRun("nano", "failed"))
    slurm = Slurm()

    def submit(argv: list[str], **options: Any) -> CommandResult:
        if "sbatch" in argv:
            assert runs.cancel_run(host(slurm), folder).state == "cancelled"
        return slurm(argv, **options)

    runs.resume_run(host(submit), folder)
    assert folder.read_submission() == Submission("")
    assert len(slurm.ended) == 1, "nothing knows its job any more"
    assert runs.inspect_run(host(slurm), folder)[0].state == "cancelled"


def test_cancelling_follows_a_run_to_its_next_job(folder: RunDirectory) -> None:
    """The supervisor had already decided to submit the next job, as before a time limit."""
    folder.write_submission(Submission("one", 41))
    folder.write(TrainingRun("nano", "running", "one", 41))
    slurm = Slurm(j41=("nano", "RUNNING|None"), j42=("nano", "PENDING|Resources"))

    def move(_seconds: float) -> None:
        folder.write(TrainingRun("nano", "queued", "one", 41))
        folder.write_submission(Submission("two", 42))

    assert runs.cancel_run(host(slurm), folder, move).state == "cancelled"
    assert slurm.ended == [41, 42]
    assert folder.read().state == "cancelled"


def test_a_resubmitted_run_is_not_reported_as_failed(folder: RunDirectory) -> None:
    folder.write_submission(Submission("one", 41))
    folder.write(TrainingRun("nano", "running", "one", 41))
    slurm = Slurm(j42=("nano", "PENDING|Resources"))

    def leave(argv: list[str], **options: Any) -> CommandResult:
        if "--jobs=41" in argv:
            # While Slurm is queried, the supervisor moves from its job to another one.
            folder.write(TrainingRun("nano", "queued", "one", 41))
            folder.write_submission(Submission("two", 42))
        return slurm(argv, **options)

    run, waits = runs.inspect_run(host(leave), folder)
    assert (run.state, run.job, waits) == ("queued", 42, "pending (Resources)")


def test_a_foreign_job_with_the_same_id_is_not_cancelled(folder: RunDirectory) -> None:
    """A controller that has lost its queue starts again with the first ID."""
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "running", "token", 41))
    slurm = Slurm(j41=("theirs", "RUNNING|None"))
    assert runs.inspect_run(host(slurm), folder)[0].state == "failed"
    assert runs.cancel_run(host(slurm), folder).state == "failed"
    assert slurm.ended == []
    assert runs.resume_run(host(slurm), folder)[1]


def test_a_requeued_job_is_cancelled_with_its_run(folder: RunDirectory) -> None:
    """The supervisor of a preempted or requeued job only knows that it has to end."""
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "cancelled", "token", 41))
    slurm = Slurm(j41=("nano", "PENDING|BeginTime"))
    assert runs.cancel_run(host(slurm), folder).state == "cancelled"
    assert slurm.ended == [41]
    slurm.jobs[41] = ("nano", "COMPLETING|None")
    runs.cancel_run(host(slurm), folder)
    assert slurm.ended == [41]


def test_a_leftover_job_is_cancelled_with_its_run(folder: RunDirectory) -> None:
    """Slurm has refused the next job, so the submission in charge has none."""
    folder.write(TrainingRun("nano", "failed", "token", 41))
    folder.write_submission(Submission("other"))
    slurm = Slurm(j41=("nano", "RUNNING|None"))
    assert runs.cancel_run(host(slurm), folder).state == "failed"
    assert slurm.ended == [41]
    slurm.jobs[41] = ("theirs", "RUNNING|None")
    runs.cancel_run(host(slurm), folder)
    assert slurm.ended == [41]


def test_following_a_run_waits_for_the_controller(folder: RunDirectory) -> None:
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "running", "token", 41))
    slurm, slept = Slurm(j41=("nano", "RUNNING|None")), list[float]()
    slurm.away = 5
    assert runs.poll_run(host(slurm), folder, slept.append)[1] == "running"
    assert len(slept) == 5
    slurm.away = 10**6
    with pytest.raises(CommandError):
        runs.poll_run(host(slurm), folder, slept.append)
    assert 60 < sum(slept) < 3600


def test_a_damaged_run_does_not_hide_the_others(folder: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    other = RunDirectory(str(folder.path.parent / "other"))
    other.create(RunRequest(name="other", command=["true"], folder=str(other.path)))
    other.write(TrainingRun("other", "finished"))
    (folder.path / "run.json").write_text("{", encoding="ascii")
    given = {"volumes": [], "run_dir": str(folder.path.parent)}
    assert program.main(given, ["list"]) == 0
    damaged, shown = capsys.readouterr().out.splitlines()
    assert damaged.startswith(f"nano: {folder.path}/run.json is damaged") and shown == "other: finished"


def test_an_empty_list_names_the_directory_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main({"volumes": [], "run_dir": str(tmp_path)}, ["list"]) == 0
    assert capsys.readouterr() == ("", f"There are no runs in {tmp_path}.\n")


@pytest.mark.parametrize("full", ["request.json", "run.json", "job.json"])
def test_a_full_volume_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    write = store.write_atomic

    def refuse(path: str, *given: Any) -> None:
        if os.path.basename(path) == full and (full != "job.json" or '"job": 43' in given[0]):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), path)
        write(path, *given)

    monkeypatch.setattr(store, "write_atomic", refuse)
    monkeypatch.setattr(runs, "check_request", lambda *_given: None)
    slurm = Slurm()
    with pytest.raises(HostStateError, match=r"nano cannot be written: Disk quota exceeded\."):
        runs.start_run(host(slurm), RunRequest(name="nano", command=["true"], folder=str(tmp_path / "nano")))
    # No job is left that could not be found.
    assert slurm.ended == ([43] if full == "job.json" else [])
    assert (tmp_path / "nano").exists() == (full != "request.json")


def test_a_run_of_another_user_is_not_resumed(folder: RunDirectory) -> None:
    """The command of the run would run as the user who resumes it."""
    if os.geteuid():
        pytest.skip("only root can give a directory to another user")
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "failed", "token", 41))
    os.chown(folder.path, 4242, 4242)
    with pytest.raises(InputError, match="belongs to user 4242"):
        runs.resume_run(host(Slurm()), folder)
    assert folder.read_submission().job == 41


def test_a_run_in_a_directory_writable_by_others_is_refused(folder: RunDirectory, tmp_path: Path) -> None:
    """Another user may have created a directory with the name of this user on the volume."""
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "failed", "token", 41))
    tmp_path.chmod(0o777)
    with pytest.raises(HostStateError, match=r"may rename what is in .*chmod \+t"):
        runs.resume_run(host(Slurm()), folder)
    assert folder.read_submission().job == 41
    new = RunDirectory(str(tmp_path / "alice" / "runs" / "new"))
    with pytest.raises(HostStateError, match="may rename what is in"):
        new.create(RunRequest(name="new", command=["true"], folder=str(new.path)))
    assert not new.path.exists()
    tmp_path.chmod(0o1777)
    assert runs.resume_run(host(Slurm()), folder)[1]


def test_a_new_run_is_private_regardless_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunDirectory(str(tmp_path / "alice" / "runs" / "nano"))
        folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    finally:
        os.umask(before)
    modes = [place.stat().st_mode & 0o777 for place in (folder.path, folder.path.parent, folder.path.parent.parent)]
    assert modes == [0o700, 0o755, 0o755]


def test_a_log_that_is_a_pipe_is_not_opened(tmp_path: Path) -> None:
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.attempt_dir(1).mkdir(parents=True)
    os.mkfifo(folder.attempt_dir(1) / "rank-0.log")
    with pytest.raises(HostStateError, match="rank-0.log is a named pipe"):
        logs.copy_logs(folder, 0, 1, print)


def test_files_of_a_newer_version_can_be_read(folder: RunDirectory) -> None:
    """Members are updated one after the other, so the nodes of a run may have different versions."""
    cause = Cause("crash", "rank 0 on n1: x", 0, "n1")
    folder.write(
        TrainingRun("nano", "running", "token", 41, attempts=(Attempt(1, 41, ("n1",), 1, "n1", 0.0, cause=cause),))
    )
    folder.write_submission(Submission("token", 41))
    before = (folder.read_request(), folder.read(), folder.read_submission())
    for name in ("request.json", "run.json", "job.json"):
        values = json.loads((folder.path / name).read_text())
        for found in (values, *values.get("attempts", ()), *(one["cause"] for one in values.get("attempts", ()))):
            found["invented_later"] = {"x": 1}
        (folder.path / name).write_text(json.dumps(values))
    assert (folder.read_request(), folder.read(), folder.read_submission()) == before
    for name in ("request.json", "run.json"):
        assert json.loads((folder.path / name).read_text())["version"] == VERSION


@pytest.mark.parametrize("content", ["", "{", "[]", '{"attempts": [7]}'])
def test_a_damaged_state_is_moved_aside_on_resume(folder: RunDirectory, content: str) -> None:
    for number in (1, 2):
        folder.attempt_dir(number).mkdir()
    (folder.path / "run.json").write_text(content)
    with pytest.raises(HostStateError, match="damaged") as failed:
        folder.read()
    assert "gpumesh-train resume nano" in failed.value.remedy
    run, submitted = runs.resume_run(host(Slurm()), folder)
    assert (run.state, run.job, submitted) == ("queued", 43, True)
    # The next attempt has a number and a folder that no other one had.
    assert len(folder.read().attempts) == 2 and folder.read().counted == 3
    assert (folder.path / "run.json.damaged").read_text() == content


def test_a_run_whose_job_slurm_has_requeued_is_queued(folder: RunDirectory) -> None:
    """Slurm starts it again later. What was written last is that of its first start."""
    folder.write_submission(Submission("token", 41))
    attempts = (Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0, last=178),)
    folder.write(TrainingRun("nano", "running", "token", 41, step=178, detail="copying the data", attempts=attempts))
    run, waits = runs.inspect_run(host(Slurm(j41=("nano", "PENDING|BeginTime"))), folder)
    assert show.format_line(run, 10.0, waits) == "nano: queued · job 41 · pending (BeginTime)"
    # The reason for which the supervisor has left it stays.
    folder.write(folder.read()._replace(state="queued", detail="Slurm has requeued the job"))
    run, waits = runs.inspect_run(host(Slurm(j41=("nano", "PENDING|BeginTime"))), folder)
    assert show.format_line(run, 10.0, waits).endswith("Slurm has requeued the job")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_run_on_a_read_only_volume_can_be_cancelled(
    folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    folder.write_submission(Submission("token", 41))
    folder.write(TrainingRun("nano", "queued", "token", 41))

    def refuse(*_given: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(store, "write_atomic", refuse)
    slurm = Slurm(j41=("nano", "PENDING|Priority"))
    run = runs.cancel_run(host(slurm), folder, lambda _seconds: None)
    assert slurm.ended == [41]
    assert run.state == "cancelled" and os.strerror(number) in run.detail
    # A job whose number is not known can only be told through the volume.
    monkeypatch.undo()
    folder.write_submission(Submission("token"))
    folder.write(TrainingRun("nano", "queued", "other"))
    monkeypatch.setattr(store, "write_atomic", refuse)
    with pytest.raises(HostStateError, match=os.strerror(number)):
        runs.cancel_run(host(slurm), folder, lambda _seconds: None)
