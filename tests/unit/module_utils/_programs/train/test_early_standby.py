# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job whose supervisor is lost before its first attempt is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import early_standby, supervisor
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    RunRequest,
    Submission,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

PROGRAM = "/usr/local/bin/gpumesh-train"
#: The steps of a job with this standby, and jobs as Slurm 24.11 shows them: while they end after their batch script was
#: killed, and after scancel.
OWN = "41.batch|batch\n41.3|gpumesh-standby\n"
KILLED = "JobId=41 JobState=COMPLETING Reason=RaisedSignal:9(Killed) Restarts=0 ExitCode=0:9"
CANCELLED = "JobId=41 JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:0"


class Slurm:
    """Slurm with the steps of a job, whose controller does not answer so many queries."""

    def __init__(self, steps: str = OWN, job: str = "", away: int = 0) -> None:
        self.steps = steps
        self.job = job
        self.away = away
        self.requeued: list[str] = []

    def __call__(self, argv: list[str], **_options: object) -> CommandResult:
        self.away -= 1
        if self.away >= 0:
            raise CommandError(argv, "exited 1", rc=1)
        if argv[:2] == ["scontrol", "requeue"]:
            self.requeued.append(argv[2])
        return CommandResult(0, self.job if argv[0] == "scontrol" else self.steps, "")


