# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The directory of a run on the shared volume, which only its owner can read, unless they allow it to others.

request.json        the request, written once
job.json            the job that is in charge, written by whoever submits one
run.json            what has happened, written by the supervisor
supervisor.log      the log of the supervisor
attempts/001/       one log per rank; heir-N, created by the process that continues the run after this attempt
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_all, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import refuse_open
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import request as requests
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import (
    Attempt,
    Cause,
    Request,
    Run,
    Submission,
    as_values,
    from_values,
    known,
)

_REQUEST = "request.json"
_SUBMISSION = "job.json"
_STATE = "run.json"


class Folder:
    """The folder of one run."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def create(self, request: Request, fill: Callable[[], None] = lambda: None) -> None:
        """Create the folder. Raises InputError if the name is in use: of two concurrent requests, one gets it.

        ``fill``: writes what the run needs. Only then is it a run; if it fails, nothing remains.
        """
        try:
            # Whatever the umask is: a group that may write there could replace the run.
            for place in reversed([place for place in self.path.parents if not place.exists()]):
                place.mkdir(0o755, exist_ok=True)
            # Commands, logs and code may contain secrets. Nobody else gets at what is below, whatever its own mode is.
            self.path.mkdir(0o700)
            (self.path / "checkpoints").mkdir()
            (self.path / "attempts").mkdir()
        except FileExistsError as failure:
            raise in_use(request.name, str(self.path)) from failure
        except OSError as failure:
            raise HostStateError(
                f"The directory {self.path} cannot be created: {failure.strerror}.",
                "Set --run-dir to a directory on a shared volume that you can write to.",
            ) from failure
        try:
            self.refuse_foreign(self.writer())
            fill()
            self.write_request(request)
        except BaseException as failure:
            shutil.rmtree(self.path, ignore_errors=True)
            if isinstance(failure, OSError):
                raise unwritable(self, failure, "start the run again") from failure
            raise

    def write_request(self, request: Request) -> None:
        """Replace the request. Raises OSError."""
        write_atomic(str(self.path / _REQUEST), requests.to_text(request), 0o644)

    def delete(self) -> None:
        """Delete the folder; the request, without which it is no run, comes last. Raises OSError."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _REQUEST:
                path.unlink()
        (self.path / _REQUEST).unlink()
        self.path.rmdir()

    def size(self) -> int:
        """The bytes of all files below the folder."""
        sizes = (
            os.lstat(os.path.join(place, name)).st_size
            for place, _folders, names in os.walk(self.path)
            for name in names
        )
        return sum(sizes)

    def writer(self) -> int:
        """The owner of what this process creates in the directory: nobody for root on most volumes. Raises OSError."""
        with tempfile.TemporaryFile(dir=self.path) as probe:
            return os.fstat(probe.fileno()).st_uid

    def refuse_foreign(self, own: int) -> None:
        """Raises GpumeshError if the directory belongs to another user than ``own``, or another one could replace it.

        The command in it runs as this user. Raises OSError.
        """
        owner = self.path.stat().st_uid
        if owner != own:
            raise InputError(
                f"The run '{self.path.name}' belongs to user {owner}, and its command would run as user {own}.",
                "Ask its owner to resume it.",
            )
        refuse_open(str(self.path), "--run-dir", own)

    def request(self) -> Request:
        """The request of the run. Raises InputError, also if there is no such run."""
        text = read_text(str(self.path / _REQUEST))
        if text is None:
            raise InputError(f"There is no run in {self.path}.", "See 'gpumesh-train list', or set --run-dir.")
        return requests.from_text(text)

    def read(self) -> Run:
        """The state of the run. Raises HostStateError for a damaged file."""
        values = self._json(_STATE)
        try:
            return Run(self.path.name) if values is None else from_values(values)
        except ValueError as failure:
            raise self._damaged(_STATE, failure) from failure

    def read_or_restore(self) -> Run:
        """The same. A damaged file is put aside, and the run continues with what else is known: its attempts have folders.

        Its checkpoints are not affected. Raises OSError if the volume cannot be read.
        """
        try:
            return self.read()
        except HostStateError as failure:
            run = self.with_unrecorded(Run(self.path.name, detail=failure.message))
            run = run._replace(counted=len(run.attempts) + 1)
            # A full volume may take it later.
            with contextlib.suppress(OSError):
                os.replace(self.path / _STATE, self.path / f"{_STATE}.damaged")
                self.write(run)
            return run

    def with_unrecorded(self, run: Run) -> Run:
        """The run with attempts that have a folder, but could not be recorded, such as on a full volume.

        The next one must not have the number of an earlier one, whose claims are in its folder. Raises OSError.
        """
        numbers = [int(path.name) for path in (self.path / "attempts").iterdir() if path.name.isdigit()]
        missing = range(len(run.attempts) + 1, max(numbers, default=0) + 1)
        return run._replace(attempts=(*run.attempts, *map(self._unrecorded, missing)))

    def _unrecorded(self, number: int) -> Attempt:
        begin = self.attempt(number).stat().st_mtime
        cause = Cause("node", "run.json could not be written, so it is not known how this attempt ended")
        return Attempt(number, 0, (), 0, "", begin, begin, cause=cause)

    def write(self, run: Run) -> None:
        """Write the state in one step, so that readers see either the old or the new one. Raises OSError."""
        write_atomic(str(self.path / _STATE), json.dumps(as_values(run), indent=1) + "\n", 0o644)

    def submission(self) -> Submission:
        """The job in charge. Raises HostStateError for a damaged file."""
        values = self._json(_SUBMISSION)
        try:
            return Submission("") if values is None else known(Submission, values)
        except (AttributeError, TypeError) as failure:
            raise self._damaged(_SUBMISSION, failure) from failure

    def write_submission(self, submission: Submission) -> None:
        """Record the job in charge. Raises OSError."""
        write_atomic(str(self.path / _SUBMISSION), json.dumps(submission._asdict()) + "\n", 0o644)

    def _json(self, name: str) -> Any:
        text = read_text(str(self.path / name))
        try:
            return None if text is None else from_json(text)
        except ValueError as failure:
            raise self._damaged(name, failure) from failure

    def _damaged(self, name: str, failure: Exception) -> HostStateError:
        remedy = f"Run 'gpumesh-train resume {self.path.name}', which puts it aside. Checkpoints are not in it."
        return HostStateError(
            f"{self.path / name} is damaged: {failure}.",
            remedy if name == _STATE else "Start the run under another name.",
        )

    def attempt(self, number: int) -> Path:
        """The folder of an attempt, with one log per rank."""
        return self.path / "attempts" / f"{number:03}"

    def claim(self, attempt: int, turn: int, node: str) -> bool:
        """Become the process that continues the run after an attempt: its supervisor, or an heir if that is lost.

        Returns False if another process already is. Raises OSError. Later turns are for the case that the process of an
        earlier one does not start another attempt.
        """
        return self._claim(attempt, f"heir-{turn}", node)

    def claim_next_job(self, attempt: int, node: str) -> bool:
        """Become the process that submits the next job after an attempt whose job has lost its batch script.

        The same as ``claim``, but for a job in which nothing else begins any more.
        """
        return self._claim(attempt, "next-job", node)

    def _claim(self, attempt: int, name: str, node: str) -> bool:
        path = self.attempt(attempt) / name
        # It may be missing if the volume was full when the attempt began.
        path.parent.mkdir(exist_ok=True)
        try:
            descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        # That the file exists is the claim; the name is for people. A full volume may refuse it, also in close().
        with contextlib.suppress(OSError):
            write_all(descriptor, f"{node}\n".encode())
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return True

    def inherited(self, attempt: int, turn: int = -1) -> bool:
        """Whether a process has claimed to continue the run after this attempt, in a later turn than this one.

        Raises OSError.
        """
        return len(list(self.attempt(attempt).glob("heir-*"))) > turn + 1


