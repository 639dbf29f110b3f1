# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operations on runs, for the program and for the playbook: start, resume, cancel, follow."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    preflight,
    profile,
    scheduler,
    snapshot,
    stage,
    store,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.request import checked, refuse_short
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import ENDED, Request, Run, Submission
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

#: Seconds for the supervisor to report the cancellation.
_CANCEL = 40.0
#: How often Slurm's controller is queried while a run is followed, and the seconds in between.
_TRIES = 60
_SPACING = 5.0


class Host(NamedTuple):
    """What the program needs to know about its host. ``program``: its path, the same on all nodes.

    ``code_limit``: the maximum size of a snapshot of code in MiB.
    """

    run: Runner
    program: str
    volumes: Sequence[str]
    code_limit: int = snapshot.LIMIT


def refuse(host: Host, request: Request) -> None:
    """Raises GpumeshError for a run that cannot work."""
    checked(request)
    refuse_short(request)
    if store.is_run(request.folder):
        raise store.in_use(request.name, request.folder)
    if request.code:
        without = snapshot.without(request.folder)
        snapshot.check(request.code, request.command, request.directory, host.code_limit, without)
    if request.stage:
        stage.listed(request.stage)
    preflight.check(host.run, request, host.program, host.volumes)


def placed(host: Host, request: Request) -> Request:
    """The request as it is stored: with a snapshot of code, the command starts in that. A profile has its number."""
    if request.profile:
        request = request._replace(profile=str(profile.parse(request.profile)))
    if not request.code:
        return request
    directory = snapshot.start_directory(request.code, request.directory, request.folder)
    return request._replace(directory=directory, commit=snapshot.commit(host.run, request.code))


def start(host: Host, request: Request) -> Run:
    """Submit a run. Raises GpumeshError; in that case, nothing has been submitted."""
    refuse(host, request)
    folder = Folder(request.folder)

    def fill() -> None:
        if request.code:
            snapshot.take(request.code, request.folder, host.code_limit, snapshot.without(request.folder))
        if request.stage:
            stage.write(request.folder, stage.listed(request.stage))

    folder.create(placed(host, request), fill)
    return _submit(host, folder, Run(request.name))


def resume(host: Host, folder: Folder, again: bool = False, command: Sequence[str] = ()) -> Tuple[Run, bool]:
    """Resume a run. Returns whether it had to be submitted again. A queued or running run is left unchanged.

    ``again``: also one that has finished. ``command``: replaces that of the run. Raises GpumeshError.
    """
    request = folder.request()
    try:
        run, waits = look(host, folder)
    except HostStateError:
        _refuse_foreign(folder)
        folder.read_or_restore()
        run, waits = look(host, folder)
    if run.state == "finished" and not again:
        return run, False
    if run.state not in ENDED and waits:
        if command:
            raise InputError(
                f"The run '{run.name}' still exists with its former command.",
                f"Run 'gpumesh-train cancel {run.name}' first.",
            )
        return run, False
    _refuse_foreign(folder)
    if command:
        request = checked(request._replace(command=tuple(command)))
    preflight.check(host.run, request, host.program, host.volumes)
    if request.stage:
        stage.write(request.folder, stage.listed(request.stage))
    if command:
        folder.write_request(request)
    run = folder.with_unrecorded(run)
    return _submit(host, folder, run._replace(counted=len(run.attempts) + 1)), True


def _refuse_foreign(folder: Folder) -> None:
    try:
        folder.refuse_foreign(folder.writer())
    except OSError as failure:
        raise store.unwritable(folder, failure, f"gpumesh-train resume {folder.path.name}") from failure


def _submit(host: Host, folder: Folder, run: Run) -> Run:
    """Submit the job of a run. If that fails, the run has failed, and can be resumed."""
    queued = run._replace(state="queued", detail="")
    try:
        folder.write(queued)
        try:
            submission = scheduler.submit(host.run, folder, host.program)
        except GpumeshError as failure:
            folder.write(queued._replace(state="failed", detail=str(failure)))
            raise
    except OSError as failure:
        raise store.unwritable(folder, failure, f"gpumesh-train resume {run.name}") from failure
    return queued._replace(job=submission.job)


