# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster for the chaos tests: its lab, jobs that must keep running, and proofs of its state."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import host_state
from experiments import MACHINES, VOLUMES, Operation, State
from lab_hosts import ROOT, Lab, lab_playbook

DESCRIPTION = ROOT / "extensions" / "molecule" / "chaos" / "lab.yml"
RECORD = "/var/lib/gpumesh/clusters/chaos.json"
#: The file in which slurmctld saves its jobs.
SAVED_JOBS = "/var/lib/slurm/slurmctld/job_state"
SUPERVISORD = "/etc/supervisor/supervisord.conf"
#: Files that stay when the cluster is deleted: logs, as with a journal, and the directories of mount and slurmd.
SUPERVISORD_LEAVES = re.compile(r"/var/log/gpumesh-|supervis|^volatile: [+-] (mount|slurm)$")
#: The program of a user's job, by which it is found among all processes.
JOB = "sleep 864001"
USER = ["runuser", "-u", "nobody", "--"]
#: Seconds in which nodes must become ready, generously: three hosts and a controller share a machine that may be busy.
PATIENCE = 300.0


class ProofError(Exception):
    """The state after a rerun is not as required."""


class Job(NamedTuple):
    """A user's job on one node."""

    number: str
    node: str
    pid: str


class Cluster:
    """Three hosts, some of which are members."""

    def __init__(self, name: str, network: str) -> None:
        self.lab = Lab(name)
        self.network = network
        self.state = State()
        self.folder = ROOT / ".lab" / name
        self.bare: dict[str, Any] = {}
        self.jobs: list[Job] = []
        #: The times when the power of hosts was restored, since the epoch.
        self.restored: dict[str, float] = {}

    # The lab

    def up(self, image: str = "prepared") -> None:
        """Create hosts that never had a cluster."""
        self._playbook("down")
        self._playbook("up", lab_prepared=image == "prepared")
        self.state, self.jobs, self.restored = State(image=image), [], {}
        self._remember()

    def take_over(self) -> None:
        """Continue with the hosts as they are: bare, or with the intact cluster of an earlier call."""
        if not self._kept.exists():
            self._remember()
        self.bare = json.loads(self._kept.read_text(encoding="utf-8"))
        for host in MACHINES:
            text = self.lab.run(host, "cat", RECORD, check=False)
            if text:
                record = json.loads(text)
                volumes = "two" if len(record["storage"]["volumes"]) == len(VOLUMES["two"]) else "one"
                members = frozenset(member["machine"] for member in record["members"])
                self.state = State(members, record["manager"], volumes)

    def _remember(self) -> None:
        self.bare = {host: host_state.read(self.lab, host) for host in MACHINES}
        self._kept.write_text(json.dumps(self.bare), encoding="utf-8")

    @property
    def _kept(self) -> Path:
        return self.folder / "bare.json"

    def down(self) -> None:
        self._playbook("down")

    def _playbook(self, name: str, **settings: bool) -> None:
        lab_playbook(name, DESCRIPTION, {"lab_name": self.lab.name, "chaos_network": self.network, **settings})

    # The command lines of operations

    def command(self, operation: Operation, steady: bool = False) -> list[str]:
        """Return the command line; ``repeatable`` omits options that change something on every run, such as new keys."""
        name, variables = self._what(operation, steady)
        limit = ["--limit", f"!{operation.away}"] if operation.away else []
        return [*self._playbook_of(name), "-e", json.dumps(variables), *limit]

    def completion(self, trusted: str = "") -> list[str]:
        """Return the command line that brings the members up to date.

        ``trusted``: the machine with the right copy of the record, if nobody else confirms it.
        """
        return [*self._playbook_of("site"), "-e", json.dumps({"cluster_trusted_copy": trusted})]

    def _playbook_of(self, name: str) -> list[str]:
        return ["-i", str(self.lab.inventory), f"gpumesh.cluster.{name}"]

    def _what(self, operation: Operation, steady: bool) -> tuple[str, dict[str, Any]]:
        if operation.name in {"create", "install"}:
            return "site", {"cluster_manager": operation.manager, "storage_volumes": VOLUMES["one"]}
        if operation.name == "join":
            return "join", {"cluster_machines": operation.machine}
        if operation.name == "remove":
            return "remove", {"cluster_machine": operation.machine}
        if operation.name == "hand-over":
            return "remove", {"cluster_machine": operation.manager, "cluster_new_manager": operation.machine}
        if operation.name == "mesh-keys":
            return "mesh", {} if steady else {"mesh_rotate_keys": True}
        if operation.name == "munge-key":
            return "slurm", {} if steady else {"munge_rotate_key": True}
        if operation.name == "storage":
            return "storage", {"storage_volumes": VOLUMES[operation.after(self.state).volumes]}
        return "delete", {}

    # Hosts that die

    def strike(self, host: str) -> None:
        """Cut the power of the host, and restore it."""
        self.lab.kill(host)
        self._power_on(host)

    def switch_on(self, host: str) -> None:
        """Start the host, and wait until it has booted."""
        self._power_on(host)
        self.await_host(host)

    def _power_on(self, host: str) -> None:
        self.restored[host] = time.time()
        self.lab.power_on(host)

    def await_host(self, host: str) -> None:
        """Wait until the host has booted. Start supervisord where nothing else does, as the guide on containers says."""
        self.lab.await_boot(host, SUPERVISORD if host == "c3" else "")

    def kill_module(self, host: str, seconds: float = 20) -> bool:
        """Kill the first Ansible module that runs on the host within that time. Returns False if there was none."""
        # Pipelining passes a module on stdin, so that its process is the bare interpreter.
        loop = "until pkill -9 -f -x /usr/bin/python3; do sleep 0.02; done"
        argv = ["docker", "exec", f"gpumesh-{self.lab.name}-{host}", "timeout", str(seconds), "sh", "-c", loop]
        return subprocess.run(argv, check=False, capture_output=True, timeout=seconds + 60).returncode == 0

    # Jobs

    def start_jobs(self, operation: Operation) -> None:
        """Start a job on each member that is up and remains after the operation. A machine with jobs cannot be removed."""
        if not self.state.members:
            self.jobs = []
            return
        ending = set(MACHINES) if operation.name == "delete" else {operation.leaving, operation.away}
        stay = [job for job in self.jobs if job.node not in ending and self._alive(job)]
        manager = self.state.manager
        running = self.lab.run(manager, "squeue", "--noheader", "--format=%i").split()
        unknown = sorted(set(running) - {job.number for job in stay})
        if unknown:
            self.lab.run(manager, "scancel", *unknown)
            self._wait("jobs have ended", lambda: not set(self._running()) & set(unknown))
        nodes = sorted(self.state.members - ending - {job.node for job in stay})
        self.jobs = stay + [self._start_job(node) for node in nodes]
        if nodes:
            self._await_saved()

    def _await_saved(self) -> None:
        """Wait until the controller has saved that the jobs run. If it loses its power before, it starts them again.

        It saves 5 s after an event, and the start of a job by the backfill scheduler is none.
        """
        manager = self.state.manager
        began = int(time.time())
        self.lab.run(manager, "scontrol", "update", f"jobid={self.jobs[-1].number}", "comment=saved")
        saved = ("stat", "--format=%Y", SAVED_JOBS)
        self._wait("the jobs are saved", lambda: int(self.lab.run(manager, *saved)) > began)

    def _running(self) -> list[str]:
        return self.lab.run(self.state.manager, "squeue", "--noheader", "--format=%i", check=False).split()

    def _start_job(self, node: str) -> Job:
        options = ["--parsable", f"--nodelist={node}", "--mem=16", "--output=/dev/null", "--chdir=/", f"--wrap={JOB}"]
        number = self.lab.run(self.state.manager, *USER, "sbatch", *options).strip()
        self._wait(f"job {number} runs on {node}", lambda: bool(self._pid(node)))
        return Job(number, node, self._pid(node))

    def _pid(self, node: str) -> str:
        return self.lab.run(node, "pgrep", "-f", "-x", JOB, check=False).strip()

    def _alive(self, job: Job) -> bool:
        if not job.pid or self._pid(job.node) != job.pid:
            return False
        shown = self.lab.run(
            self.state.manager, "scontrol", "--oneliner", "show", "job", job.number, check=False
        ).split()
        return "JobState=RUNNING" in shown and "Restarts=0" in shown

    # Proofs

    def prove(self, died: str) -> None:
        """Check the record, the nodes, the jobs, and what other machines still have."""
        state = self.state
        self._prove_record(state)
        if state.members:
            self._prove_nodes(state)
        for job in self.jobs:
            if job.node != died and job.node in state.members and not self._alive(job):
                shown = self.lab.run(state.manager, "scontrol", "show", "job", job.number, check=False)
                raise ProofError(f"job {job.number} on {job.node} (process {job.pid}) did not survive: {shown}")
        for host in sorted(set(MACHINES) - state.members):
            left = [
                line
                for line in host_state.differences(self.bare[host], host_state.read(self.lab, host))
                if not SUPERVISORD_LEAVES.search(line)
            ]
            if left:
                raise ProofError(f"{host} is not a member, but is not as it was: {left}")

    def _prove_record(self, state: State) -> None:
        texts = {host: self.lab.run(host, "cat", RECORD, check=False) for host in MACHINES}
        held = {host for host, text in texts.items() if text}
        if held != state.members:
            raise ProofError(f"the record is on {sorted(held)}, but {sorted(state.members)} should be members")
        if not held:
            return
        records = {host: json.loads(text) for host, text in texts.items() if text}
        first = records[state.manager]
        if any(record != first for record in records.values()):
            raise ProofError(f"the copies of the record differ: {texts}")
        members = {member["machine"] for member in first["members"]}
        if members != state.members or first["manager"] != state.manager:
            raise ProofError(f"the record has {sorted(members)} under {first['manager']}, not {state}")
        volumes = [volume["name"] for volume in first["storage"]["volumes"]]
        if volumes != [volume["name"] for volume in VOLUMES[state.volumes]]:
            raise ProofError(f"the record has the volumes {volumes}, not {state.volumes}")
        keys = {self.lab.run(host, "sha256sum", "/etc/munge/munge.key", check=False) for host in state.members}
        if len(keys) != 1:
            raise ProofError(f"munge's keys differ: {keys}")

    def _prove_nodes(self, state: State) -> None:
        manager, wanted = state.manager, set(state.members)

        def nodes() -> dict[str, str]:
            shown = self.lab.run(manager, "sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
            return dict(line.split() for line in shown.splitlines())

        def ready() -> bool:
            found = nodes()
            usable = set(found) == wanted and set(found.values()) <= {"idle", "mixed", "allocated"}
            return usable and all(map(self._has_registered, wanted))

        try:
            self._wait("all nodes are ready", ready)
        except ProofError as error:
            raise ProofError(f"{error}; sinfo: {nodes()}") from error
        count = str(len(wanted))
        # The job is started from a member that is not the manager, if there is one.
        caller = max(wanted, key=lambda machine: (machine != manager, machine))
        argv = [*USER, "timeout", "240", "srun", "--chdir=/", "-N", count, "-n", count, "--mem=16", "hostname"]
        said = self.lab.run(caller, *argv, check=False)
        if sorted(said.split()) != sorted(wanted):
            queue = self.lab.run(manager, "squeue", check=False)
            raise ProofError(f"srun on all nodes, from {caller}, printed {said.split()}; queue: {queue}")

    def _has_registered(self, node: str) -> bool:
        """Return whether the controller has heard from slurmd on the node since its power was restored, if that was
        cut.

        Until then it shows the node as it was before, and a slurmd without systemd waits 10 s between its attempts.
        """
        if node not in self.restored:
            return True
        command = ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "node", node)
        shown = self.lab.run(self.state.manager, *command, check=False)
        started = re.search(r"SlurmdStartTime=(\d+)", shown)
        return bool(started) and int(started[1]) >= int(self.restored[node])

    def _wait(self, what: str, holds: Any, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                raise ProofError(f"not within {seconds:.0f} s: {what}")
            time.sleep(0.5)

    # When a proof fails

    def diagnose(self, folder: Path) -> None:
        """Save what helps to find the cause of a failure."""
        asked = {
            "processes": "ps -eo pid,ppid,lstart,etimes,user,args --sort=start_time",
            "sockets": "ss -tlnp",
            "journal": "journalctl -b --no-pager -n 400 || true",
            "slurm": "sinfo -NR; sinfo -N; squeue; tail -n 200 /var/log/slurm/*.log",
            "supervisor": "supervisorctl status; tail -n 50 /var/log/supervisor/*",
            "files": "ls -laR /etc/slurm /etc/gpumesh /etc/munge /var/lib/gpumesh /var/lib/slurm /run/gpumesh",
            "record": f"cat {RECORD}",
            "wireguard": "wg show; ip address; ip route; cat /etc/hosts",
        }
        for host in MACHINES:
            for topic, command in asked.items():
                said = self.lab.run(host, "sh", "-c", f"({command}) 2>&1", check=False)
                (folder / f"{host}.{topic}").write_text(said, encoding="utf-8")