def in_use(name: str, path: str) -> InputError:
    """The message if a run already has this name."""
    if not os.access(path, os.X_OK):
        return InputError(f"{path} belongs to another user.", "Choose another name.", run=name)
    if not _has_request(path):
        return InputError(
            f"{path} exists but contains no run.",
            "Choose another name. If no run is starting there, an earlier start was interrupted: remove the directory.",
            run=name,
        )
    return InputError(
        f"There is already a run '{name}', in {path}.",
        f"Choose another name, or continue it: gpumesh-train resume {name}",
        run=name,
    )


def unwritable(folder: Folder, failure: OSError, then: str) -> HostStateError:
    """The message if the directory cannot be written to. ``then``: what to do once it can."""
    return HostStateError(
        f"{folder.path} cannot be written: {failure.strerror}.",
        f"Make sure that the shared volume has free space, and that you can write there, then: {then}",
    )


def names(base: str) -> List[str]:
    """The names of all runs in a directory."""
    place = Path(base)
    if not place.is_dir():
        return []
    return sorted(path.parent.name for path in place.glob(f"*/{_REQUEST}"))


def is_run(path: str) -> Optional[Folder]:
    """The run in this folder, if there is one."""
    return Folder(path) if _has_request(path) else None


def _has_request(path: str) -> bool:
    """Not if it is the run of another user, whose directory cannot be read."""
    return os.path.isfile(f"{path}/{_REQUEST}")
