# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`make chaos` for runs of other programs can be repeated with a seed, and is judged by run.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.chaos import program_faults as faults
from ansible_collections.gpumesh.cluster.tests.chaos.program_faults import (
    ALL_PROGRAMS,
    FAULTS,
    FULL_EXAMPLE,
    FaultVictim,
)

ROOT = Path(__file__).resolve().parents[2]
NODES = ["gpu2", "gpu3"]
HIT = FaultVictim(1, "gpu3")
DETAIL = (
    "SIGKILL, stopped (SIGSTOP), the process of Slurm, drained, oom_kill, ECC, out of range, the time limit is near"
)


def attempt(kind: str, rank: int | None = None, node: str = "", **other: Any) -> dict[str, Any]:
    cause = {"kind": kind, "rank": rank, "node": node, "detail": DETAIL, **other.pop("cause", {})}
    usual = {
        "number": 1,
        "nodes": NODES,
        "world_size": 2,
        "first": 1,
        "last": 40,
        "stragglers": [],
        "supervisor": "gpu2",
    }
    return {**usual, "cause": cause, **other}


def run(*attempts: dict[str, Any], state: str = "finished", **last: Any) -> dict[str, Any]:
    ended = [attempt("finished", last=120, **last)] if state == "finished" else []
    made = [{**one, "first": 31 if number else 1} for number, one in enumerate([*attempts, *ended])]
    return {"state": state, "detail": "why", "step": 120, "loss": 0.5, "attempts": made}


CRASH = attempt("crash", 1, "gpu3")
ALONE = {"nodes": ["gpu2"], "world_size": 1}
ELSEWHERE = {"nodes": ["gpu2", "gpu4"]}


def test_the_same_seed_gives_the_same_experiments() -> None:
    found = faults.draw_experiments(7, 40, ALL_PROGRAMS, list(FAULTS))
    assert (
        found[:10]
        == faults.draw_experiments(7, 10, ALL_PROGRAMS, list(FAULTS))
        != faults.draw_experiments(8, 10, ALL_PROGRAMS, list(FAULTS))
    )
    assert {one.fault for one in found} == set(FAULTS) and {one.program for one in found} == set(ALL_PROGRAMS)
    assert sum(one.program == FULL_EXAMPLE for one in found) == 20
    assert faults.redraw_moment(found[3], 7, 3) == found[3] != faults.redraw_moment(found[3], 7, 3, 1)


@pytest.mark.parametrize(("programs", "drawn"), [(["jax", "nano"], {"jax", "nano"}), ([FULL_EXAMPLE], {FULL_EXAMPLE})])
def test_only_the_given_programs_and_faults_are_drawn(programs: list[str], drawn: set[str]) -> None:
    found = faults.draw_experiments(7, 8, programs, ["rank", "stop"])
    assert ({one.program for one in found}, {one.fault for one in found}) == (drawn, {"rank", "stop"})


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_says_what_is_expected(kind: str) -> None:
    fault = FAULTS[kind]
    assert (
        bool(fault.allowed_causes) == (fault.attempt_range[1] > 0) and fault.attempt_range[0] <= fault.attempt_range[1]
    )
    # Options for sbatch come last, and the manager, which is also the controller, is never a node of the run.
    assert fault.train_arguments[fault.train_arguments.index("--sbatch") + 1].startswith("--exclude=gpu1")
    for rank in range(2):
        hit = faults.find_victim(fault, rank, attempt("crash", supervisor="gpu3"))
        places = {"none": [FaultVictim()], "supervisor": [FaultVictim(1, "gpu3")], "other": [FaultVictim(0, "gpu2")]}
        assert hit in places.get(fault.target, [FaultVictim(rank, NODES[rank])])


