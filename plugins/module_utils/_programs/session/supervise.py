# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a session: fetch the images, run the containers, and publish the progress.

A task that fails writes the reason as one line to its standard error. The line goes to the log, like all others, and
into the comment of the job, where those who wait for the session can read it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from typing import IO, Any, Callable, List, Mapping, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_error
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import open_private_dir
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import job, node, plan, ssh
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    PROGRAM_NAME,
    Container,
    SessionSpec,
    SessionToken,
)

_POLL_INTERVAL = 0.1
_MESSAGE_PREFIX = f"{PROGRAM_NAME}: ".encode()
_MAX_LINE_LENGTH = 2000
_CHUNK_SIZE = 1 << 16
#: The interval, in seconds, between two attempts to publish a stage, and the timeout for the last stage.
_RETRY_INTERVAL, _FINAL_TIMEOUT = 2.0, 60.0
_SLOW_FETCH_MESSAGE = (
    f"The images took longer than {job.FETCH_MINUTES} minutes. Use a faster registry, or fetch them first with a session "
    "without session_time."
)


class StagePublisher:
    """Publishes the stage of the session until Slurm's controller, which may be away for a while, has accepted it.

    ``publish_stage`` raises CommandError if the controller has not accepted it.
    """

    def __init__(self, publish_stage: Callable[[str], None]) -> None:
        self._publish_stage = publish_stage
        self._stage_condition = threading.Condition()
        self._pending_stage = ""
        self._is_repeating = False

    def update(self, stage: str) -> None:
        """Publish a stage now, or as soon as possible unless another one follows before that."""
        with self._stage_condition:
            self._pending_stage = stage
            self._try_publishing()
            if self._pending_stage and not self._is_repeating:
                self._is_repeating = True
                threading.Thread(target=self._repeat_publishing, daemon=True).start()

    def finish(self, timeout_seconds: float) -> None:
        """Wait until the controller has accepted the last stage."""
        with self._stage_condition:
            self._stage_condition.wait_for(lambda: not self._pending_stage, timeout_seconds)

    def _try_publishing(self) -> None:
        with contextlib.suppress(CommandError):
            self._publish_stage(self._pending_stage)
            self._pending_stage = ""
            self._stage_condition.notify_all()

    def _repeat_publishing(self) -> None:
        with self._stage_condition:
            while self._pending_stage:
                self._stage_condition.wait(_RETRY_INTERVAL)
                if self._pending_stage:
                    self._try_publishing()
            self._is_repeating = False


