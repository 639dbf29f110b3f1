# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a session: it has the images fetched and the containers run, and reports the progress.

A task that fails writes the reason as one line to its standard error, which goes to the log like all others, and into
the comment of the job, where it can be read by whoever waits for the session.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from typing import IO, Any, Callable, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import owned
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import complain
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import job, node, plan, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    NAME,
    Container,
    Spec,
    Token,
)

_SPACING = 0.1
_MARK = f"{NAME}: ".encode()
_LONGEST_LINE = 2000
_CHUNK = 1 << 16
#: Seconds until the controller is told again, and at most for it to take the last stage.
_AGAIN, _LAST = 2.0, 60.0
_SLOW = (
    f"The images took longer than {job.ALLOWANCE} minutes. Use a faster registry, or fetch them first with a session "
    "without session_time."
)


class Stage:
    """The stage of the session, which is published until Slurm's controller has taken it: it may be away for a while.

    ``publish`` raises CommandError if it has not.
    """

    def __init__(self, publish: Callable[[str], None]) -> None:
        self._publish = publish
        self._changed = threading.Condition()
        self._pending = ""
        self._repeats = False

    def tell(self, stage: str) -> None:
        """Publish it now, or as soon as possible unless another one follows before that."""
        with self._changed:
            self._pending = stage
            self._try()
            if self._pending and not self._repeats:
                self._repeats = True
                threading.Thread(target=self._repeat, daemon=True).start()

    def finish(self, seconds: float) -> None:
        """Wait until the controller has taken the last one."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, seconds)

    def _try(self) -> None:
        with contextlib.suppress(CommandError):
            self._publish(self._pending)
            self._pending = ""
            self._changed.notify_all()

    def _repeat(self) -> None:
        with self._changed:
            while self._pending:
                self._changed.wait(_AGAIN)
                if self._pending:
                    self._try()
            self._repeats = False


class Errors:
    """Copies the standard error of a step, and keeps the first line of this program."""

    def __init__(self, source: IO[bytes], target: int) -> None:
        self.said = ""
        self._source, self._target, self._rest = source, target, b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._thread.join(seconds)

    def _copy(self) -> None:
        with self._source:
            self._copy_all(self._source.fileno())

    def _copy_all(self, source: int) -> None:
        while True:
            chunk = os.read(source, _CHUNK)
            if not chunk:
                return
            # A volume that takes no log must not end the step, which has nobody else to write to.
            with contextlib.suppress(OSError):
                write_all(self._target, chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            # A progress bar has no line ends.
            self._rest = self._rest[:_LONGEST_LINE]
            ours = [line[len(_MARK) :] for line in lines if line.startswith(_MARK)]
            if ours and not self.said:
                self.said = ours[0].decode("utf-8", "replace")


class Step(NamedTuple):
    """A step that runs. ``errors`` of what its tasks say."""

    process: Process
    errors: Errors

    def tell(self, text: str) -> None:
        """Write to the standard input of the tasks."""
        target: Any = self.process.stdin
        with contextlib.suppress(BrokenPipeError), target:
            target.write(text.encode())


class Batch:
    """The job of a session on its first node. ``program``: the path of gpumesh-session. ``word``: the session.
    ``logs``: the folder for the log."""

    def __init__(self, run: Runner, program: str, word: str, variables: Mapping[str, str], logs: str) -> None:
        self.run, self.program, self.word = run, program, word.strip()
        self.number = int(variables["SLURM_JOB_ID"])
        self.token: Token = plan.parse_token(variables[job.VARIABLE])
        self.log = job.log_of(logs, self.token.name, self.number)
        self.session: List[Container] = []
        self._stage = Stage(lambda stage: job.note(run, self.number, plan.token_text(self.token), stage))

    def work(self) -> int:
        """Until the session ends; the exit status of the job."""
        try:
            write_to(self.log)
            self.spec: Spec = job.decode(self.word)
            found = node.read_plan(self.number)
            self.session = [Container(**one) for one in found["containers"]]
            # Slurm starts a job on any of its nodes, not always on that of the first container.
            local = next(one.local for one in self.session if one.name in found["here"])
            key = ssh.make_key(self.run, f"{node.folder(self.number)}/{local}/{ssh.KEY}") if self.token.private else ""
        except GpumeshError as failure:
            complain(f"{NAME}: {failure}")
            return self._failed(1, str(failure))
        self._stage.tell(job.FETCHING)
        fetching = self.everywhere("prepare", subprocess.PIPE)
        # Neither in a list of processes nor in an environment, which Slurm keeps.
        fetching.tell(f"{self.word}\n{key}")
        # Beyond that, Slurm would count it as time of the session.
        status = _wait([fetching], seconds=job.ALLOWANCE * 60 if self.spec.time else 0)
        if fetching.process.returncode is None:
            _stop([fetching])
            complain(f"{NAME}: {_SLOW}")
            return self._failed(1, _SLOW)
        if status:
            return self._failed(status, _said([fetching]))
        self._stage.tell(job.STARTING)
        containers = self.containers()
        watching = self.everywhere("await")
        try:
            status = _wait([watching], containers)
            if status:
                return self._failed(status, _said([*containers, watching]))
            self._stage.tell(job.RUNNING)
            status = _wait(containers, containers, self.spec.time * 60)
            if status:
                return self._failed(status, _said(containers))
            complain(f"{NAME}: {job.END}")
            return 0
        finally:
            _stop([watching, *containers])

    def everywhere(self, verb: str, source: int = subprocess.DEVNULL) -> Step:
        """Start a step with a task on each node, outside the containers' network."""
        return self._step(job.everywhere(self.number, len(self.token.nodes)), verb, job.HOST, source)

    def containers(self) -> List[Step]:
        """Start the steps of the containers."""
        return [self._container_step(some) for some in plan.steps(self.session)]

    def _container_step(self, some: Sequence[Container]) -> Step:
        local, role = some[0].local, self.spec.role(some[0].role)
        return self._step(job.step(self.number, role, some), f"container {local}", local)

    def _step(self, argv: Sequence[str], command: str, place: object, source: int = subprocess.DEVNULL) -> Step:
        words, variables = [*argv, self.program, *command.split()], job.clean_environment(place)
        process = Process(words, env=variables, stdin=source, stderr=subprocess.PIPE)
        errors: Any = process.stderr
        return Step(process, Errors(errors, 2))

    def _failed(self, status: int, why: str) -> int:
        why = why or f"a step of the job exited {status}."
        # The log has it for good; Slurm forgets jobs.
        complain(f"{NAME}: {job.FAILED}: {why}")
        self._stage.tell(f"{job.FAILED} {why}")
        self._stage.finish(_LAST)
        return status