@pytest.mark.parametrize(
    ("kind", "found", "wrong"),
    [
        ("rank", run(CRASH), ""),
        ("rank", run(CRASH, attempt("grown")), ""),
        ("rank", run(), "1 to 1 attempts had to be disturbed, but 0 were"),
        ("rank", run(CRASH, CRASH), "but 2 were"),
        ("rank", run(attempt("crash", 0, "gpu2")), "had to end with crash:rank"),
        ("rank", run(attempt("node", None, "gpu3")), "had to end with crash:rank"),
        ("rank", run(attempt("crash", 1, "gpu3", cause={"detail": "exit status 1"})), "does not say 'SIGKILL'"),
        ("rank", run(CRASH, state="failed"), "the run is failed: why"),
        ("rank", run(CRASH, **ALONE), "it had [1, 2] ranks"),
        ("rank", run(attempt("crash", 1, "gpu3", last=51)), "it went back from step 51 to 31"),
        ("ranks", run(attempt("crash", 2, "gpu3", world_size=4), world_size=4), ""),
        ("ranks", run(attempt("crash", 1, "gpu2", world_size=4), world_size=4), "had to end with crash:node's"),
        ("power", run(attempt("node", None, "gpu3"), **ALONE), ""),
        ("power", run(attempt("node", None, "gpu2"), **ALONE), "had to end with node:node"),
        ("spare", run(attempt("node", None, "gpu3"), **ELSEWHERE), ""),
        ("dark", run(attempt("node")), ""),
        ("dark", run(attempt("node", None, "gpu2")), "had to end with node:"),
        ("supervisor", run(attempt("supervisor")), ""),
        ("supervisor", run(attempt("cancelled"), state="cancelled"), "the run is cancelled"),
        ("slurmd", run(), ""),
        ("slurmd", run(CRASH), "0 to 0 attempts"),
        ("full", run(), ""),
        ("full", run(attempt("volume")), ""),
        ("full", run(CRASH), "had to end with volume:"),
        ("bad", run(*[CRASH] * 3, **ELSEWHERE), ""),
        ("bug", run(*[CRASH] * 3, attempt("crash", 1, "gpu4", **ELSEWHERE), state="failed"), ""),
        ("bug", run(*[CRASH] * 3, **ELSEWHERE), "the run is finished"),
        ("bug", run(*[CRASH] * 3, attempt("crash", 1, "gpu3", **ELSEWHERE), state="failed"), "crash:follows"),
        ("nan", run(attempt("diverged"), state="failed"), ""),
        ("limit", run(attempt("warned"), attempt("warned")), ""),
    ],
)
def test_a_run_is_judged_by_what_it_says(kind: str, found: dict[str, Any], wrong: str) -> None:
    hit = FaultVictim() if FAULTS[kind].target == "none" else HIT
    said = faults.find_problems(FAULTS[kind], hit, found)
    assert (not said) if not wrong else wrong in "; ".join(said)


def test_the_end_is_that_of_an_undisturbed_run_if_the_ranks_are_the_same() -> None:
    found, calm = run(CRASH), run()
    assert not faults.find_differences(FULL_EXAMPLE, found, calm)
    found["loss"] = 0.5000001
    assert faults.find_differences(FULL_EXAMPLE, found, calm) == ["the loss is 0.5000001; undisturbed: 0.5"]
    assert not faults.find_differences(FULL_EXAMPLE, {**run(CRASH, **ALONE), "loss": 0.4}, calm)
    assert faults.find_differences(FULL_EXAMPLE, {**calm, "step": 119}, calm) == ["the last step is 119, not 120"]


def test_time_is_judged_on_a_quiet_machine() -> None:
    slow = run(attempt("crash", 1, "gpu3", stragglers=[{"rank": 0}]))
    assert faults.find_delays(FAULTS["rank"], run(CRASH), 61.0, 60.0) == [
        "the next step came after 61 s, not within 60 s"
    ]
    assert not faults.find_delays(FAULTS["stop"], run(CRASH), 61.0, 60.0)
    assert faults.find_delays(FAULTS["rank"], slow, 9.0, 60.0) == ["called slow: [[{'rank': 0}]]"]


PROGRAM = """
import sys, gpumesh_run
for step in range(1, 4):
    gpumesh_run.progress(step, 3, loss=0.5)
print(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("order", "end"),
    [
        (None, "['more']"),
        ({"kind": "error", "step": 2, "rank": 1}, "IndexError: sample 7 is out of range"),
        ({"kind": "ecc", "step": 2, "node": os.uname().nodename}, "RuntimeError: CUDA error: uncorrectable ECC error"),
        ({"kind": "error", "step": 2, "rank": 0}, "['more']"),
        ({"kind": "error", "step": 2, "node": "another"}, "['more']"),
        ({"kind": "error", "step": 2, "attempt": 2}, "['more']"),
        ({"kind": "nan", "step": 2}, "['more']"),
    ],
)
def test_a_program_fails_as_ordered(tmp_path: Path, order: dict[str, Any] | None, end: str) -> None:
    if order:
        (tmp_path / "fault").write_text(json.dumps(order), encoding="ascii")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="ascii")
    reported = tmp_path / "progress"
    variables = {
        "GPUMESH_RUN_DIR": str(tmp_path),
        "RANK": "1",
        "GPUMESH_ATTEMPT": "1",
        "GPUMESH_PROGRESS_FILE": str(reported),
        "PYTHONPATH": str(ROOT / "plugins" / "module_utils" / "_programs" / "train"),
    }
    argv = [sys.executable, str(ROOT / "tests" / "chaos" / "launched.py"), "0", str(tmp_path / "program.py"), "more"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **variables})
    assert end in (done.stdout + done.stderr).splitlines()[-1], done.stderr
    told = json.loads(reported.read_text(encoding="ascii"))
    # The step at which it fails is not reported.
    assert told["step"] == (3 if done.returncode == 0 else 1)
    assert (told["loss"] == 0.5) == (not order or order["kind"] != "nan")
