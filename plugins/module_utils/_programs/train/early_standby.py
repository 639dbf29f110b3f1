# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let Slurm start a job again whose supervisor is lost before its first attempt.

Later on, the agents of an attempt continue the run. Before the first one, the supervisor may wait for a volume, for
nodes or for the controller, and nothing else of the run exists: with ``--no-kill``, a job outlives the node of its
batch script. So the first act of a supervisor is a step with a standby on some nodes of its job. A standby needs nothing
on the volume, and does not continue the run itself: that takes minutes longer, but no two processes can be in charge.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from functools import partial
from typing import Any, Callable, List, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import scheduler
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.liveness import STOPPED_GAP
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.step import OrderedStep

#: The command of the program, and the name of the step. Steps named like the program are those of agents.
COMMAND_NAME = "standby"
_STEP_NAME = "gpumesh-standby"
#: The job may end while Python starts, which takes seconds on a busy node: SIGTERM must not end the standby.
_START_SCRIPT = """trap '' TERM; exec "$0" "$1\""""
#: The number of nodes with a standby: that of the batch script, whose shell alone may be killed, and some others.
_MAX_STANDBYS = 4
#: Seconds until a step that has ended or could not start is started again.
_RESTART_INTERVAL = 10.0
#: Seconds for dismissed standbys to end, before their srun is killed.
_DISMISSAL_TIMEOUT = 10.0
#: Seconds without a message of the supervisor, which sends one every second, after which it is presumed dead.
_SUPERVISOR_TIMEOUT = 10.0
#: Seconds for the batch script to restart a supervisor that was killed, and for that to start its own standbys.
_SUCCESSOR_TIMEOUT = 30.0
#: Seconds for which a later step must exist. Agents that were lost together with their supervisor end before that.
_SUCCESSOR_TENURE = 120.0
#: Seconds between two queries of the steps, and between two looks at the signals that have arrived.
_QUERY_INTERVAL = 5.0
_POLL_INTERVAL = 1.0


class EarlyStandbys:
    """The standbys of a supervisor, until its agents can continue the run."""

    def __init__(
        self, program_path: str, job_id: int, node: str, allocated_nodes: Sequence[str], runner: Runner
    ) -> None:
        self._program_path = program_path
        self._job_id = job_id
        self._nodes = [node, *(peer for peer in allocated_nodes if peer != node)]
        self._runner = runner
        self._dismissed = threading.Event()

    def start(self) -> None:
        """Start them in a thread, which replaces a step that has ended, such as after an outage of the controller."""
        threading.Thread(target=self._keep, daemon=True).start()

    def dismiss(self) -> None:
        """End them, since others would continue the run, or nobody has to."""
        self._dismissed.set()

    def _keep(self) -> None:
        standby_step: Optional[OrderedStep] = None
        while not self._dismissed.is_set():
            if standby_step is None or standby_step.over():
                with contextlib.suppress(OSError):
                    standby_step = self._start_step()
            self._dismissed.wait(_RESTART_INTERVAL)
        if standby_step is not None:
            standby_step.order("leave")
            deadline = time.monotonic() + _DISMISSAL_TIMEOUT
            while not standby_step.over() and time.monotonic() < deadline:
                time.sleep(_POLL_INTERVAL)
            standby_step.kill()

    def _start_step(self) -> OrderedStep:
        """Start a step. Raises OSError."""
        nodes = self._nodes
        with contextlib.suppress(CommandError):
            node_states = scheduler.node_states(self._runner)
            # Slurm starts no step at all if one of its nodes is down.
            nodes = [node for node in nodes if scheduler.is_usable(node_states.get(node, ""))] or nodes
        task_command = ["/bin/sh", "-c", _START_SCRIPT, self._program_path, COMMAND_NAME]
        return OrderedStep(self._job_id, nodes[:_MAX_STANDBYS], [f"--job-name={_STEP_NAME}"], task_command)


