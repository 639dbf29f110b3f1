# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The overhead of gpumesh-train for an undisturbed run, against plain srun on the same nodes.

    python tests/bench/bench_train.py [--lab molecule-work] [--nodes 3] [--steps 600] [--runs 3]

The lab must have gpumesh-train, such as that of the scenario work after `molecule converge -s work`. The same program
makes the same steps under srun and under gpumesh-train, in turns. Prints, for the best of several turns,

steps      seconds from the first step to the last one, by the clock of rank 0: the cost of monitoring
whole      seconds from the start of the step to its end, without the time that Slurm needs to start the job

The limit is 2 % for the ratio of the steps: a run of hours has no other cost. Times on a busy machine are noisy, so
both are measured in one call. Exits 1 above the limit.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from train_programs import MANAGER, TRAINER_PATH
from train_runs import WAIT_TIMEOUT, TrainLab

MAX_RATIO = 1.02
#: Seconds for which a rank sleeps, and computes, in each step.
SLEEP_SECONDS, WORK_SECONDS = "0.02", "0.02"
#: A script that sets for plain srun what gpumesh-train sets itself. The port is free in a lab.
SRUN_SCRIPT = (
    "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_PORT=24999 PYTHONPATH=/mnt/shared/bench "
    # Slurm orders nodes as they registered, so only rank 0 knows on which node it is.
    'GPUMESH_CHECKPOINT_DIR=$1; [ "$RANK" != 0 ] || hostname > "$1/rank-0"; until [ -s "$1/rank-0" ]; do sleep 0.1; done; '
    'export MASTER_ADDR=$(cat "$1/rank-0"); shift; exec python3 "$@"'
)


class Durations(NamedTuple):
    """The duration of a run in seconds: of its steps, and as a whole."""

    step_seconds: float
    total_seconds: float


def trainer_command(steps: int) -> list[str]:
    """Return the command line of the trainer."""
    return [TRAINER_PATH, str(steps), SLEEP_SECONDS, "--work", WORK_SECONDS, "--times"]


def parse_step_seconds(text: str) -> float:
    """Return the seconds between the first and the last step, as printed by rank 0."""
    return float(next(line.split()[1] for line in reversed(text.splitlines()) if line.startswith("steps-took ")))


def run_with_srun(lab: TrainLab, nodes: list[str], steps: int, number: int) -> Durations:
    """Run the program with plain srun."""
    directory = f"/mnt/shared/bench/{number}"
    lab.run(MANAGER, "mkdir", "-p", directory)
    # The nodes are whole and the ranks unbound, as in the agents: with bound ranks, hosts that share a machine would
    # all use its first processor.
    argv = ["salloc", "--quiet", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--exclusive"]
    argv += ["srun", "--ntasks-per-node=1", "--cpu-bind=none"]
    started_at = time.monotonic()
    command = [*argv, "sh", "-c", SRUN_SCRIPT, "-", directory, *trainer_command(steps)]
    output = lab.run(MANAGER, *command, timeout=WAIT_TIMEOUT + steps)
    return Durations(parse_step_seconds(output), time.monotonic() - started_at)


def run_with_gpumesh_train(lab: TrainLab, nodes: list[str], steps: int, number: int) -> Durations:
    """Run the program with gpumesh-train."""
    name = f"bench-{time.time():.0f}-{number}"
    options = ["--detach", "--name", name, "--nodes", str(len(nodes)), "--sbatch", f"--nodelist={','.join(nodes)}"]
    lab.run_train(*options, "--", "python3", *trainer_command(steps))
    run_status = lab.await_end(name)
    (attempt,) = run_status["attempts"]
    assert run_status["state"] == "finished" and not attempt["stragglers"], json.dumps(run_status)
    log_path = lab.runs_directory / name / "attempts" / "001" / "rank-0.log"
    return Durations(parse_step_seconds(log_path.read_text(encoding="utf-8")), attempt["end"] - attempt["begin"])


def main() -> int:
    """Measure in turns, and print the results. Returns 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lab", default="molecule-work")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    lab = TrainLab(arguments.lab)
    lab.copy_program()
    nodes = [f"t{number}" for number in range(1, arguments.nodes + 1)]
    # The trainer imports it; it does nothing without the variables of a run.
    run_library = (
        Path(__file__).resolve().parents[2] / "plugins" / "module_utils" / "_programs" / "train" / "gpumesh_run.py"
    )
    bench_directory = lab.shared_volume / "bench"
    bench_directory.mkdir(exist_ok=True)
    (bench_directory / "gpumesh_run.py").write_bytes(run_library.read_bytes())
    srun_durations: list[Durations] = []
    train_durations: list[Durations] = []
    for number in range(arguments.runs):
        lab.clear_queue()
        srun_durations.append(run_with_srun(lab, nodes, arguments.steps, int(time.time())))
        lab.clear_queue()
        train_durations.append(run_with_gpumesh_train(lab, nodes, arguments.steps, number))
        print(
            f"turn {number + 1}: srun {srun_durations[-1].step_seconds:.2f} s, gpumesh-train {train_durations[-1].step_seconds:.2f} s",
            flush=True,
        )
    best_step_seconds = [
        min(durations.step_seconds for durations in turn_durations)
        for turn_durations in (srun_durations, train_durations)
    ]
    best_total_seconds = [
        min(durations.total_seconds for durations in turn_durations)
        for turn_durations in (srun_durations, train_durations)
    ]
    ratio = best_step_seconds[1] / best_step_seconds[0]
    print(
        f"{arguments.steps} steps on {arguments.nodes} nodes: srun {best_step_seconds[0]:.2f} s, gpumesh-train {best_step_seconds[1]:.2f} s"
    )
    print(f"whole: srun {best_total_seconds[0]:.2f} s, gpumesh-train {best_total_seconds[1]:.2f} s")
    print(f"ratio of the steps: {ratio:.4f} (limit: {MAX_RATIO})")
    print(f"command: {shlex.join(trainer_command(arguments.steps))}")
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
