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
from experiments import MACHINES, VOLUME_SETS, ClusterOperation, ClusterState
from lab_hosts import ROOT, Lab, run_lab_playbook

LAB_DESCRIPTION = ROOT / "extensions" / "molecule" / "chaos" / "lab.yml"
RECORD_PATH = "/var/lib/gpumesh/clusters/chaos.json"
#: The file in which slurmctld saves its jobs.
SAVED_JOBS_PATH = "/var/lib/slurm/slurmctld/job_state"
SUPERVISORD_CONF = "/etc/supervisor/supervisord.conf"
#: Files that stay when the cluster is deleted: logs, as with a journal, and the directories of mount and slurmd.
SUPERVISORD_LEFTOVERS = re.compile(r"/var/log/gpumesh-|supervis|^volatile: [+-] (mount|slurm)$")
#: The program of a user's job, by which it is found among all processes.
JOB_COMMAND = "sleep 864001"
USER_COMMAND = ["runuser", "-u", "nobody", "--"]
#: Seconds in which nodes must become ready, generously: three hosts and a controller share a machine that may be busy.
WAIT_TIMEOUT = 300.0


class ProofError(Exception):
    """The state after a rerun is not as required."""


class UserJob(NamedTuple):
    """A user's job on one node."""

    job_id: str
    node: str
    process_id: str


