# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ranks of one node: start them, keep what they write, tell the supervisor what happens, and end them.

It runs as the one task of a node in a job step. What it tells goes to its standard output, one JSON object a line, and
what the supervisor orders comes by its standard input, one word a line: srun carries both. A supervisor that falls silent
has died or is cut off; then another attempt may begin elsewhere, so the ranks end.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import contract
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Progress

#: Begins each line that is meant for the supervisor.
MARK = "@gpumesh "
#: Seconds between two looks at the ranks, and two signs of life.
_SPACING = 1.0
#: Seconds without a word from the supervisor after which it is taken for dead. It says something every second.
_SILENCE = 30.0
#: Seconds that a rank has to end after SIGTERM.
_PATIENCE = 5.0
#: Bytes of a rank's last output that are kept for the supervisor.
_TAIL = 8192
#: States of a process in /proc in which it does not run and will not by itself.
_STOPPED = {"T": "stopped (SIGSTOP)", "t": "stopped by a debugger", "D": "waiting for a disk or a file server"}


class Task(NamedTuple):
    """What the agents of all nodes get, on their command line."""

    run: str
    folder: str
    attempt: int
    nodes: Sequence[str]
    ranks_per_node: int
    command: Sequence[str]
    directory: str
    port: int


class Rank:
    """One process with its descendants."""

    def __init__(
        self, number: int, argv: Sequence[str], directory: str, variables: Mapping[str, str], log: Path
    ) -> None:
        """Raises OSError when the program cannot be started."""
        self.number = number
        self.progress = Progress()
        self.status: Optional[int] = None
        self._progress_file = variables["GPUMESH_PROGRESS_FILE"]
        self._stamp = 0
        self._tail = b""
        self.process = Process(
            list(argv),
            cwd=directory,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._copying = threading.Thread(target=self._copy, args=(self.process.stdout, log), daemon=True)
        self._copying.start()

    def _copy(self, source: Any, log: Path) -> None:
        """Keep what the rank writes, and its last lines also where the volume does not take them."""
        descriptor = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for part in iter(lambda: os.read(source.fileno(), 1 << 16), b""):
            self._tail = (self._tail + part)[-_TAIL:]
            with contextlib.suppress(OSError):
                os.write(descriptor, part)
        os.close(descriptor)

    def look(self) -> bool:
        """Whether it has told of new progress."""
        try:
            stamp = os.stat(self._progress_file).st_mtime_ns
            if stamp == self._stamp:
                return False
            with open(self._progress_file, "rb") as stream:
                told = contract.parse_progress(stream.read(1 << 17))
        except OSError:
            return False
        self._stamp = stamp
        if told is None or told == self.progress:
            return False
        self.progress = told
        return True

    def tail(self) -> str:
        """Its last output, once it has ended. A descendant that lives on may hold the pipe open: that is not awaited."""
        self._copying.join(1.0)
        return self._tail.decode("utf-8", "replace")

    def signal(self, number: int) -> None:
        """To the rank and all that it has started in its session's first process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def state(self) -> str:
        """Why it does not run, by what the kernel says; empty while it may."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return ""
        return _STOPPED.get(text[text.rfind(")") + 2 :][:1], "")


class Agent:
    """All ranks of this node."""

    def __init__(self, task: Task, node: str, output: IO[str]) -> None:
        self._task = task
        self._node = node
        self._output = output
        self._ranks: List[Rank] = []
        self._local = tempfile.mkdtemp(prefix=f"gpumesh-train-{task.run}-")
        self._ending: Optional[float] = None

    def say(self, event: str, **values: Any) -> None:
        """One line to the supervisor. Where nobody reads any more, what follows from that is decided elsewhere."""
        line = MARK + json.dumps({"event": event, "node": self._node, **values}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._output.write(line)
            self._output.flush()

    def start(self) -> None:
        """Raises OSError."""
        task = self._task
        logs = Path(task.folder) / "attempts" / f"{task.attempt:03}"
        for local_rank in range(task.ranks_per_node):
            variables = contract.environment(
                task.run,
                task.folder,
                task.attempt,
                task.nodes,
                self._node,
                local_rank,
                task.ranks_per_node,
                {"MASTER_ADDR": _address(task.nodes[0]), "MASTER_PORT": str(task.port)},
                self._local,
            )
            number = int(variables["RANK"])
            log = logs / f"rank-{number}.log"
            self._ranks.append(Rank(number, task.command, task.directory, variables, log))
        self.say("started", ranks=[rank.number for rank in self._ranks])

    def run(self, orders: int) -> int:
        """Until all ranks have ended. ``orders``: the descriptor that the supervisor's words come by."""
        heard = time.monotonic()
        pending = b""
        while any(rank.status is None for rank in self._ranks):
            ready, _write, _other = select.select([orders], [], [], _SPACING)
            if ready:
                part = os.read(orders, 4096)
                if part:
                    heard = time.monotonic()
                    *words, pending = (pending + part).split(b"\n")
                    for word in words:
                        self._obey(word.decode("ascii", "replace"))
                else:
                    # srun has gone, and with it the supervisor's end of the pipe.
                    self.end()
                    orders = os.open(os.devnull, os.O_RDWR)
                    time.sleep(_SPACING)
            if time.monotonic() - heard > _SILENCE:
                self.end()
            self._watch()
        return 0 if all(rank.status == 0 for rank in self._ranks) else 1

    def _obey(self, word: str) -> None:
        if word == "stop":
            Path(self._local, "stop").touch()
            for rank in self._living():
                with contextlib.suppress(ProcessLookupError):
                    rank.process.send_signal(signal.SIGUSR1)
        elif word == "end":
            self.end()
        elif word == "look":
            for rank in self._living():
                self.say("state", rank=rank.number, stopped=rank.state())

    def end(self) -> None:
        """Ask the ranks to end, and kill them a little later."""
        if self._ending is None:
            self._ending = time.monotonic() + _PATIENCE
            for rank in self._living():
                rank.signal(signal.SIGTERM)
                # One that is stopped would not hear it.
                rank.signal(signal.SIGCONT)
        elif time.monotonic() > self._ending:
            for rank in self._living():
                rank.signal(signal.SIGKILL)

    def _living(self) -> List[Rank]:
        return [rank for rank in self._ranks if rank.status is None]

    def _watch(self) -> None:
        moved: Dict[int, Progress] = {}
        for rank in self._living():
            if rank.look():
                moved[rank.number] = rank.progress
            status = rank.process.poll()
            if status is not None:
                rank.look()
                rank.status = status
                # What it has started and left behind would go on using the GPU.
                rank.signal(signal.SIGKILL)
                self.say(
                    "ended",
                    rank=rank.number,
                    status=status,
                    at=time.time(),
                    tail=rank.tail(),
                    **rank.progress._asdict(),
                )
        self.say("beat", ranks={str(number): progress._asdict() for number, progress in moved.items()})
        if self._ending is not None:
            self.end()

    def close(self) -> None:
        """Leave nothing behind."""
        for rank in self._living():
            rank.signal(signal.SIGKILL)
        shutil.rmtree(self._local, ignore_errors=True)


def _address(node: str) -> str:
    """The cluster's address of a node, which every member's /etc/hosts has; the name itself where it has not."""
    try:
        return str(socket.getaddrinfo(node, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node


def main(text: str) -> int:
    """The program of a node. ``text``: the task, as JSON."""
    task = Task(**json.loads(text))
    agent = Agent(task, os.environ["SLURMD_NODENAME"], sys.stdout)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: agent.end())
    try:
        agent.start()
        return agent.run(sys.stdin.fileno())
    except OSError as failure:
        agent.say("failed", reason=str(failure))
        return 1
    finally:
        agent.close()
