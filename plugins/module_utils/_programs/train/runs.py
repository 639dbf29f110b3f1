# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on runs, for the program and for the playbook: start, resume, cancel, follow."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    preflight,
    profile,
    scheduler,
    snapshot,
    stage,
    store,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    ENDED_STATES,
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.request import (
    refuse_short_limit,
    validate,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: Seconds for the supervisor to report the cancellation.
_CANCEL_TIMEOUT = 40.0
#: The number of queries to an unavailable controller while a run is followed, and the seconds in between.
_QUERY_ATTEMPTS = 60
_QUERY_INTERVAL = 5.0


class SubmitHost(NamedTuple):
    """The host from which runs are submitted. ``program_path``: gpumesh-train, the same on all nodes.

    ``code_limit``: the maximum size of a snapshot of code in MiB.
    """

    run_command: Runner
    program_path: str
    volumes: Sequence[str]
    code_limit: int = snapshot.DEFAULT_LIMIT_MIB


def check_request(submit_host: SubmitHost, request: RunRequest) -> None:
    """Raise GpumeshError for a run that cannot work."""
    validate(request)
    refuse_short_limit(request)
    if store.open_if_run(request.folder):
        raise store.name_in_use_error(request.name, request.folder)
    if request.code:
        excluded_paths = snapshot.excluded_paths(request.folder)
        snapshot.check_source(request.code, request.command, request.directory, submit_host.code_limit, excluded_paths)
    if request.stage:
        stage.build_manifest(request.stage)
    preflight.check(submit_host.run_command, request, submit_host.program_path, submit_host.volumes)


def stored_request(submit_host: SubmitHost, request: RunRequest) -> RunRequest:
    """Return the request to be stored: the command starts in the snapshot, and the profile has an explicit amount."""
    if request.profile:
        request = request._replace(profile=str(profile.parse_profile(request.profile)))
    if not request.code:
        return request
    start_directory = snapshot.start_directory(request.code, request.directory, request.folder)
    return request._replace(
        directory=start_directory, commit=snapshot.git_commit(submit_host.run_command, request.code)
    )


def start_run(submit_host: SubmitHost, request: RunRequest) -> TrainingRun:
    """Submit a run. Raises GpumeshError; in that case, nothing has been submitted."""
    check_request(submit_host, request)
    run_directory = RunDirectory(request.folder)

    def write_inputs() -> None:
        if request.code:
            snapshot.create_snapshot(
                request.code, request.folder, submit_host.code_limit, snapshot.excluded_paths(request.folder)
            )
        if request.stage:
            stage.write_manifest(request.folder, stage.build_manifest(request.stage))

    run_directory.create(stored_request(submit_host, request), write_inputs)
    return _submit_job(submit_host, run_directory, TrainingRun(request.name))


def resume_run(
    submit_host: SubmitHost, run_directory: RunDirectory, even_finished: bool = False, command: Sequence[str] = ()
) -> Tuple[TrainingRun, bool]:
    """Resume a run. Return it, and whether it was resubmitted. A queued or running run is left unchanged.

    ``even_finished``: also resume a finished run. ``command``: replaces that of the run. Raises GpumeshError.
    """
    request = run_directory.read_request()
    try:
        run, job_state = inspect_run(submit_host, run_directory)
    except HostStateError:
        _refuse_foreign_owner(run_directory)
        run_directory.read_or_restore()
        run, job_state = inspect_run(submit_host, run_directory)
    if run.state == "finished" and not even_finished:
        return run, False
    if run.state not in ENDED_STATES and job_state:
        if command:
            raise InputError(
                f"The run '{run.name}' still exists with its former command.",
                f"Run 'gpumesh-train cancel {run.name}' first.",
            )
        return run, False
    _refuse_foreign_owner(run_directory)
    if command:
        request = validate(request._replace(command=tuple(command)))
    preflight.check(submit_host.run_command, request, submit_host.program_path, submit_host.volumes)
    if request.stage:
        stage.write_manifest(request.folder, stage.build_manifest(request.stage))
    if command:
        run_directory.write_request(request)
    run = run_directory.with_unrecorded_attempts(run)
    return _submit_job(submit_host, run_directory, run._replace(counted=len(run.attempts) + 1)), True


def _refuse_foreign_owner(run_directory: RunDirectory) -> None:
    try:
        run_directory.refuse_foreign_owner(run_directory.writer_uid())
    except OSError as failure:
        raise store.unwritable_error(
            run_directory, failure, f"gpumesh-train resume {run_directory.path.name}"
        ) from failure


def _submit_job(submit_host: SubmitHost, run_directory: RunDirectory, run: TrainingRun) -> TrainingRun:
    """Submit the job of a run. A run whose submission fails is marked as failed, and can be resumed."""
    queued_run = run._replace(state="queued", detail="")
    try:
        run_directory.write(queued_run)
        try:
            submission = scheduler.submit(submit_host.run_command, run_directory, submit_host.program_path)
        except GpumeshError as failure:
            run_directory.write(queued_run._replace(state="failed", detail=str(failure)))
            raise
    except OSError as failure:
        raise store.unwritable_error(run_directory, failure, f"gpumesh-train resume {run.name}") from failure
    return queued_run._replace(job=submission.job)


def _current_job(run: TrainingRun, submission: Submission) -> int:
    """Return the job in charge; 0 for one that is just being submitted.

    If sbatch was interrupted, only the job knows its ID.
    """
    return submission.job or (run.job if run.token == submission.token else 0)


def inspect_run(submit_host: SubmitHost, run_directory: RunDirectory) -> Tuple[TrainingRun, str]:
    """Return the run, and the state of its job in Slurm, which is empty if that has ended. Raises GpumeshError.

    A run whose job was submitted and has not started yet is queued, whatever happened to the previous job. One whose
    job has ended without reporting that has failed, unless somebody has cancelled the job, such as a pending one.
    """
    submission = run_directory.read_submission()
    run = run_directory.read()
    job_id = _current_job(run, submission)
    if run.state in ENDED_STATES or not job_id:
        return run, ""
    job_state = scheduler.job_state(submit_host.run_command, job_id, run_directory.path.name)
    if not job_state:
        # The run may have ended in the meantime, possibly for another job.
        run = run_directory.read()
        if run_directory.read_submission().token != submission.token:
            return inspect_run(submit_host, run_directory)
        if run.state not in ENDED_STATES:
            run = _lost_run(submit_host, run, job_id)
    elif run.token != submission.token or job_state.startswith("pending"):
        # The last state was written by an earlier job, or by this one before Slurm requeued it.
        run = run._replace(state="queued", job=job_id, detail="" if run.state == "running" else run.detail)
    return run, job_state


def _lost_run(submit_host: SubmitHost, run: TrainingRun, job_id: int) -> TrainingRun:
    """Return a run whose job has ended without reporting that."""
    if scheduler.final_state(submit_host.run_command, job_id, run.name) == "cancelled":
        return run._replace(state="cancelled", detail=f"job {job_id} was cancelled")
    return run._replace(state="failed", detail=f"job {job_id} has ended, but the run was not finished")


def poll_run(
    submit_host: SubmitHost, run_directory: RunDirectory, sleep: Callable[[float], Any] = time.sleep
) -> Tuple[TrainingRun, str]:
    """Inspect a run that is being followed: Slurm's controller may be unavailable for a while. Raises GpumeshError."""
    for _try in range(_QUERY_ATTEMPTS):
        try:
            return inspect_run(submit_host, run_directory)
        except CommandError:
            sleep(_QUERY_INTERVAL)
    return inspect_run(submit_host, run_directory)


def cancel_run(
    submit_host: SubmitHost, run_directory: RunDirectory, sleep: Callable[[float], Any] = time.sleep
) -> TrainingRun:
    """Cancel a run; it can be resumed. Raises GpumeshError."""
    run, job_state = inspect_run(submit_host, run_directory)
    submission = run_directory.read_submission()
    job_id = _current_job(run, submission)
    if run.state in ENDED_STATES:
        # Slurm may be about to start its job again. Or its last supervisor was lost before it could release the nodes:
        # then the submission may already be one that Slurm has refused, without a job.
        for leftover_job in sorted({submission.job, run.job} - {0}):
            if scheduler.job_state(submit_host.run_command, leftover_job, run_directory.path.name).startswith(
                ("pending", "running")
            ):
                scheduler.cancel_job(submit_host.run_command, leftover_job)
        return run
    if job_id:
        scheduler.cancel_job(submit_host.run_command, job_id)
    else:
        # A job whose token is no longer in charge ends as soon as it starts.
        _withdraw_submission(run_directory)
    deadline = time.monotonic() + (_CANCEL_TIMEOUT if job_state.startswith("running") else 0.0)
    while time.monotonic() < deadline and not _is_superseded(run_directory, submission):
        run = run_directory.read()
        if run.state in ENDED_STATES:
            return run
        sleep(0.5)
    if _is_superseded(run_directory, submission):
        # The supervisor was about to submit the next job, or somebody has resumed the run.
        return cancel_run(submit_host, run_directory, sleep)
    run = run_directory.read()._replace(state="cancelled", detail="cancelled by gpumesh-train")
    try:
        run_directory.write(run)
    except OSError as failure:
        run = run._replace(detail=f"{run.detail}, but run.json could not be written: {failure.strerror}")
    return run


def _withdraw_submission(run_directory: RunDirectory) -> None:
    """Make the job that is being submitted end as soon as it starts."""
    try:
        run_directory.write_submission(Submission(""))
    except OSError as failure:
        raise store.unwritable_error(
            run_directory, failure, f"gpumesh-train cancel {run_directory.path.name}"
        ) from failure


def delete_run(submit_host: SubmitHost, run_directory: RunDirectory) -> None:
    """Delete a run that has ended, with its checkpoints. Raises GpumeshError, OSError.

    If that is interrupted, it is still a run, which can be deleted.
    """
    run, job_state = inspect_run(submit_host, run_directory)
    if run.state not in ENDED_STATES or job_state:
        raise InputError(
            f"The run '{run.name}' has not ended.", f"Run 'gpumesh-train cancel {run.name}' first.", run=run.name
        )
    _refuse_foreign_owner(run_directory)
    run_directory.delete()


def _is_superseded(run_directory: RunDirectory, earlier_submission: Submission) -> bool:
    """Whether another job is in charge by now."""
    return run_directory.read_submission().token not in (earlier_submission.token, "")


def find_run(runs_dir: str, run_name: str) -> RunDirectory:
    """The run with this name. Raises InputError."""
    run_directory = RunDirectory(f"{runs_dir}/{run_name}")
    run_directory.read_request()
    return run_directory
