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

from arguments import listed, new_parser
from lab_hosts import ROOT, ansible, lab_playbook
from train_experiments import HANG_TIMEOUT, KILLS, SLOW, Experiment, draw, expected, judge
from train_programs import FULL, SCENARIO, SMALL, Outcome, Program
from train_runs import INTERVAL, STEPS, Found, TrainLab, all_samples, causes

#: Seconds for which the volume is full.
FILLED = 20.0
#: Seconds of steps before a node becomes slow, as a baseline: a node that is named wrongly is named within this time.
BEFORE = 30.0
#: The kind, the description and the function of an experiment, which returns what is wrong.
Work = tuple[str, str, Callable[[], str]]
#: Percent of a processor, and the maximum rate at which a node sends.
SLOW_BY = {"cpu": "2", "link": "1mbit"}


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, "chaos-train", "10.79.82")
    parser.add_argument("--count", type=int, default=20, help="random experiments (20)")
    parser.add_argument("--kinds", type=listed, default=list(KILLS), help="of " + ",".join([*KILLS, *SLOW]))
    parser.add_argument("--experiment", type=Experiment.parse, nargs="+", default=[], help="only these experiments")
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
    if options.full and {*options.kinds, *(one.kind for one in options.experiment)} & set(SLOW):
        parser.error(f"--full cannot be combined with {' and '.join(SLOW)}")
    return options


def nothing() -> None:
    """Undo a kill that has no lasting effect."""


class Hit(NamedTuple):
    """A fault that was injected into a run, when, and how to undo it."""

    rank: int
    node: str
    at: float
    undo: Callable[[], object]


