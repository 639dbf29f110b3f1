# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent knows about a rank."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_all
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import agent as agents
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    processes,
    program,
    scheduler,
    store,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.agent import (
    Agent,
    AgentTask,
    NodeError,
    RankProcess,
    claim_takeover,
    format_task,
    parse_task,
    receive_task,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    Attempt,
    RunRequest,
    TrainingRun,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.protocol import (
    AgentMessage,
    MessageDecoder,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.watch import AttemptMonitor


def test_final_progress_report_is_read_within_one_clock_tick(tmp_path: Path) -> None:
    told = tmp_path / "progress"
    rank = RankProcess(0, ["true"], str(tmp_path), {**os.environ, "GPUMESH_PROGRESS_FILE": str(told)}, tmp_path / "log")
    for step in (19, 20):
        told.write_text(f'{{"step": {step}}}', encoding="ascii")
        # Within one tick of the clock.
        os.utime(told, ns=(10**18, 10**18))
        rank.read_progress()
    wait_until("the rank has ended", rank.reap)
    assert rank.progress.step == 19
    assert rank.read_progress(is_final=True) and rank.progress.step == 20
    # What cannot be read is a sign of life.
    told.write_text("not yet", encoding="ascii")
    assert rank.read_progress() and rank.progress.step == 20


@pytest.fixture(name="task")
def _task(tmp_path: Path) -> AgentTask:
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    folder.attempt_dir(1).mkdir()
    folder.write(TrainingRun("nano", "running", attempts=(Attempt(1, 41, ("n1", "n2"), 2, "n1", 0.0),)))
    return AgentTask("nano", str(folder.path), "", 1, ["n1", "n2"], 1, ["true"], "/", 25000)


def test_full_temporary_directory_is_reported(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_options: str) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    output = io.StringIO()
    agent = Agent(task, "n1", output)
    with pytest.raises(NodeError, match="cannot write temporary files: No space left"):
        agent.start()
    agent.close()
    assert '"gone"' in output.getvalue()


def raise_disk_full(_path: Path, *_given: object, **_options: object) -> None:
    """A method of a path on a disk that is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_temporary_directory_is_a_node_fault_but_missing_program_is_not(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(program.signal, "signal", lambda *_given: None)
    assert program._run_agent("/bin/x", [format_task(task._replace(command=["/none/at/all"]))]) == 0
    reported = capsys.readouterr().out
    assert "/none/at/all" in reported and '"of_node": false' in reported
    monkeypatch.setattr(Path, "write_text", raise_disk_full)
    assert program._run_agent("/bin/x", [format_task(task)]) == 0
    reported = capsys.readouterr().out
    assert "cannot write temporary files: No space left on device" in reported and '"of_node": true' in reported


def test_cancelled_job_ends_ranks_sooner_than_an_attempt(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cancels a job expects its end within 5 seconds, also if a rank ignores SIGTERM."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(program.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(agents, "_CANCELLATION_GRACE", 0.1)
    monkeypatch.setattr(agents, "_TERMINATION_GRACE", 120.0)
    monkeypatch.setattr(program, "_continue_run", lambda *_given: 0)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    ignoring = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(1000)"
    started = agents.RankProcess.read_progress

    def cancel_once_ready(rank: agents.RankProcess, is_final: bool = False) -> bool:
        if "ready" in rank.output_tail():
            handlers[signal.SIGTERM](signal.SIGTERM, None)
        return started(rank, is_final)

    monkeypatch.setattr(agents.RankProcess, "read_progress", cancel_once_ready)
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="ascii") as orders:
        monkeypatch.setattr(sys, "stdin", orders)
        began = time.monotonic()
        assert program._run_agent("/bin/x", [format_task(task._replace(command=[sys.executable, "-c", ignoring]))]) == 0
    os.close(writing)
    assert time.monotonic() - began < 60


def test_ranks_are_warned_despite_full_temporary_directory(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warned: list[tuple[int, int]] = []
    monkeypatch.setattr(Path, "touch", raise_disk_full)
    monkeypatch.setattr(processes, "signal_handlers", lambda *given: warned.append(given))
    agent = Agent(task, "n1", io.StringIO())
    agent._local_directory = str(tmp_path / "local")
    agent._ranks = [cast("RankProcess", SimpleNamespace(status=None, process_group=7))]
    agent._execute_order("warn")
    assert warned == [(7, signal.SIGUSR1)]


def test_isolated_node_does_not_take_over_run(task: AgentTask) -> None:
    slept: list[float] = []

    def go_on(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 12:
            start_another(task)

    assert claim_takeover(task, "n2", lambda: False, go_on) is None
    assert not RunDirectory(task.folder).has_successor(1) and len(slept) == 12


def test_first_node_that_reaches_controller_takes_over_run(task: AgentTask) -> None:
    answers = iter([False, True])
    slept: list[float] = []
    assert claim_takeover(task, "n2", lambda: next(answers), slept.append) == 0
    assert len(slept) == 5
    # Another one tries if the first does not start an attempt.
    assert claim_takeover(task, "n1", lambda: True, slept.append) == 1
    assert len(slept) == 65
    assert [
        path.read_text(encoding="ascii") for path in sorted(RunDirectory(task.folder).attempt_dir(1).iterdir())
    ] == [
        "n2\n",
        "n1\n",
    ]


@pytest.mark.parametrize(
    ("said", "stays", "present", "closed"),
    [
        (b"tick\nleave\n", True, True, False),
        (b"tick\nlea", False, False, True),
        (b"tick\n", True, False, False),
    ],
)
def test_agent_waits_for_next_attempt_or_loss_of_supervisor(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, said: bytes, stays: bool, present: bool, closed: bool
) -> None:
    monkeypatch.setattr(program.agents, "_SUPERVISOR_TIMEOUT", 0.1)
    resting = Agent(task, "n1", io.StringIO())
    orders, supervisor = os.pipe()
    os.write(supervisor, said)
    if not stays:
        os.close(supervisor)
    assert (resting.wait_for_next_attempt(orders), resting.orders_closed) == (present, closed)
    os.close(orders)
    if stays:
        os.close(supervisor)


@pytest.mark.parametrize(("work", "word"), [("run", b"end\n"), ("wait_for_next_attempt", b"leave\n")])
def test_agent_waits_again_after_being_stopped_with_its_supervisor(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, work: str, word: bytes
) -> None:
    """As when the machine of both sleeps. The agent may be the first to go on."""
    clock = [0.0]
    orders, supervisor = os.pipe()

    def select(*_given: object) -> tuple[list[int], list[int], list[int]]:
        if clock[0]:
            os.write(supervisor, word)
            return [orders], [], []
        clock[0] += 100.0
        return [], [], []

    agent = Agent(task, "n1", io.StringIO())
    with monkeypatch.context() as patched:
        patched.setattr(program.agents.select, "select", select)
        patched.setattr(program.agents.time, "monotonic", lambda: clock[0])
        assert getattr(agent, work)(orders)
    os.close(orders)
    os.close(supervisor)


def test_supervisor_on_live_node_may_restart_first(task: AgentTask) -> None:
    slept: list[float] = []
    assert claim_takeover(task, "n2", lambda: True, slept.append, node_alive=True) == 0
    assert len(slept) == 10

    def start(_seconds: float) -> None:
        start_another(task)

    assert claim_takeover(task, "n2", lambda: True, start, node_alive=True) is None
    assert not RunDirectory(task.folder).has_successor(1, 0)


@pytest.mark.parametrize("killed", [False, True])
def test_agent_orphaned_by_slurm_does_not_take_over_run(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Its orders have ended, as if the supervisor was lost, which is well."""
    parent = os.getppid()
    succeeded: list[int] = []

    def sleep(_seconds: float) -> None:
        # The kernel closes the files of a process before its children get another parent.
        if killed:
            monkeypatch.setattr(os, "getppid", lambda: parent + 1)

    monkeypatch.setattr(program, "_become_supervisor", lambda *_given, turn, **_place: succeeded.append(turn) or 0)
    monkeypatch.setattr(program.agents, "claim_takeover", functools.partial(claim_takeover, sleep=sleep))
    monkeypatch.setattr(program.scheduler, "controller_answers", lambda _runner: True)
    monkeypatch.setattr(program.signal, "signal", lambda *_given: None)
    monkeypatch.setenv("SLURMD_NODENAME", "n2")
    with Path(os.devnull).open(encoding="ascii") as orders:
        monkeypatch.setattr(sys, "stdin", orders)
        assert program._run_agent("/bin/x", [format_task(task._replace(command=["sleep", "1000"]))]) == 0
    assert succeeded == ([] if killed else [0])
    assert RunDirectory(task.folder).has_successor(1) != killed


@pytest.mark.parametrize("closed", [False, True], ids=["", "after its orders have ended"])
@pytest.mark.parametrize(("fate", "submitting"), [("killed", ["n1"]), ("", []), ("requeued", [])])
def test_one_agent_submits_next_job_when_batch_script_is_killed(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, closed: bool, fate: str, submitting: list[str]
) -> None:
    """Slurm ends the agents by SIGTERM, which comes before or after the end of their orders."""
    handlers: dict[int, Any] = {}
    succeeded: list[str] = []

    def succeed(_program: str, _task: AgentTask, **place: object) -> int:
        assert place == {"ends": True}
        succeeded.append(os.environ["SLURMD_NODENAME"])
        return 0

    def run(agent: Agent, *_given: object) -> bool:
        agent.orders_closed = closed
        if not closed:
            handlers[signal.SIGTERM](signal.SIGTERM, None)
        return not closed

    def sleep(_seconds: float) -> None:
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    monkeypatch.setattr(program, "_become_supervisor", succeed)
    monkeypatch.setattr(program.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(program.agents, "claim_takeover", functools.partial(claim_takeover, sleep=sleep))
    monkeypatch.setattr(Agent, "start", lambda _agent: None)
    monkeypatch.setattr(Agent, "run", run)
    monkeypatch.setattr(program.scheduler, "controller_answers", lambda _runner: True)
    monkeypatch.setattr(program.scheduler, "job_fate", lambda _runner, job: fate if job == 41 else "")
    monkeypatch.setenv("SLURM_JOB_ID", "41")
    with Path(os.devnull).open(encoding="ascii") as orders:
        monkeypatch.setattr(sys, "stdin", orders)
        for node in task.nodes:
            monkeypatch.setenv("SLURMD_NODENAME", node)
            assert program._run_agent("/bin/x", [format_task(task)]) == 0
    assert succeeded == submitting
    assert not RunDirectory(task.folder).has_successor(1)


def test_standby_keeps_restart_count_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, each failure in a job that Slurm has requeued once would look like another requeue."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2", "SLURM_STEP_ID": "4"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    program._clear_step_variables()
    assert [name for name in variables if name in os.environ] == ["SLURM_JOB_ID", "SLURM_RESTART_COUNT"]
    shown = "JobId=7 JobState=RUNNING Reason=None Restarts={}"
    for restarts, fate in ((2, ""), (3, "requeued")):
        text = shown.format(restarts)
        assert scheduler.job_fate(lambda *_argv, text=text, **_options: CommandResult(0, text, ""), 7) == fate


def start_another(task: AgentTask) -> None:
    """Record that the supervisor has started another attempt."""
    folder = RunDirectory(task.folder)
    run = folder.read()
    folder.write(run._replace(attempts=(*run.attempts, run.attempts[0]._replace(number=2))))


def test_node_that_was_isolated_does_not_take_over_a_run_that_has_moved_on(task: AgentTask) -> None:
    """The supervisor has started another attempt while this node reached neither the controller nor the volume."""

    def reaches() -> bool:
        start_another(task)
        return True

    assert claim_takeover(task, "n2", reaches, lambda _seconds: None) is None
    assert not RunDirectory(task.folder).has_successor(1)


def test_node_that_cannot_read_run_state_does_not_take_over(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = RunDirectory.read, 2
    slept: list[float] = []

    def fail_first(folder: RunDirectory) -> TrainingRun:
        if len(slept) < failures:
            raise HostStateError("run.json cannot be read: Input/output error.")
        return read(folder)

    monkeypatch.setattr(RunDirectory, "read", fail_first)

    def go_on(seconds: float) -> None:
        assert not RunDirectory(task.folder).has_successor(1)
        slept.append(seconds)
        if len(slept) == failures:
            start_another(task)

    assert claim_takeover(task, "n2", lambda: True, go_on) is None
    assert not RunDirectory(task.folder).has_successor(1)


def test_run_can_be_claimed_on_full_volume(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for the name of a file, but for nothing in it."""
    # The directory of the attempt may be missing as well.
    assert RunDirectory(task.folder).claim(2, 0, "n2")
    opened = os.open

    def fill(path: str, flags: int, *mode: int) -> int:
        os.close(opened(path, flags, *mode))
        return opened("/dev/full", os.O_WRONLY)

    monkeypatch.setattr(store.os, "open", fill)
    assert RunDirectory(task.folder).claim(1, 0, "n2") and not RunDirectory(task.folder).claim(1, 0, "n3")


def test_failed_claim_is_retried(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = RunDirectory.claim
    slept: list[float] = []

    def fail_first(folder: RunDirectory, attempt: int, turn: int, node: str) -> bool:
        if not slept:
            raise OSError(errno.ENOSPC, "No space left on device")
        return claim(folder, attempt, turn, node)

    monkeypatch.setattr(RunDirectory, "claim", fail_first)
    assert claim_takeover(task, "n2", lambda: True, slept.append) == 0
    assert len(slept) == 5


#: A rank that fails, and whose exit waits for something that does not come.
HANGS_AT_EXIT = """import sys, threading
threading.Thread(target=threading.Event().wait, name="writer").start()
sys.stderr.write("started\\n")
raise ValueError("loss is nan")
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def messages(output: io.StringIO) -> list[AgentMessage]:
    decoder = MessageDecoder()
    said = [decoder.feed(line) for line in output.getvalue().splitlines(keepends=True)]
    return [one for one in said if one is not None]


def test_error_of_a_failed_rank_that_does_not_exit_is_reported(tmp_path: Path) -> None:
    folder = RunDirectory(str(tmp_path / "nano"))
    folder.create(RunRequest(name="nano", command=["true"], folder=str(folder.path)))
    folder.attempt_dir(1).mkdir()
    command = [sys.executable, "-c", HANGS_AT_EXIT]
    output = io.StringIO()
    agent = Agent(
        AgentTask("nano", str(folder.path), "", 1, ["localhost"], 1, command, "/", free_port() + 4000),
        "localhost",
        output,
    )
    agent.start()
    log = folder.attempt_dir(1) / "rank-0.log"
    wait_until("the rank has failed", lambda: log.exists() and "ValueError: loss is nan\n" in log.read_text())
    reading, writing = os.pipe()
    os.write(writing, b"look\nend\n")
    agent.run(reading)
    agent.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
    states = [one.payload for one in messages(output) if one.event == "state"]
    assert [(one["rank"], one["stopped"], one["error"]) for one in states] == [(0, "", "ValueError: loss is nan")]
    ends = [one.payload for one in messages(output) if one.event == "ended"]
    assert [(one["status"], one["memory"]) for one in ends] == [(-15, False)]


def test_rank_end_reports_oom_kills(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 2])
    monkeypatch.setattr(processes, "oom_kill_count", lambda: next(counts))
    output = io.StringIO()
    agent = Agent(task._replace(port=free_port() + 4000), "n1", output)
    agent.start()
    reading, writing = os.pipe()
    os.write(writing, b"end\n")
    agent.run(reading)
    agent.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert [one.payload["memory"] for one in messages(output) if one.event == "ended"] == [True]


#: Rank 1 stops; rank 0 gives up waiting for it.
GIVES_UP = """import os, signal, sys, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
raise RuntimeError("Timed out waiting 15000ms for recv operation to complete")
"""


def test_stopped_rank_is_blamed_when_peer_gives_up(tmp_path: Path) -> None:
    request = RunRequest(name="nano", command=["true"], folder=str(tmp_path / "nano"), gpus_per_node=2)
    folder = RunDirectory(request.folder)
    folder.create(request)
    folder.attempt_dir(1).mkdir()
    command = [sys.executable, "-c", GIVES_UP, str(tmp_path / "give-up")]
    output = io.StringIO()
    agent = Agent(AgentTask("nano", request.folder, "", 1, ["n1"], 2, command, "/", free_port() + 4000), "n1", output)
    agent.start()
    watch = AttemptMonitor(request, ["n1"], 0.0)
    reading, writing = os.pipe()
    running = threading.Thread(target=agent.run, args=(reading,))
    running.start()

    def hear(event: str, now: float) -> None:
        def is_heard() -> bool:
            os.write(writing, b"tick\n")
            return any(one.event == event for one in messages(output))

        wait_until(f"the agent reports {event}", is_heard)
        for one in messages(output):
            watch.process_message(one, now)

    try:
        wait_until("a rank is stopped", lambda: any(processes.stop_reason(rank) for rank in children()))
        (tmp_path / "give-up").touch()
        hear("ended", 10.0)
        hear("beat", 13.2)
        assert watch.needs_reports(13.3)
        os.write(writing, b"look\n")
        hear("state", 18.6)
        cause = watch.verdict(18.7)
    finally:
        os.write(writing, b"end\n")
        running.join(240)
        agent.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
    assert cause is not None and (cause.kind, cause.rank, cause.node) == ("hang", 1, "n1")
    assert cause.detail == (
        "rank 1 on n1 is stopped (SIGSTOP); 1 other rank gave up waiting for it: rank 0: "
        "exit status 1: RuntimeError: Timed out waiting 15000ms for recv operation to complete"
    )


def children() -> list[int]:
    """The processes that this one has started: agents make each rank the leader of a process group."""
    number = os.getpid()
    return [int(pid) for pid in Path(f"/proc/{number}/task/{number}/children").read_text(encoding="ascii").split()]


def test_late_agent_does_not_kill_ranks_of_later_attempt(task: AgentTask) -> None:
    with contextlib.ExitStack() as stack:
        ranks = {
            number: stack.enter_context(
                subprocess.Popen(
                    ["sleep", "600"],
                    env={"SLURM_JOB_ID": "41", "GPUMESH_RUN_DIR": task.folder, "GPUMESH_ATTEMPT": str(number)},
                )
            )
            for number in (1, 2, 3)
        }
        try:
            agent = Agent(task._replace(attempt=2), "n1", io.StringIO())
            # It was stopped during attempt 2, while the supervisor has gone on to attempt 3.
            agent.close()
            assert [ranks[number].wait(240) for number in (1, 2)] == [-signal.SIGKILL, -signal.SIGKILL]
            assert ranks[3].poll() is None
        finally:
            for rank in ranks.values():
                rank.kill()


def test_runtime_directory_is_private_to_user(task: AgentTask, tmp_path: Path) -> None:
    show = 'stat -c %a "$XDG_RUNTIME_DIR" > "$0"'
    agent = Agent(task._replace(command=["sh", "-c", show, str(tmp_path / "mode")]), "n1", io.StringIO())
    try:
        agent.start()
        wait_until("the rank has ended", agent._ranks[0].reap)
    finally:
        agent.close()
    assert (tmp_path / "mode").read_text(encoding="ascii") == "700\n"


def test_task_of_newer_version_is_parsed(task: AgentTask) -> None:
    newer = {**json.loads(format_task(task)), "invented_later": [1]}
    assert parse_task(json.dumps(newer)) == task._replace(nodes=list(task.nodes))


def test_task_is_first_line_of_orders_at_any_length(task: AgentTask) -> None:
    long = task._replace(nodes=["n1"], command=["true", "x" * 500_000])
    reading, writing = os.pipe()
    sending = threading.Thread(target=write_all, args=(writing, f"{format_task(long)}\nwarn\ne".encode()))
    sending.start()
    try:
        received, pending = receive_task(reading)
        sending.join()
        os.close(writing)
        while part := os.read(reading, 64):
            pending += part
    finally:
        os.close(reading)
    assert received == long and pending == b"warn\ne"


def test_agent_exits_when_supervisor_is_lost_before_the_task(task: AgentTask) -> None:
    reading, writing = os.pipe()
    os.write(writing, format_task(task).encode())
    os.close(writing)
    with pytest.raises(HostStateError, match="has received no task"):
        receive_task(reading)
    os.close(reading)


def test_orders_received_with_the_task_are_executed(task: AgentTask) -> None:
    output = io.StringIO()
    agent = Agent(task._replace(command=["sleep", "1000"]), "n1", output)
    reading, writing = os.pipe()
    try:
        agent.start()
        os.write(writing, b"d\n")
        assert agent.run(reading, b"tick\nen")
    finally:
        os.close(writing)
        os.close(reading)
        agent.close()


def wait_and_close(agent: Agent) -> None:
    """Wait for the ranks of an agent, and close it."""
    while agent._live_ranks():
        time.sleep(0.01)
        agent._check_ranks()
    agent.close()


def test_leftovers_of_killed_agent_are_removed_by_next_agent(
    task: AgentTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither that of a living agent, nor what a process still uses, nor what an agent of ours has not made."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)
    code = (
        "import io, json, os, signal, sys\n"
        f"from {agents.__name__} import Agent, parse_task\n"
        "agent = Agent(parse_task(sys.argv[1]), 'n1', io.StringIO())\n"
        "agent.start()\n"
        # Its rank would still use the directory.
        "while agent._live_ranks(): agent._check_ranks()\n"
        "print(agent._local_directory, flush=True)\n"
        "input() or os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = []
    for _agent in range(2):
        argv = [sys.executable, "-c", code, format_task(task)]
        process = subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin and process.stdout
        started.append((process, Path(process.stdout.readline().strip())))
    (living, kept), (killed, left) = started
    killed.communicate("\n")
    assert left.is_dir() and kept.is_dir()
    other, foreign = temporary / "gpumesh-train-of-a-user", tmp_path / "elsewhere"
    other.mkdir()
    shutil.copytree(left, foreign)
    (temporary / "gpumesh-train-link").symlink_to(foreign)
    user = subprocess.Popen(["sleep", "60"], env={"XDG_RUNTIME_DIR": str(left / "run")})
    try:
        agents.remove_leftovers()
        assert left.is_dir()
    finally:
        user.kill()
        user.wait()
    agent = Agent(task, "n1", io.StringIO())
    agent.start()
    assert not left.exists()
    assert kept.is_dir() and other.is_dir() and any(foreign.iterdir()) and Path(agent._local_directory).is_dir()
    wait_and_close(agent)
    living.communicate("\n")


def test_ranks_start_in_temporary_directory_without_locks(task: AgentTask, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(agents.fcntl, "flock", refuse)
    output = io.StringIO()
    agent = Agent(task, "n1", output)
    agent.start()
    wait_and_close(agent)
    assert '"started"' in output.getvalue()