def stand_by(runner: Runner, program_path: str, orders_fd: int, sleep: Callable[[float], Any] = time.sleep) -> None:
    """Stand by in a step of a job, until the supervisor dismisses this process, or the job has to be started again."""
    received_signals: List[int] = []
    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, lambda number, _frame: received_signals.append(number))
    job_id, own_step = int(os.environ["SLURM_JOB_ID"]), int(os.environ["SLURM_STEP_ID"])
    step_names = (_STEP_NAME, os.path.basename(program_path))

    def has_successor() -> bool:
        """Whether a supervisor has started a step after this one. Raises CommandError."""
        return any(
            scheduler.step_number(step_id) > own_step
            for step_name in step_names
            for step_id in scheduler.find_steps(runner, job_id, step_name)
        )

    query_end = partial(scheduler.query_end, runner, job_id)
    if await_loss(orders_fd, received_signals) and await_no_successor(
        has_successor, query_end, received_signals, sleep
    ):
        _requeue(runner, job_id, query_end, received_signals, sleep)


def await_loss(orders_fd: int, received_signals: Sequence[int]) -> bool:
    """Wait until the supervisor is lost, or the job ends. Return False if it has dismissed this process."""
    pending_bytes = b""
    heard_at = polled_at = time.monotonic()
    while not received_signals:
        ready = select.select([orders_fd], [], [], _POLL_INTERVAL)[0]
        now = time.monotonic()
        if ready or now - polled_at > STOPPED_GAP:
            # A process that was stopped has heard nothing, and its supervisor may have been stopped with it.
            heard_at = now
        polled_at = now
        if ready:
            chunk = os.read(orders_fd, 4096)
            *order_lines, pending_bytes = (pending_bytes + chunk).split(b"\n")
            if b"leave" in order_lines:
                return False
            if not chunk:
                return True
        if now - heard_at > _SUPERVISOR_TIMEOUT:
            return True
    return True


def await_no_successor(
    has_successor: Callable[[], bool],
    query_end: Callable[[], Tuple[bool, str]],
    received_signals: Sequence[int],
    sleep: Callable[[float], Any] = time.sleep,
) -> bool:
    """Wait until it is clear whether the job has to be started again.

    Return True if Slurm ends the job because its batch script was killed, or if no supervisor has started a step after
    the loss of the last one; False if one has, or if the job ends for another reason. ``has_successor`` and
    ``query_end`` raise CommandError if the controller does not answer. A node that is cut off learns nothing until it
    reaches the controller again. Slurm kills this process some time after SIGTERM, by default 30 s. It sends SIGTERM
    once, and this process may have been starting then, so what ends the job is also read from its state.
    """
    seconds_without = seconds_with = 0.0
    while True:
        # Slurm says why the job ends once it has sent SIGTERM. What was queried before that may say nothing.
        is_ending = bool(received_signals)
        try:
            continued, (ends, fate) = has_successor(), query_end()
        except CommandError:
            seconds_without = 0.0
            is_ending = False
        else:
            if fate == "killed":
                # If there are agents, one of them submits another job.
                return not continued
            if ends:
                # A job that was cancelled would be started again: Slurm requeues even those that are just ending.
                return False
            if not continued and seconds_without >= _SUCCESSOR_TIMEOUT:
                return True
            if continued and seconds_with >= _SUCCESSOR_TENURE:
                return False
            seconds_without = 0.0 if continued else seconds_without + _QUERY_INTERVAL
            seconds_with = seconds_with + _QUERY_INTERVAL if continued else 0.0
        if is_ending:
            return False
        _sleep_until_signalled(_QUERY_INTERVAL, received_signals, sleep)


def _requeue(
    runner: Runner,
    job_id: int,
    query_end: Callable[[], Tuple[bool, str]],
    received_signals: Sequence[int],
    sleep: Callable[[float], Any],
) -> None:
    """Have Slurm start the job again. If another standby was faster, this process is about to be ended."""
    while True:
        with contextlib.suppress(CommandError):
            scheduler.requeue_job(runner, job_id)
            return
        with contextlib.suppress(CommandError):
            ends, fate = query_end()
            if (ends or received_signals) and fate != "killed":
                return
        _sleep_until_signalled(_QUERY_INTERVAL, received_signals, sleep)


def _sleep_until_signalled(seconds: float, received_signals: Sequence[int], sleep: Callable[[float], Any]) -> None:
    """Sleep for these seconds, but after a signal for one at most."""
    for _second in range(int(seconds)):
        sleep(_POLL_INTERVAL)
        if received_signals:
            return
