# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let faults hit runs of examples/full and of examples/frameworks: each must be handled, and the right one blamed.

    make chaos PART=programs                                     # 40 faults, half of them in examples/full
    python tests/chaos/programs.py --count 40 --seed 7 --within 60
    python tests/chaos/programs.py --seed 7 --only 12            # repeat one
    python tests/chaos/programs.py --faults power,first --programs nano,jax
    python tests/chaos/programs.py --undisturbed 20              # slow starts, validations and checkpoints: no false alarms

Each run must finish, or stop if the program is at fault; name the cause and the culprit, and no other node; use as many
ranks as there can be; and have the loss of an undisturbed run, to the bit if the number of ranks is the same. A fault
that came too late is drawn again. The seed is printed first. With the same seed, programs and faults, the experiments
are the same. The hosts are a lab of their own, with a control group for memory. Logs are in .lab/NAME-logs/. Exits 1 if
an experiment failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import train
import train_frameworks
from arguments import listed, new_parser
from lab_hosts import ROOT
from program_faults import (
    FAULTS,
    OWN,
    PROGRAMS,
    STEPS,
    Experiment,
    Fault,
    Hit,
    again,
    differs,
    draw,
    judge,
    too_late,
    victim,
)
from train_frameworks import FOLDER, PYTHON, VARIABLES
from train_programs import FULL, MANAGER, OTHERS, TRAINER, Program
from train_runs import ENDED, INTERVAL, Found, causes

LAUNCHED = "/mnt/shared/launched.py"
#: The arguments of the programs besides the number of steps.
ARGUMENTS = {
    "hf": ("hf.py", "--steps"),
    "lightning": ("lightning_fit.py", "--steps"),
    "nano": ("nano.py", "--init_from=auto", f"--eval_interval={INTERVAL}", "--max_iters"),
    "jax": ("jax_fit.py", "--steps"),
    "accelerate": ("accelerate_loop.py", "--steps"),
}
#: The text that examples/full prints about the samples that it has read.
CLEAN = "each sample once"
#: The number of times that a fault that came too late is drawn again.
TRIES = 5
#: Seconds for a run to end. Slurm may take minutes to start another job.
ENDS = 1200.0
FILLED = 20.0
#: Undisturbed runs: their steps, with two checkpoints and a validation, and how long these take.
CALM = 25
SLOW = ("--starting", "180", "--validating", "120", "--saving", "90")

RANK = rf"^\S*python\S* {LAUNCHED} "
AGENT = r"^\S*python\S* .*gpumesh-train agent$"
#: The signal by fault, and the processes on the node that is hit.
SIGNALS = {
    **dict.fromkeys(("rank", "ranks", "twice", "torn"), ("KILL", RANK)),
    "stop": ("STOP", RANK),
    "agent": ("KILL", AGENT),
    "asleep": ("STOP", AGENT),
    "supervisor": ("KILL", r"^\S*python\S* .*gpumesh-train supervise "),
    "script": ("KILL", r"^\S*sh \S*/slurm_script"),
    "batch": ("KILL", r"^slurmstepd: \[{job}\.batch\]"),
    "stepd": ("KILL", r"^slurmstepd: \[{job}\.[0-9]+\]"),
}


class TooLateError(Exception):
    """The run has ended before it was hit."""


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, "chaos-programs", "10.79.84")
    parser.add_argument("--count", type=int, default=40, help="random experiments (40)")
    parser.add_argument("--only", type=int, help="only the experiment with this number")
    parser.add_argument("--programs", type=listed, default=list(PROGRAMS), help="of " + ",".join(PROGRAMS))
    parser.add_argument("--faults", type=listed, default=list(FAULTS), help="of " + ",".join(FAULTS))
    parser.add_argument("--undisturbed", type=int, default=0, help="this many undisturbed runs instead of experiments")
    parser.add_argument(
        "--within",
        type=float,
        default=0.0,
        help="also require the next step within these seconds of a fault, and that no rank is called slow. Both depend on "
        "the speed of the machine, which must do nothing else",
    )
    options = parser.parse_args()
    for name, known in (("programs", PROGRAMS), ("faults", FAULTS)):
        unknown = [word for word in getattr(options, name) if word not in known]
        if unknown or not getattr(options, name):
            parser.error(f"--{name}: {', '.join(unknown) or 'none'}. Choose from {', '.join(known)}.")
    return options


