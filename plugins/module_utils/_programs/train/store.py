# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of a run on the shared volume, which only its owner can read, unless they allow it to others.

request.json        the request, written once
job.json            the job that is in charge, written by the process that submits it
run.json            what has happened, written by the supervisor
supervisor.log      the log of the supervisor
attempts/001/       one log per rank; heir-N, created by the process that continues the run after it
checkpoints/        the program's checkpoints
code/               the snapshot of its code, if one was requested
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, write_all, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import refuse_replaceable_dir
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    Cause,
    RunRequest,
    Submission,
    TrainingRun,
    format_run,
    from_known_fields,
    parse_run,
)

_REQUEST_NAME = "request.json"
_SUBMISSION_NAME = "job.json"
_STATE_NAME = "run.json"


class RunDirectory:
    """The directory of one run."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def create(self, request: RunRequest, write_inputs: Callable[[], None] = lambda: None) -> None:
        """Create the directory. Raises InputError if the name is in use: of two concurrent requests, one gets it.

        ``write_inputs``: writes the files that the run needs. If it fails, nothing remains.
        """
        try:
            # The modes do not depend on the umask: a group that may write there could replace the run.
            for parent in reversed([parent for parent in self.path.parents if not parent.exists()]):
                parent.mkdir(0o755, exist_ok=True)
            # Commands, logs and code may contain secrets. Nobody else can reach the files below, whatever their own
            # modes are.
            self.path.mkdir(0o700)
            (self.path / "checkpoints").mkdir()
            (self.path / "attempts").mkdir()
        except FileExistsError as failure:
            raise name_in_use_error(request.name, str(self.path)) from failure
        except OSError as failure:
            raise HostStateError(
                f"The directory {self.path} cannot be created: {failure.strerror}.",
                "Set --run-dir to a directory on a shared volume that you can write to.",
            ) from failure
        try:
            self.refuse_foreign_owner(self.writer_uid())
            write_inputs()
            self.write_request(request)
        except BaseException as failure:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(failure, OSError):
                raise unwritable_error(self, failure, "start the run again") from failure
            raise

    def write_request(self, request: RunRequest) -> None:
        """Replace the request. Raises OSError."""
        write_atomic(str(self.path / _REQUEST_NAME), requests.format_request(request), 0o644)

    def delete(self) -> None:
        """Delete the directory; the request, without which it is not a run, comes last. Raises OSError."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _REQUEST_NAME:
                path.unlink()
        (self.path / _REQUEST_NAME).unlink()
        self.path.rmdir()

    def total_size(self) -> int:
        """Return the size in bytes of all files below the directory."""
        sizes = (
            os.lstat(os.path.join(parent_dir, file_name)).st_size
            for parent_dir, _directories, file_names in os.walk(self.path)
            for file_name in file_names
        )
        return sum(sizes)

    def writer_uid(self) -> int:
        """Return the owner of files that this process creates in the directory: nobody for root on most volumes.

        Raises OSError."""
        with tempfile.TemporaryFile(dir=self.path) as probe:
            return os.fstat(probe.fileno()).st_uid

    def refuse_foreign_owner(self, expected_uid: int) -> None:
        """Raise GpumeshError if the directory does not belong to this user, or another user could replace it.

        The command in it runs as this user. Raises OSError.
        """
        owner_uid = self.path.stat().st_uid
        if owner_uid != expected_uid:
            raise InputError(
                f"The run '{self.path.name}' belongs to user {owner_uid}, and its command would run as user {expected_uid}.",
                "Ask its owner to resume it.",
            )
        refuse_replaceable_dir(str(self.path), "--run-dir", expected_uid)

    def read_request(self) -> RunRequest:
        """The request of the run. Raises InputError, also if there is no such run."""
        text = read_text(str(self.path / _REQUEST_NAME))
        if text is None:
            raise InputError(f"There is no run in {self.path}.", "See 'gpumesh-train list', or set --run-dir.")
        return requests.parse_request(text)

    def read(self) -> TrainingRun:
        """The state of the run. Raises HostStateError for a damaged file."""
        values = self._read_json(_STATE_NAME)
        try:
            return TrainingRun(self.path.name) if values is None else parse_run(values)
        except ValueError as failure:
            raise self._damaged_error(_STATE_NAME, failure) from failure

    def read_or_restore(self) -> TrainingRun:
        """Return the state of the run, restored from the directories of its attempts if the file is damaged.

        A damaged file is moved aside. Checkpoints are not affected. Raises OSError if the volume cannot be read.
        """
        try:
            return self.read()
        except HostStateError as failure:
            run = self.with_unrecorded_attempts(TrainingRun(self.path.name, detail=failure.message))
            run = run._replace(counted=len(run.attempts) + 1)
            # A full volume may accept the state later.
            with contextlib.suppress(OSError):
                os.replace(self.path / _STATE_NAME, self.path / f"{_STATE_NAME}.damaged")
                self.write(run)
            return run

    def with_unrecorded_attempts(self, run: TrainingRun) -> TrainingRun:
        """Add the attempts that have a directory, but could not be recorded, such as on a full volume.

        The next attempt must not reuse the number of an earlier one, whose directory contains claims. Raises OSError.
        """
        attempt_numbers = [int(path.name) for path in (self.path / "attempts").iterdir() if path.name.isdigit()]
        missing_numbers = range(len(run.attempts) + 1, max(attempt_numbers, default=0) + 1)
        return run._replace(attempts=(*run.attempts, *map(self._unrecorded_attempt, missing_numbers)))

    def _unrecorded_attempt(self, number: int) -> Attempt:
        started_at = self.attempt_dir(number).stat().st_mtime
        cause = Cause("node", "run.json could not be written, so it is unknown how this attempt ended")
        return Attempt(number, 0, (), 0, "", started_at, started_at, cause=cause)

    def write(self, run: TrainingRun) -> None:
        """Write the state in one step, so that readers see either the old or the new one. Raises OSError."""
        write_atomic(str(self.path / _STATE_NAME), json.dumps(format_run(run), indent=1) + "\n", 0o644)

    def read_submission(self) -> Submission:
        """The job in charge. Raises HostStateError for a damaged file."""
        values = self._read_json(_SUBMISSION_NAME)
        try:
            return Submission("") if values is None else from_known_fields(Submission, values)
        except (AttributeError, TypeError) as failure:
            raise self._damaged_error(_SUBMISSION_NAME, failure) from failure

    def write_submission(self, submission: Submission) -> None:
        """Record the job in charge. Raises OSError."""
        write_atomic(str(self.path / _SUBMISSION_NAME), json.dumps(submission._asdict()) + "\n", 0o644)

    def _read_json(self, file_name: str) -> Any:
        text = read_text(str(self.path / file_name))
        try:
            return None if text is None else parse_json(text)
        except ValueError as failure:
            raise self._damaged_error(file_name, failure) from failure

    def _damaged_error(self, file_name: str, failure: Exception) -> HostStateError:
        remedy = f"Run 'gpumesh-train resume {self.path.name}', which sets it aside. It contains no checkpoints."
        return HostStateError(
            f"{self.path / file_name} is damaged: {failure}.",
            remedy if file_name == _STATE_NAME else "Start the run under another name.",
        )

    def attempt_dir(self, number: int) -> Path:
        """Return the directory of an attempt, with one log per rank."""
        return self.path / "attempts" / f"{number:03}"

    def claim(self, attempt_number: int, epoch: int, node: str) -> bool:
        """Become the process that continues the run after an attempt: its supervisor, or a standby if that is lost.

        Return False if another process already has. Raises OSError. Later epochs are for the case that the process of
        an earlier epoch does not start another attempt.
        """
        return self._create_claim(attempt_number, f"heir-{epoch}", node)

    def claim_next_job(self, attempt_number: int, node: str) -> bool:
        """Become the process that submits the next job after an attempt whose job has lost its batch script.

        Like ``claim``, but for a job in which no attempt starts any more.
        """
        return self._create_claim(attempt_number, "next-job", node)

    def _create_claim(self, attempt_number: int, claim_name: str, node: str) -> bool:
        path = self.attempt_dir(attempt_number) / claim_name
        # The directory may be missing if the volume was full when the attempt started.
        path.parent.mkdir(exist_ok=True)
        try:
            descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        # The existence of the file is the claim; its content is for people. A full volume may refuse that, also in
        # close().
        with contextlib.suppress(OSError):
            write_all(descriptor, f"{node}\n".encode())
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return True

    def has_successor(self, attempt_number: int, epoch: int = -1) -> bool:
        """Whether a process has claimed to continue the run after this attempt, in a later epoch than this one.

        Raises OSError.
        """
        return len(list(self.attempt_dir(attempt_number).glob("heir-*"))) > epoch + 1


