# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Disturb sessions of containers on three hosts, each once: nothing of a session may remain, whatever happens to it.

    make chaos PART=session                                      # 50 random kills, and a node that dies
    python tests/chaos/session.py --kills 20 --seed 7
    python tests/chaos/session.py --experiment prolog:0.250@gpu2x3 # repeat one: KIND:MOMENT@NODE, xTIMES
    python tests/chaos/session.py --kills 0 --row 50 --at-once 20
    LAB_RELEASE=bookworm make chaos PART=session                 # Debian 12

After each kill, the session is stopped, unless it has already ended. Within a minute there must be no namespace,
interface, route, container, mount, directory or process of it on any node, and then a session on all nodes must start,
with all of its containers. A prolog or an epilog is killed once, or each of the three times that Slurm's plugin runs
it. If the moment had passed, the experiment is `missed`: it is counted separately, and not as passed.

    --row       sessions that are started and stopped one after the other
    --at-once   sessions of two users at the same time, in each of which the containers reach each other by name
    --requeue   sessions whose node dies: they start again without it, with the same names and addresses

The seed is printed first. With the same seed, the experiments are the same. The hosts are a lab of their own. Logs are
in .lab/NAME-logs/. Exits 1 if an experiment failed.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from arguments import create_parser, split_list
from lab_hosts import ROOT, run_ansible, run_lab_playbook
from session_experiments import (
    KILL_KINDS,
    PROCESS_PATTERNS,
    REPEATED_KINDS,
    SessionExperiment,
    compare_containers,
    count_fitting,
    draw_experiments,
    find_problems,
    find_start_problem,
    outcome_of,
    parse_stages,
    plan_parallel_sessions,
    read_hits,
    read_seconds,
)
from session_lab import (
    CLEANUP_TIMEOUT,
    DEMO_ROLES,
    HOSTS,
    LAB,
    MANAGER,
    SCENARIO,
    SECOND_IMAGE,
    assert_clean,
    await_cleanup,
    find_containers,
    make_role,
    power_on,
    run_as,
    run_in_container,
    run_in_containers,
    use_lab,
    write_session_file,
)

USERS = ("alice", "bob")
#: The CPUs of a node, enough for 20 sessions at once, none of which has two containers on a node.
LAB_CPUS = 24
#: Seconds for a session to start: usually, when it fetches images, and with many at once on a busy machine.
START_TIMEOUT, FIRST_START_TIMEOUT, MANY_SESSIONS_TIMEOUT = 120, 600, 900
#: Seconds for the process that is to be hit to appear.
PROCESS_TIMEOUT = 60
#: Seconds for Slurm to restart a session whose node has died; Slurm itself waits two minutes.
REQUEUE_TIMEOUT = 600.0
#: One container on each node.
THREE_CONTAINERS = [make_role("main"), make_role("sub", replicas=2)]

#: A script that reports that it is watching, waits until a process appears and then for the delay, and hits one of the
#: processes that it found. A program that is run again after it was killed is hit again.
_KILL_SCRIPT = """
pattern=$1 patience=$2 delay=$3 times=$4 which=$5 what=$6
echo looking
for attempt in $(seq "$times"); do
    end=$(($(date +%s) + patience)) found=
    while test -z "$found" && test "$(date +%s)" -lt $end; do
        found=$(pgrep -f "$pattern")
        test -n "$found" || sleep 0.02
    done
    test -n "$found" || { echo missed; exit; }
    sleep "$delay"
    set -- $found
    shift $((which % $#))
    if test "$what" = slurmd; then
        test -e "/proc/$1" && systemctl restart slurmd && echo hit || echo missed
    else
        kill -KILL "$1" 2>/dev/null && echo hit || { echo missed; exit; }
    fi
    patience=5
done
"""
#: A script that reports that it is watching, and then how long a process exists, in nanoseconds.
_MEASURE_SCRIPT = """
echo looking
end=$(($(date +%s) + $2))
until pgrep -f "$1" >/dev/null || test "$(date +%s)" -ge $end; do sleep 0.02; done
began=$(date +%s%N)
while pgrep -f "$1" >/dev/null; do sleep 0.02; done
echo $(($(date +%s%N) - began))
"""


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = create_parser(__doc__, "chaos-session", "10.79.83")
    parser.add_argument("--kills", type=int, default=50, help="random experiments (50)")
    parser.add_argument("--kinds", type=split_list, default=list(KILL_KINDS), help="of " + ",".join(KILL_KINDS))
    parser.add_argument("--experiment", type=SessionExperiment.parse, nargs="+", default=[], help="only these kills")
    parser.add_argument("--requeue", type=int, default=1, help="number of sessions whose node dies (1)")
    parser.add_argument("--row", type=int, default=0, help="number of sessions one after the other (0)")
    parser.add_argument("--at-once", type=int, default=0, help="number of sessions at the same time (0)")
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KILL_KINDS)
    if unknown or not options.kinds:
        parser.error(f"--kinds: {', '.join(sorted(unknown)) or 'none'}. Choose from {', '.join(KILL_KINDS)}.")
    return options


