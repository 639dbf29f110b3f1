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
from arguments import create_parser, split_list
from lab_hosts import ROOT
from program_faults import (
    ALL_PROGRAMS,
    FAULTS,
    FULL_EXAMPLE,
    STEP_COUNT,
    Fault,
    FaultVictim,
    ProgramExperiment,
    draw_experiments,
    find_delays,
    find_differences,
    find_problems,
    find_victim,
    redraw_moment,
)
from train_frameworks import ENV_COMMAND, PROGRAM_DIRECTORY, VENV_PYTHON
from train_programs import FULL_PROGRAM, MANAGER, OTHER_HOSTS, TRAINER_PATH, TrainingProgram
from train_runs import CHECKPOINT_INTERVAL, ENDED_STATES, RunStatus, list_causes

LAUNCHER_PATH = "/mnt/shared/launched.py"
#: The arguments of the programs besides the number of steps.
PROGRAM_ARGUMENTS = {
    "hf": ("hf.py", "--steps"),
    "lightning": ("lightning_fit.py", "--steps"),
    "nano": ("nano.py", "--init_from=auto", f"--eval_interval={CHECKPOINT_INTERVAL}", "--max_iters"),
    "jax": ("jax_fit.py", "--steps"),
    "accelerate": ("accelerate_loop.py", "--steps"),
}
#: The text that examples/full prints about the samples that it has read.
CLEAN_SAMPLES = "each sample once"
#: The number of times that a fault that came too late is drawn again.
MAX_TRIES = 5
#: Seconds for a run to end. Slurm may take minutes to start another job.
RUN_TIMEOUT = 1200.0
FULL_VOLUME_SECONDS = 20.0
#: Undisturbed runs: their steps, with two checkpoints and a validation, and how long these take.
UNDISTURBED_STEPS = 25
SLOW_OPTIONS = ("--starting", "180", "--validating", "120", "--saving", "90")

RANK_PATTERN = rf"^\S*python\S* {LAUNCHER_PATH} "
AGENT_PATTERN = r"^\S*python\S* .*gpumesh-train agent$"
#: The signal by fault, and the processes on the node that is hit.
SIGNALS_BY_FAULT = {
    **dict.fromkeys(("rank", "ranks", "twice", "torn"), ("KILL", RANK_PATTERN)),
    "stop": ("STOP", RANK_PATTERN),
    "agent": ("KILL", AGENT_PATTERN),
    "asleep": ("STOP", AGENT_PATTERN),
    "supervisor": ("KILL", r"^\S*python\S* .*gpumesh-train supervise "),
    "script": ("KILL", r"^\S*sh \S*/slurm_script"),
    "batch": ("KILL", r"^slurmstepd: \[{job}\.batch\]"),
    "stepd": ("KILL", r"^slurmstepd: \[{job}\.[0-9]+\]"),
}


class TooLateError(Exception):
    """The run has ended before it was hit."""


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__, "chaos-programs", "10.79.84")
    parser.add_argument("--count", type=int, default=40, help="random experiments (40)")
    parser.add_argument("--only", type=int, help="only the experiment with this number")
    parser.add_argument("--programs", type=split_list, default=list(ALL_PROGRAMS), help="of " + ",".join(ALL_PROGRAMS))
    parser.add_argument("--faults", type=split_list, default=list(FAULTS), help="of " + ",".join(FAULTS))
    parser.add_argument("--undisturbed", type=int, default=0, help="this many undisturbed runs instead of experiments")
    parser.add_argument(
        "--within",
        type=float,
        default=0.0,
        help="also require the next step within these seconds of a fault, and that no rank is called slow. Both depend on "
        "the speed of the machine, which must do nothing else",
    )
    options = parser.parse_args()
    for name, allowed_names in (("programs", ALL_PROGRAMS), ("faults", FAULTS)):
        unknown = [choice for choice in getattr(options, name) if choice not in allowed_names]
        if unknown or not getattr(options, name):
            parser.error(f"--{name}: {', '.join(unknown) or 'none'}. Choose from {', '.join(allowed_names)}.")
    return options


