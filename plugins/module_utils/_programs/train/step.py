# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job step of an attempt, and the supervisor's queries to nodes and to the controller while it runs."""

from __future__ import annotations

import contextlib
import queue
import re
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, TextIO, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    agent,
    health,
    liveness,
    protocol,
    scheduler,
    watch,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.growth import OfferRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.job_step import JobStep
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.node_query import NodeQuery

#: Seconds between two messages to the agents.
_TICK_INTERVAL = 1.0
#: Seconds for a node to answer while a silent one blocks the ranks of all others, and before an attempt, when the
#: controller may still be busy with the end of the last one, and excluding a node by mistake costs more.
_PROBE_TIMEOUT = 8.0
_PATIENT_PROBE_TIMEOUT = 25.0
#: The reason for a node of the job that is up, but cannot be used; see NodeProber._is_cut_off.
_CUT_OFF_REASON = "is not found by Slurm, which has taken another node out of the job"
#: Seconds for a node to report its health.
_EXAMINATION_TIMEOUT = 30.0
#: Seconds after which nodes that have not answered together with the others are asked alone, and those after the last
#: answer: a node that is lost should not hold up the others for longer than if it were asked at once. Examinations take
#: longer on some nodes than on others.
_PROBE_PATIENCE = 8.0
_PROBE_PAUSE = 1.0
_EXAMINATION_PATIENCE = 15.0
#: Slurm's messages when the kernel has killed the agent of a node ("srun: error: t2: task 1: Out Of Memory"), or when
#: slurmd, without control groups, has killed the whole step ("slurmstepd-t2: error: StepId=19.2 exceeded memory limit
#: (2616889344 > 2097152000), being killed").
_OOM_PATTERN = re.compile(
    r"^srun: error: (?P<task>[^\s:]+): tasks? [\d,-]+: Out Of Memory\s*$"
    r"|^slurmstepd-(?P<step>[^\s:]+): error: (?:StepId|JobId|Step|Job)\S* ?\S* exceeded memory limit \(\d+ > \d+\), being killed"
)


def parse_oom_line(line: str) -> List[str]:
    """Return the message for the supervisor if this line of Slurm reports that the job ran out of memory on a node."""
    oom_match = _OOM_PATTERN.match(line)
    return (
        protocol.encode(protocol.AgentMessage(watch.OOM_EVENT, oom_match.group("task") or oom_match.group("step"), {}))
        if oom_match
        else []
    )


