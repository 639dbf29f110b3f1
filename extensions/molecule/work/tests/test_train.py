# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of gpumesh-train on real hosts, killed at random moments. GPUMESH_SEED repeats a sample."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from lab_hosts import ROOT, run_chaos
from train_programs import MANAGER, OTHER_HOSTS, SHORT_STEP_SECONDS, SMALL_PROGRAM, TRAINER_PATH
from train_runs import (
    BARE_HOST,
    STEP_COUNT,
    WAIT_TIMEOUT,
    TrainLab,
    assert_checkpoints_used,
    list_causes,
    sum_of_samples,
)

NAME = "molecule-work"
SAMPLES = sum_of_samples(STEP_COUNT)
SEED = int(os.environ.get("GPUMESH_SEED") or time.time())
CHANCE = random.Random(SEED)
#: Seconds of a step of a run that has to last while the machine is busy.
LONG = 0.5


@pytest.fixture(name="lab", scope="module")
def _lab() -> TrainLab:
    lab = TrainLab(NAME, SMALL_PROGRAM._replace(step_seconds=SHORT_STEP_SECONDS))
    lab.copy_program()
    print(f"GPUMESH_SEED={SEED}")
    return lab


def at_random_step(lab: TrainLab, name: str, attempt: int) -> dict[str, Any]:
    """Wait until an attempt has made some steps of its own."""
    return lab.await_step(name, attempt, CHANCE.randrange(2, 20))


class Patient:
    """A run with steps so long that a busy machine does not miss it while it is disturbed again and again.

    Then it is hurried, and sleeps no more.
    """

    def __init__(self, lab: TrainLab, name: str, *options: str, steps: int = STEP_COUNT) -> None:
        self._hurry = lab.shared_volume / f"hurry-{name}"
        program = SMALL_PROGRAM._replace(step_seconds=LONG)
        extra = ("--hurry", f"/mnt/shared/{self._hurry.name}")
        TrainLab(NAME, program).start_run(name, *options, step_count=steps, extra_arguments=extra)

    def hurry(self) -> None:
        self._hurry.touch()


def hit(lab: TrainLab, *arguments: str, **environment: str) -> None:
    """Run a part of `make chaos` in this lab. How long anything takes is measured there, and depends on the machine."""
    which = ["--experiment", *arguments] if not arguments[0].startswith("--") else arguments
    limits = (f"--longest={WAIT_TIMEOUT}", f"--named={WAIT_TIMEOUT}")
    run_chaos("train", f"--seed={SEED}", "--running", "--stop", f"--lab={lab.name}", *limits, *which, **environment)


def test_an_undisturbed_run_has_one_attempt(lab: TrainLab) -> None:
    lab.clear_queue()
    lab.start_run("calm", "--nodes", "4", "--hang-timeout", "60")
    found = lab.await_end("calm")
    assert list_causes(found) == [("finished", None, "")], found
    (attempt,) = found["attempts"]
    assert (attempt["last"], attempt["world_size"]) == (STEP_COUNT, 4)
    assert sorted(attempt["nodes"]) == [MANAGER, *OTHER_HOSTS]
    assert lab.read_result("calm").samples == f"samples {SAMPLES!r}"


def test_a_rank_that_aborts_at_its_exit_after_the_last_step_is_no_reason_to_start_again(lab: TrainLab) -> None:
    lab.clear_queue()
    lab.start_run("aborts", "--nodes", "2", step_count=20, extra_arguments=("--abort",))
    found = lab.await_end("aborts")
    assert list_causes(found) == [("finished", None, "")], found
    assert found["detail"].startswith("warning: after the last step, rank 1 on ") and "SIGABRT" in found["detail"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "5", "--", "true"], "The run requests 5 nodes, but only 4 can be used"),
        (["--nodes", "2", "--", "python9"], "gpu4 has no command python9"),
        (["--gpus-per-node", "8", "--", "true"], "Slurm refuses the job"),
    ],
)
def test_what_could_not_work_is_refused_before_it_is_submitted(lab: TrainLab, arguments: list[str], words: str) -> None:
    done = lab.run_train("--name", "other", *arguments, check=False)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (lab.runs_directory / "other").exists()


