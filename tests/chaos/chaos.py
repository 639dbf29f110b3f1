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
from arguments import create_parser, split_list
from cluster import ChaosCluster, ProofError
from experiments import (
    KILL_KINDS,
    OPERATION_KINDS,
    VARIANTS,
    ClusterOperation,
    KillExperiment,
    KillMoment,
    RecordedTask,
)
from lab_hosts import ROOT
from runs import ExperimentResult, ExperimentRunner


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__, "chaos", "10.79.81")
    parser.add_argument("--count", type=int, default=0, help="random experiments (60)")
    parser.add_argument("--all", action="store_true", help="also a kill at each boundary")
    parser.add_argument(
        "--operations", type=split_list, default=list(OPERATION_KINDS), help="of " + ",".join(OPERATION_KINDS)
    )
    parser.add_argument("--kills", type=split_list, default=list(KILL_KINDS), help="of " + ",".join(KILL_KINDS))
    parser.add_argument("--sample", action="store_true", help="six short experiments, without recording first")
    parser.add_argument("--only", type=int, help="only the experiment with this number")
    parser.add_argument(
        "--operation", type=ClusterOperation.parse, nargs="+", default=[], help="with --kill: only these experiments"
    )
    parser.add_argument("--kill", type=KillMoment.parse, nargs="+", default=[])
    parser.add_argument("--recorded", action="store_true", help="use the tasks that the previous call recorded")
    return parser.parse_args()


#: The number of times that a kill is drawn before the experiment has failed.
MAX_DRAWS = 3