def command(program: str, pause: float) -> list[str]:
    """Return the options of gpumesh-train and the command line for a program."""
    launched = (LAUNCHED, str(pause))
    if program == OWN:
        argv = FULL.argv(STEPS, INTERVAL)
        at = argv.index("train.py")
        return [*FULL.options, "--", *argv[:at], *launched, *argv[at:]]
    script, *rest = ARGUMENTS[program]
    return ["--", *VARIABLES, PYTHON, *launched, f"{FOLDER}/{script}", *rest, str(STEPS)]


class Session(train.Session):
    """All experiments of one invocation."""

    # The volume also contains the packages.
    size = "3g"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, Program((), SIGNALS["rank"][1], ""))
        #: The ends of undisturbed runs, by program and ranks per node.
        self.calm: dict[tuple[str, Sequence[str]], Found] = {}
        #: The time when the present run was hit, by the clock of time.monotonic().
        self.hit_at = 0.0

    def bring(self) -> None:
        """Copy the programs to where runs expect them."""
        train_frameworks.bring(self.lab, "requirements.txt", "requirements-jax.txt")
        FULL.bring(self.lab)
        shutil.copy(Path(__file__).with_name("launched.py"), self.lab.shared)
        shutil.copy(ROOT / "extensions" / "molecule" / "work" / "tests" / "trainer.py", self.lab.shared)

    def works(self) -> list[train.Work]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        if options.undisturbed:
            return self.undisturbed_works(options.undisturbed)
        drawn = draw(options.seed, max(options.count, options.only or 0), options.programs, options.faults)
        numbered = [(number, one) for number, one in enumerate(drawn) if options.only in (None, number + 1)]
        return [
            (one.fault, f"{number + 1:4}  {one}", partial(self.hit_in_time, number, one)) for number, one in numbered
        ]

    def one(self, kind: str, words: str, work: Callable[[], str]) -> None:
        """Run one experiment, and print its result, and how to repeat it."""
        before = len(self.failures)
        super().one(kind, words, work)
        if len(self.failures) > before:
            print(f"      repeat it: {self.repeat(int(words.split(maxsplit=1)[0]))}", flush=True)

    def repeat(self, number: int) -> str:
        """Return the command for one experiment."""
        options = self.options
        argv = ["python", "tests/chaos/programs.py", "--seed", str(options.seed)]
        argv += ["--within", str(options.within)] if options.within else []
        if options.undisturbed:
            return shlex.join([*argv, "--undisturbed", str(options.undisturbed)])
        argv += ["--only", str(number)]
        argv += ["--programs", ",".join(options.programs)] if options.programs != list(PROGRAMS) else []
        argv += ["--faults", ",".join(options.faults)] if options.faults != list(FAULTS) else []
        return shlex.join(argv)

    # Undisturbed runs

    def undisturbed_works(self, count: int) -> list[train.Work]:
        """Return runs that share the nodes, eight at a time: they sleep most of the time."""
        names = [f"{self.options.seed}-calm-{number + 1}" for number in range(count)]

        def result(number: int) -> str:
            if number == 0:
                self.lab.idle()
                for position, name in enumerate(names):
                    self.begin_calm(name, bool(position % 2))
            return self.judge_calm(names[number], count)

        return [
            (
                "undisturbed",
                f"{number + 1:4}  undisturbed: {'short limit, busy' if number % 2 else 'default limit'}",
                work,
            )
            for number, work in enumerate(partial(result, number) for number in range(count))
        ]

    def begin_calm(self, name: str, short: bool) -> None:
        """Submit a run whose pauses the default limit allows, or one that says how long they may take."""
        limits, busy = (("--hang-timeout", "60"), ("--busy",)) if short else ((), ())
        argv = ("python3", TRAINER, str(CALM), "0.5", *SLOW, *busy)
        shared = ("--sbatch", "--cpus-per-task=2")
        self.lab.train("--detach", "--name", name, "--nodes", "2", *limits, *shared, "--", *argv)

    def judge_calm(self, name: str, count: int) -> str:
        """Wait for the end of a run. Returns what is wrong with it."""
        found = self.lab.finish(name, count * ENDS)
        wrong = [] if causes(found) == [("finished", None, "")] else [f"undisturbed, and {found['attempts']}"]
        return "; ".join(wrong + (too_late(FAULTS["slurmd"], found, None, 0) if self.options.within else []))

    # Disturbed runs

    def hit_in_time(self, number: int, one: Experiment) -> str:
        """Disturb a run, and again if it was too late. Returns what is wrong."""
        for tried in range(1, TRIES + 1):
            try:
                return self.disturb(one)
            except TooLateError:
                one = again(one, self.options.seed, number, tried)
                print(f"      it has ended before it was hit; now {one}", flush=True)
        return f"it was not hit in {TRIES} runs"

    def undisturbed_end(self, program: str, ranks: Sequence[str]) -> Found:
        """Return the end of an undisturbed run."""
        if (program, ranks) not in self.calm:
            name = self.name(f"calm-{program}")
            self.lab.idle()
            options = ("--nodes", "2", *ranks)
            self.lab.train("--detach", "--name", name, *options, *command(program, 0.0))
            found = self.lab.finish(name, ENDS)
            assert causes(found) == [("finished", None, "")], f"undisturbed, and {found['attempts']}"
            self.calm[program, ranks] = found
        return self.calm[program, ranks]

    def disturb(self, one: Experiment) -> str:
        """Disturb a run. Returns what is wrong with it. Raises TooLateError."""
        lab, fault = self.lab, FAULTS[one.fault]
        ranks = tuple(fault.options) if "--ranks-per-node" in fault.options else ()
        calm = self.undisturbed_end(one.program, ranks)
        # The name must come after that of the other run: the logs of the last one are kept.
        name = self.name(one.fault)
        lab.idle()
        options, argv = self.split(command(one.program, fault.pause))
        lab.train("--detach", "--name", name, *options, *fault.argv, *argv)
        undo: Callable[[], object] = train.nothing
        hit, took = Hit(), None
        try:
            if one.fault == "away":
                self.hide_volume(name)
            elif one.fault != "limit":
                found = self.at_step(name, one.step)
                hit = victim(fault, one.rank, found["attempts"][-1])
                self.hit_at = time.monotonic()
                undo = self.hit_now(one.fault, name, hit, found)
                took = self.await_step(fault, name)
                if one.fault == "asleep":
                    undo()
            found = self.lab.finish(name, ENDS)
        finally:
            undo()
        wrong = judge(fault, hit, found) + (differs(one.program, found, calm) if fault.state == "finished" else [])
        if (
            one.program == OWN
            and fault.state == "finished"
            and FULL.outcome(self.last_line(name, found)).samples != CLEAN
        ):
            wrong.append(f"not all samples were read once: {self.last_line(name, found)}")
        print(
            f"      {hit.node or 'the run'} was hit" + (f"; the next step after {took:.0f} s" if took else ""),
            flush=True,
        )
        return "; ".join(wrong + (too_late(fault, found, took, self.options.within) if self.options.within else []))

    @staticmethod
    def split(words: list[str]) -> tuple[list[str], list[str]]:
        """Split into options, and what comes after them: those for sbatch must be the last ones."""
        at = words.index("--")
        return words[:at], words[at:]

    def last_line(self, name: str, found: Found) -> str:
        """Return the last line of rank 0."""
        log = self.lab.runs / name / "attempts" / f"{len(found['attempts']):03}" / "rank-0.log"
        return log.read_text(encoding="utf-8").splitlines()[-1]

    def at_step(self, name: str, step: int) -> Found:
        """Wait until the run has made a step. Raises TooLateError."""
        what = f"has made {step} steps"
        found = self.lab.await_run(
            name, what, lambda now: now["state"] in ENDED or (now.get("step") or 0) >= step, ENDS, 0.3
        )
        if found["state"] == "finished":
            raise TooLateError
        assert found["state"] not in ENDED, f"before it was hit, the run was {found['state']}: {found['detail']}"
        return found

    def await_step(self, fault: Fault, name: str) -> float | None:
        """Wait for the first step after the fault, if one has to come. Returns the seconds that it took."""
        if not fault.times[0] or fault.state != "finished":
            return None

        ended = self.lab.end_of(name)

        def done(now: Found) -> bool:
            attempts = now["attempts"]
            return ended(now) or (len(attempts) > 1 and attempts[-1]["first"] is not None)

        found = self.lab.await_run(name, "makes steps again", done, ENDS, 0.3)
        return time.monotonic() - self.hit_at if len(found["attempts"]) > 1 else None

    # The faults

    def hit_now(self, kind: str, name: str, hit: Hit, found: Found) -> Callable[[], object]:
        """Disturb the run. Returns how to undo it."""
        lab, node = self.lab, hit.node
        if FAULTS[kind].order:
            self.order(kind, name, hit, found)
            return train.nothing
        if kind in SIGNALS:
            return self.signal(kind, name, hit, found)
        hitters = {
            **dict.fromkeys(("power", "spare", "first"), self.cut),
            **dict.fromkeys(("network", "leader"), self.unplug),
            "drain": self.drain,
        }
        of_manager = {
            "requeue": ("scontrol", "requeue", str(found["job"])),
            "slurmctld": ("systemctl", "restart", "slurmctld"),
        }
        if kind in hitters:
            return hitters[kind](node)
        if kind == "dark":
            lab.kill(MANAGER, *OTHERS)
            # The time without power is not the run's.
            self.hit_at = time.monotonic()
            lab.revive(MANAGER, *OTHERS)
        elif kind == "slurmd":
            lab.run(node, "pkill", "-KILL", "-x", "slurmd")
            self.start_slurmd(node)
        elif kind in of_manager:
            lab.run(MANAGER, *of_manager[kind])
        elif kind == "full":
            assert os.path.ismount(lab.shared), "the shared volume has no file system of its own"
            filler = lab.fill()
            time.sleep(FILLED)
            filler.unlink()
        return train.nothing

    def signal(self, kind: str, name: str, hit: Hit, found: Found) -> Callable[[], object]:
        """Kill or stop processes on the node that is hit. Returns how to undo it."""
        signal, pattern = SIGNALS[kind]
        if kind == "torn":
            self.tear(name)
        self.lab.run(hit.node, "pkill", f"-{signal}", "-f", pattern.replace("{job}", str(found["job"])))
        if kind == "twice":
            self.kill_again(found, hit, pattern)
        wake = partial(self.lab.run, hit.node, "pkill", "-CONT", "-f", pattern, check=False)
        return wake if kind == "asleep" else train.nothing

    def order(self, kind: str, name: str, hit: Hit, found: Found) -> None:
        """Let the program itself fail; see launched.py."""
        # The step is in the middle between two checkpoints, so that each attempt gets there.
        order: dict[str, object] = {"kind": FAULTS[kind].order, "step": (found["step"] // 10 + 1) * 10 + 5}
        if kind in ("ecc", "bad"):
            order["node"] = hit.node
        elif hit.rank is not None:
            order["rank"] = hit.rank
        if kind == "memory":
            order["attempt"] = len(found["attempts"])
        path = self.lab.runs / name / "fault"
        path.with_suffix(".new").write_text(json.dumps(order), encoding="ascii")
        os.replace(path.with_suffix(".new"), path)

    def kill_again(self, found: Found, hit: Hit, pattern: str) -> None:
        """Kill the rank on the other node as soon as it is there again."""
        (other,) = set(found["attempts"][-1]["nodes"]) - {hit.node}
        before = self.lab.run(other, "pgrep", "-f", pattern, check=False).split()

        def there() -> bool:
            now = self.lab.run(other, "pgrep", "-f", pattern, check=False).split()
            return bool(set(now) - set(before))

        self.lab.wait("the other rank is there again", there, ENDS, 0.3)
        self.lab.run(other, "pkill", "-KILL", "-f", pattern)

    def tear(self, name: str) -> None:
        """Cut off the newest checkpoint, as a file system may that has lost its power."""
        checkpoints = (self.lab.runs / name / "checkpoints").iterdir()
        newest = max(checkpoints, key=lambda path: path.stat().st_mtime)
        files = [path for path in (newest, *newest.rglob("*")) if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)

    def cut(self, node: str) -> Callable[[], object]:
        """Cut the power of a node."""
        self.lab.kill(node)
        return partial(self.lab.revive, node)

    def unplug(self, node: str) -> Callable[[], object]:
        """Cut a node off."""
        interface = self.lab.interface(node)
        self.lab.link(node, interface, "down")
        return partial(self.lab.link, node, interface, "up")

    def drain(self, node: str) -> Callable[[], object]:
        """Drain a node."""
        update = ("scontrol", "update", f"nodename={node}")
        self.lab.run(MANAGER, *update, "state=drain", "reason=chaos")
        return partial(self.lab.run, MANAGER, *update, "state=resume", check=False)

    def hide_volume(self, name: str) -> None:
        """Start a held job while its nodes do not have the volume, as on a soft mount whose server has not been found."""
        lab, waits = self.lab, "gpumesh-train: waiting for the volume of"
        for node in OTHERS:
            lab.run(node, "mount", "-t", "tmpfs", "-o", "size=64k", "absent", "/mnt/shared")
        try:
            lab.run(MANAGER, "sh", "-c", "scontrol release $(squeue --noheader --states=pending --format=%A)")
            comments = ("squeue", "--noheader", "--states=running", "--Format=comment:80")
            lab.wait("the job waits for the volume", lambda: waits in lab.run(MANAGER, *comments), ENDS)
            assert lab.state(name)["state"] == "queued"
        finally:
            for node in OTHERS:
                lab.run(node, "umount", "/mnt/shared")


def main() -> None:
    """Run the experiments."""
    sys.exit(Session(read_arguments()).run())


if __name__ == "__main__":
    main()