def test_a_name_is_used_once(lab: TrainLab) -> None:
    done = lab.run_train("--name", "calm", "--", "true", check=False)
    assert done.returncode == 2 and "There is already a run 'calm'" in done.stderr


def test_it_goes_on_after_a_crash_and_a_hang_while_the_controller_is_away(lab: TrainLab) -> None:
    lab.clear_queue()
    # It is hit twice, and goes on while the controller is away.
    run = Patient(lab, "ranks", "--nodes", "4", "--hang-timeout", "20")
    found = at_random_step(lab, "ranks", 1)
    lab.run(MANAGER, "systemctl", "stop", "slurmctld")
    lab.await_run("ranks", "goes on", lambda now: now["step"] >= found["step"] + 10, spacing=0.3)
    lab.run(MANAGER, "systemctl", "start", "slurmctld")
    crashed, hung = CHANCE.randrange(4), CHANCE.randrange(4)
    crash = ("crash", crashed, lab.send_rank_signal(lab.read_status("ranks"), crashed, "KILL"))
    found = at_random_step(lab, "ranks", 2)
    hang = ("hang", hung, lab.send_rank_signal(found, hung, "STOP"))
    run.hurry()
    found = lab.await_end("ranks")
    assert list_causes(found) == [crash, hang, ("finished", None, "")], found
    assert "SIGKILL" in found["attempts"][0]["cause"]["detail"]
    assert "stopped (SIGSTOP); the others wait for it in" in found["attempts"][1]["cause"]["detail"]
    assert len({attempt["job"] for attempt in found["attempts"]}) == 1
    assert_checkpoints_used(found)
    # To the bit, since the number of ranks has not changed.
    assert lab.read_result("ranks") == lab.read_result("calm")


def test_a_cancelled_run_is_resumed_by_the_playbook_and_not_started_again(lab: TrainLab) -> None:
    lab.clear_queue()
    # With longer steps: it must not be through before it is cancelled.
    TrainLab(NAME).start_run("again", "--nodes", "2")
    at_random_step(lab, "again", 1)
    done = lab.run_playbook("gpumesh.cluster.train", "-e", "train_name=again", "-e", "train_state=cancelled")
    assert done.exit_status == 0 and done.changed[MANAGER] == 1, done.output
    assert list_causes(lab.read_status("again"))[0][0] == "cancelled"
    done = lab.run_playbook("gpumesh.cluster.runs")
    assert done.exit_status == 0 and "again: cancelled" in done.output, done.output
    options = {
        "train_name": "again",
        "train_nodes": 2,
        "train_command": f"python3 {TRAINER_PATH} {STEP_COUNT} {SMALL_PROGRAM.step_seconds}",
    }
    for changed in (1, 0):
        done = lab.run_playbook("gpumesh.cluster.train", "-e", json.dumps(options))
        assert done.exit_status == 0 and done.changed[MANAGER] == changed, done.output
        assert "again: finished" in done.output and "Its files, with the output" in done.output, done.output
    found = lab.read_status("again")
    assert [kind for kind, _rank, _node in list_causes(found)] == ["cancelled", "finished"]
    assert_checkpoints_used(found)
    assert lab.read_result("again").samples == f"samples {SAMPLES!r}"


def test_a_rank_under_a_limit_is_named_while_the_run_goes_on_and_nothing_is_killed(lab: TrainLab) -> None:
    hit(lab, f"cpu:1@{CHANCE.randrange(4)}")


def test_it_goes_on_after_a_sample_of_what_make_chaos_does(lab: TrainLab) -> None:
    hit(lab, "--kinds=agent,slurmd,network,checkpoint", "--count=4", GPUMESH_STEP_SECONDS=str(SHORT_STEP_SECONDS))


