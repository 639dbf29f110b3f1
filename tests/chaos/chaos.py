# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kill operations on a cluster, and require the same command to complete them when it is run again.

    make chaos                                                  # all boundaries and 60 random moments: takes hours
    python tests/chaos/chaos.py --count 20 --seed 7             # 20 random ones
    python tests/chaos/chaos.py --operation join:c3 --kill controller:40+0.80

On its own three hosts (c3 has no service manager), each experiment is one operation and one kill:

    boundary:TASK               SIGKILL of the playbook's process group when the task of this number starts
    controller:TASK+SECONDS     the same, this many seconds later
    module:TASK+SECONDS@HOST    SIGKILL of the first module that runs on the host from then on
    host:TASK+SECONDS@HOST      the host's power is cut, and comes back at once

Then the same command is run again. It must succeed, with the record on all members and on no other host, srun must work
on all nodes, and each user's job must still be running unless its node was killed. A third run must change nothing (for
a change of keys, without the option that requests it). Hosts that are not members must be as bare as before. Boundaries
are only tried after tasks that changed something in a recorded run: others leave the hosts as they were.

`install` is `create` on hosts that have no packages yet. `storage-c2` is `storage` while c2 is down and excluded with
--limit; of the kind `away` are all operations with such a member. It is started once the command has succeeded. Then a
run of site without a limit must succeed, with the same result, and another one must change nothing.

A run that ended before the kill does not count: its kill is drawn again from its own tasks, twice at most.

The seed is printed first. With the same seed and the same tasks the experiments are the same; --only N repeats one.
Logs and diagnostics of the hosts are in .lab/NAME-logs/. Exits 1 if an experiment failed. With --stop, the lab stays as
the first failure left it; otherwise it is rebuilt.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import experiments
from arguments import listed, new_parser
from cluster import Cluster, ProofError
from experiments import KILLS, KINDS, VARIANTS, Experiment, Kill, Operation, Task
from lab_hosts import ROOT
from runs import Chaos, Result


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, "chaos", "10.79.81")
    parser.add_argument("--count", type=int, default=0, help="random experiments (60)")
    parser.add_argument("--all", action="store_true", help="also a kill at each boundary")
    parser.add_argument("--operations", type=listed, default=list(KINDS), help="of " + ",".join(KINDS))
    parser.add_argument("--kills", type=listed, default=list(KILLS), help="of " + ",".join(KILLS))
    parser.add_argument("--sample", action="store_true", help="six short experiments, without recording first")
    parser.add_argument("--only", type=int, help="only the experiment with this number")
    parser.add_argument(
        "--operation", type=Operation.parse, nargs="+", default=[], help="with --kill: only these experiments"
    )
    parser.add_argument("--kill", type=Kill.parse, nargs="+", default=[])
    parser.add_argument("--recorded", action="store_true", help="use the tasks that the previous call recorded")
    return parser.parse_args()


#: The number of times that a kill is drawn before the experiment has failed.
DRAWS = 3


