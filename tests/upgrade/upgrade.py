# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Upgrade a cluster in use: an older commit builds it, and one `site` of this tree takes it over.

    make upgrade                 # from origin/main, or on it, from the commit FIRST
    make upgrade FROM=3f316e26   # from another commit
    python tests/upgrade/upgrade.py 3f316e26 --keep

Meanwhile, a training run is tracked, a session has containers on three nodes, one job runs and one waits for it, and
users are logged in on two hosts. Nothing of it may be lost: the same processes go on, and end with the right results.
Nothing of the older version may remain: afterwards, this tree builds the same cluster on new hosts, and the upgraded
hosts must not differ from them. The older version, which calls itself a pre-release where both have the same number,
must then be refused, and a second `site` of this tree must change nothing.

The hosts are a lab of their own, as in the scenario `work`. Logs are in .lab/NAME-logs/. Exits 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import host_state
import session_lab
from evidence import TEXTS, Job, Work, find_leftovers, find_losses, find_restarts, find_standstill, mask
from lab_hosts import ROOT, Run, ansible, lab_playbook
from session_lab import LAB, by, everywhere, inside, job_of, places, role, start
from tracking_lab import MACHINES, MANAGER, PASSWORDS, TrackingLab
from train_runs import BARE, ENDED, PATIENCE, all_samples

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION

SCENARIO = session_lab.SCENARIO
#: The commit from which origin/main itself is upgraded: the main branch when this test was written.
FIRST = "fe4dba67c0394a85649eb216d1011cc3ffbb6b15"
#: The steps of the training, and the seconds of one until the run may end: it must last longer than the upgrade.
STEPS, SECONDS = 1200, 3.0
CODE = "/mnt/shared/trainer.py"
HURRY, GO = "/mnt/shared/hurry", "/mnt/shared/go"
#: The hosts on which a user is logged in, one of them without a service manager.
LOGINS = (MANAGER, BARE)
#: A shell in which a user types a word, and sees it with the process that read it.
SHELL = "while read -r word; do echo $$ $word; done"
#: The job that waits runs only if this one has ended well.
JOB = f"until test -e {GO}; do sleep 1; done; echo ran on"
DAEMONS = """
for name in slurmctld slurmd munged postgres; do echo $name=$(pgrep -o -x $name); done
echo mlflow=$(pgrep -o -u gpumesh_tracking)
"""
TREE = "ansible_collections/gpumesh/cluster"
NOTED = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


def git(*argv: str, check: bool = True) -> str:
    done = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=check)
    return done.stdout.strip()


def choose_commit(given: str) -> str:
    """Return the commit that builds the cluster. Raises SystemExit if this clone does not have it."""
    if not given:
        main = git("rev-parse", "--verify", "--quiet", "origin/main^{commit}", check=False)
        given = main if main and git("diff", "--name-only", main) else FIRST
    commit = git("rev-parse", "--verify", "--quiet", f"{given}^{{commit}}", check=False)
    if not commit:
        sys.exit(f"This clone has no commit {given}. Fetch the history, or name another commit with FROM=.")
    return commit