class ChaosSuite:
    """All experiments of one invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cluster = ChaosCluster(options.lab, options.network)
        self.log_directory = ROOT / ".lab" / f"{options.lab}-logs"
        self.experiment_runner = ExperimentRunner(self.cluster, self.log_directory)
        self.tasks_by_operation: dict[ClusterOperation, list[RecordedTask]] = {}
        self.results: list[ExperimentResult] = []
        self.missed_counts: Counter[int] = Counter()
        self.failures: list[str] = []

    def record_operations(self) -> None:
        """Perform each operation once, and record its tasks."""
        recorded_path = self.log_directory / "recorded.json"
        if self.options.recorded and recorded_path.exists():
            names_to_tasks = json.loads(recorded_path.read_text(encoding="utf-8"))
            self.tasks_by_operation = {
                ClusterOperation.parse(name): [RecordedTask(*task) for task in tasks]
                for name, tasks in names_to_tasks.items()
            }
        selected_operations = [variant for variant in VARIANTS if variant.kind in self.options.operations]
        for operation in selected_operations:
            if operation not in self.tasks_by_operation:
                self.reach_initial_state(operation)
                self.tasks_by_operation[operation] = self.run_undisturbed(operation)
                tasks_by_name = {str(name): tasks for name, tasks in self.tasks_by_operation.items()}
                recorded_path.write_text(json.dumps(tasks_by_name), encoding="utf-8")

    def run_undisturbed(self, operation: ClusterOperation) -> list[RecordedTask]:
        """Perform one undisturbed operation."""
        started_at = time.monotonic()
        tasks = self.experiment_runner.run_undisturbed(operation, f"undisturbed-{operation}")
        boundary_count = len(experiments.find_boundaries(tasks))
        print(
            f"      {operation}: {time.monotonic() - started_at:.0f} s, {len(tasks)} tasks, {boundary_count} boundaries",
            flush=True,
        )
        return tasks

    def reach_initial_state(self, operation: ClusterOperation) -> None:
        """Bring the cluster to the state in which the operation starts."""
        for preparation in experiments.find_path(self.cluster.state, operation.state_before(self.cluster.state)):
            if preparation.name == "rebuild":
                self.cluster.create_hosts(preparation.machine)
            else:
                self.run_undisturbed(preparation)

    def plan_experiments(self) -> list[KillExperiment]:
        """Return all experiments, in the order of their numbers."""
        options = self.options
        if options.operation:
            return [KillExperiment(*pair) for pair in zip(options.operation, options.kill, strict=True)]
        random_source = random.Random(options.seed)
        if options.sample:
            return experiments.draw_sample(random_source)
        planned_experiments = (
            experiments.list_boundary_experiments(options.operations, self.tasks_by_operation) if options.all else []
        )
        planned_experiments += experiments.draw_experiments(
            random_source, options.count or 60, options.operations, options.kills, self.tasks_by_operation
        )
        return planned_experiments

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        print(f"seed {self.options.seed}", flush=True)
        try:
            if self.options.running:
                self.cluster.adopt_hosts()
            else:
                self.cluster.create_hosts()
            if self.options.all:
                self.record_operations()
        except (ProofError, AssertionError) as error:
            print(f"FAILED before anything was killed: {error}")
            return 1
        remaining = dict(enumerate(self.plan_experiments(), 1))
        if self.options.only:
            remaining = {self.options.only: remaining[self.options.only]}
        total, started_at = len(remaining), time.monotonic()
        while remaining and not (self.failures and self.options.stop):
            next_experiment = experiments.choose_nearest(list(remaining.values()), self.cluster.state)
            number = next(number for number, experiment in remaining.items() if experiment == next_experiment)
            if replacement := self.run_experiment(number, remaining.pop(number)):
                remaining[number] = replacement
            seconds_each = (time.monotonic() - started_at) / (total - len(remaining) + self.missed_counts.total())
            print(f"      {len(remaining)} left, about {seconds_each * len(remaining) / 60:.0f} minutes", flush=True)
        self.print_table()
        if not (self.options.keep or (self.failures and self.options.stop)):
            self.cluster.remove_hosts()
        return 1 if self.failures else 0

    def run_experiment(self, number: int, experiment: KillExperiment) -> KillExperiment | None:
        """Run one experiment and the operations that lead to it. Returns what replaces one that ended before its kill."""
        started_at = time.monotonic()
        directory_name = f"{number:03}-{experiment.operation}-{experiment.kill}"
        killed_task, failure = "", ""
        tasks: list[RecordedTask] = []
        try:
            self.reach_initial_state(experiment.operation)
            killed_task, tasks = self.experiment_runner.run_experiment(experiment, directory_name)
        except (ProofError, AssertionError) as error:
            failure = str(error)
        replacement = None
        if not (killed_task or failure):
            self.missed_counts[number] += 1
            replacement = self.draw_replacement(number, experiment, tasks)
            failure = "" if replacement else "It ended before the kill, so nothing was proven."
        result = ExperimentResult(experiment, time.monotonic() - started_at, killed_task, failure)
        outcome = (
            "FAILED"
            if failure
            else f"converged, in '{killed_task}'"
            if killed_task
            else f"ended before the kill; next: {replacement.kill}"
        )
        print(
            f"{number:4}  {experiment.operation}, killed at {experiment.kill}: {outcome} ({result.seconds:.0f} s)",
            flush=True,
        )
        if not replacement:
            self.results.append(result)
        if failure:
            self.record_failure(number, experiment, failure, directory_name)
        return replacement

    def draw_replacement(
        self, number: int, experiment: KillExperiment, tasks: list[RecordedTask]
    ) -> KillExperiment | None:
        """Draw another kill from the tasks of a run that missed it. Returns None if the kill was given or drawn too
        often.
        """
        miss_count = self.missed_counts[number]
        if self.options.operation or miss_count == MAX_DRAWS:
            return None
        return experiments.redraw_kill(random.Random(f"{self.options.seed} {number} {miss_count}"), experiment, tasks)

    def record_failure(self, number: int, experiment: KillExperiment, failure: str, directory_name: str) -> None:
        """Print everything that helps, and continue from bare hosts."""
        self.failures.append(f"{number}: {experiment}")
        experiment_directory = self.log_directory / directory_name
        experiment_directory.mkdir(parents=True, exist_ok=True)
        (experiment_directory / "failure").write_text(failure, encoding="utf-8")
        self.cluster.save_diagnostics(experiment_directory)
        print(
            f"{failure}\n\nseed {self.options.seed}, experiment {number}; logs in {experiment_directory}\n"
            f"repeat it: python tests/chaos/chaos.py --stop {experiment}\n",
            flush=True,
        )
        if not self.options.stop:
            self.cluster.create_hosts()

    def print_table(self) -> None:
        """Print how many converged, by operation and kind of kill."""
        counts = Counter((result.experiment.operation.kind, result.experiment.kill.kind) for result in self.results)
        passed_counts = Counter(
            (result.experiment.operation.kind, result.experiment.kill.kind)
            for result in self.results
            if not result.failure
        )
        print("\n" + "operation".ljust(12) + "".join(kind.rjust(12) for kind in KILL_KINDS))
        for name in OPERATION_KINDS:
            cells = [
                f"{passed_counts[name, kill]}/{counts[name, kill]}" if counts[name, kill] else "-"
                for kill in KILL_KINDS
            ]
            print(name.ljust(12) + "".join(cell.rjust(12) for cell in cells))
        print(
            f"\n{len(self.results)} experiments, {len(self.failures)} failed; {self.missed_counts.total()} runs ended before the "
            f"kill; seed {self.options.seed}"
        )
        for line in self.failures:
            print(f"FAILED {line}")


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    if len(options.operation) != len(options.kill):
        sys.exit("chaos: give as many --operation as --kill options")
    sys.exit(ChaosSuite(options).run())


if __name__ == "__main__":
    main()