class Session:
    """All experiments of one invocation."""

    #: Size of the shared volume: room for the checkpoints of all runs.
    size = "256m"

    def __init__(self, options: argparse.Namespace, program: Program) -> None:
        self.options = options
        self.lab = TrainLab(options.lab, program)
        self.logs = ROOT / ".lab" / f"{options.lab}-logs"
        self.failures: list[str] = []
        self.kinds: Counter[str] = Counter()
        self.well: Counter[str] = Counter()
        #: The result of an undisturbed run by number of ranks, and the seconds until its first step.
        self.results: dict[int, tuple[Outcome, float]] = {}
        self.number = 0

    # The lab

    def up(self) -> None:
        """Create hosts with gpumesh-train, whose shared volume can be filled."""
        self.down()
        self.lab.shared.mkdir(parents=True, exist_ok=True)
        size = f"size={self.size}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "gpumesh-chaos", str(self.lab.shared)], check=True)
        self._playbook("up")
        done = ansible("ansible-playbook", "-i", str(self.lab.inventory), str(SCENARIO / "converge.yml"))
        assert done.code == 0, done.report

    def bring(self) -> None:
        """Copy the program to where runs expect it."""
        self.lab.bring()

    def down(self) -> None:
        """Remove everything. The hosts have their own mounts of the shared volume."""
        if os.path.ismount(self.lab.shared):
            subprocess.run(["umount", str(self.lab.shared)], check=True)
        self._playbook("down")

    def _playbook(self, name: str) -> None:
        settings = {"lab_name": self.lab.name, "work_network": self.options.network}
        lab_playbook(name, SCENARIO / "lab.yml", settings)

    # Runs

    def name(self, text: str) -> str:
        """Return the name of a run that this lab has not had yet."""
        self.number += 1
        return f"{self.options.seed}-{self.number:03}-{text}"

    def undisturbed(self, ranks: int) -> str:
        """Run an undisturbed training. Returns what is wrong with it."""
        name = self.name(f"calm-{ranks}")
        self.lab.idle()
        self.lab.begin(name, "--nodes", str(ranks), "--hang-timeout", str(HANG_TIMEOUT))
        found = self.lab.again(name, 1)
        took = time.time() - found["attempts"][0]["begin"]
        found = self.lab.finish(name)
        if causes(found) != [("finished", None, "")] or found["attempts"][0]["stragglers"]:
            return f"undisturbed, and {found['attempts']}"
        result = self.lab.result(name)
        if result.samples not in (f"samples {all_samples(STEPS)!r}", "each sample once"):
            return f"not all samples were read once: {result}"
        known = self.results.setdefault(ranks, (result, took))
        return "" if known[0] == result else f"the results of two undisturbed runs differ: {known[0]} and {result}"

    def reference(self, ranks: int) -> tuple[Outcome, float]:
        """Return the result of an undisturbed run with this many ranks, and the seconds until its first step."""
        if ranks not in self.results:
            wrong = self.undisturbed(ranks)
            assert not wrong, wrong
        return self.results[ranks]

    def experiment(self, experiment: Experiment) -> str:
        """Disturb a run. Returns what is wrong with it."""
        ranks = int(experiment.options[1])
        result, starting = self.reference(ranks)
        name = self.name(experiment.kind)
        self.lab.idle()
        extra = self.lab.program.saving if experiment.kind == "checkpoint" else ()
        self.lab.begin(name, *experiment.options, extra=extra)
        # The start of this run is a better measure than that of the reference on a busy machine.
        found = self.lab.again(name, 1)
        starting = max(starting, time.time() - found["attempts"][0]["begin"])
        found = self.lab.at_step(name, 1, experiment.step)
        hit = self.hit(experiment, name, found)
        try:
            wrong = self.await_next(experiment, name, hit, starting)
            found = self.lab.finish(name)
        finally:
            hit.undo()
        wrong += judge(experiment, found, hit.rank, hit.node, INTERVAL)
        if found["state"] == "finished":
            wrong += self.compare(name, found, ranks, result)
        return "; ".join(wrong)

    def await_next(self, experiment: Experiment, name: str, hit: Hit, starting: float) -> list[str]:
        """Wait until the next attempt makes steps, if one is required. Returns what is wrong."""
        if experiment.kind == "full":
            time.sleep(FILLED)
            hit.undo()
        if not expected(experiment.kind, hit.rank, hit.node):
            return []
        self.lab.again(name, 2)
        took = time.monotonic() - hit.at
        allowed = self.options.longest + starting + (HANG_TIMEOUT if experiment.kind == "stop" else 0)
        print(f"      {hit.node} (rank {hit.rank}) was hit; the next step after {took:.0f} s", flush=True)
        return [] if took <= allowed else [f"the next step came after {took:.0f} s, but was allowed {allowed:.0f} s"]

    def compare(self, name: str, found: Found, ranks: int, result: Outcome) -> list[str]:
        """Compare the result of a run with that of the undisturbed one. Returns what is wrong."""
        came = self.lab.result(name)
        if came.samples != result.samples:
            return [f"not all samples were read once: {came}; undisturbed: {result}"]
        same = {attempt["world_size"] for attempt in found["attempts"]} == {ranks}
        return [f"the result is {came}; undisturbed: {result}"] if same and came != result else []

    # The faults

    def hit(self, experiment: Experiment, name: str, found: Found) -> Hit:
        """Disturb the run now."""
        lab, nodes = self.lab, found["attempts"][-1]["nodes"]
        rank = experiment.victim(nodes)
        node = nodes[rank]
        undo: Callable[[], object] = nothing
        at = time.monotonic()
        if experiment.kind == "rank":
            lab.signal(node, "KILL")
        elif experiment.kind == "checkpoint":
            lab.kill_writer(node, name)
            at = time.monotonic()
        elif experiment.kind == "stop":
            lab.signal(node, "STOP")
        elif experiment.kind == "agent":
            # The ranks of the agent may be gone with the node.
            lab.run(node, "pkill", "-KILL", "-f", rf"^\S*python\S* .*gpumesh-train agent$|{lab.program.process}")
        elif experiment.kind in ("node", "first"):
            lab.kill(node)
            undo = partial(lab.revive, node)
        elif experiment.kind == "slurmd":
            lab.run(node, "pkill", "-KILL", "-x", "slurmd")
            undo = partial(self.start_slurmd, node)
        elif experiment.kind == "network":
            interface = lab.interface(node)
            lab.link(node, interface, "down")
            undo = partial(lab.link, node, interface, "up")
        elif experiment.kind == "full":
            undo = partial(lab.fill().unlink, missing_ok=True)
        return Hit(rank, node, at, undo)

    def start_slurmd(self, node: str) -> None:
        """Start slurmd if nothing else has."""
        if not self.lab.run(node, "pgrep", "-x", "slurmd(-wlm)?", check=False):
            starts = "systemctl restart slurmd || supervisorctl start gpumesh-slurmd"
            self.lab.run(node, "sh", "-c", starts, check=False)

    # Stragglers

    def slow(self, experiment: Experiment) -> str:
        """Make a node slow during a run. Returns what is wrong."""
        lab, name = self.lab, self.name(experiment.kind)
        lab.idle()
        payload = ["--payload", "60000"] if experiment.kind == "link" else ["--work", "0.02"]
        lab.begin(name, "--nodes", "4", "--hang-timeout", "300", steps=100000, extra=payload)
        lab.at_step(name, 1, 3)
        time.sleep(BEFORE)
        found = lab.state(name)
        if found["attempts"][0]["stragglers"]:
            return f"named before any node was slow: {found['attempts'][0]['stragglers']}"
        node = found["attempts"][0]["nodes"][1 + experiment.rank % 3]
        at = time.monotonic()
        limit = {"cpu": lab.limit_cpu, "link": lab.limit_network}[experiment.kind]
        limit(node, SLOW_BY[experiment.kind])
        try:
            while (
                not (named := lab.state(name)["attempts"][0]["stragglers"])
                and time.monotonic() - at < 2 * self.options.named
            ):
                time.sleep(1)
            took = time.monotonic() - at
        finally:
            lab.train("cancel", name)
            limit(node, "")
        print(f"      {node} was made slow; after {took:.0f} s: {named}", flush=True)
        if [one["node"] for one in named] != [node]:
            return f"{node} is slow, but {named} was named"
        return "" if took <= self.options.named else f"it was named after {took:.0f} s"

    # All of it

    def one(self, kind: str, words: str, work: Callable[[], str]) -> None:
        """Run one experiment, and print its result."""
        began = time.monotonic()
        self.kinds[kind] += 1
        try:
            wrong = work()
        except (AssertionError, subprocess.SubprocessError, OSError, StopIteration) as error:
            wrong = f"{type(error).__name__}: {error}"
        print(f"{words}: {f'FAILED: {wrong}' if wrong else 'passed'} ({time.monotonic() - began:.0f} s)", flush=True)
        if not wrong:
            self.well[kind] += 1
            return
        self.failures.append(f"{words}: {wrong}")
        self.keep_logs()

    def keep_logs(self) -> None:
        """Save what helps to find why the last run failed."""
        folders = sorted(self.lab.runs.glob(f"{self.options.seed}-{self.number:03}-*"))
        for folder in folders:
            shutil.copytree(folder, self.logs / folder.name, dirs_exist_ok=True)
        self.logs.mkdir(parents=True, exist_ok=True)
        for host in ("gpu1", "gpu2", "gpu3", "gpu4"):
            said = self.lab.run(host, "sh", "-c", "tail -n 200 /var/log/slurm/*.log 2>&1", check=False)
            (self.logs / f"{self.number:03}-{host}.slurm").write_text(said, encoding="utf-8")

    def works(self) -> list[Work]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        if options.undisturbed:
            calm = partial(self.undisturbed, 4)
            return [("undisturbed", f"{number + 1:4}  undisturbed", calm) for number in range(options.undisturbed)]
        chosen = options.experiment or draw(random.Random(options.seed), options.count, options.kinds)
        return [
            (one.kind, f"{number:4}  {one}", partial(self.slow if one.kind in SLOW else self.experiment, one))
            for number, one in enumerate(chosen, 1)
        ]

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        options = self.options
        print(f"seed {options.seed}", flush=True)
        try:
            if not options.running:
                self.up()
            self.bring()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"FAILED before anything was hit: {error}")
            return 1
        for work in self.works():
            self.one(*work)
            if self.failures and options.stop:
                break
        for kind, count in sorted(self.kinds.items()):
            print(f"{kind:12} {self.well[kind]} of {count}")
        print(f"{sum(self.kinds.values())} runs, {len(self.failures)} failed; seed {options.seed}; logs in {self.logs}")
        for line in self.failures:
            print(f"FAILED {line}")
        if not (options.keep or options.running or (self.failures and options.stop)):
            self.down()
        return 1 if self.failures else 0


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    sys.exit(Session(options, FULL if options.full else SMALL).run())


if __name__ == "__main__":
    main()
