# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job step of an attempt, and the supervisor's queries to nodes and to the controller while it runs."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from typing import Callable, Dict, List, Mapping, Optional, Sequence, TextIO, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import (
    agent,
    health,
    lines,
    liveness,
    scheduler,
    watch,
)

#: Seconds between two messages to the agents.
_SPACING = 1.0
#: Seconds for srun to end after its agents.
_PARTING = 1.0
#: Seconds for a node to answer while a silent one holds up the ranks of all others, and before an attempt, when the
#: controller may be busy with what has ended the last one and a node that is left out by mistake costs more.
_PROBE = 8.0
_PATIENT_PROBE = 25.0
#: Why a node of the job cannot be used that is there; see Asking.
_CUT_OFF = "is not found by Slurm, which has taken another node out of the job"
#: Seconds for a node to report its health.
_EXAMINATION = 30.0
#: Slurm, when the kernel has killed the agent of a node, "srun: error: t2: task 1: Out Of Memory", or slurmd all of the
#: step, since it has no control groups: "slurmstepd-t2: error: StepId=19.2 exceeded memory limit (2616889344 > 2097152000),
#: being killed".
_MEMORY = re.compile(
    r"^srun: error: (?P<task>[^\s:]+): tasks? [\d,-]+: Out Of Memory\s*$"
    r"|^slurmstepd-(?P<step>[^\s:]+): error: (?:StepId|JobId|Step|Job)\S* ?\S* exceeded memory limit \(\d+ > \d+\), being killed"
)


def of_memory(line: str) -> List[str]:
    """The message for the supervisor if Slurm tells with this line that the memory of the job was used up on a node."""
    found = _MEMORY.match(line)
    return lines.encode(lines.Said(watch.MEMORY, found.group("task") or found.group("step"), {})) if found else []