class StderrCopier:
    """Copies the standard error of a step, and keeps the first message of this program in it."""

    def __init__(self, source_stream: IO[bytes], target_descriptor: int) -> None:
        self.first_message = ""
        self._source, self._target, self._partial_line = source_stream, target_descriptor, b""
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the end of the standard error."""
        self._thread.join(timeout_seconds)

    def _copy(self) -> None:
        with self._source:
            self._copy_all(self._source.fileno())

    def _copy_all(self, source_descriptor: int) -> None:
        while True:
            chunk = os.read(source_descriptor, _CHUNK_SIZE)
            if not chunk:
                return
            # A full volume must not end the step, which would block or fail if nobody read its standard error.
            with contextlib.suppress(OSError):
                write_all(self._target, chunk)
            *complete_lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
            # A progress bar contains no newlines, so the incomplete line is limited.
            self._partial_line = self._partial_line[:_MAX_LINE_LENGTH]
            own_messages = [line[len(_MESSAGE_PREFIX) :] for line in complete_lines if line.startswith(_MESSAGE_PREFIX)]
            if own_messages and not self.first_message:
                self.first_message = own_messages[0].decode("utf-8", "replace")


class RunningStep(NamedTuple):
    """A step that runs. ``stderr_copier``: reads the standard error of its tasks."""

    process: ChildProcess
    stderr_copier: StderrCopier

    def send_input(self, input_text: str) -> None:
        """Write to the standard input of the tasks."""
        input_stream: Any = self.process.stdin
        with contextlib.suppress(BrokenPipeError), input_stream:
            input_stream.write(input_text.encode())


class SessionBatch:
    """The job of a session on its first node. ``encoded_spec``: the session. ``log_directory``: the directory for the
    log."""

    def __init__(
        self, run: Runner, program_path: str, encoded_spec: str, variables: Mapping[str, str], log_directory: str
    ) -> None:
        self.run, self.program, self.encoded_spec = run, program_path, encoded_spec.strip()
        self.job_id = int(variables["SLURM_JOB_ID"])
        self.token: SessionToken = plan.parse_token(variables[job.SESSION_VARIABLE])
        self.log_path = job.log_path(log_directory, self.token.name, self.job_id)
        self.session_containers: List[Container] = []
        self._stage = StagePublisher(
            lambda stage: job.publish_stage(run, self.job_id, plan.format_token(self.token), stage)
        )

    def work(self) -> int:
        """Run the session until it ends. Returns the exit status of the job."""
        try:
            redirect_output(self.log_path)
            self.spec: SessionSpec = job.decode_spec(self.encoded_spec)
            node_plan = node.read_plan(self.job_id)
            self.session_containers = [Container(**entry) for entry in node_plan["containers"]]
            # Slurm starts a job on any of its nodes, which may not be that of the first container.
            local_index = next(entry.local for entry in self.session_containers if entry.name in node_plan["here"])
            session_key = (
                ssh.make_key(self.run, f"{node.job_directory(self.job_id)}/{local_index}/{ssh.KEY_FILE}")
                if self.token.has_private_network
                else ""
            )
        except GpumeshError as failure:
            print_error(f"{PROGRAM_NAME}: {failure}")
            return self._report_failure(1, str(failure))
        self._stage.update(job.FETCHING)
        fetch_step = self.start_on_all_nodes("prepare", subprocess.PIPE)
        # The session and its key are sent on standard input: arguments are public, and Slurm stores the environment.
        fetch_step.send_input(f"{self.encoded_spec}\n{session_key}")
        # The time is limited, since Slurm would count the rest as time of the session.
        exit_status = _wait_for_steps([fetch_step], time_limit=job.FETCH_MINUTES * 60 if self.spec.time else 0)
        if fetch_step.process.returncode is None:
            _stop_steps([fetch_step])
            print_error(f"{PROGRAM_NAME}: {_SLOW_FETCH_MESSAGE}")
            return self._report_failure(1, _SLOW_FETCH_MESSAGE)
        if exit_status:
            return self._report_failure(exit_status, _failure_message([fetch_step]))
        self._stage.update(job.STARTING)
        container_steps = self.start_containers()
        await_step = self.start_on_all_nodes("await")
        try:
            exit_status = _wait_for_steps([await_step], container_steps)
            if exit_status:
                return self._report_failure(exit_status, _failure_message([*container_steps, await_step]))
            self._stage.update(job.RUNNING)
            exit_status = _wait_for_steps(container_steps, container_steps, self.spec.time * 60)
            if exit_status:
                return self._report_failure(exit_status, _failure_message(container_steps))
            print_error(f"{PROGRAM_NAME}: {job.END_MESSAGE}")
            return 0
        finally:
            _stop_steps([await_step, *container_steps])

    def start_on_all_nodes(self, verb: str, stdin_source: int = subprocess.DEVNULL) -> RunningStep:
        """Start a step with a task on each node, outside the network of the containers."""
        return self._start_step(
            job.step_on_all_nodes(self.job_id, len(self.token.node_rows)), verb, job.HOST_STEP, stdin_source
        )

    def start_containers(self) -> List[RunningStep]:
        """Start the steps of the containers."""
        return [
            self._container_step(step_containers) for step_containers in plan.group_into_steps(self.session_containers)
        ]

    def _container_step(self, step_containers: Sequence[Container]) -> RunningStep:
        local_index, role = step_containers[0].local, self.spec.role(step_containers[0].role)
        return self._start_step(
            job.container_step(self.job_id, role, step_containers), f"container {local_index}", local_index
        )

    def _start_step(
        self, step_arguments: Sequence[str], command: str, step_target: object, stdin_source: int = subprocess.DEVNULL
    ) -> RunningStep:
        arguments, step_environment = (
            [*step_arguments, self.program, *command.split()],
            job.clean_environment(step_target),
        )
        process = ChildProcess(arguments, env=step_environment, stdin=stdin_source, stderr=subprocess.PIPE)
        stderr_stream: Any = process.stderr
        return RunningStep(process, StderrCopier(stderr_stream, 2))

    def _report_failure(self, exit_status: int, failure_reason: str) -> int:
        failure_reason = failure_reason or f"a step of the job exited {exit_status}."
        # The log keeps the reason for good, while Slurm forgets jobs.
        print_error(f"{PROGRAM_NAME}: {job.FAILED}: {failure_reason}")
        self._stage.update(f"{job.FAILED} {failure_reason}")
        self._stage.finish(_FINAL_TIMEOUT)
        return exit_status


def redirect_output(log_path: str) -> None:
    """Redirect the output of this process, and what it starts, to this file, which only the user can read.

    A requeued job appends to it. Raises HostStateError.
    """
    # The name can be predicted: nobody else may create a file or a link there.
    log_directory = open_private_dir(os.path.dirname(log_path), "session_storage_dir", 0o022)
    try:
        open_flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        log_descriptor = os.open(os.path.basename(log_path), open_flags, 0o600, dir_fd=log_directory)
        os.fchmod(log_descriptor, 0o600)
        for descriptor in (1, 2):
            os.dup2(log_descriptor, descriptor)
        os.close(log_descriptor)
    except OSError as failure:
        raise HostStateError(
            f"The log {log_path} cannot be written: {failure.strerror}.",
            "Free some space there, or remove whatever has this name.",
        ) from failure
    finally:
        os.close(log_directory)


def _wait_for_steps(
    steps: Sequence[RunningStep], terminating_steps: Sequence[RunningStep] = (), time_limit: float = 0.0
) -> int:
    """Wait until all steps have ended, one has failed, one of ``terminating_steps`` has ended, or the time is over.

    Returns the exit status.
    """
    deadline = time.monotonic() + time_limit if time_limit else float("inf")
    while True:
        ended_statuses = [step.process.returncode for step in steps if step.process.poll() is not None]
        early_statuses = [step.process.returncode for step in terminating_steps if step.process.poll() is not None]
        if len(ended_statuses) == len(steps) or any(ended_statuses) or early_statuses or time.monotonic() > deadline:
            return max((abs(status) for status in (*ended_statuses, *early_statuses)), default=0)
        time.sleep(_POLL_INTERVAL)


def _stop_steps(steps: Sequence[RunningStep]) -> None:
    for step in steps:
        if step.process.poll() is None:
            step.process.terminate()
    for step in steps:
        step.process.wait()
        step.stderr_copier.join(1.0)


def _failure_message(steps: Sequence[RunningStep]) -> str:
    """Return why the steps have failed, according to their messages."""
    _stop_steps(steps)
    return next((step.stderr_copier.first_message for step in steps if step.stderr_copier.first_message), "")
