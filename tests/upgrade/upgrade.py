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
from evidence import (
    COMPARED_FILES,
    SlurmJobState,
    UserWork,
    find_leftovers,
    find_losses,
    find_restarts,
    find_standstill,
    mask_lines,
)
from lab_hosts import ROOT, AnsibleRun, run_ansible, run_lab_playbook
from session_lab import (
    LAB,
    find_containers,
    find_job_id,
    make_role,
    run_as,
    run_in_container,
    run_in_containers,
    start_session,
)
from tracking_lab import PASSWORDS, TrackingLab
from train_programs import MANAGER, OTHER_HOSTS
from train_runs import BARE_HOST, ENDED_STATES, WAIT_TIMEOUT, sum_of_samples

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION

SCENARIO = session_lab.SCENARIO
MACHINES = (MANAGER, *OTHER_HOSTS)
#: The commit from which origin/main itself is upgraded: the main branch when this test was written.
FIRST_COMMIT = "fe4dba67c0394a85649eb216d1011cc3ffbb6b15"
#: The steps of the training, and the seconds of one until the run may end: it must last longer than the upgrade.
STEP_COUNT, STEP_SECONDS = 1200, 3.0
TRAINER_PATH = "/mnt/shared/trainer.py"
HURRY_FILE, GO_FILE = "/mnt/shared/hurry", "/mnt/shared/go"
#: The hosts on which a user is logged in, one of them without a service manager.
LOGIN_HOSTS = (MANAGER, BARE_HOST)
#: A shell in which a user types a word, and sees it with the process that read it.
ECHO_SHELL = "while read -r word; do echo $$ $word; done"
#: The job that waits runs only if this one has ended well.
JOB_SCRIPT = f"until test -e {GO_FILE}; do sleep 1; done; echo ran on"
DAEMONS_SCRIPT = """
for name in slurmctld slurmd munged postgres; do echo $name=$(pgrep -o -x $name); done
echo mlflow=$(pgrep -o -u gpumesh_tracking)
"""
COLLECTION_PATH = "ansible_collections/gpumesh/cluster"
VERSION_PATTERN = re.compile(r'^VERSION = "(.+)"$', re.MULTILINE)


def run_git(*argv: str, check: bool = True) -> str:
    completed = subprocess.run(["git", *argv], cwd=ROOT, capture_output=True, text=True, check=check)
    return completed.stdout.strip()


def choose_commit(requested: str) -> str:
    """Return the commit that builds the cluster. Raises SystemExit if this clone does not have it."""
    if not requested:
        main_commit = run_git("rev-parse", "--verify", "--quiet", "origin/main^{commit}", check=False)
        requested = main_commit if main_commit and run_git("diff", "--name-only", main_commit) else FIRST_COMMIT
    commit = run_git("rev-parse", "--verify", "--quiet", f"{requested}^{{commit}}", check=False)
    if not commit:
        sys.exit(f"This clone has no commit {requested}. Fetch the history, or name another commit with FROM=.")
    return commit


def check_out(commit: str, directory: Path) -> None:
    """Put the collection of a commit below a directory. It is marked as older than this one if it has the same number."""
    shutil.rmtree(directory, ignore_errors=True)
    (directory / COLLECTION_PATH).mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "--extract", f"--directory={directory / COLLECTION_PATH}"], input=archive, check=True)
    # Where the file is, and where it was in older commits.
    for version_file in (directory / COLLECTION_PATH / "plugins" / "module_utils").glob("**/version.py"):
        text = version_file.read_text(encoding="utf-8")
        version_file.write_text(
            VERSION_PATTERN.sub(f'VERSION = "{VERSION}-dev.0"', text) if is_current(text) else text, "utf-8"
        )


def is_current(text: str) -> bool:
    match = VERSION_PATTERN.search(text)
    return match is not None and match[1] == VERSION