#: Hide the shared volume of a host: it is not there, as on a soft mount whose server has not been found; or no access to it
#: returns, as on a hard mount.
HIDE = {
    "absent": "mount -t tmpfs -o size=64k absent /mnt/shared",
    "hanging": "mkdir -p /run/empty && fuse-overlayfs -o lowerdir=/run/empty /mnt/shared && pkill -STOP -x fuse-overlayfs",
}
RELEASE = "scontrol release $(squeue --noheader --states=pending --format=%A)"
SHOW = {"absent": "umount /mnt/shared", "hanging": "umount --lazy /mnt/shared; pkill -KILL -x fuse-overlayfs"}


def test_a_job_waits_for_the_volume_when_it_starts_and_leaves_a_script_that_slurm_has_lost(lab: TrainLab) -> None:
    lab.clear_queue()
    places = {"absent": "gpu2", "hanging": "gpu3"}
    hidden = []
    try:
        for kind, node in places.items():
            lab.start_run(kind, "--nodes", "1", "--sbatch", f"--nodelist={node}", "--hold")
            lab.run(node, "sh", "-c", HIDE[kind])
            hidden.append(kind)
        lab.run(MANAGER, "sh", "-c", RELEASE)
        comments = ("squeue", "--noheader", "--states=running", "--Format=comment:80")
        lab.wait_until(
            "both jobs say what they wait for",
            lambda: lab.run(MANAGER, *comments).count("gpumesh-train: waiting for the volume of") == 2,
            WAIT_TIMEOUT,
        )
        assert all(lab.read_status(kind)["state"] == "queued" for kind in places)
    finally:
        for kind in hidden:
            lab.run(places[kind], "sh", "-c", SHOW[kind])
    found = at_random_step(lab, "absent", 1)
    lab.run(places["absent"], "pkill", "-KILL", "-f", rf"^slurmstepd: \[{found['job']}\.batch\]")
    pending = ("squeue", "--noheader", "--states=pending")
    lab.wait_until("there is another job", lambda: lab.run(MANAGER, *pending), WAIT_TIMEOUT)
    lab.run(MANAGER, "sh", "-c", RELEASE)
    runs = {kind: lab.await_end(kind) for kind in places}
    for kind in places:
        assert "the volume answered after" in (lab.runs_directory / kind / "supervisor.log").read_text(encoding="utf-8")
        assert_checkpoints_used(runs[kind])
        assert lab.read_result(kind).samples == f"samples {SAMPLES!r}"
    assert list_causes(runs["hanging"]) == [("finished", None, "")], runs
    assert list_causes(runs["absent"]) == [("warned", None, ""), ("finished", None, "")], runs
    first, second = runs["absent"]["attempts"]
    assert "the process of Slurm that ran the batch script" in first["cause"]["detail"]
    assert first["job"] != second["job"]
    lab.wait_until(
        "all is over", lambda: not lab.run(MANAGER, "squeue", "--noheader", "--states=running"), WAIT_TIMEOUT
    )
    search = ("pgrep", "-f", "gpumesh-train supervise|slurm_script")
    lab.wait_until("no script is left", lambda: not lab.run(places["absent"], *search, check=False), WAIT_TIMEOUT)


@pytest.fixture(name="dead")
def _dead(lab: TrainLab) -> Iterator[list[str]]:
    """The nodes that a test kills. They are there again afterwards."""
    dead: list[str] = []
    yield dead
    for node in dead:
        lab.restore_power(node)
    lab.clear_queue()


