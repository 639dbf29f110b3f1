# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranks of one node: start them, keep their output, report to the supervisor, and end them.

The agent is the only task of its node in a job step. It reports on standard output and receives the supervisor's orders
on standard input, the task first, then one word per line; srun carries both. If the supervisor falls silent, it has died, or its node is cut
off. The ranks then end, and one of the agents becomes the supervisor, in the same job: Slurm keeps a job's remaining
nodes.
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    contract,
    last_words,
    lines,
    load,
    processes,
    stack_place,
    stage,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile as profiles
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.liveness import STOPPED
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.rank_log import RankLog
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import ENDED, Progress, known
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

#: Seconds between two checks of the ranks, and between two keepalives.
_SPACING = 0.5
_BEAT = 1.0
#: Seconds without a message from the supervisor, which sends one every second, after which it is presumed dead.
_SILENCE = 10.0
#: The same before the first message, the task, which comes as soon as srun has started the agents of all nodes.
_FIRST = 60.0
#: Seconds for a rank to end after SIGTERM.
_PATIENCE = 5.0
#: The number of bytes of a rank's last output that are kept for the supervisor. The stacks of C++ that NCCL and JAX print
#: after an error are several thousand long.
_TAIL = 16384
#: Seconds in which the stacks of the ranks must appear in their output.
_DUMP = 0.5
#: The offset from MASTER_PORT to the port on which agents time their paths to each other. A run does not use the ports
#: below for anything else.
_BELOW = 4000
#: Seconds for an heir to start another attempt before another agent tries; seconds between two queries of the
#: controller; and the number of these.
_HEIR = 60.0
#: Seconds for the batch script to start a supervisor again that was killed on a node which lives.
_RESTART = 10.0
_AGAIN = 5.0
_TURNS = 5


#: The name of the directory of an agent.
_LOCAL = "gpumesh-train-"


class Task(NamedTuple):
    """What the agents of all nodes are told first. ``token``: that of the submission in charge.

    ``stage_dir``: the directory of a node's copy of the data, if any has to be copied. ``profile``: what is recorded.
    ``commit``: the commit of the code in git. ``warn_signal``: that of the request.
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
    """The node is the reason why the ranks cannot start on it, so another one should take its place."""


class Rank:
    """One process and its descendants."""

    def __init__(
        self, number: int, argv: Sequence[str], directory: str, variables: Mapping[str, str], log: Path
    ) -> None:
        """Start the rank. Raises OSError if the program cannot be started."""
        self.number = number
        self.progress = Progress()
        self.status: Optional[int] = None
        self._progress_file = variables["GPUMESH_PROGRESS_FILE"]
        self._stamp = 0
        self._tail = b""
        #: The number of bytes that it has printed.
        self.printed = 0
        self._process = Process(
            list(argv),
            cwd=directory,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        #: Its process group.
        self.group = self._process.pid
        self._log = RankLog(log)
        self._reading = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reading.start()

    def _read(self, source: Any) -> None:
        """Keep the output of the rank. Nothing here waits for the volume, which would stop the rank."""
        for part in iter(lambda: os.read(source.fileno(), 1 << 16), b""):
            self._tail = (self._tail + part)[-_TAIL:]
            self.printed += len(part)
            self._log.add(part)
        source.close()

    def look(self, last: bool = False) -> bool:
        """Whether it has reported anything. ``last``: it has ended, so this is the last check."""
        try:
            # Two files that are written within one tick of the kernel's clock have the same time.
            stamp = os.stat(self._progress_file).st_mtime_ns
            if stamp == self._stamp and not last:
                return False
            with open(self._progress_file, "rb") as stream:
                told = contract.parse_progress(stream.read(1 << 17))
        except OSError:
            return False
        self._stamp = stamp
        # A report of the same step is a sign of life, and so is one that cannot be read.
        self.progress = told or self.progress
        return True

    def ended(self) -> bool:
        """Whether it has ended by now. Processes that it left behind would keep using the GPU."""
        self.status = self._process.poll()
        if self.status is None:
            return False
        self.signal(signal.SIGKILL)
        self._reading.join(1.0)
        self._log.close(1.0)
        return True

    def tail(self) -> str:
        """Its last output."""
        return self._tail.decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        """Send a signal to the rank and its whole process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group, number)


