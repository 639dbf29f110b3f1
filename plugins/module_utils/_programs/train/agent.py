# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranks of one node: start them, keep their output, report to the supervisor, and end them.

The agent is the only task of its node in a job step. It reports on standard output and receives the supervisor's orders
on standard input, the task first, then one order per line; srun carries both. A supervisor that falls silent has died,
or its node is cut off. The ranks then end, and one of the agents becomes the supervisor in the same job, since Slurm
keeps a job's remaining nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    last_words,
    load,
    processes,
    protocol,
    rank_modules,
    run_environment,
    stack_place,
    stage,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import profile as profiles
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.liveness import STOPPED_GAP
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    ENDED_STATES,
    Progress,
    from_known_fields,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.rank_log import RankLog
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: Seconds between two checks of the ranks, and seconds between two keepalives.
_POLL_INTERVAL = 0.5
_KEEPALIVE_INTERVAL = 1.0
#: Seconds without a message from the supervisor, which sends one every second, after which it is presumed dead.
_SUPERVISOR_TIMEOUT = 10.0
#: Seconds without the first message, the task, which comes as soon as srun has started the agents of all nodes.
_TASK_TIMEOUT = 60.0
#: Seconds for a rank to exit after SIGTERM, and when Slurm ends the job, such as after scancel: it sends SIGTERM to the
#: ranks as well, and whoever cancels a job expects its end within seconds.
_TERMINATION_GRACE = 5.0
_CANCELLATION_GRACE = 3.0
#: The number of bytes of a rank's last output that are kept for the supervisor. The stacks of C++ that NCCL and JAX
#: print after an error are several thousand long.
_TAIL_BYTES = 16384
#: Seconds in which the stacks of the ranks must appear in their output.
_STACK_DUMP_DELAY = 0.5
#: The distance from MASTER_PORT down to the port on which agents time their paths to each other. A run does not use the
#: ports there for anything else.
_PROBE_PORT_OFFSET = 4000
#: Seconds for a standby to start another attempt before another agent tries.
_STANDBY_TIMEOUT = 60.0
#: Seconds for the batch script to restart a supervisor that was killed while its node stayed up.
_RESTART_TIMEOUT = 10.0
#: Seconds between two attempts of a node to claim the run while it cannot, and the number of epochs that are claimed.
_RETRY_DELAY = 5.0
_MAX_EPOCHS = 5


#: The prefix of the name of an agent's directory.
_DIRECTORY_PREFIX = "gpumesh-train-"


class AgentTask(NamedTuple):
    """The first message to the agents of all nodes. ``token``: the token of the submission in charge.

    ``stage_dir``: the directory of a node's copy of the data, if any has to be copied. ``profile``: what is recorded.
    ``commit``: the commit of the code in git. ``warn_signal``: the signal that the request names.
    """

    run: str
    folder: str
    token: str
    attempt: int
    nodes: Sequence[str]
    ranks_per_node: int
    command: Sequence[str]
    directory: str
    port: int
    stage_dir: str = ""
    profile: str = ""
    commit: str = ""
    warn_signal: str = "SIGUSR1"


class NodeError(HostStateError):
    """A node on which the ranks cannot start because of the node itself, so that another one should replace it."""