def _job(run: Run, submission: Submission) -> int:
    """The job in charge; 0 for one that is just being submitted.

    If sbatch was interrupted, only the job knows its ID.
    """
    return submission.job or (run.job if run.token == submission.token else 0)


def look(host: Host, folder: Folder) -> Tuple[Run, str]:
    """The run, and the state of its job in Slurm, empty if that has ended. Raises GpumeshError.

    A run whose job was submitted and has not started yet is queued, whatever happened to the previous job. One whose
    job has ended without reporting that has failed.
    """
    submission = folder.submission()
    run = folder.read()
    job = _job(run, submission)
    if run.state in ENDED or not job:
        return run, ""
    waits = scheduler.job_state(host.run, job, folder.path.name)
    if not waits:
        # It may have ended in the meantime, possibly for another job.
        run = folder.read()
        if folder.submission().token != submission.token:
            return look(host, folder)
        if run.state not in ENDED:
            run = run._replace(state="failed", detail=f"job {job} has ended, but the run was not finished")
    elif run.token != submission.token or waits.startswith("pending"):
        # What was written last is that of an earlier job, or of this one before Slurm has requeued it.
        run = run._replace(state="queued", job=job, detail="" if run.state == "running" else run.detail)
    return run, waits


def follow(host: Host, folder: Folder, sleep: Callable[[float], Any] = time.sleep) -> Tuple[Run, str]:
    """The same while a run is followed: Slurm's controller may be unavailable for a while. Raises GpumeshError."""
    for _try in range(_TRIES):
        try:
            return look(host, folder)
        except CommandError:
            sleep(_SPACING)
    return look(host, folder)


def cancel(host: Host, folder: Folder, sleep: Callable[[float], Any] = time.sleep) -> Run:
    """Cancel a run; it can be resumed. Raises GpumeshError."""
    run, waits = look(host, folder)
    submission = folder.submission()
    job = _job(run, submission)
    if run.state in ENDED:
        # Slurm may be about to start its job again. Or its last supervisor was lost before it could release the nodes:
        # then the submission may already be one that Slurm has refused, without a job.
        for left in sorted({submission.job, run.job} - {0}):
            if scheduler.job_state(host.run, left, folder.path.name).startswith(("pending", "running")):
                scheduler.cancel(host.run, left)
        return run
    if job:
        scheduler.cancel(host.run, job)
    else:
        # A job whose token is no longer in charge ends as soon as it starts.
        _withdraw(folder)
    deadline = time.monotonic() + (_CANCEL if waits.startswith("running") else 0.0)
    while time.monotonic() < deadline and not _moved(folder, submission):
        run = folder.read()
        if run.state in ENDED:
            return run
        sleep(0.5)
    if _moved(folder, submission):
        # Its supervisor was about to submit the next job, or somebody has resumed it.
        return cancel(host, folder, sleep)
    run = folder.read()._replace(state="cancelled", detail="cancelled by gpumesh-train")
    try:
        folder.write(run)
    except OSError as failure:
        run = run._replace(detail=f"{run.detail}, but run.json could not be written: {failure.strerror}")
    return run


def _withdraw(folder: Folder) -> None:
    """Have the job that is being submitted end as soon as it starts."""
    try:
        folder.write_submission(Submission(""))
    except OSError as failure:
        raise store.unwritable(folder, failure, f"gpumesh-train cancel {folder.path.name}") from failure


def delete(host: Host, folder: Folder) -> None:
    """Delete a run that has ended, with its checkpoints. Raises GpumeshError, OSError.

    If that is interrupted, it is still a run, which can be deleted.
    """
    run, waits = look(host, folder)
    if run.state not in ENDED or waits:
        raise InputError(
            f"The run '{run.name}' has not ended.", f"Run 'gpumesh-train cancel {run.name}' first.", run=run.name
        )
    _refuse_foreign(folder)
    folder.delete()


def _moved(folder: Folder, before: Submission) -> bool:
    """Whether another job is in charge by now."""
    return folder.submission().token not in (before.token, "")


def find(base: str, name: str) -> Folder:
    """The run with this name. Raises InputError."""
    folder = Folder(f"{base}/{name}")
    folder.request()
    return folder