class Agent:
    """All ranks of this node. ``end`` may be called by a signal handler."""

    def __init__(self, task: Task, node: str, output: IO[str]) -> None:
        self._task = task
        self._node = node
        self._output = output
        #: The process of Slurm that has started this one, and through which it is ended together with its job.
        self._parent = os.getppid()
        self._listened_to = True
        #: Whether its orders have ended, rather than its supervisor fallen silent.
        self.closed = False
        #: Whether this process stays when its ranks have ended, in case the supervisor is lost before the next attempt.
        self.rests = False
        self._ranks: List[Rank] = []
        self._staging: Optional[stage.Staging] = None
        self._local = ""
        self._lock = -1
        self._deadline: Optional[float] = None
        self._beat_at = 0.0
        #: The processes of the step that the kernel had killed before since its memory was used up.
        self._killed = processes.killed_for_memory()
        self._listener: Optional[load.Listener] = None
        self._load: Optional[load.Load] = None

    def say(self, event: str, **values: Any) -> None:
        """Send a message to the supervisor. The consequences of a closed output are handled elsewhere."""
        if self._listened_to:
            with contextlib.suppress(OSError):
                self._output.writelines(lines.encode(lines.Said(event, self._node, values)))
                self._output.flush()

    @property
    def abandoned(self) -> bool:
        """Whether the process of Slurm that has started this one was killed.

        Slurm does not know this process any more. The supervisor is not lost, although nothing is heard from it.
        """
        return os.getppid() != self._parent

    def start(self) -> None:
        """Start the ranks, or first the copy of the data that they need. Raises OSError, GpumeshError."""
        task = self._task
        processes.kill_ranks(task.folder, task.attempt)
        modules = profiles.modules()
        try:
            remove_leftovers()
            self._local = tempfile.mkdtemp(prefix=_LOCAL)
            # Some file systems have no locks. Then nothing tells others that the directory may be removed.
            with contextlib.suppress(OSError):
                self._lock = _locked(self._local)
                _mark(self._local).touch()
            for name, source in modules.items():
                Path(self._local, name).write_text(source, encoding="utf-8")
            Path(contract.runtime_directory(self._local)).mkdir(0o700)
        except OSError as failure:
            raise NodeError(f"cannot write temporary files: {failure.strerror}") from failure
        if task.stage_dir:
            self._staging = stage.Staging(stage.read(task.folder), task.stage_dir, task.folder)
            self._staging.begin()
        else:
            self._start_ranks()

    def _start_ranks(self, staged: str = "") -> None:
        """Raises OSError."""
        task = self._task
        master = {"MASTER_ADDR": _address(task.nodes[0]), "MASTER_PORT": str(task.port)}
        target = profiles.directory(task.folder, task.attempt)
        if task.profile:
            with contextlib.suppress(OSError):
                os.makedirs(target, exist_ok=True)
        for local_rank in range(task.ranks_per_node):
            place = contract.Place(task.nodes, self._node, local_rank, task.ranks_per_node)
            variables = contract.environment(
                os.environ,
                place,
                task.run,
                task.folder,
                task.attempt,
                master,
                self._local,
                staged,
                task.profile,
                task.commit,
            )
            log = Folder(task.folder).attempt(task.attempt) / f"rank-{place.rank}.log"
            argv = profiles.command(task.profile, task.command, target, place.rank)
            self._ranks.append(Rank(place.rank, argv, task.directory, variables, log))
        self.say("started", ranks=[rank.number for rank in self._ranks])
        port = task.port - _BELOW
        others = {node: _address(node) for node in load.peers(task.nodes, self._node)}
        self._listener = load.Listener(_address(self._node), port)
        self._load = load.Load({rank.number: rank.group for rank in self._ranks}, others, port)

    def run(self, orders: int, pending: bytes = b"") -> bool:
        """Run until the supervisor has ended the attempt.

        Returns False if the supervisor was lost. ``orders``: the descriptor of its orders; ``pending``: what has been
        read from it already.

        An agent whose ranks have ended stays, since it may be the one that continues the run.
        """
        heard = looked = time.monotonic()
        present = True
        while self._living() or self._deadline is None:
            ready, _write, _other = select.select([orders] if present else [], [], [], _SPACING)
            if time.monotonic() - looked > STOPPED:
                # This process was stopped, and the supervisor perhaps with it.
                heard = time.monotonic()
            looked = time.monotonic()
            if ready:
                heard = time.monotonic()
                part = os.read(orders, 4096)
                *words, pending = (pending + part).split(b"\n")
                for word in words:
                    self._obey(word.decode("ascii", "replace"))
                # End of file: the supervisor or srun has ended, and its node has said so.
                present = bool(part)
                self.closed = not part
            if time.monotonic() - heard > _SILENCE:
                present = False
            if not present and self._deadline is None:
                self.end()
                self._listened_to = False
                return self._see_out()
            self._watch()
        return True

    def rest(self, orders: int) -> bool:
        """Wait for the next attempt. Returns False if the supervisor is lost before."""
        pending = b""
        while True:
            began = time.monotonic()
            if not select.select([orders], [], [], _SILENCE)[0]:
                if time.monotonic() - began > _SILENCE + STOPPED:
                    # This process was stopped, and the supervisor perhaps with it.
                    continue
                break
            part = os.read(orders, 4096)
            *words, pending = (pending + part).split(b"\n")
            if b"leave" in words:
                return True
            if not part:
                self.closed = True
                break
        return False

    def _see_out(self) -> bool:
        while self._living():
            time.sleep(_SPACING)
            self._watch()
        return False

    def _obey(self, word: str) -> None:
        if word == "warn":
            # Ranks with a handler for the signal do not need the file, for which the disk may be too full.
            with contextlib.suppress(OSError):
                if self._local:
                    Path(self._local, "stop").touch()
            for rank in self._living():
                processes.send(rank.group, signal.Signals[self._task.warn_signal])
        elif word == "start" and self._staging and self._staging.path and not self._ranks:
            self._start_ranks(self._staging.path)
        elif word == "rest":
            self.rests = True
        elif word == "end":
            self.end()
        elif word == "look":
            self._look()

    def _look(self) -> None:
        """Report the state of the ranks. Those that have a handler for the signal print their stacks."""
        errors = {rank.number: last_words.failed(rank.tail()) for rank in self._living()}
        for rank in self._living():
            processes.send(rank.group, signal.SIGUSR2)
        time.sleep(_DUMP)
        for rank in self._living():
            stopped = processes.stopped(rank.group)
            place, error = stack_place.place(rank.tail()), errors.get(rank.number, "")
            self.say("state", rank=rank.number, stopped=stopped, place=place, error=error)

    def end(self) -> None:
        """End the ranks after the attempt: ask them first, and kill them shortly afterwards."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _PATIENCE
            for rank in self._living():
                rank.signal(signal.SIGTERM)
                # A stopped process would not handle it.
                rank.signal(signal.SIGCONT)

    def _living(self) -> List[Rank]:
        return [rank for rank in self._ranks if rank.status is None]

    def _watch(self) -> None:
        moved = {}
        for rank in self._living():
            if rank.look():
                moved[str(rank.number)] = rank.progress._asdict()
            if rank.ended():
                rank.look(last=True)
                self.say(
                    "ended",
                    rank=rank.number,
                    status=rank.status,
                    at=time.time(),
                    tail=rank.tail(),
                    memory=processes.killed_for_memory() > self._killed,
                    **rank.progress._asdict(),
                )
            elif self._deadline is not None and time.monotonic() > self._deadline:
                rank.signal(signal.SIGKILL)
        measured = self._load and self._load.take()
        if measured:
            self.say("load", **measured)
        if moved or time.monotonic() - self._beat_at > _BEAT:
            self._beat_at = time.monotonic()
            self.say("beat", ranks=moved, printed=sum(rank.printed for rank in self._ranks))
            self._tell_staging()

    def _tell_staging(self) -> None:
        staging = self._staging
        if staging and staging.failure:
            of_node = isinstance(staging.failure, HostStateError)
            reason = f"{'cannot copy the data: ' if of_node else ''}{staging.failure}"
            self.say("failed", reason=reason, of_node=of_node)
        elif staging and not self._ranks:
            self.say("staging", done=staging.done, total=staging.total, ready=bool(staging.path))

    def close(self) -> None:
        """Clean up, and report the end."""
        if self._staging:
            self._staging.stop()
        # Not those of a later attempt: this agent may have been stopped for so long that one has begun.
        processes.kill_ranks(self._task.folder, self._task.attempt)
        shutil.rmtree(self._local, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        for part in (self._load, self._listener):
            if part is not None:
                part.close()
        self.say("gone")


def _mark(path: str) -> Path:
    """The file which tells that an agent of this host has locked this directory."""
    return Path(path, f".locked-{socket.gethostname()}")


def _locked(path: str) -> int:
    """A descriptor with a lock on this directory, which ends with this process. Raises OSError, also if another one has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_leftovers() -> None:
    """Remove the directories of this user's agents on this node that were killed, unless a process still uses one.

    Those of agents that live are locked. What is not marked may be of an agent that is just starting, or of an older
    version, which locks nothing.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{_LOCAL}*"):
        with contextlib.suppress(OSError):
            # Others may have put a link there.
            if path.is_symlink() or path.stat().st_uid != os.geteuid() or not _mark(str(path)).exists():
                continue
            lock = _locked(str(path))
            try:
                if not processes.mentions(str(path)):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _address(node: str) -> str:
    """The cluster address of a node, from a member's /etc/hosts; the name itself if it has none."""
    try:
        return str(socket.getaddrinfo(node, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node


def inherits(
    task: Task,
    node: str,
    reaches: Callable[[], bool],
    sleep: Any = time.sleep,
    closed: bool = False,
    over: Callable[[], bool] = lambda: False,
) -> Optional[int]:
    """The turn in which this node continues the run, whose supervisor is lost; None once another process does.

    ``closed``: the node of the supervisor lives, so that its batch script comes first. ``over``: whether this process has
    to end.

    ``reaches``: whether the controller answers. Without it, the run could not continue here. Most likely, it is this
    node that is cut off, and not that of the supervisor, even if it still has the shared volume.
    """
    turn = 0
    for _second in range(int(_RESTART) if closed else 0):
        sleep(1.0)
        if over() or _orphaned(task) is False:
            return None
    while turn < _TURNS:
        able = reaches()
        # Last of all: while this node was cut off, the supervisor may have started another attempt without it.
        orphaned = _orphaned(task)
        if over() or orphaned is False:
            return None
        able = able and bool(orphaned)
        try:
            if able and Folder(task.folder).claim(task.attempt, turn, node):
                return turn
        except OSError:
            # The volume may have room, or be reachable, later.
            able = False
        turn += able
        for _second in range(int(_HEIR if able else _AGAIN)):
            sleep(1.0)
            if over() or _orphaned(task) is False:
                return None
    return None


def submits(task: Task, node: str, killed: Callable[[], bool]) -> bool:
    """Whether this node submits the next job of the run, since this job ends. One node of the job does.

    ``killed``: whether it ends because its batch script was killed.
    """
    try:
        return bool(_orphaned(task)) and Folder(task.folder).claim_next_job(task.attempt, node) and killed()
    except OSError:
        return False


def _orphaned(task: Task) -> Optional[bool]:
    """Whether the run is still where this attempt has left it; None if that cannot be read."""
    folder = Folder(task.folder)
    try:
        run = folder.read()
        in_charge = folder.submission().token == task.token
    except GpumeshError:
        return None
    return in_charge and run.state not in ENDED and len(run.attempts) <= task.attempt


def parse_task(text: str) -> Task:
    """The reverse of ``task_text``, which may be that of a newer version."""
    return known(Task, json.loads(text))


def task_text(task: Task) -> str:
    """The task as a line."""
    return json.dumps(task._asdict())


def receive(orders: int) -> Tuple[Task, bytes]:
    """The task, and what has been read after it. Raises HostStateError if none comes.

    It is not on the command line: whoever kills a program by its command line, as ``pkill -f`` does, means the ranks.
    """
    text = b""
    while b"\n" not in text:
        ready, _write, _other = select.select([orders], [], [], _FIRST)
        part = os.read(orders, 1 << 16) if ready else b""
        if not part:
            raise HostStateError("The agent has received no task.", "See supervisor.log in the directory of the run.")
        text += part
    line, _newline, rest = text.partition(b"\n")
    return parse_task(line.decode("ascii", "replace")), rest