class Session:
    """All experiments of one invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cluster = Cluster(options.lab, options.network)
        self.logs = ROOT / ".lab" / f"{options.lab}-logs"
        self.chaos = Chaos(self.cluster, self.logs)
        self.recorded: dict[Operation, list[Task]] = {}
        self.results: list[Result] = []
        self.missed: Counter[int] = Counter()
        self.failures: list[str] = []

    def record(self) -> None:
        """Perform each operation once, and record its tasks."""
        kept = self.logs / "recorded.json"
        if self.options.recorded and kept.exists():
            found = json.loads(kept.read_text(encoding="utf-8"))
            self.recorded = {Operation.parse(name): [Task(*task) for task in tasks] for name, tasks in found.items()}
        wanted = [variant for variant in VARIANTS if variant.kind in self.options.operations]
        for operation in wanted:
            if operation not in self.recorded:
                self.reach(operation)
                self.recorded[operation] = self.step(operation)
                said = {str(name): tasks for name, tasks in self.recorded.items()}
                kept.write_text(json.dumps(said), encoding="utf-8")

    def step(self, operation: Operation) -> list[Task]:
        """Perform one undisturbed operation."""
        started = time.monotonic()
        tasks = self.chaos.undisturbed(operation, f"undisturbed-{operation}")
        changed = len(experiments.boundaries(tasks))
        print(
            f"      {operation}: {time.monotonic() - started:.0f} s, {len(tasks)} tasks, {changed} boundaries",
            flush=True,
        )
        return tasks

    def reach(self, operation: Operation) -> None:
        """Bring the cluster to the state in which the operation starts."""
        for step in experiments.way(self.cluster.state, operation.before(self.cluster.state)):
            if step.name == "rebuild":
                self.cluster.up(step.machine)
            else:
                self.step(step)

    def plan(self) -> list[Experiment]:
        """Return all experiments, in the order of their numbers."""
        options = self.options
        if options.operation:
            return [Experiment(*pair) for pair in zip(options.operation, options.kill, strict=True)]
        chance = random.Random(options.seed)
        if options.sample:
            return experiments.sample(chance)
        found = experiments.all_boundaries(options.operations, self.recorded) if options.all else []
        found += experiments.draw(chance, options.count or 60, options.operations, options.kills, self.recorded)
        return found

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        self.logs.mkdir(parents=True, exist_ok=True)
        print(f"seed {self.options.seed}", flush=True)
        try:
            if self.options.running:
                self.cluster.take_over()
            else:
                self.cluster.up()
            if self.options.all:
                self.record()
        except (ProofError, AssertionError) as error:
            print(f"FAILED before anything was killed: {error}")
            return 1
        left = dict(enumerate(self.plan(), 1))
        if self.options.only:
            left = {self.options.only: left[self.options.only]}
        total, began = len(left), time.monotonic()
        while left and not (self.failures and self.options.stop):
            chosen = experiments.choose(list(left.values()), self.cluster.state)
            number = next(number for number, experiment in left.items() if experiment == chosen)
            if again := self.one(number, left.pop(number)):
                left[number] = again
            each = (time.monotonic() - began) / (total - len(left) + self.missed.total())
            print(f"      {len(left)} left, about {each * len(left) / 60:.0f} minutes", flush=True)
        self.table()
        if not (self.options.keep or (self.failures and self.options.stop)):
            self.cluster.down()
        return 1 if self.failures else 0

    def one(self, number: int, experiment: Experiment) -> Experiment | None:
        """Run one experiment and the operations that lead to it. Returns what replaces one that ended before its kill."""
        started = time.monotonic()
        folder = f"{number:03}-{experiment.operation}-{experiment.kill}"
        hit, failure = "", ""
        tasks: list[Task] = []
        try:
            self.reach(experiment.operation)
            hit, tasks = self.chaos.experiment(experiment, folder)
        except (ProofError, AssertionError) as error:
            failure = str(error)
        again = None
        if not (hit or failure):
            self.missed[number] += 1
            again = self.replaced(number, experiment, tasks)
            failure = "" if again else "It ended before the kill, so nothing was proven."
        result = Result(experiment, time.monotonic() - started, hit, failure)
        word = (
            "FAILED" if failure else f"converged, in '{hit}'" if hit else f"ended before the kill; next: {again.kill}"
        )
        print(
            f"{number:4}  {experiment.operation}, killed at {experiment.kill}: {word} ({result.seconds:.0f} s)",
            flush=True,
        )
        if not again:
            self.results.append(result)
        if failure:
            self.failed(number, experiment, failure, folder)
        return again

    def replaced(self, number: int, experiment: Experiment, tasks: list[Task]) -> Experiment | None:
        """Draw another kill from the tasks of a run that missed it. Returns None if the kill was given or drawn too
        often.
        """
        missed = self.missed[number]
        if self.options.operation or missed == DRAWS:
            return None
        return experiments.draw_again(random.Random(f"{self.options.seed} {number} {missed}"), experiment, tasks)

    def failed(self, number: int, experiment: Experiment, failure: str, folder: str) -> None:
        """Print everything that helps, and continue from bare hosts."""
        self.failures.append(f"{number}: {experiment}")
        logs = self.logs / folder
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "failure").write_text(failure, encoding="utf-8")
        self.cluster.diagnose(logs)
        print(
            f"{failure}\n\nseed {self.options.seed}, experiment {number}; logs in {logs}\n"
            f"repeat it: python tests/chaos/chaos.py --stop {experiment}\n",
            flush=True,
        )
        if not self.options.stop:
            self.cluster.up()

    def table(self) -> None:
        """Print how many converged, by operation and kind of kill."""
        counts = Counter((result.experiment.operation.kind, result.experiment.kill.kind) for result in self.results)
        well = Counter(
            (result.experiment.operation.kind, result.experiment.kill.kind)
            for result in self.results
            if not result.failure
        )
        print("\n" + "operation".ljust(12) + "".join(kind.rjust(12) for kind in KILLS))
        for name in KINDS:
            cells = [f"{well[name, kill]}/{counts[name, kill]}" if counts[name, kill] else "-" for kill in KILLS]
            print(name.ljust(12) + "".join(cell.rjust(12) for cell in cells))
        print(
            f"\n{len(self.results)} experiments, {len(self.failures)} failed; {self.missed.total()} runs ended before the "
            f"kill; seed {self.options.seed}"
        )
        for line in self.failures:
            print(f"FAILED {line}")


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    if len(options.operation) != len(options.kill):
        sys.exit("chaos: give as many --operation as --kill options")
    sys.exit(Session(options).run())


if __name__ == "__main__":
    main()
