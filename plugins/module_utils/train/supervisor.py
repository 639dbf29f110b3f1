# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a run: start attempts in its allocation, one after the other, until the run has ended.

It is one process on one node, which may die like any other. All that another one needs to go on is in the run's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any, List, Optional, Sequence, TextIO

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Process, Runner, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import agent, decide
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.request import checked
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request, Run
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.watch import Watch, parse_line

#: Seconds between two words to the agents, and two looks at what they have said.
_SPACING = 1.0
#: Seconds between two notes of the progress in run.json.
_NOTE = 5.0
#: Seconds for the agents to end their ranks, and for the step to be gone.
_ENDING = 15.0
#: Seconds for a node to say that it is there.
_PROBE = 8.0
#: Ports of MASTER_PORT: another one for each attempt, since the last one's may still be held.
_PORTS = range(25000, 29000)


class Step:
    """The agents of one attempt, as a job step."""

    def __init__(self, program: str, task: agent.Task) -> None:
        argv = [
            "srun",
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--unbuffered",
            f"--nodes={len(task.nodes)}",
            f"--ntasks={len(task.nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(task.nodes)}",
            "--distribution=arbitrary" if len(task.nodes) > 1 else "--distribution=block",
            program,
            "agent",
            json.dumps(task._asdict()),
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
        self.lines: "queue.Queue[str]" = queue.Queue()
        self._orders: "queue.Queue[str]" = queue.Queue()
        for work, stream in ((self._read, self._process.stdout), (self._write, self._process.stdin)):
            threading.Thread(target=work, args=(stream,), daemon=True).start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self.lines.put(line.rstrip("\n"))

    def _write(self, stream: TextIO) -> None:
        """In a thread of its own: srun takes no more where one of its nodes takes none."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                stream.write(self._orders.get() + "\n")
                stream.flush()

    def order(self, word: str) -> None:
        """Tell all agents."""
        self._orders.put(word)

    def over(self) -> bool:
        """Whether srun has ended."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Have the ranks end, then be rid of the step, whether its nodes answer or not."""
        self.order("end")
        deadline = time.monotonic() + _ENDING
        while not self.over() and time.monotonic() < deadline:
            time.sleep(0.2)
        if not self.over():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Supervisor:
    """One job of the run."""

    def __init__(self, folder: Folder, program: str, job: int, allocated: Sequence[str], runner: Runner = run) -> None:
        self._folder = folder
        self._program = program
        self._job = job
        self._allocated = allocated
        self._runner = runner
        self._request = checked(folder.request())
        self._run = (folder.read() or Run(self._request.name, "queued"))._replace(job=job)
        self._warning = ""
        self._cancelled = False

    def warn(self, number: int, _frame: Any) -> None:
        """Slurm says that the time is nearly over, or that the job is preempted."""
        self._warning = "the time limit is near" if number == signal.SIGUSR1 else "it was told to end"

    def cancel(self, _number: int, _frame: Any) -> None:
        """``scancel``, or the end of the job."""
        self._cancelled = True

    def supervise(self) -> int:
        """The exit status of the job."""
        self._close_last()
        while True:
            decision = decide.decide(self._request, self._run.attempts, self._allocated, self._healthy())
            if self._run.attempts:
                self._note_action(decision.action + (f": {decision.reason}" if decision.reason else ""))
            if decision.action == "restart":
                self._attempt(decision.nodes)
                continue
            if decision.action == "requeue":
                self._save(self._run._replace(state="queued", detail=decision.reason))
                self._requeue(decision.excluded)
                return 0
            finished = decision.action == "finish"
            cancelled = self._cancelled or (self._run.attempts and _kind(self._run.attempts[-1]) == "cancelled")
            state = "finished" if finished else "cancelled" if cancelled else "failed"
            self._save(self._run._replace(state=state, detail=decision.reason))
            _say(f"{self._request.name}: {state}: {decision.reason}")
            return 0 if finished else 1

    def _close_last(self) -> None:
        """An attempt that nobody has closed was cut off with its supervisor."""
        if self._run.attempts and self._run.attempts[-1].end is None:
            last = self._run.attempts[-1]
            cause = Cause("node", "the node of the supervisor was lost, or the job was queued again")
            self._replace_last(last._replace(end=time.time(), cause=cause))

    def _attempt(self, nodes: Sequence[str]) -> None:
        number = len(self._run.attempts) + 1
        self._folder.attempt(number)
        request = self._request
        port = _PORTS[(self._job * 31 + number * 7) % len(_PORTS)]
        task = agent.Task(
            request.name,
            str(self._folder.path),
            number,
            list(nodes),
            request.ranks_per_node,
            list(request.command),
            request.directory,
            port,
        )
        attempt = Attempt(number, self._job, tuple(nodes), len(nodes) * request.ranks_per_node, time.time())
        self._save(self._run._replace(state="running", attempts=(*self._run.attempts, attempt)))
        _say(f"{request.name}: attempt {number} on {', '.join(nodes)}")
        step = Step(self._program, task)
        watch = Watch(request, nodes, time.monotonic())
        try:
            cause = self._follow(step, watch)
        finally:
            step.end()
        self._take_progress(watch)
        self._replace_last(self._run.attempts[-1]._replace(end=time.time(), cause=cause))
        _say(f"{request.name}: attempt {number} ended: {cause.kind} {cause.detail}".rstrip())

    def _follow(self, step: Step, watch: Watch) -> Cause:
        """Until the attempt has ended or has to."""
        noted = 0.0
        told = False
        over: Optional[float] = None
        while True:
            now = time.monotonic()
            self._listen(step, watch)
            if self._cancelled:
                watch.cancelled = True
                return Cause("cancelled")
            if self._warning and not told:
                told = True
                watch.warned = self._warning
                warned_at = now
                step.order("stop")
            cause = watch.verdict(now)
            if cause is not None:
                return cause
            if told and now - warned_at > self._request.grace:
                return Cause("warned", self._warning)
            for node in watch.silent(now):
                if not self._answers(node):
                    watch.lost[node] = "does not answer any more"
            if watch.asks(now):
                step.order("look")
            if step.over():
                # What it said last may still be on its way.
                over = over or now
                if now - over > 5:
                    return Cause("start", "srun has ended, and the ranks have not said how they did")
            if now - noted > _NOTE:
                noted = now
                self._take_progress(watch)
            step.order("tick")

    def _listen(self, step: Step, watch: Watch) -> None:
        """Take in what has come, for about a second."""
        deadline = time.monotonic() + _SPACING
        while True:
            try:
                line = step.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            said = parse_line(line, agent.MARK)
            if said is not None:
                watch.hear(said, time.monotonic())
            elif line.strip():
                _say(line)

    def _take_progress(self, watch: Watch) -> None:
        """Note in run.json where the attempt is."""
        now = watch.progress()
        last = self._run.attempts[-1]
        last = last._replace(
            first=last.first if last.first is not None else now.step,
            last=now.step if now.step is not None else last.last,
            checkpoint=now.checkpoint if now.checkpoint is not None else last.checkpoint,
        )
        saved = now.checkpoint is not None and now.checkpoint != self._run.attempts[-1].checkpoint
        took = time.time() - last.begin
        made = (last.last or 0) - (last.first or 0)
        self._save(
            self._run._replace(
                attempts=(*self._run.attempts[:-1], last),
                step=now.step if now.step is not None else self._run.step,
                steps=now.steps if now.steps is not None else self._run.steps,
                loss=now.loss if now.loss is not None else self._run.loss,
                steps_per_second=round(made / took, 3) if made > 0 and took > 0 else self._run.steps_per_second,
                checkpoint_at=time.time() if saved else self._run.checkpoint_at,
            )
        )

    def _replace_last(self, attempt: Attempt) -> None:
        self._save(self._run._replace(attempts=(*self._run.attempts[:-1], attempt)))

    def _note_action(self, action: str) -> None:
        self._replace_last(self._run.attempts[-1]._replace(action=action))

    def _save(self, new: Run) -> None:
        """A volume that does not take it now takes the next one: the run must not end for that."""
        self._run = new
        try:
            self._folder.write(new)
        except (OSError, GpumeshError) as failure:
            _say(f"run.json cannot be written now: {failure}")

    def _healthy(self) -> List[str]:
        """Nodes of the allocation that answer. All are asked at once."""
        found: List[str] = []
        threads = [
            threading.Thread(target=lambda node=node: found.append(node) if self._answers(node) else None)
            for node in self._allocated
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [node for node in self._allocated if node in found]

    def _answers(self, node: str) -> bool:
        """Whether a step runs there at all, which is what an attempt needs."""
        argv = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--quiet", "true"]
        try:
            self._runner(argv, timeout=_PROBE)
        except CommandError:
            return False
        return True

    def _requeue(self, excluded: Sequence[str]) -> None:
        if excluded:
            self._runner(["scontrol", "update", f"jobid={self._job}", f"excnodelist={','.join(excluded)}"], check=False)
        self._runner(["scontrol", "requeue", str(self._job)])


def _kind(attempt: Attempt) -> str:
    return attempt.cause.kind if attempt.cause else ""


def _say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def allocated_nodes(runner: Runner = run) -> List[str]:
    """The nodes of this job."""
    listed = runner(["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]]).stdout
    return shlex.split(listed)


def main(path: str, program: str) -> int:
    """The batch script's process."""
    supervisor = Supervisor(Folder(path), program, int(os.environ["SLURM_JOB_ID"]), allocated_nodes())
    signal.signal(signal.SIGUSR1, supervisor.warn)
    signal.signal(signal.SIGTERM, supervisor.cancel)
    return supervisor.supervise()


__all__ = ["Request", "Supervisor", "main"]