def test_it_goes_on_after_its_supervisor_is_lost_before_the_first_attempt(lab: TrainLab, dead: list[str]) -> None:
    """While two jobs wait for the volume, one loses its batch script, and the other one the node of its own."""
    lab.clear_queue()
    nodes = {"early-script": [BARE_HOST], "early-node": ["gpu2", "gpu3"]}
    hidden = [node for names in nodes.values() for node in names]
    jobs, hosts = {}, {}
    for name, names in nodes.items():
        held = ("--sbatch", f"--nodelist={','.join(names)}", "--hold")
        lab.start_run(name, "--nodes", str(len(names)), *held)
        jobs[name] = lab.run(MANAGER, "squeue", "--noheader", f"--name={name}", "--format=%A").strip()
    try:
        for node in hidden:
            lab.run(node, "sh", "-c", HIDE["absent"])
        lab.run(MANAGER, "sh", "-c", RELEASE)
        # Slurm lists a step before its processes exist, and what has not started cannot ask for another start.
        standby = r"pgrep -f '^[^ ]*python[^ ]* .*gpumesh-train standby$' || true"
        lab.wait_until(
            "standbys watch both", lambda: all(lab.run(node, "sh", "-c", standby) for node in hidden), WAIT_TIMEOUT
        )
        for name, job in jobs.items():
            shown = lab.run(MANAGER, "scontrol", "--oneliner", "show", "job", job).split()
            hosts[name] = next(word.partition("=")[2] for word in shown if word.startswith("BatchHost="))
        lab.run(hosts["early-script"], "pkill", "-KILL", "-f", r"slurm_script$|gpumesh-train supervise ")
        lab.kill(hosts["early-node"])
        dead.append(hosts["early-node"])
        # With --no-kill, the job would keep the other node.
        restarts = ("squeue", "--noheader", f"--jobs={','.join(jobs.values())}", "--Format=restartcnt")
        lab.wait_until(
            "Slurm starts both again", lambda: lab.run(MANAGER, *restarts).split() == ["1", "1"], WAIT_TIMEOUT
        )
    finally:
        for node in set(hidden) - set(dead):
            lab.run(node, "sh", "-c", SHOW["absent"])
    lab.restore_power(*dead)
    dead.clear()
    for name, job in jobs.items():
        found = lab.await_end(name, 2 * WAIT_TIMEOUT)
        assert list_causes(found) == [("finished", None, "")], found
        assert str(found["job"]) == job and lab.read_result(name).samples == f"samples {SAMPLES!r}"


def supervisor_says(lab: TrainLab, name: str, words: str) -> bool:
    return words in (lab.runs_directory / name / "supervisor.log").read_text(encoding="utf-8")


@contextlib.contextmanager
def refused_jobs(lab: TrainLab, name: str, job: str) -> Iterator[None]:
    """The run needs another job, as before a preemption, and Slurm refuses it: the partition is drained."""
    partition = ("scontrol", "update", "PartitionName=cluster")
    lab.run(MANAGER, *partition, "State=DRAIN")
    try:
        lab.run(MANAGER, "scancel", "--batch", "--signal=USR1", job)
        refused = "another job will be requested again"
        lab.wait_until("Slurm refuses a job", lambda: supervisor_says(lab, name, refused), WAIT_TIMEOUT, 0.3)
        yield
    finally:
        lab.run(MANAGER, *partition, "State=UP")


def test_it_goes_on_after_a_refused_job_and_a_time_limit_that_passes_without_the_controller(lab: TrainLab) -> None:
    lab.clear_queue()
    limits = ("--nodes", "2", "--time", "2m", "--grace", "5", "--sbatch", f"--exclude={MANAGER}")
    run = Patient(lab, "limit", *limits, steps=4 * STEP_COUNT)
    with refused_jobs(lab, "limit", str(at_random_step(lab, "limit", 1)["job"])):
        assert supervisor_says(lab, "limit", "Required partition not available")
    second = lab.await_first_step("limit", 2)["attempts"][1]
    lab.run(MANAGER, "systemctl", "stop", "slurmctld")
    try:
        waits = "waiting for the controller, to submit another job"
        lab.wait_until("the next job waits", lambda: supervisor_says(lab, "limit", waits), WAIT_TIMEOUT)
        # The controller is there again only when the time of the job is over.
        time.sleep(max(0.0, second["begin"] + 130.0 - time.time()))
    finally:
        lab.run(MANAGER, "systemctl", "start", "slurmctld")
    run.hurry()
    found = lab.await_end("limit", 2 * WAIT_TIMEOUT)
    *ended, last = list_causes(found)
    assert set(ended) == {("warned", None, "")} and last == ("finished", None, ""), found
    assert "time limit" in found["attempts"][1]["cause"]["detail"], found
    assert_checkpoints_used(found)
    assert lab.read_result("limit").samples == f"samples {sum_of_samples(4 * STEP_COUNT)!r}"


