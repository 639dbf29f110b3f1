# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disturb training runs on four hosts, each once while it runs, and require them to finish nevertheless.

    make chaos PART=train                                        # 20 random ones
    python tests/chaos/train.py --count 20 --seed 7
    python tests/chaos/train.py --experiment node:31@2+spare     # repeat one: KIND:STEP@RANK
    python tests/chaos/train.py --undisturbed 20                 # none may be named as a straggler, or restarted
    python tests/chaos/train.py --count 10 --kinds cpu,link,stop # a slow or hung rank is named during the run
    python tests/chaos/train.py --full                           # 20 random ones, of examples/full with PyTorch

Each run must finish; repeat no more steps than there are between two checkpoints; read each sample once; have the
result of an undisturbed run, to the bit unless the number of ranks has changed; name the cause and the culprit in
run.json; and make the next step after the kill within the start time of the program plus --longest seconds. A straggler
must be named within --named seconds, and must not end an attempt.

The seed is printed first. With the same seed, the experiments are the same. The hosts are a lab of their own, whose
shared volume is a small file system. Logs are in .lab/NAME-logs/. Exits 1 if an experiment failed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from arguments import create_parser, split_list
from lab_hosts import ROOT, run_ansible, run_lab_playbook
from train_experiments import (
    HANG_TIMEOUT,
    KILL_KINDS,
    SLOW_KINDS,
    TrainExperiment,
    draw_experiments,
    expected_causes,
    find_problems,
)
from train_programs import FULL_PROGRAM, SCENARIO, SMALL_PROGRAM, TrainingOutcome, TrainingProgram
from train_runs import CHECKPOINT_INTERVAL, STEP_COUNT, RunStatus, TrainLab, list_causes, sum_of_samples

#: Seconds for which the volume is full.
FULL_VOLUME_SECONDS = 20.0
#: Seconds of steps before a node becomes slow, as a baseline: a node that is named wrongly is named within this time.
BASELINE_SECONDS = 30.0
#: The kind, the description and the function of an experiment, which returns what is wrong.
ExperimentTask = tuple[str, str, Callable[[], str]]
#: Percent of a processor, and the maximum rate at which a node sends.
SLOW_LIMITS = {"cpu": "2", "link": "1mbit"}


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__, "chaos-train", "10.79.82")
    parser.add_argument("--count", type=int, default=20, help="random experiments (20)")
    parser.add_argument(
        "--kinds", type=split_list, default=list(KILL_KINDS), help="of " + ",".join([*KILL_KINDS, *SLOW_KINDS])
    )
    parser.add_argument(
        "--experiment", type=TrainExperiment.parse, nargs="+", default=[], help="only these experiments"
    )
    parser.add_argument("--undisturbed", type=int, default=0, help="this many undisturbed runs instead of experiments")
    parser.add_argument(
        "--longest",
        type=float,
        default=30.0,
        help="maximum seconds from a kill to the next step, besides the start of the program (30)",
    )
    parser.add_argument("--named", type=float, default=60.0, help="maximum seconds until a straggler is named (60)")
    parser.add_argument("--full", action="store_true", help="train examples/full instead of a program without PyTorch")
    options = parser.parse_args()
    if options.full and {*options.kinds, *(experiment.kind for experiment in options.experiment)} & set(SLOW_KINDS):
        parser.error(f"--full cannot be combined with {' and '.join(SLOW_KINDS)}")
    return options


def undo_nothing() -> None:
    """Undo a kill that has no lasting effect."""


class InjectedFault(NamedTuple):
    """A fault that was injected into a run, when, and how to undo it."""

    rank: int
    node: str
    injected_at: float
    undo: Callable[[], object]