class Step:
    """The agents of one attempt, as a job step."""

    def __init__(self, program: str, job: int, task: agent.Task, gpus_per_node: int) -> None:
        argv = [
            "srun",
            f"--jobid={job}",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            f"--nodes={len(task.nodes)}",
            f"--ntasks={len(task.nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(task.nodes)}",
            "--cpu-bind=none",
            *([f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []),
            program,
            "agent",
        ]
        self._process = Process(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )
        #: Each with its time of arrival, since it may be read later.
        self.lines: queue.Queue[Tuple[float, str]] = queue.Queue()
        self._orders: queue.Queue[str] = queue.Queue()
        self._keepalives = liveness.Keepalives(liveness.clock())
        self.order(agent.task_text(task))
        for work, stream in ((self._read, self._process.stdout), (self._write, self._process.stdin)):
            threading.Thread(target=work, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            for each in (line, *of_memory(line)):
                self.lines.put((time.monotonic(), each))

    def _write(self, stream: TextIO) -> None:
        """Send orders, and a keepalive every second, even if this process is blocked, such as by the shared volume."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                try:
                    word = self._orders.get(timeout=_SPACING)
                except queue.Empty:
                    word = "tick"
                write_all(stream.fileno(), f"{word}\n".encode())
                self._keepalives.sent(liveness.clock())
        self._keepalives.end()

    @property
    def stopped(self) -> float:
        """For how many seconds of this step its supervisor was stopped, or its machine suspended."""
        return self._keepalives.stopped(liveness.clock())

    def order(self, word: str) -> None:
        """Send an order to all agents."""
        self._orders.put(word)

    def over(self) -> bool:
        """Whether srun has ended."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Kill srun, whose agents are gone or unreachable."""
        deadline = time.monotonic() + _PARTING
        while not self.over() and time.monotonic() < deadline:
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Asking:
    """Queries to the controller and to nodes, which may take long: in threads, so that the ranks' messages are still
    read.
    """

    def __init__(
        self, runner: Runner, job: int, examination: Sequence[str] = (), gpus_per_node: int = 0, allocated: int = 0
    ) -> None:
        """``examination``: the command with which a node reports whether it is healthy. ``allocated``: the number of nodes
        with which the job has started.
        """
        self._runner = runner
        self._allocated = allocated
        self._job = job
        self._examination = examination
        self._gpus_per_node = gpus_per_node
        #: Why nodes could not be used in the last query.
        self.unfit: Dict[str, str] = {}
        self._pending: Dict[str, threading.Thread] = {}
        self.answers: queue.Queue[Tuple[str, bool]] = queue.Queue()
        #: The same of nodes that are not used, and whether they are healthy.
        self.revisited: queue.Queue[Tuple[str, bool]] = queue.Queue()
        #: Whether other jobs wait for nodes, as far as it is known.
        self.others_wait = True
        self.states: Dict[str, str] = {}
        self._deadline: Optional[float] = None

    @property
    def time_left(self) -> Optional[float]:
        """The seconds until the time limit of the job, also while the controller is away; None if there is none."""
        return None if self._deadline is None else self._deadline - time.monotonic()

    def node(self, node: str) -> None:
        """Check whether a node answers; ``answers`` receives the result."""
        self._begin(node, lambda: self.answers.put((node, self.lives(node))))

    def revisit(self, node: str) -> None:
        """Check whether a node that is not used answers and is healthy; ``revisited`` receives the result."""
        self._begin(f"{node} again", lambda: self.revisited.put((node, self.probe(node) and not self.examine(node))))

    def queue(self) -> None:
        """Query whether other jobs wait for nodes."""
        self._begin("queue", self._ask_queue)

    def _ask_queue(self) -> None:
        self.others_wait = True
        with contextlib.suppress(CommandError):
            self.others_wait = scheduler.others_wait(self._runner)

    def controller(self) -> None:
        """Query the nodes' states and the remaining time."""
        self._begin("", self._ask)

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        if name not in self._pending or not self._pending[name].is_alive():
            self._pending[name] = threading.Thread(target=work, daemon=True)
            self._pending[name].start()

    def _ask(self) -> None:
        """A controller that does not answer has no consequences."""
        with contextlib.suppress(CommandError):
            self.states = scheduler.node_states(self._runner)
            left = scheduler.time_left(self._runner, self._job)
            self._deadline = None if left is None else time.monotonic() + left

    def _srun(self, node: str) -> List[str]:
        one = [f"--jobid={self._job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"]
        return ["srun", *one]

    def probe(self, node: str, seconds: float = _PROBE) -> bool:
        """Whether a step can run on the node, as an attempt requires."""
        try:
            self._runner([*self._srun(node), "true"], timeout=seconds)
        except CommandError:
            return False
        return True

    def lives(self, node: str, seconds: float = _PROBE) -> bool:
        """Whether a node is there, even if this job can start nothing on it any more."""
        return self.probe(node, seconds) or self._is_cut_off(node)

    def _is_cut_off(self, node: str) -> bool:
        """Whether a node on which a step has failed is there: once Slurm 24.11 has taken a node that is down out of a job,
        it looks for those that follow in the job at the address of the one before.
        """
        try:
            left = scheduler.node_count(self._runner, self._job)
            return 0 < left < self._allocated and scheduler.listens(self._runner, node)
        except CommandError:
            return False

    @property
    def cut_off(self) -> List[str]:
        """The nodes that only another job can use, as of the last query."""
        return [node for node, reason in self.unfit.items() if reason == _CUT_OFF]

    def examine(self, node: str) -> str:
        """Why a node that answers is unhealthy; empty if it is healthy, or if this is unknown."""
        gpus = [f"--gpus-per-node={self._gpus_per_node}"] if self._gpus_per_node else []
        try:
            asked = [*self._srun(node), *gpus, *self._examination]
            done = self._runner(asked, timeout=_EXAMINATION, check=False)
        except CommandError as failure:
            return f"its health could not be checked: {failure.message.rstrip('.')}"
        lines = done.stdout.strip().splitlines()
        return lines[-1] if done.rc == health.UNHEALTHY and lines else ""

    def _judge(self, node: str, suspect: bool, examined: Dict[str, str]) -> None:
        """Record whether a node can be used. ``examined``: why suspects are unhealthy; empty for a healthy one."""
        if not self.probe(node, _PATIENT_PROBE):
            self.unfit[node] = _CUT_OFF if self._is_cut_off(node) else "does not answer"
        elif suspect and self._examination:
            examined[node] = self.examine(node)

    def _unhealthy(self, examined: Mapping[str, str], nodes: Sequence[str]) -> Dict[str, str]:
        """The suspects that are unhealthy. ``nodes``: all that answer.

        A volume that fails in the same way on another node makes none unhealthy. If all suspects are unhealthy, one more node
        is examined; if there is none, the suspects are compared with each other.
        """
        found = {node: reason for node, reason in examined.items() if reason}
        of_volume = {node: reason for node, reason in found.items() if not health.of_hardware(reason)}
        others = [node for node in nodes if node not in examined]
        if not of_volume or len(found) < len(examined):
            return found
        compared = {others[0]: self.examine(others[0])} if others else found
        # The words of a command that was not answered name its node.
        counts = Counter(reason.replace(node, "") for node, reason in compared.items())
        least = 1 if others else 2
        excused = [node for node, reason in of_volume.items() if counts[reason.replace(node, "")] >= least]
        return {node: reason for node, reason in found.items() if node not in excused}

    def fit(self, nodes: Sequence[str], lost: Sequence[str], suspects: Sequence[str] = ()) -> List[str]:
        """The nodes that can be used and respond. Raises CommandError if the controller does not answer.

        ``lost``: not queried, since they are known not to respond. ``suspects``: nodes whose health is checked.
        """
        self.states = scheduler.node_states(self._runner)
        self.unfit = dict.fromkeys((node for node in nodes if node in lost), "does not answer")
        for node in nodes:
            state = self.states.get(node, "")
            if node not in lost and not scheduler.fit(state):
                reason = scheduler.why_out(self._runner, node)
                self.unfit[node] = f"is {state}" + (f": {reason}" if reason else "")
        able = [node for node in nodes if node not in self.unfit]
        examined: Dict[str, str] = {}
        threads = [threading.Thread(target=self._judge, args=(node, node in suspects, examined)) for node in able]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        unhealthy = self._unhealthy(examined, [node for node in able if node not in self.unfit])
        self.unfit.update({node: f"is unhealthy: {reason}" for node, reason in unhealthy.items()})
        return [node for node in able if node not in self.unfit]