def is_shown_cancelled(lab: TrainLab, name: str) -> bool:
    return lab.run_train("show", name).stdout.startswith(f"{name}: cancelled")


def test_scancel_ends_the_run_with_the_job_that_follows_or_has_not_started(lab: TrainLab) -> None:
    lab.clear_queue()
    lab.start_run("cancelled", "--nodes", "2", "--sbatch", f"--exclude={MANAGER}", step_count=100_000)
    job = str(at_random_step(lab, "cancelled", 1)["job"])
    cancelled_at = time.time()
    lab.run(MANAGER, "scancel", job)
    attempt = lab.await_end("cancelled")["attempts"][-1]
    # Ranks have 3 s to exit. The machine may be busy.
    assert attempt["cause"]["kind"] == "cancelled" and attempt["end"] - cancelled_at < 10, attempt
    lab.await_idle(MANAGER)
    lab.run_train("resume", "--detach", "cancelled")
    job = str(lab.await_first_step("cancelled", 2)["job"])
    with refused_jobs(lab, "cancelled", job):
        lab.run(MANAGER, "scancel", job)
        found = lab.await_end("cancelled")
    assert found["state"] == "cancelled", found
    lab.run_train("resume", "--detach", "cancelled")
    lab.start_run("pending", "--nodes", "2", "--sbatch", "--hold")
    for name in ("cancelled", "pending"):
        lab.run(MANAGER, "scancel", f"--name={name}")
        lab.wait_until("the run is cancelled", partial(is_shown_cancelled, lab, name), WAIT_TIMEOUT)
    lab.await_idle(MANAGER)
    assert lab.run(MANAGER, "squeue", "--noheader") == ""


def test_it_goes_on_after_its_supervisor_is_killed_and_its_node_dies_between_two_attempts(
    lab: TrainLab, dead: list[str]
) -> None:
    lab.clear_queue()
    run = Patient(lab, "script", "--nodes", "2", "--min-nodes", "1", "--sbatch", f"--exclude={MANAGER}")
    victim = at_random_step(lab, "script", 1)["attempts"][0]["supervisor"]
    lab.run(victim, "pkill", "-KILL", "-f", r"^\S*python\S* .*gpumesh-train supervise ")
    found = lab.await_first_step("script", 2)
    # No attempt begins while the controller is away.
    lab.run(MANAGER, "systemctl", "stop", "slurmctld")
    try:
        lab.send_rank_signal(found, 1, "KILL")
        lab.await_run("script", "waits", lambda now: now["attempts"][-1]["cause"], spacing=0.3)
        lab.kill(victim)
        dead.append(victim)
    finally:
        lab.run(MANAGER, "systemctl", "start", "slurmctld")
    run.hurry()
    found = lab.await_end("script")
    survivor = found["attempts"][1]["nodes"][1]
    first, second, third = found["attempts"][:3]
    assert list_causes(found)[:2] == [("supervisor", None, ""), ("crash", 1, survivor)], found
    assert list_causes(found)[-1] == ("finished", None, ""), found
    assert first["cause"]["detail"] == "the supervisor was killed (SIGKILL)"
    assert (first["job"], first["supervisor"]) == (second["job"], second["supervisor"])
    # An agent goes on in this job, or submits another one: Slurm may refuse steps while it removes the node from the job.
    assert third["heir"] or third["job"] != second["job"]
    assert_checkpoints_used({"attempts": [attempt for attempt in found["attempts"] if attempt["first"] is not None]})
    assert lab.read_result("script").samples == f"samples {SAMPLES!r}"
    lab.wait_until("it is over", lambda: not lab.run(MANAGER, "squeue", "--noheader", "--states=running"), WAIT_TIMEOUT)