def check_out(commit: str, folder: Path) -> None:
    """Put the collection of a commit below a directory. It is marked as older than this one if it has the same number."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / TREE).mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={folder / TREE}"], input=archive, check=True)
    # Where the file is, and where it was in older commits.
    for noted in (folder / TREE / "plugins" / "module_utils").glob("**/version.py"):
        text = noted.read_text(encoding="utf-8")
        noted.write_text(NOTED.sub(f'VERSION = "{VERSION}-dev.0"', text) if is_current(text) else text, "utf-8")


def is_current(text: str) -> bool:
    found = NOTED.search(text)
    return found is not None and found[1] == VERSION


class Login:
    """A user who is logged in on a host over SSH."""

    def __init__(self, address: str, folder: Path) -> None:
        options = ["-i", str(folder / "id_ed25519"), "-o", f"UserKnownHostsFile={folder / 'known_hosts'}"]
        options += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
        self.process = subprocess.Popen(
            ["ssh", *options, f"carol@{address}", SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, word: str) -> str:
        """Type a word. Returns the process that responds, or why none does."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(f"{word}\n".encode())
            self.process.stdin.flush()
        except OSError as failure:
            return f"closed: {failure}"
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            return "silent"
        number, _space, said = self.process.stdout.readline().decode().strip().partition(" ")
        return number if said == word else f"ended: {self.process.poll()}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Upgrade:
    """A cluster from its first `site` by the older commit to the comparison with a new one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.commit = choose_commit(options.commit)
        self.logs = ROOT / ".lab" / f"{options.lab}-logs"
        self.folder = ROOT / ".lab" / options.lab
        self.shared = self.folder / "shared"
        self.wrong: list[str] = []
        self.logins: dict[str, Login] = {}
        self.jobs: dict[str, str] = {}
        self.began = time.monotonic()
        session_lab.use(options.lab, options.network)

    # Steps

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:5.0f} s  {text}", flush=True)

    def expect(self, what: str, wrong: list[str]) -> None:
        """Record what is wrong, and go on: one run of this test shows everything that an upgrade loses."""
        self.wrong += [f"{what}: {line}" for line in wrong]
        self.say(f"{what}: {'FAILED: ' + '; '.join(wrong) if wrong else 'passed'}")

    def run(self) -> int:
        """Do all of it. Returns the exit status."""
        self.logs.mkdir(parents=True, exist_ok=True)
        try:
            self.use_it_while_it_is_upgraded()
            if not self.options.keep:
                self.compare_with_a_new_one()
        except (AssertionError, subprocess.SubprocessError, OSError, KeyError, ValueError) as failure:
            self.wrong.append(f"{type(failure).__name__}: {failure}")
            with contextlib.suppress(AssertionError, subprocess.SubprocessError, OSError):
                self.keep_logs()
        finally:
            for login in self.logins.values():
                login.end()
        if not self.options.keep:
            self.playbook("down")
        for line in self.wrong:
            print(f"FAILED {line}")
        print(f"upgrade from {self.commit[:10]}: {'FAILED' if self.wrong else 'passed'}; logs in {self.logs}")
        return 1 if self.wrong else 0

    def use_it_while_it_is_upgraded(self) -> None:
        """Build the cluster, use it, upgrade it, and show what became of everything."""
        old = self.logs / "older"
        check_out(self.commit, old)
        with self.collection(old):
            self.up()
            self.build("older")
            self.say(f"{self.commit[:10]} has built the cluster")
        self.tracking = TrackingLab(self.options.lab, f"{self.options.network}.")
        reference = self.begin_work()
        before, daemons = self.look(), self.daemons()
        self.say(f"in use: step {before.step}, {len(before.points)} points, {len(before.containers)} containers")
        done = self.play("upgrade", "site")
        after = self.look()
        self.expect("one site of this tree succeeds", self.failures(done))
        print("".join(f"         {line}\n" for line in done.changes), end="")
        restarts = find_restarts(daemons, self.daemons())
        self.say(f"restarted: {', '.join(restarts) or 'nothing'}")
        if not git("diff", "--name-only", self.commit, "--", "playbooks", "plugins", "roles"):
            self.expect("nothing was restarted without need", restarts)
        self.expect("nothing that runs is lost", find_losses(before, after))
        self.expect("it goes on", find_standstill(before, after))
        self.expect("new points arrive", self.await_points(after))
        self.expect("the session is one network", self.greet())
        self.expect("the record names this version", self.noted())
        done = self.play("second", "site")
        self.expect("a second site succeeds", self.failures(done))
        self.expect("a second site changes nothing", done.changes)
        with self.collection(old):
            done = self.play("refused", "site")
        self.expect("the older version is refused", self.refusal(done))
        self.expect("nothing that runs is lost by then", find_losses(before, self.look()))
        self.expect("everything ends well", self.end_work(reference))
        self.expect("losses are seen", self.prove_losses_are_seen())
        self.keep_logs()
        self.leave()

    def keep_logs(self) -> None:
        """Save what helps to find why something was lost: the hosts are soon other ones."""
        shutil.copytree(self.shared / "alice" / "runs", self.logs / "runs", dirs_exist_ok=True)
        for host in MACHINES:
            said = LAB.run(host, "sh", "-c", "tail -n 2000 /var/log/slurm/*.log /var/log/gpumesh-* 2>&1", check=False)
            (self.logs / f"{host}.slurm").write_text(said, encoding="utf-8")

    def compare_with_a_new_one(self) -> None:
        """Build the same cluster on new hosts, and compare the upgraded ones with them."""
        upgraded = self.states()
        self.up()
        self.build("new")
        self.tracking.find_server()
        built = self.states()
        for name, states in (("upgraded", upgraded), ("new", built)):
            (self.logs / f"{name}.json").write_text(json.dumps(states), encoding="utf-8")
        wrong = [
            f"{host}: {line}"
            for host in MACHINES
            for line in find_leftovers(host_state.differences(built[host], upgraded[host]))
        ]
        self.expect("the upgraded hosts are like new ones", wrong)

    def states(self) -> dict[str, Any]:
        """Return what is on each host, with the lines of some files."""
        texts = {host: {path: mask(LAB.run(host, "cat", path)) for path in TEXTS} for host in MACHINES}
        return {host: {**host_state.read(LAB, host), **texts[host]} for host in MACHINES}

    # The lab and its cluster

    @contextlib.contextmanager
    def collection(self, folder: Path) -> Iterator[None]:
        """Use the collection in this directory instead of this tree."""
        os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(folder)
        try:
            shown = ansible("ansible-galaxy", "collection", "list", "gpumesh.cluster").output
            first = next(line for line in shown.splitlines() if line.endswith("ansible_collections"))
            assert first.split()[-1] == str(folder / "ansible_collections"), shown
            yield
        finally:
            del os.environ["ANSIBLE_COLLECTIONS_PATH"]

    def playbook(self, name: str) -> None:
        settings = {"lab_name": self.options.lab, "work_network": self.options.network}
        lab_playbook(name, SCENARIO / "lab.yml", settings)

    def up(self) -> None:
        self.playbook("down")
        self.playbook("up")

    def build(self, name: str) -> None:
        """Build the cluster of the scenario, with tracking, and complete it by `site`."""
        done = LAB.play(str(SCENARIO / "converge.yml"))
        assert done.code == 0, done.report
        users = self.logs / "users"
        users.write_text("".join(f"{user}:{PASSWORDS[user]}\n" for user in ("admin", "alice")), encoding="ascii")
        done = self.play(f"{name}-tracking", "tracking", "-e", f"tracking_users_file={users}")
        assert done.code == 0, done.report
        done = self.play(f"{name}-site", "site")
        assert done.code == 0, done.report

    def play(self, log: str, playbook: str, *options: str) -> Run:
        """Run a playbook of the collection. Its output is kept."""
        report = self.logs / f"{log}-report"
        done = LAB.play(f"gpumesh.cluster.{playbook}", "-e", f"check_report_dir={report}", *options)
        (self.logs / f"{log}.log").write_text(done.output, encoding="utf-8")
        return done

    @staticmethod
    def failures(done: Run) -> list[str]:
        return [f"status {done.code}: {done.report}"] if done.code else []

    @staticmethod
    def refusal(done: Run) -> list[str]:
        """Return what is wrong with the refusal by the record of the newer version."""
        known = "was last changed by gpumesh.cluster" in done.words or "it has schema version" in done.words
        return [*done.changes, *([] if done.code and known else [f"status {done.code}: {done.report}"])]

    def noted(self) -> list[str]:
        version = self.tracking.record().get("collection_version")
        return [] if version == VERSION else [f"the record has {version}, and this is {VERSION}"]

    # The work of users

    def begin_work(self) -> str:
        """Start everything. Returns the result of an undisturbed run."""
        shutil.copy(SCENARIO / "tests" / "trainer.py", self.shared / "trainer.py")
        for name in (HURRY, GO):
            (self.shared / Path(name).name).unlink(missing_ok=True)
        for machine in MACHINES:
            lines = f"[mlflow]\nmlflow_tracking_username = alice\nmlflow_tracking_password = {PASSWORDS['alice']}\n"
            kept = 'umask 077; mkdir -p ~/.mlflow && printf %s "$1" > ~/.mlflow/credentials'
            LAB.run(machine, "runuser", "-u", "alice", "--", "sh", "-c", f"HOME=/home/alice; {kept}", "-", lines)
        self.train("before", "0")
        found = self.await_end("before")
        assert found["state"] == "finished", found
        self.send_points("before")
        reference = self.result("before")
        self.train("through", str(SECONDS), "--hurry", HURRY)
        start("alice", [role("main"), role("sub", replicas=2)])
        submit = ["sbatch", "--parsable", "--chdir=/", "--mem=16", f"--nodelist={BARE}"]
        runs = by("bob", *submit, "--output=/mnt/shared/bob/runs", f"--wrap={JOB}").strip()
        waiting = [f"--dependency=afterok:{runs}", "--output=/mnt/shared/bob/waits", "--wrap=echo began"]
        self.jobs = {"runs": runs, "waits": by("bob", *submit, *waiting).strip()}
        LAB.wait("the job runs", lambda: self.job("runs").state == "RUNNING", PATIENCE)
        LAB.wait("points arrive", lambda: len(self.points("through")) > 2, PATIENCE)
        self.log_in()
        return reference

    def train(self, name: str, seconds: str, *options: str) -> None:
        command = ["python3", CODE, str(STEPS), seconds, "--track", *options]
        # The run shares the nodes with the session and the jobs.
        shares = ("--sbatch", "--cpus-per-task=1")
        by("alice", "gpumesh-train", "--detach", "--name", name, "--nodes", "4", *shares, "--", *command)

    def log_in(self) -> None:
        key = (self.folder / "id_ed25519.pub").read_text(encoding="ascii").strip()
        for host in LOGINS:
            line = 'umask 077; mkdir -p ~carol/.ssh && echo "$1" > ~carol/.ssh/authorized_keys'
            LAB.run(host, "runuser", "-u", "carol", "--", "sh", "-c", line, "-", key)
            self.logins[host] = Login(self.tracking.address(host), self.folder)

    def look(self) -> Work:
        """Return the present work of users."""
        run = self.state("through")
        return Work(
            run["state"],
            tuple(attempt["job"] for attempt in run["attempts"]),
            run["step"],
            tuple(self.points("through")),
            identify_containers(),
            {name: self.job(name) for name in self.jobs},
            {name: one for name, one in self.tracking.known("alice").items() if name == "before"},
            {host: login.ask("here") for host, login in self.logins.items()},
        )

    def daemons(self) -> dict[str, dict[str, str]]:
        return {
            host: dict(line.split("=") for line in LAB.run(host, "sh", "-c", DAEMONS, check=False).splitlines())
            for host in MACHINES
        }

    def state(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.shared / "alice" / "runs" / name / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {"state": "queued", "step": 0, "attempts": []}
        return dict(found)

    def job(self, name: str) -> Job:
        """Return the job of bob with this name."""
        shown = LAB.run(MANAGER, "scontrol", "--oneliner", "show", "job", self.jobs[name])
        about = dict(word.split("=", 1) for word in shown.split() if "=" in word)
        running = about["JobState"] == "RUNNING"
        process = LAB.run(BARE, "pgrep", "-o", "-u", "bob", check=False).strip() if running else ""
        return Job(about["JobState"], about["Restarts"], about["StartTime"], process)

    def points(self, name: str) -> list[int]:
        """Return the steps of the run that the tracking server has."""
        run = self.tracking.runs("alice").get(name)
        return self.tracking.history(run, "loss") if run else []

    def send_points(self, name: str) -> None:
        """Send what was not sent before the program ended, with the command that it prints."""
        track = f"/mnt/shared/alice/runs/{name}/track"
        by("alice", "srun", "python3", "/usr/local/lib/gpumesh/python/gpumesh_track.py", track)

    def result(self, name: str) -> str:
        """Return the line with the result of rank 0. The program that tracks the run may print another one after it."""
        log = self.shared / "alice" / "runs" / name / "attempts" / "001" / "rank-0.log"
        lines = log.read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith("weight ")), f"no result: {lines[-1:]}")

    def await_end(self, name: str) -> dict[str, Any]:
        LAB.wait(f"the run {name} has ended", lambda: self.state(name)["state"] in ENDED, 2 * PATIENCE)
        return self.state(name)

    # The results

    def await_points(self, before: Work) -> list[str]:
        """Return what is wrong with the points that the run sends after the upgrade."""
        try:
            LAB.wait("points arrive", lambda: len(self.points("through")) > len(before.points), PATIENCE)
        except AssertionError as failure:
            return [str(failure)]
        return []

    def greet(self) -> list[str]:
        """Return the containers that cannot be entered, or do not reach the others by name."""
        said = {
            name: inside("alice", name, "ssh", "main1", "hostname", check=False).strip() for name in ("sub1", "sub2")
        }
        return [f"{name} is told '{text}'" for name, text in said.items() if text != "main1"]

    def end_work(self, reference: str) -> list[str]:
        """Let everything end. Returns what did not end as it should."""
        (self.shared / Path(HURRY).name).touch()
        (self.shared / Path(GO).name).touch()
        found = self.await_end("through")
        wrong = [] if found["state"] == "finished" else [f"the training run is {found['state']}"]
        if (result := self.result("through")) != reference or f"samples {all_samples(STEPS)!r}" not in result:
            wrong.append(f"the training run has {result}, and undisturbed {reference}")
        self.send_points("through")
        found_points = {name: self.points(name) for name in ("before", "through")}
        wrong += [
            f"the tracking server has {len(points)} of {STEPS} points of {name}"
            for name, points in found_points.items()
            if points != list(range(1, STEPS + 1))
        ]
        LAB.wait("the jobs have ended", lambda: self.job("waits").state not in ("PENDING", "RUNNING"), PATIENCE)
        for name, text in (("runs", "ran on"), ("waits", "began")):
            said = (self.shared / "bob" / name).read_text(encoding="utf-8").strip()
            if (state := self.job(name).state) != "COMPLETED" or said != text:
                wrong.append(f"the job that {name} is {state} and has printed '{said}'")
        # Slurm forgets ended jobs.
        self.jobs = {}
        return wrong

    def prove_losses_are_seen(self) -> list[str]:
        """Kill a container and the connection of a user. Returns what of it is not noticed."""
        before = self.look()
        LAB.run(places("alice")["sub1"][1], "pkill", "-KILL", "-x", "conmon")
        self.logins[BARE].end()

        def missed() -> set[str]:
            return {"container", "login"} - {line.split()[0] for line in find_losses(before, self.look())}

        with contextlib.suppress(AssertionError):
            LAB.wait("both are noticed", lambda: not missed(), PATIENCE)
        return [f"a killed {what}" for what in missed()]

    def leave(self) -> None:
        """End what still runs, so that nothing of it is on the hosts."""
        for login in self.logins.values():
            login.end()
        by("alice", "gpumesh-session", "stop", "demo", check=False)
        LAB.run(MANAGER, "scancel", "--user=alice,bob", check=False)
        session_lab.await_nothing()
        LAB.await_idle(MANAGER)
        # The process that watches over sessions on a node ends by itself, a while after the last one.
        watching = ("pgrep", "-x", "gpumesh-session")
        LAB.wait(
            "nothing watches", lambda: not any(LAB.run(host, *watching, check=False) for host in MACHINES), PATIENCE
        )


def identify_containers() -> dict[str, str]:
    """Return the first process of each container of alice's session, with its job, address and node; empty without one."""
    identity = ("sh", "-c", "cut -d ' ' -f 22 /proc/1/stat; readlink /proc/1/ns/pid")
    try:
        job, placed = job_of("alice"), places("alice")
        return {name: f"{job} {placed[name]} {lines}" for name, lines in everywhere("alice", *identity).items()}
    except (AssertionError, KeyError):
        return {}


def read_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="", help="the commit that builds the cluster")
    parser.add_argument(
        "--keep", action="store_true", help="keep the upgraded hosts, and do not compare them with new ones"
    )
    parser.add_argument("--lab", default="upgrade", help="name of the lab")
    parser.add_argument("--network", default="10.79.84", help="first three octets of the lab's network")
    return parser.parse_args()


def main() -> None:
    """Build, use and upgrade a cluster."""
    sys.exit(Upgrade(read_arguments()).run())


if __name__ == "__main__":
    main()
