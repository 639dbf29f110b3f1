# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of gpumesh-train on real hosts, and what kills them at random moments. GPUMESH_SEED repeats a sample."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_hosts import ROOT, Lab

NAME = "molecule-train"
MANAGER, OTHERS = "t1", ("t2", "t3", "t4")
SHARED = ROOT / ".lab" / NAME / "shared"
RUNS = SHARED / "root" / "runs"
TRAINER = "/mnt/shared/trainer.py"
STEPS, SECONDS, INTERVAL = 120, 0.2, 10
#: All numbers from 0 to the last sample.
SAMPLES = float(sum(range(12 * STEPS)))
#: Seconds that a busy machine may take.
PATIENCE = 240.0
SEED = int(os.environ.get("GPUMESH_SEED") or time.time())
CHANCE = random.Random(SEED)


@pytest.fixture(name="lab", scope="module")
def _lab() -> Lab:
    lab = Lab(NAME)
    shutil.copy(Path(__file__).with_name("trainer.py"), SHARED / "trainer.py")
    print(f"GPUMESH_SEED={SEED}")
    return lab


def train(lab: Lab, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run gpumesh-train on the manager."""
    done = subprocess.run(
        ["docker", "exec", f"gpumesh-{NAME}-{MANAGER}", "gpumesh-train", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def start(lab: Lab, name: str, *options: str, steps: int = STEPS) -> None:
    train(lab, "--detach", "--name", name, *options, "--", "python3", TRAINER, str(steps), str(SECONDS))


def run(name: str) -> dict[str, Any]:
    try:
        return dict(json.loads((RUNS / name / "run.json").read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {"state": "queued", "attempts": []}


def wait(lab: Lab, name: str, what: str, holds: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    lab.wait(f"{name} {what}: {run(name)}", lambda: holds(run(name)), PATIENCE)
    return run(name)


def finish(lab: Lab, name: str) -> dict[str, Any]:
    return wait(lab, name, "has ended", lambda found: found["state"] in ("finished", "failed", "cancelled"))


def at_random_step(lab: Lab, name: str, attempt: int) -> dict[str, Any]:
    """Wait until an attempt has made some steps of its own."""
    some = CHANCE.randrange(2, 20)
    return wait(
        lab,
        name,
        f"has made {some} steps in attempt {attempt}",
        lambda found: (
            len(found["attempts"]) == attempt
            and found["attempts"][-1]["first"] is not None
            and found["attempts"][-1]["last"] - found["attempts"][-1]["first"] >= some
        ),
    )


def signal_rank(lab: Lab, found: dict[str, Any], rank: int, signal: str) -> str:
    """Send it to the process of a rank; its node."""
    node = str(found["attempts"][-1]["nodes"][rank])
    lab.run(node, "pkill", f"-{signal}", "-f", f"^python3 {TRAINER}")
    print(f"SIG{signal} to rank {rank} on {node} at step {found['step']}")
    return node


def last_line(name: str) -> list[str]:
    """The weight and the sum of the samples that rank 0 has printed last."""
    log = RUNS / name / "attempts" / f"{len(run(name)['attempts']):03}" / "rank-0.log"
    return log.read_text(encoding="utf-8").splitlines()[-1].split()


def causes(found: dict[str, Any]) -> list[tuple[str, Any, str]]:
    return [(one["cause"]["kind"], one["cause"]["rank"], one["cause"]["node"]) for one in found["attempts"]]


def check_steps(found: dict[str, Any]) -> None:
    """Each attempt begins at the last checkpoint of that before it."""
    for before, after in zip(found["attempts"], found["attempts"][1:]):
        assert before["last"] - after["first"] < INTERVAL, (before, after)


def idle(lab: Lab) -> None:
    states = ("sinfo", "--noheader", "--format=%T")
    lab.wait("all nodes are idle", lambda: lab.run(MANAGER, *states).split() == ["idle"], PATIENCE)


def test_a_second_run_of_the_layer_changes_nothing(lab: Lab) -> None:
    done = lab.play("gpumesh.cluster.slurm", "--limit", f"{MANAGER},t4")
    assert done.code == 0, done.output
    assert set(done.changed.values()) == {0}, done.output


def test_an_undisturbed_run_has_one_attempt(lab: Lab) -> None:
    idle(lab)
    start(lab, "calm", "--nodes", "4", "--hang-timeout", "20")
    found = finish(lab, "calm")
    assert causes(found) == [("finished", None, "")], found
    (attempt,) = found["attempts"]
    assert (attempt["last"], attempt["world_size"]) == (STEPS, 4)
    assert sorted(attempt["nodes"]) == [MANAGER, *OTHERS]
    assert last_line("calm")[2:] == ["samples", repr(SAMPLES)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes", "5", "--", "true"], "The run asks for 5 nodes, and 4 can be used"),
        (["--nodes", "2", "--", "python9"], "t4 has no command python9"),
        (["--run-dir", "/root/runs", "--", "true"], "/root/runs/other is not on a shared volume"),
        (["--gpus-per-node", "8", "--", "true"], "Slurm refuses the job"),
        (["--min-nodes", "3", "--nodes", "2", "--", "true"], "--min-nodes 3 is more than --nodes 2"),
    ],
)
def test_what_could_not_work_is_refused_before_it_is_submitted(lab: Lab, arguments: list[str], words: str) -> None:
    done = train(lab, "--name", "other", *arguments, check=False)
    assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (RUNS / "other").exists()


def test_a_name_is_used_once(lab: Lab) -> None:
    done = train(lab, "--name", "calm", "--", "true", check=False)
    assert done.returncode == 2 and "There is already a run 'calm'" in done.stderr


def test_it_goes_on_after_a_crash_and_a_hang_while_the_controller_is_away(lab: Lab) -> None:
    idle(lab)
    start(lab, "ranks", "--nodes", "4", "--hang-timeout", "20")
    found = at_random_step(lab, "ranks", 1)
    lab.run(MANAGER, "systemctl", "stop", "slurmctld")
    time.sleep(5)
    lab.run(MANAGER, "systemctl", "start", "slurmctld")
    crashed, hung = CHANCE.randrange(4), CHANCE.randrange(4)
    crash = ("crash", crashed, signal_rank(lab, run("ranks"), crashed, "KILL"))
    found = at_random_step(lab, "ranks", 2)
    hang = ("hang", hung, signal_rank(lab, found, hung, "STOP"))
    found = finish(lab, "ranks")
    assert causes(found) == [crash, hang, ("finished", None, "")], found
    assert "SIGKILL" in found["attempts"][0]["cause"]["detail"]
    assert "stopped (SIGSTOP); the others wait for it in" in found["attempts"][1]["cause"]["detail"]
    assert len({attempt["job"] for attempt in found["attempts"]}) == 1
    check_steps(found)
    # To the bit, since the number of ranks has not changed.
    assert last_line("ranks") == last_line("calm")


def test_a_cancelled_run_is_resumed_by_the_playbook_and_not_started_again(lab: Lab) -> None:
    idle(lab)
    start(lab, "again", "--nodes", "2")
    at_random_step(lab, "again", 1)
    train(lab, "cancel", "again")
    assert causes(run("again"))[0][0] == "cancelled"
    options = {"train_name": "again", "train_nodes": 2, "train_command": f"python3 {TRAINER} {STEPS} {SECONDS}"}
    for changed in (1, 0):
        done = lab.play("gpumesh.cluster.train", "-e", json.dumps(options))
        assert done.code == 0 and done.changed[MANAGER] == changed, done.output
    found = run("again")
    assert [kind for kind, _rank, _node in causes(found)] == ["cancelled", "finished"]
    check_steps(found)
    assert last_line("again")[2:] == ["samples", repr(SAMPLES)]


def test_it_goes_on_without_nodes_that_die_and_without_that_of_its_supervisor(lab: Lab) -> None:
    idle(lab)
    start(lab, "nodes", "--nodes", "3", "--min-nodes", "1", "--sbatch", f"--exclude={MANAGER}")
    found = at_random_step(lab, "nodes", 1)
    supervisor = found["attempts"][0]["supervisor"]
    victims = [CHANCE.choice([node for node in OTHERS if node != supervisor]), supervisor]
    for attempt, victim in enumerate(victims, start=2):
        print(f"kill {victim} at step {found['step']}")
        killed = time.monotonic()
        subprocess.run(["docker", "kill", f"gpumesh-{NAME}-{victim}"], check=True, capture_output=True)
        found = wait(
            lab,
            "nodes",
            "makes steps again",
            lambda found, attempt=attempt: (
                len(found["attempts"]) == attempt and found["attempts"][-1]["first"] is not None
            ),
        )
        took = time.monotonic() - killed
        print(f"the next step after {took:.0f} s")
        assert took < 60
        if attempt == 2:
            found = at_random_step(lab, "nodes", 2)
    found = finish(lab, "nodes")
    assert [(kind, node) for kind, _rank, node in causes(found)] == [
        *(("node", one) for one in victims),
        ("finished", ""),
    ]
    assert [len(attempt["nodes"]) for attempt in found["attempts"]] == [3, 2, 1]
    assert len({attempt["job"] for attempt in found["attempts"]}) == 1
    check_steps(found)
    assert last_line("nodes")[2:] == ["samples", repr(SAMPLES)]
    # No batch script has ended the job.
    lab.wait("the job is over", lambda: not lab.run(MANAGER, "squeue", "--noheader", "--states=running"), PATIENCE)