class ChaosCluster:
    """Three hosts, some of which are members."""

    def __init__(self, name: str, network: str) -> None:
        self.lab = Lab(name)
        self.network = network
        self.state = ClusterState()
        self.directory = ROOT / ".lab" / name
        self.bare_states: dict[str, Any] = {}
        self.user_jobs: list[UserJob] = []
        #: The times when the power of hosts was restored, since the epoch.
        self.power_restored_at: dict[str, float] = {}

    # The lab

    def create_hosts(self, image: str = "prepared") -> None:
        """Create hosts that never had a cluster."""
        self._run_lab_playbook("down")
        self._run_lab_playbook("up", lab_prepared=image == "prepared")
        self.state, self.user_jobs, self.power_restored_at = ClusterState(image=image), [], {}
        self._save_bare_states()

    def adopt_hosts(self) -> None:
        """Continue with the hosts as they are: bare, or with the intact cluster of an earlier call."""
        if not self._bare_states_path.exists():
            self._save_bare_states()
        self.bare_states = json.loads(self._bare_states_path.read_text(encoding="utf-8"))
        for host in MACHINES:
            record_text = self.lab.run(host, "cat", RECORD_PATH, check=False)
            if record_text:
                record = json.loads(record_text)
                volumes = "two" if len(record["storage"]["volumes"]) == len(VOLUME_SETS["two"]) else "one"
                members = frozenset(member["machine"] for member in record["members"])
                self.state = ClusterState(members, record["manager"], volumes)

    def _save_bare_states(self) -> None:
        self.bare_states = {host: host_state.read_state(self.lab, host) for host in MACHINES}
        self._bare_states_path.write_text(json.dumps(self.bare_states), encoding="utf-8")

    @property
    def _bare_states_path(self) -> Path:
        return self.directory / "bare.json"

    def remove_hosts(self) -> None:
        self._run_lab_playbook("down")

    def _run_lab_playbook(self, name: str, **settings: bool) -> None:
        run_lab_playbook(name, LAB_DESCRIPTION, {"lab_name": self.lab.name, "chaos_network": self.network, **settings})

    # The command lines of operations

    def build_command(self, operation: ClusterOperation, repeatable: bool = False) -> list[str]:
        """Return the command line; ``repeatable`` omits options that change something on every run, such as new keys."""
        name, variables = self._playbook_and_variables(operation, repeatable)
        limit = ["--limit", f"!{operation.away_member}"] if operation.away_member else []
        return [*self._playbook_arguments(name), "-e", json.dumps(variables), *limit]

    def build_completion_command(self, trusted: str = "") -> list[str]:
        """Return the command line that brings the members up to date.

        ``trusted``: the machine with the right copy of the record, if nobody else confirms it.
        """
        return [*self._playbook_arguments("site"), "-e", json.dumps({"cluster_trusted_copy": trusted})]

    def _playbook_arguments(self, name: str) -> list[str]:
        return ["-i", str(self.lab.inventory), f"gpumesh.cluster.{name}"]

    def _playbook_and_variables(self, operation: ClusterOperation, repeatable: bool) -> tuple[str, dict[str, Any]]:
        if operation.name in {"create", "install"}:
            return "site", {"cluster_manager": operation.manager, "storage_volumes": VOLUME_SETS["one"]}
        if operation.name == "join":
            return "join", {"cluster_machines": operation.machine}
        if operation.name == "remove":
            return "remove", {"cluster_machine": operation.machine}
        if operation.name == "hand-over":
            return "remove", {"cluster_machine": operation.manager, "cluster_new_manager": operation.machine}
        if operation.name == "mesh-keys":
            return "mesh", {} if repeatable else {"mesh_rotate_keys": True}
        if operation.name == "munge-key":
            return "slurm", {} if repeatable else {"munge_rotate_key": True}
        if operation.name == "storage":
            return "storage", {"storage_volumes": VOLUME_SETS[operation.state_after(self.state).volume_set]}
        return "delete", {}

    # Hosts that die

    def power_cycle(self, host: str) -> None:
        """Cut the power of the host, and restore it."""
        self.lab.kill(host)
        self._restore_power(host)

    def start_host(self, host: str) -> None:
        """Start the host, and wait until it has booted."""
        self._restore_power(host)
        self.await_host(host)

    def _restore_power(self, host: str) -> None:
        self.power_restored_at[host] = time.time()
        self.lab.power_on(host)

    def await_host(self, host: str) -> None:
        """Wait until the host has booted. Start supervisord where nothing else does, as the guide on containers says."""
        self.lab.await_boot(host, SUPERVISORD_CONF if host == "c3" else "")

    def kill_module(self, host: str, seconds: float = 20) -> bool:
        """Kill the first Ansible module that runs on the host within that time. Returns False if there was none."""
        # Pipelining passes a module on stdin, so that its process is the bare interpreter.
        kill_loop = "until pkill -9 -f -x /usr/bin/python3; do sleep 0.02; done"
        argv = ["docker", "exec", f"gpumesh-{self.lab.name}-{host}", "timeout", str(seconds), "sh", "-c", kill_loop]
        return subprocess.run(argv, check=False, capture_output=True, timeout=seconds + 60).returncode == 0

    # Jobs

    def start_jobs(self, operation: ClusterOperation) -> None:
        """Start a job on each member that is up and remains after the operation. A machine with jobs cannot be removed."""
        if not self.state.members:
            self.user_jobs = []
            return
        stopping_nodes = (
            set(MACHINES) if operation.name == "delete" else {operation.leaving_machine, operation.away_member}
        )
        surviving_jobs = [job for job in self.user_jobs if job.node not in stopping_nodes and self._is_running(job)]
        manager = self.state.manager
        running_ids = self.lab.run(manager, "squeue", "--noheader", "--format=%i").split()
        unknown_ids = sorted(set(running_ids) - {job.job_id for job in surviving_jobs})
        if unknown_ids:
            self.lab.run(manager, "scancel", *unknown_ids)
            self._wait_until("jobs have ended", lambda: not set(self._running_job_ids()) & set(unknown_ids))
        nodes = sorted(self.state.members - stopping_nodes - {job.node for job in surviving_jobs})
        self.user_jobs = surviving_jobs + [self._start_job(node) for node in nodes]
        if nodes:
            self._await_saved_state()

    def _await_saved_state(self) -> None:
        """Wait until the controller has saved that the jobs run. If it loses its power before, it starts them again.

        It saves 5 s after an event, and the start of a job by the backfill scheduler is none.
        """
        manager = self.state.manager
        update_time = int(time.time())
        self.lab.run(manager, "scontrol", "update", f"jobid={self.user_jobs[-1].job_id}", "comment=saved")
        stat_command = ("stat", "--format=%Y", SAVED_JOBS_PATH)
        self._wait_until("the jobs are saved", lambda: int(self.lab.run(manager, *stat_command)) > update_time)

    def _running_job_ids(self) -> list[str]:
        return self.lab.run(self.state.manager, "squeue", "--noheader", "--format=%i", check=False).split()

    def _start_job(self, node: str) -> UserJob:
        options = [
            "--parsable",
            f"--nodelist={node}",
            "--mem=16",
            "--output=/dev/null",
            "--chdir=/",
            f"--wrap={JOB_COMMAND}",
        ]
        job_id = self.lab.run(self.state.manager, *USER_COMMAND, "sbatch", *options).strip()
        self._wait_until(f"job {job_id} runs on {node}", lambda: bool(self._find_job_process(node)))
        return UserJob(job_id, node, self._find_job_process(node))

    def _find_job_process(self, node: str) -> str:
        return self.lab.run(node, "pgrep", "-f", "-x", JOB_COMMAND, check=False).strip()

    def _is_running(self, job: UserJob) -> bool:
        if not job.process_id or self._find_job_process(job.node) != job.process_id:
            return False
        job_fields = self.lab.run(
            self.state.manager, "scontrol", "--oneliner", "show", "job", job.job_id, check=False
        ).split()
        return "JobState=RUNNING" in job_fields and "Restarts=0" in job_fields

    # Proofs

    def verify(self, killed_host: str) -> None:
        """Check the record, the nodes, the jobs, and what other machines still have."""
        state = self.state
        self._verify_record(state)
        if state.members:
            self._verify_nodes(state)
        for job in self.user_jobs:
            if job.node != killed_host and job.node in state.members and not self._is_running(job):
                job_description = self.lab.run(state.manager, "scontrol", "show", "job", job.job_id, check=False)
                raise ProofError(
                    f"job {job.job_id} on {job.node} (process {job.process_id}) did not survive: {job_description}"
                )
        for host in sorted(set(MACHINES) - state.members):
            leftovers = [
                line
                for line in host_state.find_differences(self.bare_states[host], host_state.read_state(self.lab, host))
                if not SUPERVISORD_LEFTOVERS.search(line)
            ]
            if leftovers:
                raise ProofError(f"{host} is not a member, but is not as it was: {leftovers}")

    def _verify_record(self, state: ClusterState) -> None:
        text_by_host = {host: self.lab.run(host, "cat", RECORD_PATH, check=False) for host in MACHINES}
        hosts_with_record = {host for host, text in text_by_host.items() if text}
        if hosts_with_record != state.members:
            raise ProofError(
                f"the record is on {sorted(hosts_with_record)}, but {sorted(state.members)} should be members"
            )
        if not hosts_with_record:
            return
        records = {host: json.loads(text) for host, text in text_by_host.items() if text}
        manager_record = records[state.manager]
        if any(record != manager_record for record in records.values()):
            raise ProofError(f"the copies of the record differ: {text_by_host}")
        members = {member["machine"] for member in manager_record["members"]}
        if members != state.members or manager_record["manager"] != state.manager:
            raise ProofError(f"the record has {sorted(members)} under {manager_record['manager']}, not {state}")
        volumes = [volume["name"] for volume in manager_record["storage"]["volumes"]]
        if volumes != [volume["name"] for volume in VOLUME_SETS[state.volume_set]]:
            raise ProofError(f"the record has the volumes {volumes}, not {state.volume_set}")
        munge_key_digests = {
            self.lab.run(host, "sha256sum", "/etc/munge/munge.key", check=False) for host in state.members
        }
        if len(munge_key_digests) != 1:
            raise ProofError(f"munge's keys differ: {munge_key_digests}")

    def _verify_nodes(self, state: ClusterState) -> None:
        manager, expected_nodes = state.manager, set(state.members)

        def node_states() -> dict[str, str]:
            sinfo_output = self.lab.run(manager, "sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
            return dict(line.split() for line in sinfo_output.splitlines())

        def are_ready() -> bool:
            states = node_states()
            usable = set(states) == expected_nodes and set(states.values()) <= {"idle", "mixed", "allocated"}
            return usable and all(map(self._has_registered, expected_nodes))

        try:
            self._wait_until("all nodes are ready", are_ready)
        except ProofError as error:
            raise ProofError(f"{error}; sinfo: {node_states()}") from error
        node_count = str(len(expected_nodes))
        # The job is started from a member that is not the manager, if there is one.
        caller = max(expected_nodes, key=lambda machine: (machine != manager, machine))
        argv = [
            *USER_COMMAND,
            "timeout",
            "240",
            "srun",
            "--chdir=/",
            "-N",
            node_count,
            "-n",
            node_count,
            "--mem=16",
            "hostname",
        ]
        srun_output = self.lab.run(caller, *argv, check=False)
        if sorted(srun_output.split()) != sorted(expected_nodes):
            queue = self.lab.run(manager, "squeue", check=False)
            raise ProofError(f"srun on all nodes, from {caller}, printed {srun_output.split()}; queue: {queue}")

    def _has_registered(self, node: str) -> bool:
        """Return whether the controller has heard from slurmd on the node since its power was restored, if that was
        cut.

        Until then it shows the node as it was before, and a slurmd without systemd waits 10 s between its attempts.
        """
        if node not in self.power_restored_at:
            return True
        command = ("env", "SLURM_TIME_FORMAT=%s", "scontrol", "--oneliner", "show", "node", node)
        node_line = self.lab.run(self.state.manager, *command, check=False)
        slurmd_start = re.search(r"SlurmdStartTime=(\d+)", node_line)
        return bool(slurmd_start) and int(slurmd_start[1]) >= int(self.power_restored_at[node])

    def _wait_until(self, description: str, condition: Any, seconds: float = WAIT_TIMEOUT) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ProofError(f"not within {seconds:.0f} s: {description}")
            time.sleep(0.5)

    # When a proof fails

    def save_diagnostics(self, directory: Path) -> None:
        """Save what helps to find the cause of a failure."""
        command_by_topic = {
            "processes": "ps -eo pid,ppid,lstart,etimes,user,args --sort=start_time",
            "sockets": "ss -tlnp",
            "journal": "journalctl -b --no-pager -n 400 || true",
            "slurm": "sinfo -NR; sinfo -N; squeue; tail -n 200 /var/log/slurm/*.log",
            "supervisor": "supervisorctl status; tail -n 50 /var/log/supervisor/*",
            "files": "ls -laR /etc/slurm /etc/gpumesh /etc/munge /var/lib/gpumesh /var/lib/slurm /run/gpumesh",
            "record": f"cat {RECORD_PATH}",
            "wireguard": "wg show; ip address; ip route; cat /etc/hosts",
        }
        for host in MACHINES:
            for topic, command in command_by_topic.items():
                output = self.lab.run(host, "sh", "-c", f"({command}) 2>&1", check=False)
                (directory / f"{host}.{topic}").write_text(output, encoding="utf-8")