class ProcessWatcher:
    """A program on a host that watches for a process. It is watching once this is created."""

    def __init__(self, host: str, script: str, *arguments: object) -> None:
        self._process = LAB.start_command(host, "sh", "-c", script, "-", *map(str, arguments))
        assert self._process.stdout is not None
        self._output = self._process.stdout
        line = self._output.readline()
        assert line == "looking\n", f"{host}: {line}{self._output.read()}"

    def result(self) -> str:
        """Wait for the program to end. Returns its output."""
        with self._process:
            try:
                self._process.wait(3 * PROCESS_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
            return self._output.read()


class SessionSuite:
    """All experiments of one invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.random_source = random.Random(options.seed)
        self.log_directory = ROOT / ".lab" / f"{options.lab}-logs"
        self.failures: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        #: Seconds that a prolog and an epilog take on each node.
        self.duration_by_program: dict[tuple[str, str], float] = {}
        #: The hosts whose power is off.
        self.hosts_without_power: set[str] = set()

    # The lab

    def create_hosts(self) -> None:
        """Create hosts with gpumesh-session."""
        self._run_lab_playbook("down")
        self._run_lab_playbook("up")
        converge_run = run_ansible("ansible-playbook", "-i", str(LAB.inventory), str(SCENARIO / "converge.yml"))
        assert converge_run.exit_status == 0, converge_run.failure_report

    def _run_lab_playbook(self, name: str) -> None:
        settings = {"lab_name": LAB.name, "work_network": self.options.network, "work_cpus": LAB_CPUS}
        run_lab_playbook(name, SCENARIO / "lab.yml", settings)

    def cut_power(self, host: str) -> None:
        """Cut the power of the host."""
        self.hosts_without_power.add(host)
        LAB.kill(host)

    def restore_power(self) -> None:
        """Restore the power of all hosts."""
        for host in sorted(self.hosts_without_power):
            power_on(host)
            self.hosts_without_power.discard(host)

    def await_idle(self) -> None:
        """Wait until all nodes are idle."""
        started_at = time.monotonic()
        LAB.await_idle(MANAGER)
        elapsed = time.monotonic() - started_at
        if elapsed > CLEANUP_TIMEOUT:
            print(f"      all nodes are idle after {elapsed:.0f} s", flush=True)

    def reset_lab(self) -> None:
        """End all sessions and restore all hosts, whatever has failed."""
        for user in USERS:
            LAB.run(MANAGER, "scancel", f"--user={user}", check=False)
        self.restore_power()

    # Sessions

    def start_session(
        self, roles: Sequence[dict[str, Any]], name: str, user: str = "alice", seconds: int = START_TIMEOUT
    ) -> str:
        """Start a session, and wait until it runs. Returns why it does not, or an empty string."""
        path = write_session_file(user, roles, session_name=name)
        argv = ("timeout", str(seconds), "gpumesh-session", "start", path)
        return find_start_problem(run_as(user, *argv, check=False, timeout=seconds + 60))

    def require_start(
        self, roles: Sequence[dict[str, Any]], name: str, user: str = "alice", seconds: int = FIRST_START_TIMEOUT
    ) -> None:
        """Start a session that nothing disturbs. Raises AssertionError if it does not run."""
        problem = self.start_session(roles, name, user, seconds)
        assert not problem, f"session {name} of {user} did not start: {problem}"

    def stop_session(self, name: str, user: str = "alice") -> None:
        """Stop a session, which may already have ended."""
        run_as(user, "gpumesh-session", "stop", name, check=False)

    def check_next_session(self) -> str:
        """Start a session on all nodes after an experiment. Returns what is wrong with it."""
        self.await_idle()
        problem = self.start_session(THREE_CONTAINERS, "next")
        if not problem:
            hostnames = run_in_containers("alice", "hostname", name="next", check=False)
            names = ["main1", "sub1", "sub2"]
            problem = "" if hostnames == {name: [name] for name in names} else f"its containers print {hostnames}"
        self.stop_session("next")
        leftovers_by_host = {host: leftovers for host, leftovers in await_cleanup().items() if leftovers}
        return problem or (f"it has left {leftovers_by_host}" if leftovers_by_host else "")

    def measure_programs(self) -> None:
        """Fetch the images of a user, and measure how long a prolog and an epilog take."""
        for host in HOSTS:
            self.await_idle()
            watcher = ProcessWatcher(host, _MEASURE_SCRIPT, PROCESS_PATTERNS["prolog"], PROCESS_TIMEOUT)
            self.require_start(DEMO_ROLES, "warm")
            self.duration_by_program["prolog", host] = read_seconds(watcher.result())
            watcher = ProcessWatcher(host, _MEASURE_SCRIPT, PROCESS_PATTERNS["epilog"], PROCESS_TIMEOUT)
            self.stop_session("warm")
            self.duration_by_program["epilog", host] = read_seconds(watcher.result())
            assert_clean()
            durations = ", ".join(f"{kind} {self.duration_by_program[kind, host]:.2f} s" for kind in REPEATED_KINDS)
            print(f"      undisturbed on {host}: {durations}", flush=True)

    # Kills

    def watch_process(self, experiment: SessionExperiment, host: str = "") -> ProcessWatcher:
        """Watch for the process that is to be hit."""
        arguments = (
            PROCESS_TIMEOUT,
            f"{experiment.hit_delay(self.duration_by_program):.3f}",
            experiment.hit_count,
            experiment.process_index,
            experiment.kind,
        )
        return ProcessWatcher(host or experiment.node, _KILL_SCRIPT, PROCESS_PATTERNS[experiment.kind], *arguments)

    def hit_session(self, experiment: SessionExperiment) -> tuple[int, list[str]]:
        """Hit a session. Returns how often it was hit, and what is wrong."""
        self.await_idle()
        early_watcher = self.watch_process(experiment) if experiment.kind not in ("epilog", "batch", "node") else None
        start_problem = self.start_session(DEMO_ROLES, "demo")
        hits = read_hits(early_watcher.result()) if early_watcher else self.hit_started_session(experiment)
        if experiment.kind != "epilog":
            self.end_experiment(experiment)
        leftovers = await_cleanup()
        problems = find_problems(hits, start_problem, leftovers, self.check_next_session())
        description = f"it has not started: {start_problem}" if start_problem else "it has started"
        print(f"      {hits} of {experiment.hit_count} hits; {description}", flush=True)
        return hits, problems

    def hit_started_session(self, experiment: SessionExperiment) -> int:
        """Hit a session that has started, or while it ends. Returns how often it was hit."""
        if experiment.kind == "node":
            time.sleep(experiment.hit_delay(self.duration_by_program))
            self.cut_power(experiment.node)
            return 1
        if experiment.kind == "batch":
            # The batch script runs on the node that Slurm has chosen.
            host = LAB.run(MANAGER, "squeue", "--noheader", "--user=alice", "--format=%B").strip()
            return read_hits(self.watch_process(experiment, host).result()) if host in HOSTS else 0
        watcher = self.watch_process(experiment)
        self.stop_session("demo")
        return read_hits(watcher.result())

    def end_experiment(self, experiment: SessionExperiment) -> None:
        """Stop the session. If a node has no power, that is either before or after it is restored."""
        if experiment.process_index % 2:
            self.restore_power()
        self.stop_session("demo")
        self.restore_power()

    # The others

    def requeue_session(self) -> str:
        """Cut the power of a node. Returns what is wrong with the session that is restarted without it."""
        self.await_idle()
        self.require_start([make_role("main", cpus=2), make_role("sub", SECOND_IMAGE, cpus=2)], "again")
        former_containers = find_containers("alice", "again")
        dead_node = self.random_source.choice(
            sorted({node for _address, node in former_containers.values()} - {MANAGER})
        )
        placement = ", ".join(f"{name} on {node}" for name, (_address, node) in former_containers.items())
        print(f"      {dead_node} dies: {placement}", flush=True)
        other_hosts = set(HOSTS) - {dead_node}
        try:
            self.cut_power(dead_node)
            LAB.wait_until("it runs on the other nodes", lambda: _session_nodes() == other_hosts, REQUEUE_TIMEOUT, 3.0)
            problems = compare_containers(former_containers, find_containers("alice", "again"), dead_node)
            problems += _check_ssh("alice", "again", "main1", "sub1")
        finally:
            self.restore_power()
            self.stop_session("again")
        assert_clean()
        return "; ".join(problems)

    def run_in_row(self) -> str:
        """Run sessions one after the other. Returns what they have left behind."""
        count = self.options.row
        self.await_idle()
        for number in range(1, count + 1):
            self.require_start(THREE_CONTAINERS, "row", seconds=START_TIMEOUT)
            self.stop_session("row")
            if not number % 10:
                print(f"      {number} of {count}", flush=True)
        assert_clean()
        return ""

    def run_at_once(self) -> str:
        """Run sessions at the same time. Returns what is wrong with any of them."""
        count = self.options.at_once
        self.await_idle()
        maximum = count_fitting(LAB.run(MANAGER, "sinfo", "--noheader", "--Node", "--format=%N|%c"))
        assert count <= maximum, (
            f"a node has {maximum} CPUs: give --at-once {maximum}, or use a lab with more (work_cpus)"
        )
        for user in USERS:
            self.require_start(THREE_CONTAINERS, "warm", user)
            self.stop_session("warm", user)
        assert_clean()
        sessions = plan_parallel_sessions(count)
        try:
            with ThreadPoolExecutor(max_workers=count) as pool:
                for output in pool.map(self._submit_session, *zip(*sessions)):
                    assert ": job " in output, output
            self._await_all([name for _user, name, _subs in sessions])
            with ThreadPoolExecutor(max_workers=4) as pool:
                problems = [
                    output
                    for session_problems in pool.map(self._check_names, *zip(*sessions))
                    for output in session_problems
                ]
        finally:
            with ThreadPoolExecutor(max_workers=4) as pool:
                list(pool.map(lambda entry: self.stop_session(entry[1], entry[0]), sessions))
        assert_clean()
        return "; ".join(problems)

    def _submit_session(self, user: str, name: str, sub_count: int) -> str:
        path = write_session_file(user, [make_role("main"), make_role("sub", replicas=sub_count)], session_name=name)
        return run_as(user, "gpumesh-session", "start", path, "--detach", check=False)

    def _await_all(self, names: Sequence[str]) -> None:
        """Wait until all of them run at the same time."""

        def are_running() -> bool:
            argv = ("squeue", "--noheader", "--states=all", "--format=%A|%j|%T|%k")
            stage_by_session = parse_stages(LAB.run(MANAGER, *argv))
            failed = [
                f"{name} is {stage_by_session[name]}"
                for name in names
                if stage_by_session.get(name) in ("failed", "cancelled", "timeout")
            ]
            assert not failed, failed
            return all(stage_by_session.get(name) == "running" for name in names)

        started_at = time.monotonic()
        LAB.wait_until(f"{len(names)} sessions run", are_running, MANY_SESSIONS_TIMEOUT, 3.0)
        print(f"      {len(names)} sessions run after {time.monotonic() - started_at:.0f} s", flush=True)

    def _check_names(self, user: str, name: str, sub_count: int) -> list[str]:
        """Return what is wrong with the names of a session."""
        containers = ["main1", *(f"sub{number + 1}" for number in range(sub_count))]
        pairs = zip(containers, [*containers[1:], containers[0]])
        return [problem for pair in pairs for problem in _check_ssh(user, name, *pair)]

    # All of it

    def run_experiment(
        self, number: int, kind: str, description: str, experiment_function: Callable[[], tuple[int, list[str]]]
    ) -> None:
        """Run one experiment, and print its result."""
        started_at = time.monotonic()
        hits = 1
        try:
            hits, problems = experiment_function()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        outcome = outcome_of(hits, problems)
        self.counts[kind, outcome] += 1
        result = f"FAILED: {'; '.join(problems)}" if problems else outcome
        print(f"{number:4}  {description}: {result} ({time.monotonic() - started_at:.0f} s)", flush=True)
        if not problems:
            return
        self.failures.append(f"{description}: {'; '.join(problems)}")
        self.save_logs(number)
        if not self.options.stop:
            self.reset_lab()

    def save_logs(self, number: int) -> None:
        """Save what helps to find the cause of a failure."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        log_commands = (
            "tail -n 300 /var/log/slurm/*.log; journalctl --boot --lines=200; squeue --states=all; scontrol show nodes"
        )
        for host in HOSTS:
            output = LAB.run(host, "sh", "-c", f"exec 2>&1; {log_commands}", check=False)
            (self.log_directory / f"{number:03}-{host}").write_text(output, encoding="utf-8")

    def list_experiments(self) -> list[tuple[str, str, Callable[[], tuple[int, list[str]]]]]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        kill_experiments = options.experiment or draw_experiments(self.random_source, options.kills, options.kinds)
        experiment_functions: list[tuple[str, str, Callable[[], tuple[int, list[str]]]]] = []
        experiment_functions += [
            (experiment.kind, str(experiment), partial(self.hit_session, experiment)) for experiment in kill_experiments
        ]
        if not options.experiment:
            experiment_functions += [
                ("requeue", "requeue", partial(_without_miss, self.requeue_session))
            ] * options.requeue
        if options.row:
            experiment_functions.append(("row", f"{options.row} in a row", partial(_without_miss, self.run_in_row)))
        if options.at_once:
            experiment_functions.append(
                ("at once", f"{options.at_once} at once", partial(_without_miss, self.run_at_once))
            )
        return experiment_functions

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        options = self.options
        print(f"seed {options.seed}", flush=True)
        try:
            if not options.running:
                self.create_hosts()
            self.measure_programs()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"FAILED before anything was hit: {error}")
            return 1
        for number, (kind, description, experiment_function) in enumerate(self.list_experiments(), 1):
            self.run_experiment(number, kind, description, experiment_function)
            if self.failures and options.stop:
                break
        self.print_table()
        if not (options.keep or options.running or (self.failures and options.stop)):
            self._run_lab_playbook("down")
        return 1 if self.failures else 0

    def print_table(self) -> None:
        """Print how many passed, by kind."""
        for kind in dict.fromkeys(kind for kind, _verdict in self.counts):
            passed, missed, failed = (self.counts[kind, outcome] for outcome in ("passed", "missed", "failed"))
            print(f"{kind:12} {passed} of {passed + missed + failed} passed, {missed} missed, {failed} failed")
        missed = sum(count for (_kind, outcome), count in self.counts.items() if outcome == "missed")
        print(
            f"{sum(self.counts.values())} experiments, {len(self.failures)} failed, {missed} missed; "
            f"seed {self.options.seed}; logs in {self.log_directory}"
        )
        for line in self.failures:
            print(f"FAILED {line}")


def _without_miss(experiment_function: Callable[[], str]) -> tuple[int, list[str]]:
    """Run an experiment that cannot miss its moment."""
    problem = experiment_function()
    return 1, [problem] if problem else []


def _check_ssh(user: str, name: str, source: str, target: str) -> list[str]:
    """Return what is wrong with a login from one container to another."""
    output = run_in_container(user, source, "ssh", target, "hostname", name=name, check=False).strip()
    return [] if output.split()[-1:] == [target] else [f"{name} of {user}: ssh {target} in {source} says {output}"]


def _session_nodes() -> set[str]:
    """Return the nodes on which the session of alice runs."""
    return set(re.findall("gpu[123]", run_as("alice", "gpumesh-session", "list").partition("running on ")[2]))


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    use_lab(options.lab, options.network)
    sys.exit(SessionSuite(options).run())


if __name__ == "__main__":
    main()