def name_in_use_error(run_name: str, path: str) -> InputError:
    """Return the error for a name that a run already has."""
    if not os.access(path, os.X_OK):
        return InputError(f"{path} belongs to another user.", "Choose another name.", run=run_name)
    if not _has_request(path):
        return InputError(
            f"{path} exists but contains no run.",
            "Choose another name. If no run is starting there, an earlier start was interrupted: remove the directory.",
            run=run_name,
        )
    return InputError(
        f"There is already a run '{run_name}', in {path}.",
        f"Choose another name, or continue it: gpumesh-train resume {run_name}",
        run=run_name,
    )


def unwritable_error(run_directory: RunDirectory, failure: OSError, next_action: str) -> HostStateError:
    """Return the error for an unwritable directory. ``next_action``: what to do once it is writable."""
    return HostStateError(
        f"{run_directory.path} cannot be written: {failure.strerror}.",
        f"Make sure that the shared volume has free space, and that you can write there, then: {next_action}",
    )


def run_names(runs_dir: str) -> List[str]:
    """The names of all runs in a directory."""
    runs_path = Path(runs_dir)
    if not runs_path.is_dir():
        return []
    return sorted(path.parent.name for path in runs_path.glob(f"*/{_REQUEST_NAME}"))


def open_if_run(path: str) -> Optional[RunDirectory]:
    """Return the run in this directory, if there is one."""
    return RunDirectory(path) if _has_request(path) else None


def _has_request(path: str) -> bool:
    """Whether this is a run; false for the run of another user, whose directory cannot be read."""
    return os.path.isfile(f"{path}/{_REQUEST_NAME}")