class SshSession:
    """A user who is logged in on a host over SSH."""

    def __init__(self, address: str, directory: Path) -> None:
        ssh_options = ["-i", str(directory / "id_ed25519"), "-o", f"UserKnownHostsFile={directory / 'known_hosts'}"]
        ssh_options += ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
        self.process = subprocess.Popen(
            ["ssh", *ssh_options, f"carol@{address}", ECHO_SHELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def echo_word(self, text: str) -> str:
        """Type a word. Returns the process that responds, or why none does."""
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(f"{text}\n".encode())
            self.process.stdin.flush()
        except OSError as failure:
            return f"closed: {failure}"
        if not select.select([self.process.stdout], [], [], WAIT_TIMEOUT)[0]:
            return "silent"
        process_id, _space, reply = self.process.stdout.readline().decode().strip().partition(" ")
        return process_id if reply == text else f"ended: {self.process.poll()}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class UpgradeTest:
    """A cluster from its first `site` by the older commit to the comparison with a new one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.commit = choose_commit(options.commit)
        self.log_directory = ROOT / ".lab" / f"{options.lab}-logs"
        self.lab_directory = ROOT / ".lab" / options.lab
        self.shared_volume = self.lab_directory / "shared"
        self.problems: list[str] = []
        self.session_by_host: dict[str, SshSession] = {}
        self.job_ids: dict[str, str] = {}
        self.started_at = time.monotonic()
        session_lab.use_lab(options.lab, options.network)

    # Steps

    def print_progress(self, text: str) -> None:
        print(f"{time.monotonic() - self.started_at:5.0f} s  {text}", flush=True)

    def record_problems(self, description: str, problems: list[str]) -> None:
        """Record what is wrong, and go on: one run of this test shows everything that an upgrade loses."""
        self.problems += [f"{description}: {line}" for line in problems]
        self.print_progress(f"{description}: {'FAILED: ' + '; '.join(problems) if problems else 'passed'}")

    def run(self) -> int:
        """Do all of it. Returns the exit status."""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        try:
            self.upgrade_in_use()
            if not self.options.keep:
                self.compare_with_new_cluster()
        except (AssertionError, subprocess.SubprocessError, OSError, KeyError, ValueError) as failure:
            self.problems.append(f"{type(failure).__name__}: {failure}")
            with contextlib.suppress(AssertionError, subprocess.SubprocessError, OSError):
                self.save_logs()
        finally:
            for login in self.session_by_host.values():
                login.close()
        if not self.options.keep:
            self.run_lab_playbook("down")
        for line in self.problems:
            print(f"FAILED {line}")
        print(
            f"upgrade from {self.commit[:10]}: {'FAILED' if self.problems else 'passed'}; logs in {self.log_directory}"
        )
        return 1 if self.problems else 0

    def upgrade_in_use(self) -> None:
        """Build the cluster, use it, upgrade it, and show what became of everything."""
        older_directory = self.log_directory / "older"
        check_out(self.commit, older_directory)
        with self.use_collection(older_directory):
            self.create_hosts()
            self.build_cluster("older")
            self.print_progress(f"{self.commit[:10]} has built the cluster")
        self.tracking = TrackingLab(self.options.lab, f"{self.options.network}.")
        reference = self.start_work()
        work_before, daemons = self.read_work(), self.find_daemons()
        self.print_progress(
            f"in use: step {work_before.training_step}, {len(work_before.tracked_steps)} points, {len(work_before.process_by_container)} containers"
        )
        site_run = self.run_playbook("upgrade", "site")
        work_after = self.read_work()
        self.record_problems("one site of this tree succeeds", self.list_failures(site_run))
        print("".join(f"         {line}\n" for line in site_run.changes), end="")
        restarts = find_restarts(daemons, self.find_daemons())
        self.print_progress(f"restarted: {', '.join(restarts) or 'nothing'}")
        if not run_git("diff", "--name-only", self.commit, "--", "playbooks", "plugins", "roles"):
            self.record_problems("nothing was restarted without need", restarts)
        self.record_problems("nothing that runs is lost", find_losses(work_before, work_after))
        self.record_problems("it goes on", find_standstill(work_before, work_after))
        self.record_problems("new points arrive", self.await_points(work_after))
        self.record_problems("the session is one network", self.check_session_network())
        self.record_problems("the record names this version", self.check_recorded_version())
        site_run = self.run_playbook("second", "site")
        self.record_problems("a second site succeeds", self.list_failures(site_run))
        self.record_problems("a second site changes nothing", site_run.changes)
        with self.use_collection(older_directory):
            site_run = self.run_playbook("refused", "site")
        self.record_problems("the older version is refused", self.check_refusal(site_run))
        self.record_problems("nothing that runs is lost by then", find_losses(work_before, self.read_work()))
        self.record_problems("everything ends well", self.end_work(reference))
        self.record_problems("losses are seen", self.check_loss_detection())
        self.save_logs()
        self.stop_work()

    def save_logs(self) -> None:
        """Save what helps to find why something was lost: the hosts are soon other ones."""
        shutil.copytree(self.shared_volume / "alice" / "runs", self.log_directory / "runs", dirs_exist_ok=True)
        for host in MACHINES:
            log_text = LAB.run(
                host, "sh", "-c", "tail -n 2000 /var/log/slurm/*.log /var/log/gpumesh-* 2>&1", check=False
            )
            (self.log_directory / f"{host}.slurm").write_text(log_text, encoding="utf-8")

    def compare_with_new_cluster(self) -> None:
        """Build the same cluster on new hosts, and compare the upgraded ones with them."""
        upgraded_states = self.read_states()
        self.create_hosts()
        self.build_cluster("new")
        self.tracking.find_server()
        new_states = self.read_states()
        for name, states in (("upgraded", upgraded_states), ("new", new_states)):
            (self.log_directory / f"{name}.json").write_text(json.dumps(states), encoding="utf-8")
        leftovers = [
            f"{host}: {line}"
            for host in MACHINES
            for line in find_leftovers(host_state.find_differences(new_states[host], upgraded_states[host]))
        ]
        self.record_problems("the upgraded hosts are like new ones", leftovers)

    def read_states(self) -> dict[str, Any]:
        """Return what is on each host, with the lines of some files."""
        lines_by_host = {
            host: {path: mask_lines(LAB.run(host, "cat", path)) for path in COMPARED_FILES} for host in MACHINES
        }
        return {host: {**host_state.read_state(LAB, host), **lines_by_host[host]} for host in MACHINES}

    # The lab and its cluster

    @contextlib.contextmanager
    def use_collection(self, directory: Path) -> Iterator[None]:
        """Use the collection in this directory instead of this tree."""
        os.environ["ANSIBLE_COLLECTIONS_PATH"] = str(directory)
        try:
            galaxy_output = run_ansible("ansible-galaxy", "collection", "list", "gpumesh.cluster").output
            collection_line = next(
                (line for line in galaxy_output.splitlines() if line.endswith("ansible_collections")), ""
            )
            assert collection_line.split()[-1:] == [str(directory / "ansible_collections")], galaxy_output
            yield
        finally:
            del os.environ["ANSIBLE_COLLECTIONS_PATH"]

    def run_lab_playbook(self, name: str) -> None:
        settings = {"lab_name": self.options.lab, "work_network": self.options.network}
        run_lab_playbook(name, SCENARIO / "lab.yml", settings)

    def create_hosts(self) -> None:
        self.run_lab_playbook("down")
        self.run_lab_playbook("up")

    def build_cluster(self, name: str) -> None:
        """Build the cluster of the scenario, with tracking, and complete it by `site`."""
        playbook_run = LAB.run_playbook(str(SCENARIO / "converge.yml"))
        assert playbook_run.exit_status == 0, playbook_run.failure_report
        users_file = self.log_directory / "users"
        users_file.write_text("".join(f"{user}:{PASSWORDS[user]}\n" for user in ("admin", "alice")), encoding="ascii")
        playbook_run = self.run_playbook(f"{name}-tracking", "tracking", "-e", f"tracking_users_file={users_file}")
        assert playbook_run.exit_status == 0, playbook_run.failure_report
        playbook_run = self.run_playbook(f"{name}-site", "site")
        assert playbook_run.exit_status == 0, playbook_run.failure_report

    def run_playbook(self, log_name: str, playbook: str, *options: str) -> AnsibleRun:
        """Run a playbook of the collection. Its output is kept."""
        report_directory = self.log_directory / f"{log_name}-report"
        playbook_run = LAB.run_playbook(
            f"gpumesh.cluster.{playbook}", "-e", f"check_report_dir={report_directory}", *options
        )
        (self.log_directory / f"{log_name}.log").write_text(playbook_run.output, encoding="utf-8")
        return playbook_run

    @staticmethod
    def list_failures(playbook_run: AnsibleRun) -> list[str]:
        return [f"status {playbook_run.exit_status}: {playbook_run.failure_report}"] if playbook_run.exit_status else []

    @staticmethod
    def check_refusal(playbook_run: AnsibleRun) -> list[str]:
        """Return what is wrong with the refusal by the record of the newer version."""
        names_version = (
            "was last changed by gpumesh.cluster" in playbook_run.flat_output
            or "it has schema version" in playbook_run.flat_output
        )
        return [
            *playbook_run.changes,
            *(
                []
                if playbook_run.exit_status and names_version
                else [f"status {playbook_run.exit_status}: {playbook_run.failure_report}"]
            ),
        ]

    def check_recorded_version(self) -> list[str]:
        version = self.tracking.read_record().get("collection_version")
        return [] if version == VERSION else [f"the record has {version}, and this is {VERSION}"]

    # The work of users

    def start_work(self) -> str:
        """Start everything. Returns the result of an undisturbed run."""
        shutil.copy(SCENARIO / "tests" / "trainer.py", self.shared_volume / "trainer.py")
        for name in (HURRY_FILE, GO_FILE):
            (self.shared_volume / Path(name).name).unlink(missing_ok=True)
        for machine in MACHINES:
            credentials = (
                f"[mlflow]\nmlflow_tracking_username = alice\nmlflow_tracking_password = {PASSWORDS['alice']}\n"
            )
            credentials_script = 'umask 077; mkdir -p ~/.mlflow && printf %s "$1" > ~/.mlflow/credentials'
            LAB.run(
                machine,
                "runuser",
                "-u",
                "alice",
                "--",
                "sh",
                "-c",
                f"HOME=/home/alice; {credentials_script}",
                "-",
                credentials,
            )
        self.start_training("before", "0")
        run_status = self.await_end("before")
        assert run_status["state"] == "finished", run_status
        self.send_points("before")
        reference = self.read_result("before")
        self.start_training("through", str(STEP_SECONDS), "--hurry", HURRY_FILE)
        start_session("alice", [make_role("main"), make_role("sub", replicas=2)])
        sbatch_command = ["sbatch", "--parsable", "--chdir=/", "--mem=16", f"--nodelist={BARE_HOST}"]
        running_id = run_as("bob", *sbatch_command, "--output=/mnt/shared/bob/runs", f"--wrap={JOB_SCRIPT}").strip()
        dependency_options = [
            f"--dependency=afterok:{running_id}",
            "--output=/mnt/shared/bob/waits",
            "--wrap=echo began",
        ]
        self.job_ids = {"runs": running_id, "waits": run_as("bob", *sbatch_command, *dependency_options).strip()}
        LAB.wait_until("the job runs", lambda: self.read_job("runs").state == "RUNNING", WAIT_TIMEOUT)
        LAB.wait_until("points arrive", lambda: len(self.find_tracked_steps("through")) > 2, WAIT_TIMEOUT)
        self.open_sessions()
        return reference

    def start_training(self, name: str, seconds: str, *options: str) -> None:
        command = ["python3", TRAINER_PATH, str(STEP_COUNT), seconds, "--track", *options]
        # The run shares the nodes with the session and the jobs.
        sharing_options = ("--sbatch", "--cpus-per-task=1")
        run_as("alice", "gpumesh-train", "--detach", "--name", name, "--nodes", "4", *sharing_options, "--", *command)

    def open_sessions(self) -> None:
        public_key = (self.lab_directory / "id_ed25519.pub").read_text(encoding="ascii").strip()
        for host in LOGIN_HOSTS:
            key_script = 'umask 077; mkdir -p ~carol/.ssh && echo "$1" > ~carol/.ssh/authorized_keys'
            LAB.run(host, "runuser", "-u", "carol", "--", "sh", "-c", key_script, "-", public_key)
            self.session_by_host[host] = SshSession(self.tracking.address_of(host), self.lab_directory)

    def read_work(self) -> UserWork:
        """Return the present work of users."""
        run_status = self.read_run_status("through")
        return UserWork(
            run_status["state"],
            tuple(attempt["job"] for attempt in run_status["attempts"]),
            run_status["step"],
            tuple(self.find_tracked_steps("through")),
            identify_containers(),
            {name: self.read_job(name) for name in self.job_ids},
            {
                name: run_identity
                for name, run_identity in self.tracking.identify_runs("alice").items()
                if name == "before"
            },
            {host: login.echo_word("here") for host, login in self.session_by_host.items()},
        )

    def find_daemons(self) -> dict[str, dict[str, str]]:
        return {
            host: dict(line.split("=") for line in LAB.run(host, "sh", "-c", DAEMONS_SCRIPT, check=False).splitlines())
            for host in MACHINES
        }

    def read_run_status(self, name: str) -> dict[str, Any]:
        try:
            run_status = json.loads(
                (self.shared_volume / "alice" / "runs" / name / "run.json").read_text(encoding="utf-8")
            )
        except FileNotFoundError:
            return {"state": "queued", "step": 0, "attempts": []}
        return dict(run_status)

    def read_job(self, name: str) -> SlurmJobState:
        """Return the job of bob with this name."""
        job_line = LAB.run(MANAGER, "scontrol", "--oneliner", "show", "job", self.job_ids[name])
        job_fields = dict(field.split("=", 1) for field in job_line.split() if "=" in field)
        running = job_fields["JobState"] == "RUNNING"
        process_id = LAB.run(BARE_HOST, "pgrep", "-o", "-u", "bob", check=False).strip() if running else ""
        return SlurmJobState(job_fields["JobState"], job_fields["Restarts"], job_fields["StartTime"], process_id)

    def find_tracked_steps(self, name: str) -> list[int]:
        """Return the steps of the run that the tracking server has."""
        run = self.tracking.find_runs("alice").get(name)
        return self.tracking.stored_steps(run, "loss") if run else []

    def send_points(self, name: str) -> None:
        """Send what was not sent before the program ended, with the command that it prints."""
        track_directory = f"/mnt/shared/alice/runs/{name}/track"
        run_as("alice", "srun", "python3", "/usr/local/lib/gpumesh/python/gpumesh_track.py", track_directory)

    def read_result(self, name: str) -> str:
        """Return the line with the result of rank 0. The program that tracks the run may print another one after it."""
        log_path = self.shared_volume / "alice" / "runs" / name / "attempts" / "001" / "rank-0.log"
        lines = log_path.read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith("weight ")), f"no result: {lines[-1:]}")

    def await_end(self, name: str) -> dict[str, Any]:
        LAB.wait_until(
            f"the run {name} has ended", lambda: self.read_run_status(name)["state"] in ENDED_STATES, 2 * WAIT_TIMEOUT
        )
        return self.read_run_status(name)

    # The results

    def await_points(self, work_before: UserWork) -> list[str]:
        """Return what is wrong with the points that the run sends after the upgrade."""
        try:
            LAB.wait_until(
                "points arrive",
                lambda: len(self.find_tracked_steps("through")) > len(work_before.tracked_steps),
                WAIT_TIMEOUT,
            )
        except AssertionError as failure:
            return [str(failure)]
        return []

    def check_session_network(self) -> list[str]:
        """Return the containers that cannot be entered, or do not reach the others by name."""
        name_by_container = {
            name: run_in_container("alice", name, "ssh", "main1", "hostname", check=False).strip()
            for name in ("sub1", "sub2")
        }
        return [f"{name} is told '{text}'" for name, text in name_by_container.items() if text != "main1"]

    def end_work(self, reference: str) -> list[str]:
        """Let everything end. Returns what did not end as it should."""
        (self.shared_volume / Path(HURRY_FILE).name).touch()
        (self.shared_volume / Path(GO_FILE).name).touch()
        run_status = self.await_end("through")
        problems = [] if run_status["state"] == "finished" else [f"the training run is {run_status['state']}"]
        if (
            result := self.read_result("through")
        ) != reference or f"samples {sum_of_samples(STEP_COUNT)!r}" not in result:
            problems.append(f"the training run has {result}, and undisturbed {reference}")
        self.send_points("through")
        steps_by_run = {name: self.find_tracked_steps(name) for name in ("before", "through")}
        problems += [
            f"the tracking server has {len(points)} of {STEP_COUNT} points of {name}"
            for name, points in steps_by_run.items()
            if points != list(range(1, STEP_COUNT + 1))
        ]
        LAB.wait_until(
            "the jobs have ended", lambda: self.read_job("waits").state not in ("PENDING", "RUNNING"), WAIT_TIMEOUT
        )
        for name, text in (("runs", "ran on"), ("waits", "began")):
            job_output = (self.shared_volume / "bob" / name).read_text(encoding="utf-8").strip()
            if (state := self.read_job(name).state) != "COMPLETED" or job_output != text:
                problems.append(f"the job that {name} is {state} and has printed '{job_output}'")
        # Slurm forgets ended jobs.
        self.job_ids = {}
        return problems

    def check_loss_detection(self) -> list[str]:
        """Kill a container and the connection of a user. Returns what of it is not noticed."""
        work_before = self.read_work()
        LAB.run(find_containers("alice")["sub1"][1], "pkill", "-KILL", "-x", "conmon")
        self.session_by_host[BARE_HOST].close()

        def undetected() -> set[str]:
            return {"container", "login"} - {line.split()[0] for line in find_losses(work_before, self.read_work())}

        with contextlib.suppress(AssertionError):
            LAB.wait_until("both are noticed", lambda: not undetected(), WAIT_TIMEOUT)
        return [f"a killed {kind}" for kind in undetected()]

    def stop_work(self) -> None:
        """End what still runs, so that nothing of it is on the hosts."""
        for login in self.session_by_host.values():
            login.close()
        run_as("alice", "gpumesh-session", "stop", "demo", check=False)
        LAB.run(MANAGER, "scancel", "--user=alice,bob", check=False)
        session_lab.assert_clean()
        LAB.await_idle(MANAGER)
        # The process that watches over sessions on a node ends by itself, a while after the last one.
        watcher_command = ("pgrep", "-x", "gpumesh-session")
        LAB.wait_until(
            "nothing watches",
            lambda: not any(LAB.run(host, *watcher_command, check=False) for host in MACHINES),
            WAIT_TIMEOUT,
        )


def identify_containers() -> dict[str, str]:
    """Return the first process of each container of alice's session, with its job, address and node; empty without one."""
    identity_command = ("sh", "-c", "cut -d ' ' -f 22 /proc/1/stat; readlink /proc/1/ns/pid")
    try:
        job, containers = find_job_id("alice"), find_containers("alice")
        return {
            name: f"{job} {containers[name]} {lines}"
            for name, lines in run_in_containers("alice", *identity_command).items()
        }
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
    sys.exit(UpgradeTest(read_arguments()).run())


if __name__ == "__main__":
    main()
