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

from train_programs import MANAGER, TRAINER
from train_runs import PATIENCE, TrainLab

BAR = 1.02
#: Seconds for which a rank sleeps, and computes, in each step.
SLEEP, WORK = "0.02", "0.02"
#: A script that sets for plain srun what gpumesh-train sets itself. The port is free in a lab.
BARE = (
    "export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_PORT=24999 PYTHONPATH=/mnt/shared/bench "
    # Slurm orders nodes as they registered, so only rank 0 knows on which node it is.
    'GPUMESH_CHECKPOINT_DIR=$1; [ "$RANK" != 0 ] || hostname > "$1/rank-0"; until [ -s "$1/rank-0" ]; do sleep 0.1; done; '
    'export MASTER_ADDR=$(cat "$1/rank-0"); shift; exec python3 "$@"'
)


class Took(NamedTuple):
    """The duration of a run in seconds: of its steps, and as a whole."""

    steps: float
    whole: float


def program(steps: int) -> list[str]:
    """Return the command line of the trainer."""
    return [TRAINER, str(steps), SLEEP, "--work", WORK, "--times"]


def read(text: str) -> float:
    """Return the seconds between the first and the last step, as printed by rank 0."""
    return float(next(line.split()[1] for line in reversed(text.splitlines()) if line.startswith("steps-took ")))


def bare(lab: TrainLab, nodes: list[str], steps: int, number: int) -> Took:
    """Run the program with plain srun."""
    folder = f"/mnt/shared/bench/{number}"
    lab.run(MANAGER, "mkdir", "-p", folder)
    # The nodes are whole and the ranks unbound, as in the agents: with bound ranks, hosts that share a machine would
    # all use its first processor.
    argv = ["salloc", "--quiet", f"--nodelist={','.join(nodes)}", f"--nodes={len(nodes)}", "--exclusive"]
    argv += ["srun", "--ntasks-per-node=1", "--cpu-bind=none"]
    began = time.monotonic()
    words = [*argv, "sh", "-c", BARE, "-", folder, *program(steps)]
    said = lab.run(MANAGER, *words, timeout=PATIENCE + steps)
    return Took(read(said), time.monotonic() - began)


def supervised(lab: TrainLab, nodes: list[str], steps: int, number: int) -> Took:
    """Run the program with gpumesh-train."""
    name = f"bench-{time.time():.0f}-{number}"
    options = ["--detach", "--name", name, "--nodes", str(len(nodes)), "--sbatch", f"--nodelist={','.join(nodes)}"]
    lab.train(*options, "--", "python3", *program(steps))
    found = lab.finish(name)
    (attempt,) = found["attempts"]
    assert found["state"] == "finished" and not attempt["stragglers"], json.dumps(found)
    log = lab.runs / name / "attempts" / "001" / "rank-0.log"
    return Took(read(log.read_text(encoding="utf-8")), attempt["end"] - attempt["begin"])


def main() -> int:
    """Measure in turns, and print the results. Returns 1 above the limit."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lab", default="molecule-work")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    lab = TrainLab(given.lab)
    lab.bring()
    nodes = [f"t{number}" for number in range(1, given.nodes + 1)]
    # The trainer imports it; it does nothing without the variables of a run.
    helper = Path(__file__).resolve().parents[2] / "plugins" / "module_utils" / "_programs" / "train" / "gpumesh_run.py"
    bench = lab.shared / "bench"
    bench.mkdir(exist_ok=True)
    (bench / "gpumesh_run.py").write_bytes(helper.read_bytes())
    plain: list[Took] = []
    ours: list[Took] = []
    for number in range(given.runs):
        lab.idle()
        plain.append(bare(lab, nodes, given.steps, int(time.time())))
        lab.idle()
        ours.append(supervised(lab, nodes, given.steps, number))
        print(f"turn {number + 1}: srun {plain[-1].steps:.2f} s, gpumesh-train {ours[-1].steps:.2f} s", flush=True)
    best = [min(took.steps for took in turns) for turns in (plain, ours)]
    whole = [min(took.whole for took in turns) for turns in (plain, ours)]
    ratio = best[1] / best[0]
    print(f"{given.steps} steps on {given.nodes} nodes: srun {best[0]:.2f} s, gpumesh-train {best[1]:.2f} s")
    print(f"whole: srun {whole[0]:.2f} s, gpumesh-train {whole[1]:.2f} s")
    print(f"ratio of the steps: {ratio:.4f} (limit: {BAR})")
    print(f"command: {shlex.join(program(given.steps))}")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