class OrderedStep(JobStep):
    """A job step whose tasks receive orders, and a keepalive every second."""

    def __init__(
        self, job_id: int, nodes: Sequence[str], step_options: Sequence[str], task_command: Sequence[str]
    ) -> None:
        """Start the step. Raises OSError."""
        super().__init__(job_id, nodes, step_options, task_command, stdin=subprocess.PIPE)
        #: Lines with their time of arrival, since they may be read later.
        self.received_lines: queue.Queue[Tuple[float, str]] = queue.Queue()
        self._orders: queue.Queue[str] = queue.Queue()
        self._keepalives = liveness.Keepalives(liveness.clock())
        for worker, stream in ((self._read, self.output), (self._write, self._process.stdin)):
            threading.Thread(target=worker, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            for message_line in (line, *parse_oom_line(line)):
                self.received_lines.put((time.monotonic(), message_line))

    def _write(self, stream: TextIO) -> None:
        """Send orders, and a keepalive every second, even if this process is blocked, such as by the shared volume."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                try:
                    order = self._orders.get(timeout=_TICK_INTERVAL)
                except queue.Empty:
                    order = "tick"
                write_all(stream.fileno(), f"{order}\n".encode())
                self._keepalives.record_sent(liveness.clock())
        self._keepalives.stop()

    @property
    def stopped(self) -> float:
        """The seconds of this step during which its supervisor was stopped, or its machine suspended."""
        return self._keepalives.stopped_seconds(liveness.clock())

    def order(self, order: str) -> None:
        """Send an order to all tasks."""
        self._orders.put(order)


class AgentStep(OrderedStep):
    """The agents of one attempt, as a job step."""

    def __init__(self, program_path: str, job_id: int, task: agent.AgentTask, gpus_per_node: int) -> None:
        gpu_options = [f"--gpus-per-node={gpus_per_node}"] if gpus_per_node else []
        super().__init__(job_id, task.nodes, gpu_options, [program_path, "agent"])
        self.order(agent.format_task(task))


class NodeProber:
    """Queries to the controller and to nodes, which may take long: in threads, so that the ranks' messages are still
    read.
    """

    def __init__(
        self,
        runner: Runner,
        job_id: int,
        examination_command: Sequence[str] = (),
        gpus_per_node: int = 0,
        allocated_count: int = 0,
    ) -> None:
        """``examination_command``: with it, a node reports whether it is healthy. ``allocated_count``: the number of
        nodes with which the job has started.
        """
        self._runner = runner
        self._allocated_count = allocated_count
        self._job = job_id
        self._examination_command = examination_command
        self._gpus_per_node = gpus_per_node
        #: The reasons why nodes could not be used in the last query.
        self.unusable_reasons: Dict[str, str] = {}
        self._threads: Dict[str, threading.Thread] = {}
        self.responses: queue.Queue[Tuple[str, bool]] = queue.Queue()
        #: Nodes that are not used, and whether they answer and are healthy.
        self.recheck_results: queue.Queue[Tuple[str, bool]] = queue.Queue()
        #: The nodes that Slurm would give the run in another job.
        self.offers: queue.Queue[List[str]] = queue.Queue()
        #: Whether other jobs wait for nodes, as far as it is known.
        self.other_jobs_wait = True
        self.node_states: Dict[str, str] = {}
        #: Why nodes are drained, as far as it is known.
        self.drain_reasons: Dict[str, str] = {}
        self._time_limit_at: Optional[float] = None

    @property
    def time_left(self) -> Optional[float]:
        """The seconds until the time limit of the job, also while the controller is away; None if there is none."""
        return None if self._time_limit_at is None else self._time_limit_at - time.monotonic()

    def check_node(self, node: str) -> None:
        """Check whether a node answers; ``responses`` receives the result."""
        self._start_thread(node, lambda: self.responses.put((node, self.is_alive(node))))

    def recheck_node(self, node: str) -> None:
        """Check whether a node that is not used answers and is healthy; ``recheck_results`` receives the result."""
        self._start_thread(
            f"{node} again",
            lambda: self.recheck_results.put((node, self.can_run_step(node) and not self.examine_node(node))),
        )

    def check_offer(self, request: RunRequest, program_path: str, offer_request: OfferRequest) -> None:
        """Ask Slurm which nodes it would give the run; ``offers`` receives them."""
        self._start_thread("offer", lambda: self._update_offer(request, program_path, offer_request))

    def _update_offer(self, request: RunRequest, program_path: str, offer_request: OfferRequest) -> None:
        with contextlib.suppress(CommandError):
            self.offers.put(
                scheduler.offered_nodes(
                    self._runner, request, program_path, offer_request.node_count, offer_request.excluded_nodes
                )
            )

    def check_queue(self) -> None:
        """Query whether other jobs wait for nodes."""
        self._start_thread("queue", self._update_queue)

    def _update_queue(self) -> None:
        self.other_jobs_wait = True
        with contextlib.suppress(CommandError):
            self.other_jobs_wait = scheduler.other_jobs_wait(self._runner)

    def query_controller(self) -> None:
        """Query the nodes' states and the remaining time."""
        self._start_thread("", self._update_controller)

    def _start_thread(self, thread_name: str, worker: Callable[[], None]) -> None:
        if thread_name not in self._threads or not self._threads[thread_name].is_alive():
            self._threads[thread_name] = threading.Thread(target=worker, daemon=True)
            self._threads[thread_name].start()

    def _update_controller(self) -> None:
        """Update the states and the time limit. A controller that does not answer changes nothing."""
        with contextlib.suppress(CommandError):
            node_states = scheduler.node_states(self._runner)
            draining_nodes = [node for node, state in node_states.items() if scheduler.is_draining(state)]
            # The reason comes before the state, for which the ranks are stopped.
            with contextlib.suppress(CommandError):
                self.drain_reasons = scheduler.drain_reasons(self._runner, draining_nodes) if draining_nodes else {}
            self.node_states = node_states
            seconds_left = scheduler.time_left(self._runner, self._job)
            self._time_limit_at = None if seconds_left is None else time.monotonic() + seconds_left

    def _srun_command(self, node: str) -> List[str]:
        srun_options = [f"--jobid={self._job}", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet"]
        return ["srun", *srun_options]

    def can_run_step(self, node: str, timeout: float = _PROBE_TIMEOUT) -> bool:
        """Whether a step can run on the node, as an attempt requires."""
        try:
            self._runner([*self._srun_command(node), "true"], timeout=timeout)
        except CommandError:
            return False
        return True

    def is_alive(self, node: str, timeout: float = _PROBE_TIMEOUT) -> bool:
        """Whether a node is up, even if this job can start nothing on it any more."""
        return self.can_run_step(node, timeout) or self._is_cut_off(node)

    def _is_cut_off(self, node: str) -> bool:
        """Whether a node on which a step has failed is up: once Slurm 24.11 has taken a node that is down out of a job,
        it looks for the following nodes of the job at the address of their predecessor.
        """
        try:
            node_count = scheduler.node_count(self._runner, self._job)
            return 0 < node_count < self._allocated_count and scheduler.slurmd_listens(self._runner, node)
        except CommandError:
            return False

    @property
    def cut_off(self) -> List[str]:
        """The nodes that only another job can use, as of the last query."""
        return [node for node, reason in self.unusable_reasons.items() if reason == _CUT_OFF_REASON]

    @property
    def _gpu_options(self) -> List[str]:
        return [f"--gpus-per-node={self._gpus_per_node}"] if self._gpus_per_node else []

    def examine_node(self, node: str, timeout: float = _EXAMINATION_TIMEOUT) -> str:
        """Return why a node that answers is unhealthy; empty if it is healthy, or if this is unknown.

        ``timeout``: less for a node that was already asked together with others.
        """
        srun_command = [*self._srun_command(node), *self._gpu_options, *self._examination_command]
        deadline = time.monotonic() + timeout
        try:
            return _health_problem(self._runner(srun_command, timeout=timeout, check=False))
        except CommandError as failure:
            # The reasons of nodes are compared, so all that take too long get the same one.
            expired = CommandError(srun_command, f"did not end within {_EXAMINATION_TIMEOUT:g} s")
            message = (expired if time.monotonic() >= deadline else failure).message
            return f"its health could not be checked: {message.rstrip('.')}"

    def _examine_nodes(self, nodes: Sequence[str]) -> Dict[str, str]:
        """Return what ``examine_node`` does, for each of these nodes."""
        with contextlib.closing(
            NodeQuery(self._job, nodes, self._gpu_options, self._examination_command, _EXAMINATION_TIMEOUT)
        ) as query:
            query.await_answers(_EXAMINATION_PATIENCE)
            problems: Dict[str, str] = {}

            def examine_alone(node: str) -> None:
                problems[node] = self.examine_node(node, query.seconds_left)

            _run_in_threads(partial(examine_alone, node) for node in nodes if node not in query.answers)
            return {
                node: _health_problem(query.answers[node]) if node in query.answers else problems[node]
                for node in nodes
            }

    def _assess_silent_node(
        self, node: str, probe: NodeQuery, suspect: bool, health_by_suspect: Dict[str, str]
    ) -> None:
        """Record whether a node can be used that has not answered ``probe`` yet, together with the others."""
        if not self.can_run_step(node, probe.seconds_left) and not _has_run(probe, node):
            self.unusable_reasons[node] = _CUT_OFF_REASON if self._is_cut_off(node) else "does not answer"
        elif suspect:
            health_by_suspect[node] = self.examine_node(node)

    def _assess_nodes(self, nodes: Sequence[str], suspects: Sequence[str]) -> Dict[str, str]:
        """Record which nodes cannot be used. Return why suspects are unhealthy, empty for healthy ones.

        The nodes are asked in one step, whatever their number. Only those that do not answer are asked alone, while
        the suspects among the others are examined, in one step as well.
        """
        health_by_suspect: Dict[str, str] = {}
        with contextlib.closing(NodeQuery(self._job, nodes, [], ["true"], _PATIENT_PROBE_TIMEOUT)) as probe:
            probe.await_answers(_PROBE_PATIENCE, _PROBE_PAUSE)
            silent_nodes = [node for node in nodes if not _has_run(probe, node)]
            answering_suspects = [node for node in nodes if node in suspects and node not in silent_nodes]

            def examine_suspects() -> None:
                health_by_suspect.update(self._examine_nodes(answering_suspects))

            _run_in_threads(
                [
                    *([examine_suspects] if answering_suspects else []),
                    *(
                        partial(self._assess_silent_node, node, probe, node in suspects, health_by_suspect)
                        for node in silent_nodes
                    ),
                ]
            )
        return health_by_suspect

    def _unhealthy_suspects(self, health_by_suspect: Mapping[str, str], nodes: Sequence[str]) -> Dict[str, str]:
        """Return the unhealthy suspects. ``nodes``: all that answer.

        A volume that fails in the same way on another node makes none unhealthy. If all suspects are unhealthy, one
        more node is examined; if there is none, the suspects are compared with each other.
        """
        unhealthy = {node: reason for node, reason in health_by_suspect.items() if reason}
        volume_problems = {node: reason for node, reason in unhealthy.items() if not health.is_hardware_fault(reason)}
        other_nodes = [node for node in nodes if node not in health_by_suspect]
        if not volume_problems or len(unhealthy) < len(health_by_suspect):
            return unhealthy
        compared_reasons = {other_nodes[0]: self.examine_node(other_nodes[0])} if other_nodes else unhealthy
        # The message of a failed command names its node.
        reason_counts = Counter(reason.replace(node, "") for node, reason in compared_reasons.items())
        min_count = 1 if other_nodes else 2
        excused_nodes = [
            node for node, reason in volume_problems.items() if reason_counts[reason.replace(node, "")] >= min_count
        ]
        return {node: reason for node, reason in unhealthy.items() if node not in excused_nodes}

    def find_usable_nodes(
        self, nodes: Sequence[str], lost_nodes: Sequence[str], suspects: Sequence[str] = ()
    ) -> List[str]:
        """The nodes that can be used and respond. Raises CommandError if the controller does not answer.

        ``lost_nodes``: not queried, since they are known not to respond. ``suspects``: nodes whose health is checked.
        """
        self.node_states = scheduler.node_states(self._runner)
        self.unusable_reasons = dict.fromkeys((node for node in nodes if node in lost_nodes), "does not answer")
        for node in nodes:
            state = self.node_states.get(node, "")
            if node not in lost_nodes and not scheduler.is_usable(state):
                reason = scheduler.out_of_service_reason(self._runner, node)
                self.unusable_reasons[node] = f"is {state}" + (f": {reason}" if reason else "")
        candidate_nodes = [node for node in nodes if node not in self.unusable_reasons]
        health_by_suspect = self._assess_nodes(candidate_nodes, suspects if self._examination_command else ())
        unhealthy = self._unhealthy_suspects(
            health_by_suspect, [node for node in candidate_nodes if node not in self.unusable_reasons]
        )
        self.unusable_reasons.update({node: f"is unhealthy: {reason}" for node, reason in unhealthy.items()})
        return [node for node in candidate_nodes if node not in self.unusable_reasons]


def _health_problem(examination: CommandResult) -> str:
    """Return why the node of this examination is unhealthy; empty if it is healthy, or if this is unknown."""
    output_lines = examination.stdout.strip().splitlines()
    return output_lines[-1] if examination.rc == health.UNHEALTHY_STATUS and output_lines else ""


def _has_run(probe: NodeQuery, node: str) -> bool:
    """Whether the command of a query has run on a node."""
    return node in probe.answers and probe.answers[node].rc == 0


def _run_in_threads(workers: Iterable[Callable[[], None]]) -> None:
    """Run these functions at the same time, until all have ended."""
    threads = [threading.Thread(target=worker) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