@pytest.fixture(name="orders")
def _orders(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    monkeypatch.setenv("SLURM_STEP_ID", "3")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    reading, writing = os.pipe()
    yield reading, writing
    for number, handler in kept.items():
        signal.signal(number, handler)
    for end in (reading, writing):
        try:
            os.close(end)
        except OSError:
            # The test has closed it.
            continue


def stand_by(slurm: Slurm, orders: tuple[int, int], on_sleep: Callable[[int], object] = lambda _count: None) -> int:
    """Stand by. Returns the seconds after the loss of the supervisor; ``on_sleep`` gets their number."""
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert sum(slept) < 1000, "it stands by for ever"
        on_sleep(len(slept))

    early_standby.stand_by(slurm, PROGRAM, orders[0], sleep)
    return round(sum(slept))


def test_dismissed_standby_does_nothing(orders: tuple[int, int]) -> None:
    slurm = Slurm()
    os.write(orders[1], b"tick\nleave\n")
    os.close(orders[1])
    assert (stand_by(slurm, orders), slurm.requeued) == (0, [])


def test_job_is_requeued_once_its_supervisor_is_lost(orders: tuple[int, int]) -> None:
    slurm = Slurm(OWN + "41.1|gpumesh-standby\n41.4|bash\n")
    os.close(orders[1])
    assert stand_by(slurm, orders) == 30
    assert slurm.requeued == ["41"]


def test_silent_supervisor_is_lost(orders: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The node of the batch script has lost its power: nothing closes the connection."""
    monkeypatch.setattr(early_standby, "_SUPERVISOR_TIMEOUT", 0.2)
    monkeypatch.setattr(early_standby, "_POLL_INTERVAL", 0.05)
    os.write(orders[1], b"tick\n")
    assert early_standby.await_loss(orders[0], [])


@pytest.mark.parametrize("name", ["gpumesh-standby", "gpumesh-train"])
def test_standby_leaves_the_job_to_a_later_step(orders: tuple[int, int], name: str) -> None:
    """The batch script has started the supervisor again, or this node was cut off when the first attempt began."""
    slurm = Slurm()
    os.close(orders[1])

    def begin(seconds: int) -> None:
        if seconds == 20:
            slurm.steps += f"41.4|{name}\n"

    assert 120 <= stand_by(slurm, orders, begin) < 200
    assert slurm.requeued == []


def test_job_is_requeued_if_the_agents_are_lost_with_the_supervisor(orders: tuple[int, int]) -> None:
    """Agents that have received no task end: the node was lost just when the first attempt began."""
    slurm = Slurm(OWN + "41.4|gpumesh-train\n")
    os.close(orders[1])

    def end(seconds: int) -> None:
        if seconds == 60:
            slurm.steps = OWN

    assert 60 < stand_by(slurm, orders, end) < 120
    assert slurm.requeued == ["41"]


def test_standby_waits_for_the_controller(orders: tuple[int, int]) -> None:
    slurm = Slurm(away=10)
    os.close(orders[1])
    assert stand_by(slurm, orders) == 80
    assert slurm.requeued == ["41"]


@pytest.mark.parametrize(
    ("job", "steps", "requeued"),
    [(KILLED, OWN, ["41"]), (CANCELLED, OWN, []), (KILLED, OWN + "41.4|gpumesh-train\n", [])],
)
def test_only_a_job_whose_script_was_killed_is_requeued_when_it_ends(
    orders: tuple[int, int], job: str, steps: str, requeued: list[str]
) -> None:
    """With the shell, Slurm kills the supervisor, and ends the job. Agents would submit another one."""
    slurm = Slurm(steps, job)
    os.close(orders[1])
    stand_by(slurm, orders, lambda _seconds: signal.raise_signal(signal.SIGTERM))
    assert slurm.requeued == requeued


class EndingSlurm(Slurm):
    """Slurm which ends a job during the first query, and then does not answer so many queries."""

    def __init__(self, job: str, away: int = 0) -> None:
        super().__init__()
        self.job_at_end, self.away_at_end = job, away

    def __call__(self, argv: list[str], **options: object) -> CommandResult:
        answer = super().__call__(argv, **options)
        if not self.job and argv[:2] == ["scontrol", "--oneliner"]:
            self.job, self.away = self.job_at_end, self.away_at_end
            signal.raise_signal(signal.SIGTERM)
        return answer


@pytest.mark.parametrize("away", range(8))
@pytest.mark.parametrize(("job", "requeued"), [(KILLED, ["41"]), (CANCELLED, [])])
def test_a_job_that_ends_during_a_query_is_judged_by_a_later_one(
    orders: tuple[int, int], job: str, away: int, requeued: list[str]
) -> None:
    """The supervisor is lost a moment before Slurm knows that the batch script was killed."""
    slurm = EndingSlurm(job, away)
    os.close(orders[1])
    assert stand_by(slurm, orders) <= 1 + away
    assert slurm.requeued == requeued


def test_a_refused_requeue_of_a_killed_job_is_repeated(orders: tuple[int, int]) -> None:
    slurm = Slurm(job=KILLED)
    refusals = [1, 1, 1]

    def runner(argv: list[str], **options: object) -> CommandResult:
        if argv[:2] == ["scontrol", "requeue"] and refusals:
            refusals.pop()
            raise CommandError(argv, "exited 1", rc=1)
        return slurm(argv, **options)

    os.close(orders[1])
    early_standby.stand_by(runner, PROGRAM, orders[0], lambda _seconds: signal.raise_signal(signal.SIGTERM))
    assert (slurm.requeued, refusals) == (["41"], [])


def test_signal_that_came_too_early_is_not_needed(orders: tuple[int, int]) -> None:
    slurm = Slurm()
    os.close(orders[1])

    def kill_script(seconds: int) -> None:
        if seconds == 7:
            slurm.job = KILLED

    assert (stand_by(slurm, orders, kill_script), slurm.requeued) == (10, ["41"])


def test_job_that_was_cancelled_before_its_standby_could_hear_of_it_is_not_requeued(orders: tuple[int, int]) -> None:
    """SIGTERM had come while Python started, and ended the supervisor."""
    slurm = Slurm(job=CANCELLED)
    os.close(orders[1])
    assert stand_by(slurm, orders) < early_standby._SUCCESSOR_TIMEOUT
    assert slurm.requeued == []


def test_job_that_is_cancelled_while_a_refused_requeue_is_repeated_is_not_requeued(orders: tuple[int, int]) -> None:
    slurm = Slurm()

    def runner(argv: list[str], **options: object) -> CommandResult:
        if argv[:2] == ["scontrol", "requeue"] and not slurm.job:
            slurm.job = CANCELLED
            raise CommandError(argv, "exited 1", rc=1)
        return slurm(argv, **options)

    os.close(orders[1])
    early_standby.stand_by(runner, PROGRAM, orders[0], lambda _seconds: None)
    assert slurm.requeued == []


class Step:
    """A step of standbys, of which the first two end by themselves."""

    made: list[Step]

    def __init__(self, job: int, nodes: list[str], options: list[str], command: list[str]) -> None:
        self.argv = [str(job), ",".join(nodes), *options, *command]
        self.orders: list[str] = []
        self.made.append(self)

    def over(self) -> bool:
        return len(self.made) < 3 or "leave" in self.orders

    def order(self, order: str) -> None:
        self.orders.append(order)

    def kill(self) -> None:
        self.orders.append("killed")


def test_standbys_are_started_until_they_are_dismissed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_standby, "OrderedStep", Step)
    monkeypatch.setattr(early_standby, "_RESTART_INTERVAL", 0.01)
    monkeypatch.setattr(Step, "made", [], raising=False)
    enough = threading.Event()

    def sinfo(_argv: list[str], **_options: object) -> CommandResult:
        if len(Step.made) == 2:
            enough.set()
        return CommandResult(0, "".join(f"n{number}|allocated\n" for number in (1, 2, 4, 5, 6, 7)) + "n3|down*\n", "")

    nodes = [f"n{number}" for number in range(1, 8)]
    standbys = early_standby.EarlyStandbys(PROGRAM, 41, "n2", nodes, sinfo)
    keeper = threading.Thread(target=standbys._keep)
    keeper.start()
    assert enough.wait(10.0)
    standbys.dismiss()
    keeper.join(10.0)
    first, _second, third = Step.made
    assert first.argv[:3] == ["41", "n2,n1,n4,n5", "--job-name=gpumesh-standby"]
    assert (first.orders, third.orders) == ([], ["leave", "killed"])


def test_standby_that_has_not_started_yet_survives_the_end_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python needs seconds to start on a busy node, and Slurm sends SIGTERM once."""
    program = tmp_path / "gpumesh-train"
    program.write_text("#!/bin/sh\nkill -TERM $$\necho $1 stands by\n", encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setattr(early_standby, "OrderedStep", Step)
    monkeypatch.setattr(Step, "made", [], raising=False)
    nodes = CommandResult(0, "n1|allocated\n", "")
    made = early_standby.EarlyStandbys(str(program), 41, "n1", ["n1"], lambda *_given, **_options: nodes)._start_step()
    command = cast("Step", made).argv[3:]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "standby stands by\n"


@pytest.mark.parametrize("inherited", [0, 1])
def test_only_the_batch_script_starts_standbys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inherited: int) -> None:
    """They come first, before the supervisor waits for anything, and are dismissed at its end."""
    said: list[str] = []
    fake = SimpleNamespace(start=lambda: said.append("started"), dismiss=lambda: said.append("dismissed"))
    monkeypatch.setattr(supervisor, "EarlyStandbys", lambda *_given: fake)
    monkeypatch.setattr(supervisor, "_supervise", lambda *_given: said.append("supervised"))
    monkeypatch.setattr(supervisor.TimeLimitGuard, "start", lambda _self: None)
    folder = RunDirectory(f"{tmp_path}/nano")
    supervisor.main(folder, supervisor.SupervisorId(PROGRAM, 41, "token", "n1", ["n1"], inherited))
    assert said == ([] if inherited else ["started"]) + ["supervised", "dismissed"]


def test_standbys_are_dismissed_once_all_agents_have_their_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunDirectory(f"{tmp_path}/nano")
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path), nodes=2))
    folder.write_submission(Submission("token", 41))
    attempt = Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0)
    folder.write(TrainingRun("nano", "running", "token", 41, attempts=(attempt,)))
    dismissed: list[bool] = []
    fake = SimpleNamespace(dismiss=lambda: dismissed.append(True))
    post = supervisor.SupervisorId(PROGRAM, 41, "token", "n1", ["n1", "n2"])
    made = supervisor.Supervisor(folder, post, Slurm(), fake)  # type: ignore[arg-type]
    monitor = supervisor.AttemptMonitor(made.request, ["n1", "n2"], 0.0)
    assert not monitor.all_agents_heard
    for node in ("n1", "n2"):
        assert not monitor.all_agents_heard
        monitor.process_message(supervisor.protocol.AgentMessage("beat", node, {"ranks": {}}), 1.0)
    assert monitor.all_agents_heard
    monkeypatch.setattr(supervisor.AttemptRunner, "_process_messages", lambda *_given: None)
    monkeypatch.setattr(supervisor.AttemptRunner, "_find_end", lambda *_given: supervisor.Cause("finished"))
    monkeypatch.setattr(made, "record_progress", lambda *_given: None)
    step = SimpleNamespace(stopped=0.0)
    supervisor.AttemptRunner(made, step, monitor).follow()  # type: ignore[arg-type]
    assert dismissed == [True]