class TrainSuite:
    """All experiments of one invocation."""

    #: Size of the shared volume: room for the checkpoints of all runs.
    volume_size = "256m"

    def __init__(self, options: argparse.Namespace, program: TrainingProgram) -> None:
        self.options = options
        self.lab = TrainLab(options.lab, program)
        self.log_directory = ROOT / ".lab" / f"{options.lab}-logs"
        self.failures: list[str] = []
        self.run_counts: Counter[str] = Counter()
        self.passed_counts: Counter[str] = Counter()
        #: The result of an undisturbed run by number of ranks, and the seconds until its first step.
        self.reference_results: dict[int, tuple[TrainingOutcome, float]] = {}
        self.run_number = 0

    # The lab

    def create_hosts(self) -> None:
        """Create hosts with gpumesh-train, whose shared volume can be filled."""
        self.remove_hosts()
        self.lab.shared_volume.mkdir(parents=True, exist_ok=True)
        size = f"size={self.volume_size}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "gpumesh-chaos", str(self.lab.shared_volume)], check=True)
        self._run_lab_playbook("up")
        converge_run = run_ansible("ansible-playbook", "-i", str(self.lab.inventory), str(SCENARIO / "converge.yml"))
        assert converge_run.exit_status == 0, converge_run.failure_report

    def copy_programs(self) -> None:
        """Copy the program to where runs expect it."""
        self.lab.copy_program()

    def remove_hosts(self) -> None:
        """Remove everything. The hosts have their own mounts of the shared volume."""
        if os.path.ismount(self.lab.shared_volume):
            subprocess.run(["umount", str(self.lab.shared_volume)], check=True)
        self._run_lab_playbook("down")

    def _run_lab_playbook(self, name: str) -> None:
        settings = {"lab_name": self.lab.name, "work_network": self.options.network}
        run_lab_playbook(name, SCENARIO / "lab.yml", settings)

    # Runs

    def new_run_name(self, text: str) -> str:
        """Return the name of a run that this lab has not had yet."""
        self.run_number += 1
        return f"{self.options.seed}-{self.run_number:03}-{text}"

    def run_undisturbed(self, rank_count: int) -> str:
        """Run an undisturbed training. Returns what is wrong with it."""
        name = self.new_run_name(f"calm-{rank_count}")
        self.lab.clear_queue()
        self.lab.start_run(name, "--nodes", str(rank_count), "--hang-timeout", str(HANG_TIMEOUT))
        run_status = self.lab.await_first_step(name, 1)
        start_seconds = time.time() - run_status["attempts"][0]["begin"]
        run_status = self.lab.await_end(name)
        if list_causes(run_status) != [("finished", None, "")] or run_status["attempts"][0]["stragglers"]:
            return f"undisturbed, and {run_status['attempts']}"
        result = self.lab.read_result(name)
        if result.samples not in (f"samples {sum_of_samples(STEP_COUNT)!r}", "each sample once"):
            return f"not all samples were read once: {result}"
        reference = self.reference_results.setdefault(rank_count, (result, start_seconds))
        return (
            "" if reference[0] == result else f"the results of two undisturbed runs differ: {reference[0]} and {result}"
        )

    def reference_result(self, rank_count: int) -> tuple[TrainingOutcome, float]:
        """Return the result of an undisturbed run with this many ranks, and the seconds until its first step."""
        if rank_count not in self.reference_results:
            problem = self.run_undisturbed(rank_count)
            assert not problem, problem
        return self.reference_results[rank_count]

    def disturb_run(self, experiment: TrainExperiment) -> str:
        """Disturb a run. Returns what is wrong with it."""
        rank_count = int(experiment.train_options[1])
        result, start_seconds = self.reference_result(rank_count)
        name = self.new_run_name(experiment.kind)
        self.lab.clear_queue()
        extra_arguments = self.lab.program.slow_saving if experiment.kind == "checkpoint" else ()
        self.lab.start_run(name, *experiment.train_options, extra_arguments=extra_arguments)
        # The start of this run is a better measure than that of the reference on a busy machine.
        run_status = self.lab.await_first_step(name, 1)
        start_seconds = max(start_seconds, time.time() - run_status["attempts"][0]["begin"])
        run_status = self.lab.await_step(name, 1, experiment.step)
        fault = self.inject_fault(experiment, name, run_status)
        try:
            problems = self.await_next_attempt(experiment, name, fault, start_seconds)
            run_status = self.lab.await_end(name)
        finally:
            fault.undo()
        problems += find_problems(experiment, run_status, fault.rank, fault.node, CHECKPOINT_INTERVAL)
        if run_status["state"] == "finished":
            problems += self.compare_result(name, run_status, rank_count, result)
        return "; ".join(problems)

    def await_next_attempt(
        self, experiment: TrainExperiment, name: str, fault: InjectedFault, start_seconds: float
    ) -> list[str]:
        """Wait until the next attempt makes steps, if one is required. Returns what is wrong."""
        if experiment.kind == "full":
            time.sleep(FULL_VOLUME_SECONDS)
            fault.undo()
        if not expected_causes(experiment.kind, fault.rank, fault.node):
            return []
        self.lab.await_first_step(name, 2)
        elapsed = time.monotonic() - fault.injected_at
        allowed_seconds = self.options.longest + start_seconds + (HANG_TIMEOUT if experiment.kind == "stop" else 0)
        print(f"      {fault.node} (rank {fault.rank}) was hit; the next step after {elapsed:.0f} s", flush=True)
        return (
            []
            if elapsed <= allowed_seconds
            else [f"the next step came after {elapsed:.0f} s, but was allowed {allowed_seconds:.0f} s"]
        )

    def compare_result(self, name: str, run_status: RunStatus, rank_count: int, result: TrainingOutcome) -> list[str]:
        """Compare the result of a run with that of the undisturbed one. Returns what is wrong."""
        run_result = self.lab.read_result(name)
        if run_result.samples != result.samples:
            return [f"not all samples were read once: {run_result}; undisturbed: {result}"]
        same_ranks = {attempt["world_size"] for attempt in run_status["attempts"]} == {rank_count}
        return [f"the result is {run_result}; undisturbed: {result}"] if same_ranks and run_result != result else []

    # The faults

    def inject_fault(self, experiment: TrainExperiment, name: str, run_status: RunStatus) -> InjectedFault:
        """Disturb the run now."""
        lab, nodes = self.lab, run_status["attempts"][-1]["nodes"]
        rank = experiment.choose_victim(nodes)
        node = nodes[rank]
        undo: Callable[[], object] = undo_nothing
        injected_at = time.monotonic()
        if experiment.kind == "rank":
            lab.send_signal(node, "KILL")
        elif experiment.kind == "checkpoint":
            lab.kill_writer(node, name)
            injected_at = time.monotonic()
        elif experiment.kind == "stop":
            lab.send_signal(node, "STOP")
        elif experiment.kind == "agent":
            # The ranks of the agent may be gone with the node.
            lab.run(
                node, "pkill", "-KILL", "-f", rf"^\S*python\S* .*gpumesh-train agent$|{lab.program.process_pattern}"
            )
        elif experiment.kind in ("node", "first"):
            lab.kill(node)
            undo = partial(lab.restore_power, node)
        elif experiment.kind == "slurmd":
            lab.run(node, "pkill", "-KILL", "-x", "slurmd")
            undo = partial(self.start_slurmd, node)
        elif experiment.kind == "network":
            interface = lab.find_interface(node)
            lab.set_link(node, interface, "down")
            undo = partial(lab.set_link, node, interface, "up")
        elif experiment.kind == "full":
            undo = partial(lab.fill_volume().unlink, missing_ok=True)
        return InjectedFault(rank, node, injected_at, undo)

    def start_slurmd(self, node: str) -> None:
        """Start slurmd if nothing else has."""
        if not self.lab.run(node, "pgrep", "-x", "slurmd(-wlm)?", check=False):
            starts = "systemctl restart slurmd || supervisorctl start gpumesh-slurmd"
            self.lab.run(node, "sh", "-c", starts, check=False)

    # Stragglers

    def slow_node(self, experiment: TrainExperiment) -> str:
        """Make a node slow during a run. Returns what is wrong."""
        lab, name = self.lab, self.new_run_name(experiment.kind)
        lab.clear_queue()
        slow_options = ["--payload", "60000"] if experiment.kind == "link" else ["--work", "0.02"]
        lab.start_run(name, "--nodes", "4", "--hang-timeout", "300", step_count=100000, extra_arguments=slow_options)
        lab.await_step(name, 1, 3)
        time.sleep(BASELINE_SECONDS)
        run_status = lab.read_status(name)
        if run_status["attempts"][0]["stragglers"]:
            return f"named before any node was slow: {run_status['attempts'][0]['stragglers']}"
        node = run_status["attempts"][0]["nodes"][1 + experiment.rank % 3]
        slowed_at = time.monotonic()
        limit_resource = {"cpu": lab.limit_cpu, "link": lab.limit_network}[experiment.kind]
        limit_resource(node, SLOW_LIMITS[experiment.kind])
        try:
            while (
                not (stragglers := lab.read_status(name)["attempts"][0]["stragglers"])
                and time.monotonic() - slowed_at < 2 * self.options.named
            ):
                time.sleep(1)
            elapsed = time.monotonic() - slowed_at
        finally:
            lab.run_train("cancel", name)
            limit_resource(node, "")
        print(f"      {node} was made slow; after {elapsed:.0f} s: {stragglers}", flush=True)
        if [straggler["node"] for straggler in stragglers] != [node]:
            return f"{node} is slow, but {stragglers} was named"
        return "" if elapsed <= self.options.named else f"it was named after {elapsed:.0f} s"

    # All of it

    def run_experiment(self, kind: str, description: str, experiment_function: Callable[[], str]) -> None:
        """Run one experiment, and print its result."""
        started_at = time.monotonic()
        self.run_counts[kind] += 1
        try:
            problem = experiment_function()
        except (AssertionError, subprocess.SubprocessError, OSError, StopIteration) as error:
            problem = f"{type(error).__name__}: {error}"
        print(
            f"{description}: {f'FAILED: {problem}' if problem else 'passed'} ({time.monotonic() - started_at:.0f} s)",
            flush=True,
        )
        if not problem:
            self.passed_counts[kind] += 1
            return
        self.failures.append(f"{description}: {problem}")
        self.save_logs()

    def save_logs(self) -> None:
        """Save what helps to find why the last run failed."""
        run_directories = sorted(self.lab.runs_directory.glob(f"{self.options.seed}-{self.run_number:03}-*"))
        for run_directory in run_directories:
            shutil.copytree(run_directory, self.log_directory / run_directory.name, dirs_exist_ok=True)
        self.log_directory.mkdir(parents=True, exist_ok=True)
        for host in ("gpu1", "gpu2", "gpu3", "gpu4"):
            output = self.lab.run(host, "sh", "-c", "tail -n 200 /var/log/slurm/*.log 2>&1", check=False)
            (self.log_directory / f"{self.run_number:03}-{host}.slurm").write_text(output, encoding="utf-8")

    def list_experiments(self) -> list[ExperimentTask]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        if options.undisturbed:
            undisturbed_run = partial(self.run_undisturbed, 4)
            return [
                ("undisturbed", f"{number + 1:4}  undisturbed", undisturbed_run)
                for number in range(options.undisturbed)
            ]
        experiments = options.experiment or draw_experiments(random.Random(options.seed), options.count, options.kinds)
        return [
            (
                experiment.kind,
                f"{number:4}  {experiment}",
                partial(self.slow_node if experiment.kind in SLOW_KINDS else self.disturb_run, experiment),
            )
            for number, experiment in enumerate(experiments, 1)
        ]

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        options = self.options
        print(f"seed {options.seed}", flush=True)
        try:
            if not options.running:
                self.create_hosts()
            self.copy_programs()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"FAILED before anything was hit: {error}")
            return 1
        for experiment in self.list_experiments():
            self.run_experiment(*experiment)
            if self.failures and options.stop:
                break
        for kind, count in sorted(self.run_counts.items()):
            print(f"{kind:12} {self.passed_counts[kind]} of {count}")
        print(
            f"{sum(self.run_counts.values())} runs, {len(self.failures)} failed; seed {options.seed}; logs in {self.log_directory}"
        )
        for line in self.failures:
            print(f"FAILED {line}")
        if not (options.keep or options.running or (self.failures and options.stop)):
            self.remove_hosts()
        return 1 if self.failures else 0


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    sys.exit(TrainSuite(options, FULL_PROGRAM if options.full else SMALL_PROGRAM).run())


if __name__ == "__main__":
    main()