def test_it_goes_on_after_the_batch_script_and_then_slurmstepd_of_a_node_are_killed(lab: TrainLab) -> None:
    lab.clear_queue()
    # A third node is idle, with which alone the next job could begin at once.
    lab.start_run("daemons", "--nodes", "2", "--min-nodes", "1", "--sbatch", f"--exclude={MANAGER}")
    found = at_random_step(lab, "daemons", 1)
    # With it, Slurm kills the supervisor, and ends the job.
    lab.run(found["attempts"][0]["supervisor"], "pkill", "-KILL", "-f", r"^/bin/sh \S+/slurm_script$")
    found = at_random_step(lab, "daemons", 2)
    supervisor, job = found["attempts"][1]["supervisor"], found["job"]
    other = next(node for node in found["attempts"][1]["nodes"] if node != supervisor)
    lab.run(other, "pkill", "-KILL", "-f", rf"^slurmstepd: \[{job}\.[0-9]+\]")
    found = lab.await_end("daemons")
    assert list_causes(found)[:2] == [("supervisor", None, ""), ("node", None, other)], found
    # With one node, until it is known that the other one is well.
    assert {kind for kind, _rank, _node in list_causes(found)[2:-1]} <= {"grown"}, found
    assert list_causes(found)[-1] == ("finished", None, ""), found
    attempts = found["attempts"]
    details = [attempt["cause"]["detail"] for attempt in attempts]
    assert details[:2] == ["the batch script was killed", f"{other} responds, but its ranks do not report"]
    assert [len(attempt["nodes"]) for attempt in attempts[:2]] == [2, 2], found
    assert attempts[0]["job"] != job == attempts[2]["job"] and not any(attempt["heir"] for attempt in attempts)
    assert_checkpoints_used(found)
    assert lab.read_result("daemons").samples == f"samples {SAMPLES!r}"


def test_it_goes_on_with_all_nodes_after_its_supervisor_was_stopped_for_a_while(lab: TrainLab) -> None:
    supervise, agents = (rf"^\S*python\S* .*gpumesh-train {word}" for word in ("supervise ", "agent"))
    lab.clear_queue()
    # With more steps: the ranks go on for as long as the agents wait.
    without = f"--exclude={MANAGER}"
    run = Patient(lab, "asleep", "--nodes", "2", "--min-nodes", "1", "--sbatch", without, steps=2 * STEP_COUNT)
    first = at_random_step(lab, "asleep", 1)["attempts"][0]
    lab.run(first["supervisor"], "pkill", "-STOP", "-f", supervise)
    found = lab.await_first_step("asleep", 2)
    lab.run(first["supervisor"], "pkill", "-CONT", "-f", supervise)
    log = lab.runs_directory / "asleep" / "supervisor.log"
    dismissed = "another node considers this one dead"
    lab.wait_until("it has noticed its heir", lambda: dismissed in log.read_text(encoding="utf-8"), WAIT_TIMEOUT)
    # Now the heir, when nobody can inherit: it goes on itself. It is older than the agent of its own attempt.
    heir = found["attempts"][1]["supervisor"]
    lab.run(MANAGER, "systemctl", "stop", "slurmctld")
    try:
        lab.run(heir, "pkill", "-STOP", "--oldest", "-f", agents)
        time.sleep(15)
        lab.run(heir, "pkill", "-CONT", "--oldest", "-f", agents)
        lab.await_run("asleep", "notices it", lambda now: now["attempts"][1]["cause"], spacing=0.3)
    finally:
        lab.run(MANAGER, "systemctl", "start", "slurmctld")
    run.hurry()
    found = lab.await_end("asleep")
    assert list_causes(found) == [("supervisor", None, "")] * 2 + [("finished", None, "")], found
    details = [attempt["cause"]["detail"] for attempt in found["attempts"]]
    assert details[0] == f"the supervisor has stopped, but {first['supervisor']} responds"
    assert details[1].startswith("the supervisor was stopped for ")
    assert all(sorted(attempt["nodes"]) == sorted(first["nodes"]) for attempt in found["attempts"]), found
    assert len({attempt["job"] for attempt in found["attempts"]}) == 1
    assert_checkpoints_used(found)
    assert lab.read_result("asleep").samples == f"samples {sum_of_samples(2 * STEP_COUNT)!r}"