def write_to(path: str) -> None:
    """Have this process, and what it starts, write to this file, which only the user can read. A job that is started
    again appends to it. Raises HostStateError."""
    # The name can be predicted: nobody else may create a file or a link there.
    folder = owned(os.path.dirname(path), "session_storage_dir", 0o022)
    try:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log = os.open(os.path.basename(path), flags, 0o600, dir_fd=folder)
        os.fchmod(log, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.close(log)
    except OSError as failure:
        raise HostStateError(
            f"The log {path} cannot be written: {failure.strerror}.",
            "Free some space there, or remove whatever has this name.",
        ) from failure
    finally:
        os.close(folder)


def _wait(steps: Sequence[Step], others: Sequence[Step] = (), seconds: float = 0.0) -> int:
    """Until all of these steps have ended, one of them has failed, the first of ``others`` has ended, or the time is over;
    the exit status."""
    end = time.monotonic() + seconds if seconds else float("inf")
    while True:
        ended = [step.process.returncode for step in steps if step.process.poll() is not None]
        over = [step.process.returncode for step in others if step.process.poll() is not None]
        if len(ended) == len(steps) or any(ended) or over or time.monotonic() > end:
            return max((abs(status) for status in (*ended, *over)), default=0)
        time.sleep(_SPACING)


def _stop(steps: Sequence[Step]) -> None:
    for step in steps:
        if step.process.poll() is None:
            step.process.terminate()
    for step in steps:
        step.process.wait()
        step.errors.join(1.0)


def _said(steps: Sequence[Step]) -> str:
    """Why the steps have failed, according to their messages."""
    _stop(steps)
    return next((step.errors.said for step in steps if step.errors.said), "")