class RankProcess:
    """One rank: a process and its descendants."""

    def __init__(
        self,
        number: int,
        argv: Sequence[str],
        working_directory: str,
        rank_environment: Mapping[str, str],
        log_path: Path,
    ) -> None:
        """Start the rank. Raises OSError if the program cannot be started."""
        self.number = number
        self.progress = Progress()
        self.status: Optional[int] = None
        self._progress_path = rank_environment["GPUMESH_PROGRESS_FILE"]
        self._modified_ns = 0
        self._tail = b""
        #: The number of bytes that the rank has printed.
        self.printed_bytes = 0
        self._process = ChildProcess(
            list(argv),
            cwd=working_directory,
            env=dict(rank_environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        #: The process group of the rank.
        self.process_group = self._process.pid
        self._rank_log = RankLog(log_path)
        self._reader_thread = threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True)
        self._reader_thread.start()

    def _read_output(self, output_pipe: Any) -> None:
        """Keep the output of the rank, without waiting for the volume, which would block the rank."""
        for chunk in iter(lambda: os.read(output_pipe.fileno(), 1 << 16), b""):
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            self.printed_bytes += len(chunk)
            self._rank_log.add(chunk)
        output_pipe.close()

    def read_progress(self, is_final: bool = False) -> bool:
        """Read the progress file, and return whether the rank has reported. ``is_final``: the rank has ended."""
        try:
            # Two files that are written within one tick of the kernel's clock have the same time.
            modified_ns = os.stat(self._progress_path).st_mtime_ns
            if modified_ns == self._modified_ns and not is_final:
                return False
            with open(self._progress_path, "rb") as progress_stream:
                report = run_environment.parse_progress(progress_stream.read(1 << 17))
        except OSError:
            return False
        self._modified_ns = modified_ns
        # A report of the same step is a sign of life, and so is a report that cannot be parsed.
        self.progress = report or self.progress
        return True

    def reap(self) -> bool:
        """Return whether the rank has ended. Kill what it left behind, which would keep using the GPU."""
        self.status = self._process.poll()
        if self.status is None:
            return False
        self.signal(signal.SIGKILL)
        self._reader_thread.join(1.0)
        self._rank_log.close(1.0)
        return True

    def output_tail(self) -> str:
        """Return the last output of the rank."""
        return self._tail.decode("utf-8", "replace")

    def signal(self, signal_number: int) -> None:
        """Send a signal to the rank and its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process_group, signal_number)


class Agent:
    """All ranks of this node. ``cancel`` may be called by a signal handler."""

    def __init__(self, task: AgentTask, node: str, event_stream: IO[str]) -> None:
        self._task = task
        self._node = node
        self._event_stream = event_stream
        #: The process of Slurm that started this agent, and through which Slurm ends it together with the job.
        self._parent_pid = os.getppid()
        self._supervisor_listening = True
        #: Whether the stream of orders has ended, as opposed to a supervisor that has fallen silent.
        self.orders_closed = False
        #: Whether this process stays when its ranks have ended, in case the supervisor is lost before the next attempt.
        self.waits_for_next = False
        self._ranks: List[RankProcess] = []
        self._staging: Optional[stage.Staging] = None
        self._local_directory = ""
        self._lock_descriptor = -1
        self._kill_deadline: Optional[float] = None
        self._keepalive_at = 0.0
        #: The number of processes of the step that the kernel had killed for memory before the ranks started.
        self._initial_oom_kills = processes.oom_kill_count()
        self._handshake_listener: Optional[load.HandshakeListener] = None
        self._load_monitor: Optional[load.LoadMonitor] = None

    def send_event(self, event: str, **event_fields: Any) -> None:
        """Send a message to the supervisor. A closed output is handled where orders are read."""
        if self._supervisor_listening:
            with contextlib.suppress(OSError):
                self._event_stream.writelines(protocol.encode(protocol.AgentMessage(event, self._node, event_fields)))
                self._event_stream.flush()

    @property
    def abandoned(self) -> bool:
        """Whether the process of Slurm that started this agent was killed.

        Slurm no longer knows this agent. The supervisor is not lost, although nothing is heard from it.
        """
        return os.getppid() != self._parent_pid

    def start(self) -> None:
        """Start the ranks, or first copy the data that they need. Raises OSError, GpumeshError."""
        task = self._task
        processes.kill_ranks(task.folder, task.attempt)
        helper_sources = rank_modules.module_sources()
        try:
            remove_leftovers()
            self._local_directory = tempfile.mkdtemp(prefix=_DIRECTORY_PREFIX)
            # Some file systems have no locks. Without a lock, nobody else can tell that the directory may be removed.
            with contextlib.suppress(OSError):
                self._lock_descriptor = _lock_directory(self._local_directory)
                _lock_marker(self._local_directory).touch()
            for file_name, source in helper_sources.items():
                Path(self._local_directory, file_name).write_text(source, encoding="utf-8")
            Path(run_environment.runtime_directory(self._local_directory)).mkdir(0o700)
        except OSError as failure:
            raise NodeError(f"cannot write temporary files: {failure.strerror}") from failure
        if task.stage_dir:
            self._staging = stage.Staging(stage.read_manifest(task.folder), task.stage_dir, task.folder)
            self._staging.start()
        else:
            self._start_ranks()

    def _start_ranks(self, staged_path: str = "") -> None:
        """Start the ranks. Raises OSError."""
        task = self._task
        master_variables = {"MASTER_ADDR": _cluster_address(task.nodes[0]), "MASTER_PORT": str(task.port)}
        profile_directory = profiles.profile_directory(task.folder, task.attempt)
        if task.profile:
            with contextlib.suppress(OSError):
                os.makedirs(profile_directory, exist_ok=True)
        for local_rank in range(task.ranks_per_node):
            rank_position = run_environment.RankPosition(task.nodes, self._node, local_rank, task.ranks_per_node)
            rank_environment = run_environment.environment(
                os.environ,
                rank_position,
                task.run,
                task.folder,
                task.attempt,
                master_variables,
                self._local_directory,
                staged_path,
                task.profile,
                task.commit,
            )
            log_path = RunDirectory(task.folder).attempt_dir(task.attempt) / f"rank-{rank_position.rank}.log"
            rank_command = profiles.rank_command(task.profile, task.command, profile_directory, rank_position.rank)
            self._ranks.append(
                RankProcess(rank_position.rank, rank_command, task.directory, rank_environment, log_path)
            )
        self.send_event("started", ranks=[rank.number for rank in self._ranks])
        probe_port = task.port - _PROBE_PORT_OFFSET
        peer_addresses = {node: _cluster_address(node) for node in load.choose_peers(task.nodes, self._node)}
        self._handshake_listener = load.HandshakeListener(_cluster_address(self._node), probe_port)
        self._load_monitor = load.LoadMonitor(
            {rank.number: rank.process_group for rank in self._ranks}, peer_addresses, probe_port
        )

    def run(self, orders_fd: int, pending_bytes: bytes = b"") -> bool:
        """Run until the supervisor has ended the attempt. Return False if the supervisor was lost.

        ``orders_fd``: the descriptor of the orders; ``pending_bytes``: what has been read from it already.

        An agent whose ranks have ended stays, since it may have to continue the run.
        """
        last_heard = last_polled = time.monotonic()
        supervisor_present = True
        while self._live_ranks() or self._kill_deadline is None:
            ready, _write, _other = select.select([orders_fd] if supervisor_present else [], [], [], _POLL_INTERVAL)
            if time.monotonic() - last_polled > STOPPED_GAP:
                # This process was stopped, and the supervisor perhaps with it.
                last_heard = time.monotonic()
            last_polled = time.monotonic()
            if ready:
                last_heard = time.monotonic()
                chunk = os.read(orders_fd, 4096)
                *order_lines, pending_bytes = (pending_bytes + chunk).split(b"\n")
                for raw_order in order_lines:
                    self._execute_order(raw_order.decode("ascii", "replace"))
                # The end of the file means that the supervisor or srun has exited, while its node is still up.
                supervisor_present = bool(chunk)
                self.orders_closed = not chunk
            if time.monotonic() - last_heard > _SUPERVISOR_TIMEOUT:
                supervisor_present = False
            if not supervisor_present and self._kill_deadline is None:
                self.end()
                self._supervisor_listening = False
                return self._await_ranks()
            self._check_ranks()
        return True

    def wait_for_next_attempt(self, orders_fd: int) -> bool:
        """Wait for the next attempt. Return False if the supervisor is lost before."""
        pending_bytes = b""
        while True:
            wait_started = time.monotonic()
            if not select.select([orders_fd], [], [], _SUPERVISOR_TIMEOUT)[0]:
                if time.monotonic() - wait_started > _SUPERVISOR_TIMEOUT + STOPPED_GAP:
                    # This process was stopped, and the supervisor perhaps with it.
                    continue
                break
            chunk = os.read(orders_fd, 4096)
            *order_lines, pending_bytes = (pending_bytes + chunk).split(b"\n")
            if b"leave" in order_lines:
                return True
            if not chunk:
                self.orders_closed = True
                break
        return False

    def _await_ranks(self) -> bool:
        while self._live_ranks():
            time.sleep(_POLL_INTERVAL)
            self._check_ranks()
        return False

    def _execute_order(self, order: str) -> None:
        if order == "warn":
            # The disk may be too full for the file, which ranks with a handler for the signal do not need.
            with contextlib.suppress(OSError):
                if self._local_directory:
                    Path(self._local_directory, "stop").touch()
            for rank in self._live_ranks():
                processes.signal_handlers(rank.process_group, signal.Signals[self._task.warn_signal])
        elif order == "start" and self._staging and self._staging.data_path and not self._ranks:
            self._start_ranks(self._staging.data_path)
        elif order == "rest":
            self.waits_for_next = True
        elif order == "end":
            self.end()
        elif order == "look":
            self._report_state()

    def _report_state(self) -> None:
        """Report the state of the ranks. Ranks with a handler for SIGUSR2 print their stacks first."""
        errors_by_rank = {rank.number: last_words.find_final_error(rank.output_tail()) for rank in self._live_ranks()}
        for rank in self._live_ranks():
            processes.signal_handlers(rank.process_group, signal.SIGUSR2)
        time.sleep(_STACK_DUMP_DELAY)
        for rank in self._live_ranks():
            stop_reason = processes.stop_reason(rank.process_group)
            stack_location, rank_error = (
                stack_place.find_location(rank.output_tail()),
                errors_by_rank.get(rank.number, ""),
            )
            self.send_event("state", rank=rank.number, stopped=stop_reason, place=stack_location, error=rank_error)

    def end(self) -> None:
        """End the ranks."""
        self._end_within(_TERMINATION_GRACE)

    def cancel(self) -> None:
        """End the ranks, since the job ends."""
        self._end_within(_CANCELLATION_GRACE)

    def _end_within(self, grace: float) -> None:
        """Send SIGTERM, and kill the ranks that are still there after a grace period in seconds."""
        if self._kill_deadline is None:
            self._kill_deadline = time.monotonic() + grace
            for rank in self._live_ranks():
                rank.signal(signal.SIGTERM)
                # A stopped process would not handle SIGTERM.
                rank.signal(signal.SIGCONT)

    def _live_ranks(self) -> List[RankProcess]:
        return [rank for rank in self._ranks if rank.status is None]

    def _check_ranks(self) -> None:
        new_progress = {}
        for rank in self._live_ranks():
            if rank.read_progress():
                new_progress[str(rank.number)] = rank.progress._asdict()
            if rank.reap():
                rank.read_progress(is_final=True)
                self.send_event(
                    "ended",
                    rank=rank.number,
                    status=rank.status,
                    at=time.time(),
                    tail=rank.output_tail(),
                    memory=processes.oom_kill_count() > self._initial_oom_kills,
                    **rank.progress._asdict(),
                )
            elif self._kill_deadline is not None and time.monotonic() > self._kill_deadline:
                rank.signal(signal.SIGKILL)
        load_sample = self._load_monitor and self._load_monitor.take_sample()
        if load_sample:
            self.send_event("load", **load_sample)
        if new_progress or time.monotonic() - self._keepalive_at > _KEEPALIVE_INTERVAL:
            self._keepalive_at = time.monotonic()
            self.send_event("beat", ranks=new_progress, printed=sum(rank.printed_bytes for rank in self._ranks))
            self._report_staging()

    def _report_staging(self) -> None:
        staging = self._staging
        if staging and staging.failure:
            node_at_fault = isinstance(staging.failure, HostStateError)
            failure_reason = f"{'cannot copy the data: ' if node_at_fault else ''}{staging.failure}"
            self.send_event("failed", reason=failure_reason, of_node=node_at_fault)
        elif staging and not self._ranks:
            self.send_event(
                "staging", done=staging.copied_bytes, total=staging.total_bytes, ready=bool(staging.data_path)
            )

    def close(self) -> None:
        """Clean up, and report the end."""
        if self._staging:
            self._staging.stop()
        # This agent may have been stopped for so long that a later attempt has begun, whose ranks must survive.
        processes.kill_ranks(self._task.folder, self._task.attempt)
        shutil.rmtree(self._local_directory, ignore_errors=True)
        if self._lock_descriptor >= 0:
            os.close(self._lock_descriptor)
            self._lock_descriptor = -1
        for load_thread in (self._load_monitor, self._handshake_listener):
            if load_thread is not None:
                load_thread.close()
        self.send_event("gone")


def _lock_marker(path: str) -> Path:
    """Return the path of the file by which an agent of this host marks this directory as locked."""
    return Path(path, f".locked-{socket.gethostname()}")


def _lock_directory(path: str) -> int:
    """Lock this directory until this process ends, and return the descriptor.

    Raises OSError, also if another process holds the lock.
    """
    directory_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(directory_fd)
        raise
    return directory_fd


def remove_leftovers() -> None:
    """Remove the directories of this user's killed agents on this node, unless a process still uses one.

    The directory of a live agent is locked. A directory without a marker may belong to an agent that is just starting,
    or to an older version, which locks nothing.
    """
    for leftover_path in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY_PREFIX}*"):
        with contextlib.suppress(OSError):
            # Another user may have put a link there.
            if (
                leftover_path.is_symlink()
                or leftover_path.stat().st_uid != os.geteuid()
                or not _lock_marker(str(leftover_path)).exists()
            ):
                continue
            directory_fd = _lock_directory(str(leftover_path))
            try:
                if not processes.in_any_environment(str(leftover_path)):
                    shutil.rmtree(leftover_path, ignore_errors=True)
            finally:
                os.close(directory_fd)


def _cluster_address(node: str) -> str:
    """Return the cluster address of a node, from a member's /etc/hosts; its name if it has no address there."""
    try:
        return str(socket.getaddrinfo(node, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node


def claim_takeover(
    task: AgentTask,
    node: str,
    reaches_controller: Callable[[], bool],
    sleep: Any = time.sleep,
    node_alive: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Optional[int]:
    """Return the epoch in which this node takes over a run whose supervisor is lost; None once another process does.

    ``node_alive``: the node of the supervisor is up, so that its batch script comes first. ``should_stop``: whether
    this process has to end.

    ``reaches_controller``: whether the controller answers. Without it, the run could not continue here. Most likely,
    this node is then cut off, and not the supervisor's, even if it still has the shared volume.
    """
    epoch = 0
    for _second in range(int(_RESTART_TIMEOUT) if node_alive else 0):
        sleep(1.0)
        if should_stop() or _is_orphaned(task) is False:
            return None
    while epoch < _MAX_EPOCHS:
        can_claim = reaches_controller()
        # This is checked last: while this node was cut off, the supervisor may have started an attempt without it.
        orphaned = _is_orphaned(task)
        if should_stop() or orphaned is False:
            return None
        can_claim = can_claim and bool(orphaned)
        try:
            if can_claim and RunDirectory(task.folder).claim(task.attempt, epoch, node):
                return epoch
        except OSError:
            # The volume may have room, or be reachable, later.
            can_claim = False
        epoch += can_claim
        for _second in range(int(_STANDBY_TIMEOUT if can_claim else _RETRY_DELAY)):
            sleep(1.0)
            if should_stop() or _is_orphaned(task) is False:
                return None
    return None


def should_submit_next(task: AgentTask, node: str, script_killed: Callable[[], bool]) -> bool:
    """Whether this node submits the next job of the run, since this job ends. Only one node of a job does.

    ``script_killed``: whether the job ends because its batch script was killed.
    """
    try:
        return (
            bool(_is_orphaned(task))
            and RunDirectory(task.folder).claim_next_job(task.attempt, node)
            and script_killed()
        )
    except OSError:
        return False


def _is_orphaned(task: AgentTask) -> Optional[bool]:
    """Whether the run is still where this attempt has left it; None if that cannot be read."""
    run_directory = RunDirectory(task.folder)
    try:
        run_state = run_directory.read()
        in_charge = run_directory.read_submission().token == task.token
    except GpumeshError:
        return None
    return in_charge and run_state.state not in ENDED_STATES and len(run_state.attempts) <= task.attempt


def parse_task(text: str) -> AgentTask:
    """Parse the result of ``format_task``, which may come from a newer version."""
    return from_known_fields(AgentTask, json.loads(text))


def format_task(task: AgentTask) -> str:
    """Return the task as a line."""
    return json.dumps(task._asdict())


def receive_task(orders_fd: int) -> Tuple[AgentTask, bytes]:
    """Return the task, and what has been read after it. Raises HostStateError if no task arrives.

    The task is not on the command line, since ``pkill -f`` with the program's command line is meant for the ranks.
    """
    received = b""
    while b"\n" not in received:
        ready, _write, _other = select.select([orders_fd], [], [], _TASK_TIMEOUT)
        chunk = os.read(orders_fd, 1 << 16) if ready else b""
        if not chunk:
            raise HostStateError("The agent has received no task.", "See supervisor.log in the directory of the run.")
        received += chunk
    task_line, _newline, remainder = received.partition(b"\n")
    return parse_task(task_line.decode("ascii", "replace")), remainder