def build_command(program: str, pause: float) -> list[str]:
    """Return the options of gpumesh-train and the command line for a program."""
    launcher_arguments = (LAUNCHER_PATH, str(pause))
    if program == FULL_EXAMPLE:
        argv = FULL_PROGRAM.rank_command(STEP_COUNT, CHECKPOINT_INTERVAL)
        program_index = argv.index("train.py")
        return [*FULL_PROGRAM.train_options, "--", *argv[:program_index], *launcher_arguments, *argv[program_index:]]
    script, *program_options = PROGRAM_ARGUMENTS[program]
    return [
        "--",
        *ENV_COMMAND,
        VENV_PYTHON,
        *launcher_arguments,
        f"{PROGRAM_DIRECTORY}/{script}",
        *program_options,
        str(STEP_COUNT),
    ]


class ProgramSuite(train.TrainSuite):
    """All experiments of one invocation."""

    # The volume also contains the packages.
    volume_size = "3g"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, TrainingProgram((), SIGNALS_BY_FAULT["rank"][1], ""))
        #: The ends of undisturbed runs, by program and ranks per node.
        self.undisturbed_ends: dict[tuple[str, Sequence[str]], RunStatus] = {}
        #: The time when the present run was hit, by the clock of time.monotonic().
        self.hit_time = 0.0

    def copy_programs(self) -> None:
        """Copy the programs to where runs expect them."""
        train_frameworks.install_frameworks(self.lab, "requirements.txt", "requirements-jax.txt")
        FULL_PROGRAM.copy_program(self.lab)
        shutil.copy(Path(__file__).with_name("launched.py"), self.lab.shared_volume)
        shutil.copy(ROOT / "extensions" / "molecule" / "work" / "tests" / "trainer.py", self.lab.shared_volume)

    def list_experiments(self) -> list[train.ExperimentTask]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        if options.undisturbed:
            return self.list_undisturbed_runs(options.undisturbed)
        drawn_experiments = draw_experiments(
            options.seed, max(options.count, options.only or 0), options.programs, options.faults
        )
        numbered_experiments = [
            (number, experiment)
            for number, experiment in enumerate(drawn_experiments)
            if options.only in (None, number + 1)
        ]
        return [
            (experiment.fault, f"{number + 1:4}  {experiment}", partial(self.disturb_in_time, number, experiment))
            for number, experiment in numbered_experiments
        ]

    def run_experiment(self, kind: str, description: str, experiment_function: Callable[[], str]) -> None:
        """Run one experiment, and print its result, and how to repeat it."""
        failure_count = len(self.failures)
        super().run_experiment(kind, description, experiment_function)
        if len(self.failures) > failure_count:
            print(f"      repeat it: {self.repeat_command(int(description.split(maxsplit=1)[0]))}", flush=True)

    def repeat_command(self, number: int) -> str:
        """Return the command for one experiment."""
        options = self.options
        argv = ["python", "tests/chaos/programs.py", "--seed", str(options.seed)]
        argv += ["--within", str(options.within)] if options.within else []
        if options.undisturbed:
            return shlex.join([*argv, "--undisturbed", str(options.undisturbed)])
        argv += ["--only", str(number)]
        argv += ["--programs", ",".join(options.programs)] if options.programs != list(ALL_PROGRAMS) else []
        argv += ["--faults", ",".join(options.faults)] if options.faults != list(FAULTS) else []
        return shlex.join(argv)

    # Undisturbed runs

    def list_undisturbed_runs(self, count: int) -> list[train.ExperimentTask]:
        """Return runs that share the nodes, eight at a time: they sleep most of the time."""
        names = [f"{self.options.seed}-calm-{number + 1}" for number in range(count)]

        def judge_run(number: int) -> str:
            if number == 0:
                self.lab.clear_queue()
                for position, name in enumerate(names):
                    self.start_undisturbed(name, bool(position % 2))
            return self.judge_undisturbed(names[number], count)

        return [
            (
                "undisturbed",
                f"{number + 1:4}  undisturbed: {'short limit, busy' if number % 2 else 'default limit'}",
                experiment_function,
            )
            for number, experiment_function in enumerate(partial(judge_run, number) for number in range(count))
        ]

    def start_undisturbed(self, name: str, short_limit: bool) -> None:
        """Submit a run whose pauses the default limit allows, or one that says how long they may take."""
        limits, busy = (("--hang-timeout", "60"), ("--busy",)) if short_limit else ((), ())
        argv = ("python3", TRAINER_PATH, str(UNDISTURBED_STEPS), "0.5", *SLOW_OPTIONS, *busy)
        shared = ("--sbatch", "--cpus-per-task=2")
        self.lab.run_train("--detach", "--name", name, "--nodes", "2", *limits, *shared, "--", *argv)

    def judge_undisturbed(self, name: str, count: int) -> str:
        """Wait for the end of a run. Returns what is wrong with it."""
        run_status = self.lab.await_end(name, count * RUN_TIMEOUT)
        problems = (
            []
            if list_causes(run_status) == [("finished", None, "")]
            else [f"undisturbed, and {run_status['attempts']}"]
        )
        return "; ".join(problems + (find_delays(FAULTS["slurmd"], run_status, None, 0) if self.options.within else []))

    # Disturbed runs

    def disturb_in_time(self, number: int, experiment: ProgramExperiment) -> str:
        """Disturb a run, and again if it was too late. Returns what is wrong."""
        for try_number in range(1, MAX_TRIES + 1):
            try:
                return self.run_with_fault(experiment)
            except TooLateError:
                experiment = redraw_moment(experiment, self.options.seed, number, try_number)
                print(f"      it has ended before it was hit; now {experiment}", flush=True)
        return f"it was not hit in {MAX_TRIES} runs"

    def run_undisturbed_program(self, program: str, rank_options: Sequence[str]) -> RunStatus:
        """Return the end of an undisturbed run."""
        if (program, rank_options) not in self.undisturbed_ends:
            name = self.new_run_name(f"calm-{program}")
            self.lab.clear_queue()
            options = ("--nodes", "2", *rank_options)
            self.lab.run_train("--detach", "--name", name, *options, *build_command(program, 0.0))
            run_status = self.lab.await_end(name, RUN_TIMEOUT)
            assert list_causes(run_status) == [("finished", None, "")], f"undisturbed, and {run_status['attempts']}"
            self.undisturbed_ends[program, rank_options] = run_status
        return self.undisturbed_ends[program, rank_options]

    def run_with_fault(self, experiment: ProgramExperiment) -> str:
        """Disturb a run. Returns what is wrong with it. Raises TooLateError."""
        lab, fault = self.lab, FAULTS[experiment.fault]
        rank_options = tuple(fault.train_options) if "--ranks-per-node" in fault.train_options else ()
        undisturbed_status = self.run_undisturbed_program(experiment.program, rank_options)
        # The name must come after that of the other run: the logs of the last one are kept.
        name = self.new_run_name(experiment.fault)
        lab.clear_queue()
        options, argv = self.split_arguments(build_command(experiment.program, fault.step_pause))
        lab.run_train("--detach", "--name", name, *options, *fault.train_arguments, *argv)
        undo: Callable[[], object] = train.undo_nothing
        victim, step_delay = FaultVictim(), None
        try:
            if experiment.fault == "away":
                self.start_without_volume(name)
            elif experiment.fault != "limit":
                run_status = self.await_fault_step(name, experiment.step)
                victim = find_victim(fault, experiment.rank, run_status["attempts"][-1])
                self.hit_time = time.monotonic()
                undo = self.trigger_fault(experiment.fault, name, victim, run_status)
                step_delay = self.await_recovery(fault, name)
                if experiment.fault == "asleep":
                    undo()
            run_status = self.lab.await_end(name, RUN_TIMEOUT)
        finally:
            undo()
        problems = find_problems(fault, victim, run_status) + (
            find_differences(experiment.program, run_status, undisturbed_status) if fault.state == "finished" else []
        )
        if (
            experiment.program == FULL_EXAMPLE
            and fault.state == "finished"
            and FULL_PROGRAM.parse_outcome(self.read_last_line(name, run_status)).samples != CLEAN_SAMPLES
        ):
            problems.append(f"not all samples were read once: {self.read_last_line(name, run_status)}")
        print(
            f"      {victim.node or 'the run'} was hit"
            + (f"; the next step after {step_delay:.0f} s" if step_delay else ""),
            flush=True,
        )
        return "; ".join(
            problems + (find_delays(fault, run_status, step_delay, self.options.within) if self.options.within else [])
        )

    @staticmethod
    def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
        """Split into options, and what comes after them: those for sbatch must be the last ones."""
        separator_index = arguments.index("--")
        return arguments[:separator_index], arguments[separator_index:]

    def read_last_line(self, name: str, run_status: RunStatus) -> str:
        """Return the last line of rank 0."""
        log = self.lab.runs_directory / name / "attempts" / f"{len(run_status['attempts']):03}" / "rank-0.log"
        return log.read_text(encoding="utf-8").splitlines()[-1]

    def await_fault_step(self, name: str, step: int) -> RunStatus:
        """Wait until the run has made a step. Raises TooLateError."""
        description = f"has made {step} steps"
        run_status = self.lab.await_run(
            name,
            description,
            lambda current_status: current_status["state"] in ENDED_STATES or (current_status.get("step") or 0) >= step,
            RUN_TIMEOUT,
            0.3,
        )
        if run_status["state"] == "finished":
            raise TooLateError
        assert run_status["state"] not in ENDED_STATES, (
            f"before it was hit, the run was {run_status['state']}: {run_status['detail']}"
        )
        return run_status

    def await_recovery(self, fault: Fault, name: str) -> float | None:
        """Wait for the first step after the fault, if one has to come. Returns the seconds that it took."""
        if not fault.attempt_range[0] or fault.state != "finished":
            return None

        has_ended = self.lab.end_condition(name)

        def is_recovered(current_status: RunStatus) -> bool:
            attempts = current_status["attempts"]
            return has_ended(current_status) or (len(attempts) > 1 and attempts[-1]["first"] is not None)

        run_status = self.lab.await_run(name, "makes steps again", is_recovered, RUN_TIMEOUT, 0.3)
        return time.monotonic() - self.hit_time if len(run_status["attempts"]) > 1 else None

    # The faults

    def trigger_fault(
        self, fault_name: str, name: str, victim: FaultVictim, run_status: RunStatus
    ) -> Callable[[], object]:
        """Disturb the run. Returns how to undo it."""
        lab, node = self.lab, victim.node
        if FAULTS[fault_name].program_order:
            self.order_fault(fault_name, name, victim, run_status)
            return train.undo_nothing
        if fault_name in SIGNALS_BY_FAULT:
            return self.signal_processes(fault_name, name, victim, run_status)
        injectors = {
            **dict.fromkeys(("power", "spare", "first"), self.cut_power),
            **dict.fromkeys(("network", "leader"), self.cut_network),
            "drain": self.drain_node,
        }
        manager_commands = {
            "requeue": ("scontrol", "requeue", str(run_status["job"])),
            "slurmctld": ("systemctl", "restart", "slurmctld"),
        }
        if fault_name in injectors:
            return injectors[fault_name](node)
        if fault_name == "dark":
            lab.kill(MANAGER, *OTHER_HOSTS)
            # The time without power is not the run's.
            self.hit_time = time.monotonic()
            lab.restore_power(MANAGER, *OTHER_HOSTS)
        elif fault_name == "slurmd":
            lab.run(node, "pkill", "-KILL", "-x", "slurmd")
            self.start_slurmd(node)
        elif fault_name in manager_commands:
            lab.run(MANAGER, *manager_commands[fault_name])
        elif fault_name == "full":
            assert os.path.ismount(lab.shared_volume), "the shared volume has no file system of its own"
            filler = lab.fill_volume()
            time.sleep(FULL_VOLUME_SECONDS)
            filler.unlink()
        return train.undo_nothing

    def signal_processes(
        self, fault_name: str, name: str, victim: FaultVictim, run_status: RunStatus
    ) -> Callable[[], object]:
        """Kill or stop processes on the node that is hit. Returns how to undo it."""
        signal, pattern = SIGNALS_BY_FAULT[fault_name]
        if fault_name == "torn":
            self.truncate_checkpoint(name)
        self.lab.run(victim.node, "pkill", f"-{signal}", "-f", pattern.replace("{job}", str(run_status["job"])))
        if fault_name == "twice":
            self.kill_restarted_rank(run_status, victim, pattern)
        resume_processes = partial(self.lab.run, victim.node, "pkill", "-CONT", "-f", pattern, check=False)
        return resume_processes if fault_name == "asleep" else train.undo_nothing

    def order_fault(self, fault_name: str, name: str, victim: FaultVictim, run_status: RunStatus) -> None:
        """Let the program itself fail; see launched.py."""
        # The step is in the middle between two checkpoints, so that each attempt gets there.
        order: dict[str, object] = {
            "kind": FAULTS[fault_name].program_order,
            "step": (run_status["step"] // 10 + 1) * 10 + 5,
        }
        if fault_name in ("ecc", "bad"):
            order["node"] = victim.node
        elif victim.rank is not None:
            order["rank"] = victim.rank
        if fault_name == "memory":
            order["attempt"] = len(run_status["attempts"])
        path = self.lab.runs_directory / name / "fault"
        path.with_suffix(".new").write_text(json.dumps(order), encoding="ascii")
        os.replace(path.with_suffix(".new"), path)

    def kill_restarted_rank(self, run_status: RunStatus, victim: FaultVictim, pattern: str) -> None:
        """Kill the rank on the other node as soon as it is there again."""
        (other_node,) = set(run_status["attempts"][-1]["nodes"]) - {victim.node}
        former_pids = self.lab.run(other_node, "pgrep", "-f", pattern, check=False).split()

        def is_restarted() -> bool:
            current_pids = self.lab.run(other_node, "pgrep", "-f", pattern, check=False).split()
            return bool(set(current_pids) - set(former_pids))

        self.lab.wait_until("the other rank is there again", is_restarted, RUN_TIMEOUT, 0.3)
        self.lab.run(other_node, "pkill", "-KILL", "-f", pattern)

    def truncate_checkpoint(self, name: str) -> None:
        """Cut off the newest checkpoint, as a file system may that has lost its power."""
        checkpoints = (self.lab.runs_directory / name / "checkpoints").iterdir()
        newest = max(checkpoints, key=lambda path: path.stat().st_mtime)
        files = [path for path in (newest, *newest.rglob("*")) if path.is_file()]
        largest = max(files, key=lambda path: path.stat().st_size)
        os.truncate(largest, largest.stat().st_size // 2)

    def cut_power(self, node: str) -> Callable[[], object]:
        """Cut the power of a node."""
        self.lab.kill(node)
        return partial(self.lab.restore_power, node)

    def cut_network(self, node: str) -> Callable[[], object]:
        """Cut a node off."""
        interface = self.lab.find_interface(node)
        self.lab.set_link(node, interface, "down")
        return partial(self.lab.set_link, node, interface, "up")

    def drain_node(self, node: str) -> Callable[[], object]:
        """Drain a node."""
        update = ("scontrol", "update", f"nodename={node}")
        self.lab.run(MANAGER, *update, "state=drain", "reason=chaos")
        return partial(self.lab.run, MANAGER, *update, "state=resume", check=False)

    def start_without_volume(self, name: str) -> None:
        """Start a held job while its nodes do not have the volume, as on a soft mount whose server has not been found."""
        lab, waiting_comment = self.lab, "gpumesh-train: waiting for the volume of"
        for node in OTHER_HOSTS:
            lab.run(node, "mount", "-t", "tmpfs", "-o", "size=64k", "absent", "/mnt/shared")
        try:
            lab.run(MANAGER, "sh", "-c", "scontrol release $(squeue --noheader --states=pending --format=%A)")
            comments_command = ("squeue", "--noheader", "--states=running", "--Format=comment:80")
            lab.wait_until(
                "the job waits for the volume",
                lambda: waiting_comment in lab.run(MANAGER, *comments_command),
                RUN_TIMEOUT,
            )
            assert lab.read_status(name)["state"] == "queued"
        finally:
            for node in OTHER_HOSTS:
                lab.run(node, "umount", "/mnt/shared")


def main() -> None:
    """Run the experiments."""
    sys.exit(ProgramSuite(read_arguments()).run())


if __name__ == "__main__":
    main()