def test_it_goes_on_after_a_power_cut_of_all_machines(lab: TrainLab) -> None:
    """Slurm itself calls the job running, with no process, until it asks the nodes for their jobs half an hour later."""
    lab.clear_queue()
    run = Patient(lab, "dark", "--nodes", "2", "--sbatch", f"--exclude={MANAGER},{BARE_HOST}")
    found = at_random_step(lab, "dark", 1)
    lab.kill(MANAGER, *OTHER_HOSTS)
    lab.restore_power(MANAGER, *OTHER_HOSTS)
    run.hurry()
    found = lab.await_end("dark")
    assert list_causes(found) == [("node", None, ""), ("finished", None, "")], found
    assert len({attempt["job"] for attempt in found["attempts"]}) == 1
    assert_checkpoints_used(found)
    assert lab.read_result("dark").samples == f"samples {SAMPLES!r}"
    # Its node has asked for it, before the controller has missed its script.
    log = lab.run(MANAGER, "cat", "/var/log/slurm/slurmctld.log")
    job = f"JobId={found['job']}"
    assert f"Requeuing {job}\n" in log and f"{job} missing from batch node" not in log
    lab.clear_queue()


def test_it_goes_on_without_nodes_that_die_and_without_that_of_its_supervisor(lab: TrainLab, dead: list[str]) -> None:
    """Once Slurm has taken a dead node out of the job, it does not find others of it: another job goes on."""
    lab.clear_queue()
    options = ("--nodes", "3", "--min-nodes", "1", "--sbatch", f"--exclude={MANAGER}")
    run = Patient(lab, "nodes", *options, steps=4 * STEP_COUNT)
    first = at_random_step(lab, "nodes", 1)["attempts"][0]["supervisor"]
    lab.kill(first)
    dead.append(first)
    found = lab.await_first_step("nodes", 2)
    left = ("squeue", "--noheader", f"--jobs={found['job']}", "--format=%D")
    lab.wait_until("Slurm has taken it out of the job", lambda: lab.run(MANAGER, *left).strip() == "2", WAIT_TIMEOUT)
    attempt = found["attempts"][1]
    second = next(node for node in attempt["nodes"] if node != attempt["supervisor"])
    lab.kill(second)
    dead.append(second)
    lab.await_first_step("nodes", 3)
    run.hurry()
    found = lab.await_end("nodes")
    assert [(kind, node) for kind, _rank, node in list_causes(found)] == [
        ("node", first),
        ("node", second),
        ("finished", ""),
    ]
    assert [len(attempt["nodes"]) for attempt in found["attempts"]] == [3, 2, 1]
    jobs = [attempt["job"] for attempt in found["attempts"]]
    assert jobs[0] == jobs[1] != jobs[2]
    log = (lab.runs_directory / "nodes" / "supervisor.log").read_text(encoding="utf-8")
    assert (
        f"Slurm has taken a node out of the job, and starts nothing on {attempt['supervisor']} for it any more" in log
    )
    assert_checkpoints_used(found)
    assert lab.read_result("nodes").samples == f"samples {sum_of_samples(4 * STEP_COUNT)!r}"
    # It was not the batch script that ended the job.
    lab.wait_until(
        "the job is over", lambda: not lab.run(MANAGER, "squeue", "--noheader", "--states=running"), WAIT_TIMEOUT
    )


