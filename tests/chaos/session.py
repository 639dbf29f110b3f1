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

from arguments import listed, new_parser
from lab_hosts import ROOT, ansible, lab_playbook
from session_experiments import (
    KILLS,
    PATTERNS,
    REPEATED,
    Experiment,
    draw,
    fitting,
    judge,
    owners,
    read_hits,
    read_seconds,
    reason,
    same,
    stages,
    verdict,
)
from session_lab import (
    DEMO,
    GONE,
    HOSTS,
    LAB,
    MANAGER,
    SCENARIO,
    TWO,
    await_nothing,
    by,
    everywhere,
    inside,
    left_after,
    places,
    power_on,
    role,
    use,
    write,
)

USERS = ("alice", "bob")
#: The CPUs of a node, enough for 20 sessions at once, none of which has two containers on a node.
CPUS = 24
#: Seconds for a session to start: usually, when it fetches images, and with many at once on a busy machine.
STARTING, FIRST, MANY = 120, 600, 900
#: Seconds for the process that is to be hit to appear.
APPEARS = 60
#: Seconds for Slurm to restart a session whose node has died; Slurm itself waits two minutes.
AGAIN = 600.0
#: One container on each node.
THREE = [role("main"), role("sub", replicas=2)]

#: A script that reports that it is watching, waits until a process appears and then for the delay, and hits one of the
#: processes that it found. A program that is run again after it was killed is hit again.
_HUNT = """
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
_MEASURE = """
echo looking
end=$(($(date +%s) + $2))
until pgrep -f "$1" >/dev/null || test "$(date +%s)" -ge $end; do sleep 0.02; done
began=$(date +%s%N)
while pgrep -f "$1" >/dev/null; do sleep 0.02; done
echo $(($(date +%s%N) - began))
"""


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = new_parser(__doc__, "chaos-session", "10.79.83")
    parser.add_argument("--kills", type=int, default=50, help="random experiments (50)")
    parser.add_argument("--kinds", type=listed, default=list(KILLS), help="of " + ",".join(KILLS))
    parser.add_argument("--experiment", type=Experiment.parse, nargs="+", default=[], help="only these kills")
    parser.add_argument("--requeue", type=int, default=1, help="number of sessions whose node dies (1)")
    parser.add_argument("--row", type=int, default=0, help="number of sessions one after the other (0)")
    parser.add_argument("--at-once", type=int, default=0, help="number of sessions at the same time (0)")
    options = parser.parse_args()
    unknown = set(options.kinds) - set(KILLS)
    if unknown or not options.kinds:
        parser.error(f"--kinds: {', '.join(sorted(unknown)) or 'none'}. Choose from {', '.join(KILLS)}.")
    return options


class Look:
    """A program on a host that watches for a process. It is watching once this is created."""

    def __init__(self, host: str, script: str, *arguments: object) -> None:
        self._process = LAB.begin_command(host, "sh", "-c", script, "-", *map(str, arguments))
        assert self._process.stdout is not None
        self._output = self._process.stdout
        line = self._output.readline()
        assert line == "looking\n", f"{host}: {line}{self._output.read()}"

    def result(self) -> str:
        """Wait for the program to end. Returns its output."""
        with self._process:
            try:
                self._process.wait(3 * APPEARS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
            return self._output.read()


class Call:
    """All experiments of one invocation."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.chance = random.Random(options.seed)
        self.logs = ROOT / ".lab" / f"{options.lab}-logs"
        self.failures: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        #: Seconds that a prolog and an epilog take on each node.
        self.lasts: dict[tuple[str, str], float] = {}
        #: The hosts whose power is off.
        self.off: set[str] = set()

    # The lab

    def up(self) -> None:
        """Create hosts with gpumesh-session."""
        self._playbook("down")
        self._playbook("up")
        done = ansible("ansible-playbook", "-i", str(LAB.inventory), str(SCENARIO / "converge.yml"))
        assert done.code == 0, done.report

    def _playbook(self, name: str) -> None:
        settings = {"lab_name": LAB.name, "work_network": self.options.network, "work_cpus": CPUS}
        lab_playbook(name, SCENARIO / "lab.yml", settings)

    def cut(self, host: str) -> None:
        """Cut the power of the host."""
        self.off.add(host)
        LAB.kill(host)

    def restore(self) -> None:
        """Restore the power of all hosts."""
        for host in sorted(self.off):
            power_on(host)
            self.off.discard(host)

    def idle(self) -> None:
        """Wait until all nodes are idle."""
        began = time.monotonic()
        LAB.await_idle(MANAGER)
        took = time.monotonic() - began
        if took > GONE:
            print(f"      all nodes are idle after {took:.0f} s", flush=True)

    def clear(self) -> None:
        """End all sessions and restore all hosts, whatever has failed."""
        for user in USERS:
            LAB.run(MANAGER, "scancel", f"--user={user}", check=False)
        self.restore()

    # Sessions

    def start(self, roles: Sequence[dict[str, Any]], name: str, user: str = "alice", seconds: int = STARTING) -> str:
        """Start a session, and wait until it runs. Returns why it does not, or an empty string."""
        path = write(user, roles, session_name=name)
        argv = ("timeout", str(seconds), "gpumesh-session", "start", path)
        return reason(by(user, *argv, check=False, timeout=seconds + 60))

    def must_start(self, roles: Sequence[dict[str, Any]], name: str, user: str = "alice", seconds: int = FIRST) -> None:
        """Start a session that nothing disturbs. Raises AssertionError if it does not run."""
        wrong = self.start(roles, name, user, seconds)
        assert not wrong, f"session {name} of {user} did not start: {wrong}"

    def stop(self, name: str, user: str = "alice") -> None:
        """Stop a session, which may already have ended."""
        by(user, "gpumesh-session", "stop", name, check=False)

    def next_one(self) -> str:
        """Start a session on all nodes after an experiment. Returns what is wrong with it."""
        self.idle()
        wrong = self.start(THREE, "next")
        if not wrong:
            said = everywhere("alice", "hostname", name="next", check=False)
            names = ["main1", "sub1", "sub2"]
            wrong = "" if said == {name: [name] for name in names} else f"its containers print {said}"
        self.stop("next")
        kept = {host: found for host, found in left_after().items() if found}
        return wrong or (f"it has left {kept}" if kept else "")

    def warm(self) -> None:
        """Fetch the images of a user, and measure how long a prolog and an epilog take."""
        for host in HOSTS:
            self.idle()
            look = Look(host, _MEASURE, PATTERNS["prolog"], APPEARS)
            self.must_start(DEMO, "warm")
            self.lasts["prolog", host] = read_seconds(look.result())
            look = Look(host, _MEASURE, PATTERNS["epilog"], APPEARS)
            self.stop("warm")
            self.lasts["epilog", host] = read_seconds(look.result())
            await_nothing()
            said = ", ".join(f"{kind} {self.lasts[kind, host]:.2f} s" for kind in REPEATED)
            print(f"      undisturbed on {host}: {said}", flush=True)

    # Kills

    def look(self, one: Experiment, host: str = "") -> Look:
        """Watch for the process that is to be hit."""
        arguments = (APPEARS, f"{one.seconds(self.lasts):.3f}", one.times, one.which, one.kind)
        return Look(host or one.node, _HUNT, PATTERNS[one.kind], *arguments)

    def kill(self, one: Experiment) -> tuple[int, list[str]]:
        """Hit a session. Returns how often it was hit, and what is wrong."""
        self.idle()
        early = self.look(one) if one.kind not in ("epilog", "batch", "node") else None
        kept_from = self.start(DEMO, "demo")
        hits = read_hits(early.result()) if early else self.hit_late(one)
        if one.kind != "epilog":
            self.end(one)
        kept = left_after()
        wrong = judge(hits, kept_from, kept, self.next_one())
        words = f"it has not started: {kept_from}" if kept_from else "it has started"
        print(f"      {hits} of {one.times} hits; {words}", flush=True)
        return hits, wrong

    def hit_late(self, one: Experiment) -> int:
        """Hit a session that has started, or while it ends. Returns how often it was hit."""
        if one.kind == "node":
            time.sleep(one.seconds(self.lasts))
            self.cut(one.node)
            return 1
        if one.kind == "batch":
            # The batch script runs on the node that Slurm has chosen.
            host = LAB.run(MANAGER, "squeue", "--noheader", "--user=alice", "--format=%B").strip()
            return read_hits(self.look(one, host).result()) if host in HOSTS else 0
        look = self.look(one)
        self.stop("demo")
        return read_hits(look.result())

    def end(self, one: Experiment) -> None:
        """Stop the session. If a node has no power, that is either before or after it is restored."""
        if one.which % 2:
            self.restore()
        self.stop("demo")
        self.restore()

    # The others

    def requeue(self) -> str:
        """Cut the power of a node. Returns what is wrong with the session that is restarted without it."""
        self.idle()
        self.must_start([role("main", cpus=2), role("sub", TWO, cpus=2)], "again")
        before = places("alice", "again")
        dead = self.chance.choice(sorted({node for _address, node in before.values()} - {MANAGER}))
        where = ", ".join(f"{name} on {node}" for name, (_address, node) in before.items())
        print(f"      {dead} dies: {where}", flush=True)
        others = set(HOSTS) - {dead}
        try:
            self.cut(dead)
            LAB.wait("it runs on the other nodes", lambda: _nodes() == others, AGAIN, 3.0)
            wrong = same(before, places("alice", "again"), dead)
            wrong += _ssh("alice", "again", "main1", "sub1")
        finally:
            self.restore()
            self.stop("again")
        await_nothing()
        return "; ".join(wrong)

    def row(self) -> str:
        """Run sessions one after the other. Returns what they have left behind."""
        count = self.options.row
        self.idle()
        for number in range(1, count + 1):
            self.must_start(THREE, "row", seconds=STARTING)
            self.stop("row")
            if not number % 10:
                print(f"      {number} of {count}", flush=True)
        await_nothing()
        return ""

    def at_once(self) -> str:
        """Run sessions at the same time. Returns what is wrong with any of them."""
        count = self.options.at_once
        self.idle()
        most = fitting(LAB.run(MANAGER, "sinfo", "--noheader", "--Node", "--format=%N|%c"))
        assert count <= most, f"a node has {most} CPUs: give --at-once {most}, or use a lab with more (work_cpus)"
        for user in USERS:
            self.must_start(THREE, "warm", user)
            self.stop("warm", user)
        await_nothing()
        sessions = owners(count)
        try:
            with ThreadPoolExecutor(max_workers=count) as pool:
                for said in pool.map(self._submit, *zip(*sessions)):
                    assert ": job " in said, said
            self._await_all([name for _user, name, _subs in sessions])
            with ThreadPoolExecutor(max_workers=4) as pool:
                wrong = [said for some in pool.map(self._reach, *zip(*sessions)) for said in some]
        finally:
            with ThreadPoolExecutor(max_workers=4) as pool:
                list(pool.map(lambda one: self.stop(one[1], one[0]), sessions))
        await_nothing()
        return "; ".join(wrong)

    def _submit(self, user: str, name: str, subs: int) -> str:
        path = write(user, [role("main"), role("sub", replicas=subs)], session_name=name)
        return by(user, "gpumesh-session", "start", path, "--detach", check=False)

    def _await_all(self, names: Sequence[str]) -> None:
        """Wait until all of them run at the same time."""

        def running() -> bool:
            argv = ("squeue", "--noheader", "--states=all", "--format=%A|%j|%T|%k")
            found = stages(LAB.run(MANAGER, *argv))
            failed = [
                f"{name} is {found[name]}" for name in names if found.get(name) in ("failed", "cancelled", "timeout")
            ]
            assert not failed, failed
            return all(found.get(name) == "running" for name in names)

        began = time.monotonic()
        LAB.wait(f"{len(names)} sessions run", running, MANY, 3.0)
        print(f"      {len(names)} sessions run after {time.monotonic() - began:.0f} s", flush=True)

    def _reach(self, user: str, name: str, subs: int) -> list[str]:
        """Return what is wrong with the names of a session."""
        containers = ["main1", *(f"sub{number + 1}" for number in range(subs))]
        pairs = zip(containers, [*containers[1:], containers[0]])
        return [wrong for pair in pairs for wrong in _ssh(user, name, *pair)]

    # All of it

    def one(self, number: int, kind: str, words: str, work: Callable[[], tuple[int, list[str]]]) -> None:
        """Run one experiment, and print its result."""
        began = time.monotonic()
        hits = 1
        try:
            hits, wrong = work()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            wrong = [f"{type(error).__name__}: {error}"]
        found = verdict(hits, wrong)
        self.counts[kind, found] += 1
        said = f"FAILED: {'; '.join(wrong)}" if wrong else found
        print(f"{number:4}  {words}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
        if not wrong:
            return
        self.failures.append(f"{words}: {'; '.join(wrong)}")
        self.keep_logs(number)
        if not self.options.stop:
            self.clear()

    def keep_logs(self, number: int) -> None:
        """Save what helps to find the cause of a failure."""
        self.logs.mkdir(parents=True, exist_ok=True)
        tells = (
            "tail -n 300 /var/log/slurm/*.log; journalctl --boot --lines=200; squeue --states=all; scontrol show nodes"
        )
        for host in HOSTS:
            said = LAB.run(host, "sh", "-c", f"exec 2>&1; {tells}", check=False)
            (self.logs / f"{number:03}-{host}").write_text(said, encoding="utf-8")

    def works(self) -> list[tuple[str, str, Callable[[], tuple[int, list[str]]]]]:
        """Return the kind, the description and the function of each experiment."""
        options = self.options
        kills = options.experiment or draw(self.chance, options.kills, options.kinds)
        found: list[tuple[str, str, Callable[[], tuple[int, list[str]]]]] = []
        found += [(one.kind, str(one), partial(self.kill, one)) for one in kills]
        if not options.experiment:
            found += [("requeue", "requeue", partial(_always, self.requeue))] * options.requeue
        if options.row:
            found.append(("row", f"{options.row} in a row", partial(_always, self.row)))
        if options.at_once:
            found.append(("at once", f"{options.at_once} at once", partial(_always, self.at_once)))
        return found

    def run(self) -> int:
        """Run all experiments. Returns the exit status."""
        options = self.options
        print(f"seed {options.seed}", flush=True)
        try:
            if not options.running:
                self.up()
            self.warm()
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"FAILED before anything was hit: {error}")
            return 1
        for number, (kind, words, work) in enumerate(self.works(), 1):
            self.one(number, kind, words, work)
            if self.failures and options.stop:
                break
        self.table()
        if not (options.keep or options.running or (self.failures and options.stop)):
            self._playbook("down")
        return 1 if self.failures else 0

    def table(self) -> None:
        """Print how many passed, by kind."""
        for kind in dict.fromkeys(kind for kind, _verdict in self.counts):
            passed, missed, failed = (self.counts[kind, word] for word in ("passed", "missed", "failed"))
            print(f"{kind:12} {passed} of {passed + missed + failed} passed, {missed} missed, {failed} failed")
        missed = sum(count for (_kind, word), count in self.counts.items() if word == "missed")
        print(
            f"{sum(self.counts.values())} experiments, {len(self.failures)} failed, {missed} missed; "
            f"seed {self.options.seed}; logs in {self.logs}"
        )
        for line in self.failures:
            print(f"FAILED {line}")


def _always(work: Callable[[], str]) -> tuple[int, list[str]]:
    """Run an experiment that cannot miss its moment."""
    wrong = work()
    return 1, [wrong] if wrong else []


def _ssh(user: str, name: str, source: str, target: str) -> list[str]:
    """Return what is wrong with a login from one container to another."""
    said = inside(user, source, "ssh", target, "hostname", name=name, check=False).strip()
    return [] if said.split()[-1:] == [target] else [f"{name} of {user}: ssh {target} in {source} says {said}"]


def _nodes() -> set[str]:
    """Return the nodes on which the session of alice runs."""
    return set(re.findall("gpu[123]", by("alice", "gpumesh-session", "list").partition("running on ")[2]))


def main() -> None:
    """Run the experiments."""
    options = read_arguments()
    use(options.lab, options.network)
    sys.exit(Call(options).run())


if __name__ == "__main__":
    main()