def test_a_node_that_was_away_is_used_again_and_another_one_takes_the_place_of_a_dead_one(
    lab: TrainLab, dead: list[str]
) -> None:
    """What `make lab` proposes to try, with the program that it puts on the volume."""
    lab.clear_queue()
    shutil.copy(ROOT / "examples" / "plain" / "train.py", lab.shared_volume)
    lab.run(MANAGER, "scontrol", "update", f"nodename={BARE_HOST}", "state=drain", "reason=later")
    try:
        options = ("--name", "grow", "--nodes", "2", "--min-nodes", "1", "--sbatch", f"--exclude={MANAGER}")
        lab.run_train("--detach", *options, "--", "python3", "/mnt/shared/train.py", "--steps", "100000")
        found = at_random_step(lab, "grow", 1)
        victim = next(node for node in found["attempts"][0]["nodes"] if node != found["attempts"][0]["supervisor"])
        # It is still in the job, unless it is away for so long that Slurm takes it out.
        interface = lab.find_interface(victim)
        lab.set_link(victim, interface, "down")
        try:
            lab.await_first_step("grow", 2)
        finally:
            lab.set_link(victim, interface, "up")
        found = lab.await_first_step("grow", 3)
        check_grown(found, victim, victim, first=0)
        lab.kill(victim)
        dead.append(victim)
        lab.await_first_step("grow", 4)
        away = f" · away: {victim}"
        lab.wait_until("it is told", lambda: away in lab.run_train("show", "grow").stdout, WAIT_TIMEOUT)
        assert "held idle" not in lab.run_train("show", "grow").stdout
        state = ("sinfo", "--noheader", f"--nodes={victim}", "--format=%T")
        lab.wait_until(
            "Slurm has taken it out of the job", lambda: lab.run(MANAGER, *state).startswith("down"), WAIT_TIMEOUT
        )
    finally:
        lab.run(MANAGER, "scontrol", "update", f"nodename={BARE_HOST}", "state=resume")
    # The run has never had this one.
    wanted_nodes = {"gpu2", "gpu3", BARE_HOST} - {victim}
    found = lab.await_run(
        "grow",
        f"makes steps on {BARE_HOST} too",
        lambda run_status: (
            set(run_status["attempts"][-1]["nodes"]) == wanted_nodes and run_status["attempts"][-1]["first"] is not None
        ),
        spacing=0.3,
    )
    check_grown(found, victim, BARE_HOST, first=2)
    assert found["attempts"][4]["job"] != found["attempts"][3]["job"]
    assert f"grown: {BARE_HOST} is idle, and another job can have all nodes" in lab.run_train("show", "grow").stdout
    assert_checkpoints_used(found, interval=20)
    lab.run_train("cancel", "grow")


def check_grown(found: dict[str, Any], victim: str, newcomer: str, first: int) -> None:
    """From this index, the attempts have lost a node, done without it, and have it or another one, and no healthy node
    was named.
    """
    lost, alone, *others, grown = found["attempts"][first:]
    survivors = {"gpu2", "gpu3"} - {victim}
    assert [set(attempt["nodes"]) for attempt in (lost, alone, grown)] == [
        {"gpu2", "gpu3"},
        survivors,
        survivors | {newcomer},
    ]
    # Slurm may start the next job a moment before all nodes of the last one are free. Such a run grows once more.
    assert all(len(attempt["nodes"]) == 1 for attempt in others)
    causes = [attempt["cause"] for attempt in (lost, alone, *others)]
    ends = [(cause["kind"], cause["rank"], cause["node"]) for cause in causes]
    assert ends == [("node", None, victim), *[("grown", None, "")] * (1 + len(others))]
