# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's job on this node: what root creates before it starts, and removes after it has ended.

Everything has the job ID in its name, so that whatever a killed prolog or epilog leaves behind can be found: by a
process that watches while anything is left on the node, by the next session's prolog, or by a run of the playbook. All
steps can be repeated. No prolog or epilog waits for the removal of files, of which a user may leave any number.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import sys
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.background import start_in_background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_error
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import (
    Runner,
    find_program,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import create_for_user
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import (
    CAP_SYS_ADMIN,
    has_capability,
    runs_systemd,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import network, plan, routing, trash
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    ENDED_STATES,
    NO_SLOT,
    PROGRAM_NAME,
    STORAGE_ROOT,
    Container,
    SessionSettings,
)

#: The directory for data that lasts until the node is shut down, with a directory for each job. Users can write to it
#: only in the file systems of their jobs.
RUN_DIRECTORY = "/run/gpumesh/session"
TABLE_FILE = "/etc/gpumesh/session.nft"
_NAMESPACE_DIRECTORY = "/run/netns"
_MOUNT_SOURCE = "gpumesh-session"
#: The options limit what a job can use up. The programs of a container store less than a hundredth of this limit.
_MOUNT_OPTIONS = "mode=0755,nosuid,nodev,size=128m,nr_inodes=32768"
#: The variable with the token, which the Slurm plugin passes on.
SESSION_VARIABLE = "SPANK_GPUMESH_SESSION"
#: The timeout, in seconds, for the kernel to release an identifier.
_RELEASE_TIMEOUT = 20.0
#: The interval, in seconds, between two checks of the watching process.
_WATCH_INTERVAL = 15.0
#: The name of the thread that removes what jobs leave behind.
_REMOVAL_THREAD = "removal"
_STEP_COMMAND = re.compile(rb"slurmstepd: \[([0-9]{1,10})[.\]]")
_PLAN_FILE, _PRIVATE_FILE, _ERROR_FILE = "plan.json", "private", "error"
_FORWARDED_FILE = ".forwarded"


def job_directory(job: int) -> str:
    """Return the directory of a job on this node."""
    return f"{RUN_DIRECTORY}/{job}"


def storage_directory(job: int) -> str:
    """Return the directory with the containers of a job."""
    return f"{STORAGE_ROOT}/{job}"


def read_plan(job: int) -> Dict[str, Any]:
    """Return the plan that the prolog has written. Raises HostStateError with the prolog's message if it has failed."""
    error_text = read_text(f"{job_directory(job)}/{_ERROR_FILE}")
    if error_text is not None:
        raise HostStateError(error_text.strip())
    plan_text = read_text(f"{job_directory(job)}/{_PLAN_FILE}")
    if plan_text is None:
        raise HostStateError(
            f"Job {job} has no session on this node.",
            "Check the log of slurmd, and whether session_enabled is set for this node.",
        )
    return dict(json.loads(plan_text))


# --- Before a job


def prolog(run: Runner, settings: SessionSettings, slurm_variables: Mapping[str, str]) -> None:
    """Create what the job needs on this node. An error is stored for its tasks, which then do not start."""
    job_id, user_id = int(slurm_variables["SLURM_JOB_ID"]), int(slurm_variables["SLURM_JOB_UID"])
    with _exclusive_lock():
        remove_ended_jobs(run, settings.machine, job_id)
        remove_job(run, job_id)
        os.mkdir(job_directory(job_id), 0o755)
        # The lock is still held, so a watching process that is about to end has seen the directory, or has ended.
        start_watching(run)
        # This file keeps all tasks of the job from starting without a namespace.
        write_atomic(f"{job_directory(job_id)}/{_PRIVATE_FILE}", "", 0o644)
        try:
            _mount_tmpfs(run, job_directory(job_id))
            # The mount has hidden the first file.
            write_atomic(f"{job_directory(job_id)}/{_PRIVATE_FILE}", "", 0o644)
            _prepare_job(run, settings, slurm_variables, job_id, user_id)
        except (GpumeshError, OSError, KeyError) as failure:
            write_atomic(f"{job_directory(job_id)}/{_ERROR_FILE}", f"{settings.machine}: {failure}\n", 0o644)


def _prepare_job(
    run: Runner, settings: SessionSettings, slurm_variables: Mapping[str, str], job_id: int, user_id: int
) -> None:
    if user_id == 0:
        raise InputError("root cannot own a session.", "Start it as another user: session_user.")
    token = plan.parse_token(slurm_variables[SESSION_VARIABLE])
    # Slurm 22.05 sets only the second variable for a prolog.
    node_names = expand_hostlist(
        slurm_variables.get("SLURM_JOB_NODELIST") or slurm_variables.get("SLURM_NODELIST") or ""
    )
    slot = plan.session_slot(token, job_id, settings.pools)
    containers = plan.place_containers(token, slot, node_names, settings.members, settings.pools)
    local_containers = [container for container in containers if container.node == settings.machine]
    plan_document = {
        "name": token.name,
        "slot": slot,
        "job": job_id,
        "containers": [container._asdict() for container in containers],
        "here": [container.name for container in local_containers],
    }
    _refuse_overcommit(run, job_id, len(node_names), len(local_containers))
    _make_directories(job_id, user_id, local_containers, settings.storage)
    if slot == NO_SLOT:
        os.unlink(f"{job_directory(job_id)}/{_PRIVATE_FILE}")
    else:
        _refuse_used_slot(slot, job_id)
        _load_rules(run)
        for container in local_containers:
            create_namespace(run, job_id, container, containers, settings)
        if settings.nat:
            _ensure_forwarding(run, settings)
    write_atomic(f"{job_directory(job_id)}/{_PLAN_FILE}", json.dumps(plan_document, indent=1) + "\n", 0o644)


def _refuse_overcommit(run: Runner, job_id: int, node_count: int, container_count: int) -> None:
    """Refuse a job with more containers than CPUs on a node: it would keep the node busy, and other prologs waiting."""
    try:
        squeue_result = run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%C"])
    except CommandError:
        # An unreachable controller must not end sessions.
        return
    cpu_count = squeue_result.stdout.strip()
    if cpu_count.isdecimal() and container_count > -(-int(cpu_count) // node_count):
        raise InputError(
            f"The job has {cpu_count} CPUs on {node_count} nodes, too few for {container_count} containers on one of them.",
            "Start sessions with gpumesh-session.",
        )


def _mount_tmpfs(run: Runner, path: str) -> None:
    """Mount a file system for the job, so that its processes cannot fill that of others."""
    mount_result = run(["mount", "--types=tmpfs", f"--options={_MOUNT_OPTIONS}", _MOUNT_SOURCE, path], check=False)
    if mount_result.rc:
        reason = " ".join(mount_result.stderr.split())
        if has_capability(read_text("/proc/self/status") or "", CAP_SYS_ADMIN):
            raise HostStateError(f"No file system can be mounted at {path}: {reason}", "See the log of the kernel.")
        print_error(
            f"{PROGRAM_NAME}: Nothing can be mounted in this container, so a job can fill the file system of {path}: {reason}"
        )


def _unmount(run: Runner, path: str) -> None:
    """Unmount a file system at once, even if processes have open files in it."""
    while os.path.ismount(path):
        if run(["umount", "--lazy", path], check=False).rc:
            return


def _make_directories(job_id: int, user_id: int, local_containers: Sequence[Container], storage_dir: str) -> None:
    try:
        account = pwd.getpwuid(user_id)
    except KeyError as failure:
        raise HostStateError(f"There is no user {user_id} on this node.", "Create the user on all nodes.") from failure
    os.makedirs(STORAGE_ROOT, mode=0o711, exist_ok=True)
    for parent_directory in (job_directory(job_id), storage_directory(job_id)):
        os.makedirs(parent_directory, mode=0o755, exist_ok=True)
        for container in local_containers:
            container_directory = f"{parent_directory}/{container.local}"
            os.mkdir(container_directory, 0o700)
            os.chown(container_directory, user_id, account.pw_gid)
    create_for_user(os.path.normpath(storage_dir.replace("{user}", account.pw_name)), user_id, account.pw_gid)


def _refuse_used_slot(slot: int, job_id: int) -> None:
    """Refuse a slot that another job uses on this node: two sessions never share a subnet there."""
    for directory_name in os.listdir(RUN_DIRECTORY):
        if directory_name.isdecimal() and int(directory_name) != job_id:
            plan_text = read_text(f"{job_directory(int(directory_name))}/{_PLAN_FILE}")
            other_plan = json.loads(plan_text) if plan_text else {}
            if other_plan.get("slot") == slot:
                raise HostStateError(
                    f"The subnet of the session is used by job {other_plan['job']}.", "Start the session again."
                )


def _load_rules(run: Runner) -> None:
    """Load the rules if they have not been loaded since the boot."""
    if run(["nft", "list", "table", "inet", network.TABLE_NAME], check=False).rc:
        routing.load_table(run, read_text(TABLE_FILE) or "", forwarding_file())


def load_rules(run: Runner, rules_text: str) -> None:
    """Load the table of this host, which replaces the existing one. Raises CommandError."""
    with _exclusive_lock():
        routing.load_table(run, rules_text, forwarding_file())


def forwarding_file() -> str:
    """Return the path of the file with the former settings of interfaces that forward for sessions."""
    return f"{RUN_DIRECTORY}/{_FORWARDED_FILE}"


def _ensure_forwarding(run: Runner, settings: SessionSettings) -> None:
    routing.ensure_forwarding(run, settings, read_text(TABLE_FILE) or "", forwarding_file())


def _restore_forwarding(run: Runner) -> None:
    """Restore the former settings if no session needs others. The watching process retries what fails."""
    with contextlib.suppress(GpumeshError, OSError):
        routing.restore_forwarding(run, forwarding_file())


def create_namespace(
    run: Runner, job_id: int, container: Container, containers: Sequence[Container], settings: SessionSettings
) -> None:
    """Create the namespace of a container with its network. Raises CommandError."""
    namespace = network.namespace_name(job_id, container.local)
    network_commands = network.network_commands(
        job_id, container, containers, settings, _interface_mtu(run, settings.interface)
    )
    run(["ip", "netns", "add", namespace])
    run(
        [
            "ip",
            "netns",
            "exec",
            namespace,
            find_program("sysctl") or "sysctl",
            "--ignore",
            "--quiet",
            "--write",
            *network.NAMESPACE_SYSCTLS,
        ]
    )
    _run_batch(run, ["ip", "-batch", "-"], network_commands.host_lines)
    _run_batch(run, ["ip", "-netns", namespace, "-batch", "-"], network_commands.namespace_lines)
    _run_batch(run, ["bridge", "-netns", namespace, "-batch", "-"], network_commands.bridge_lines)
    _run_batch(run, ["ip", "-batch", "-"], network_commands.final_lines)


def _run_batch(run: Runner, argv: Sequence[str], command_lines: Sequence[str]) -> None:
    """Run the lines of a batch, and repeat those that fail because something exists.

    The kernel releases what a deleted namespace had only shortly after, and refuses to reuse it until then.
    """
    if not command_lines:
        return
    remaining_lines, deadline = list(command_lines), time.monotonic() + _RELEASE_TIMEOUT
    while True:
        batch_result = run(argv, stdin="".join(f"{line}\n" for line in remaining_lines), check=False)
        if not batch_result.rc:
            return
        failure_match = re.search(r"Command failed \S+:([0-9]{1,5})", batch_result.stderr)
        if failure_match is None or "exist" not in batch_result.stderr.lower() or time.monotonic() > deadline:
            raise CommandError(argv, f"exited {batch_result.rc}", rc=batch_result.rc, stderr=batch_result.stderr)
        remaining_lines = remaining_lines[int(failure_match.group(1)) - 1 :]
        time.sleep(0.2)


def _interface_mtu(run: Runner, interface: str) -> int:
    ip_result = run(["ip", "-json", "link", "show", "dev", interface], check=False)
    if ip_result.rc:
        raise HostStateError(
            f"There is no interface {interface}, which should have the cluster's address.", "Run site."
        )
    try:
        return int(json.loads(ip_result.stdout)[0]["mtu"])
    except (ValueError, LookupError, TypeError) as failure:
        raise ParseError("ip -json link", f"{interface} has no mtu") from failure


# --- After a job


def epilog(run: Runner, slurm_variables: Mapping[str, str]) -> None:
    """Remove everything that the job had on this node."""
    with _exclusive_lock():
        remove_job(run, int(slurm_variables["SLURM_JOB_ID"]))
        _restore_forwarding(run)


def remove_job(run: Runner, job_id: int) -> None:
    """Remove everything with the ID of the job, and discard its directories.

    Processes that still run in its namespaces are killed.
    """
    for namespace in _job_namespaces(job_id):
        for pid in processes_in_namespace(namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Another process may have the namespace open, which then exists until that process closes it.
        run(["ip", "-force", "-netns", namespace, "-batch", "-"], stdin=network.REMOVAL_COMMANDS, check=False)
        run(["ip", "netns", "delete", namespace], check=False)
    _unmount(run, job_directory(job_id))
    for path in (storage_directory(job_id), job_directory(job_id)):
        trash.discard(path)


def _job_namespaces(job: int) -> List[str]:
    return [namespace for namespace in list_names(_NAMESPACE_DIRECTORY) if network.namespace_job(namespace) == job]


def processes_in_namespace(namespace: str) -> List[int]:
    """Return the processes in a namespace."""
    try:
        namespace_stat = os.stat(f"{_NAMESPACE_DIRECTORY}/{namespace}")
    except FileNotFoundError:
        return []
    process_ids = []
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            with contextlib.suppress(OSError):
                process_stat = os.stat(f"/proc/{pid}/ns/net")
                if (process_stat.st_dev, process_stat.st_ino) == (namespace_stat.st_dev, namespace_stat.st_ino):
                    process_ids.append(int(pid))
    return process_ids


def leftover_jobs() -> List[int]:
    """Return the jobs of which anything is left on this node."""
    jobs = {network.namespace_job(name) for name in list_names(_NAMESPACE_DIRECTORY)}
    jobs |= {int(name) for parent in (RUN_DIRECTORY, STORAGE_ROOT) for name in list_names(parent) if name.isdecimal()}
    return sorted(jobs - {0})


def has_leftovers() -> bool:
    """Return whether anything of sessions is left on this node."""
    return bool(leftover_jobs() or trash.list_discarded(_session_directories())) or os.path.exists(forwarding_file())


def _session_directories() -> List[str]:
    return [RUN_DIRECTORY, STORAGE_ROOT]


def remove_ended_jobs(run: Runner, machine: str, current_job: int = 0) -> List[int]:
    """Remove what is left of jobs that do not run on this node any more. Returns those jobs.

    Nothing is removed if Slurm does not respond. The caller must have the lock.
    """
    candidate_jobs = [job for job in leftover_jobs() if job != current_job]
    if not candidate_jobs:
        return []
    squeue_command = ["squeue", "--noheader", "--states=all", f"--nodelist={machine}", "--format=%A|%T"]
    try:
        squeue_result = run(squeue_command)
    except CommandError:
        return []
    # A requeued job runs on other nodes, or does not have any yet.
    final_states = (*ENDED_STATES, "pending")
    squeue_rows = (line.strip().partition("|") for line in squeue_result.stdout.splitlines())
    live_jobs = {
        int(job) for job, _bar, state in squeue_rows if job.isdecimal() and not state.lower().startswith(final_states)
    }
    removed_jobs = [job for job in candidate_jobs if job not in live_jobs]
    for job in removed_jobs:
        # A failed removal must not block others. The next run retries it.
        with contextlib.suppress(CommandError):
            remove_job(run, job)
    return removed_jobs


def clean_up(run: Runner, machine: str) -> List[int]:
    """Remove what is left of ended jobs while no job begins or ends on this node. Returns those jobs.

    A requeued job may be started on this node in the meantime.
    """
    if not has_leftovers():
        return []
    with _exclusive_lock():
        removed_jobs = remove_ended_jobs(run, machine)
        _restore_forwarding(run)
    trash.remove_discarded(run, _session_directories())
    return removed_jobs


def remove_all_jobs(run: Runner) -> None:
    """Remove everything of all jobs on this node, even if they still run."""
    if not has_leftovers():
        return
    with _exclusive_lock():
        for job in leftover_jobs():
            remove_job(run, job)
        routing.restore_forwarding(run, forwarding_file())
    trash.remove_discarded(run, _session_directories())


# --- While anything is left


def start_watching(run: Runner) -> None:
    """Start watching in the background."""
    start_own_task(run, "watch")


def start_own_task(run: Runner, verb: str) -> None:
    """Start a task of root as a background process, outside the cgroup of slurmd, which has started this one."""
    program_path = os.path.abspath(sys.argv[0])
    if runs_systemd():
        unit_options = ["--quiet", "--collect", "--no-block", "--property=Restart=on-failure"]
        run(["systemd-run", *unit_options, program_path, verb], check=False)
        return
    start_in_background([program_path, verb])


def watch_leftovers(run: Runner, settings: SessionSettings) -> None:
    """Remove what ended jobs leave behind, and adapt the forwarding of sessions to the routes, until nothing is left.

    One process on each node does this.
    """
    os.makedirs(RUN_DIRECTORY, mode=0o755, exist_ok=True)
    with _open_lock_file(".watch") as watch_lock, contextlib.closing(routing.RouteNotices()) as route_notices:
        try:
            fcntl.flock(watch_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        next_check = time.monotonic() + _WATCH_INTERVAL
        removal_thread: Optional[threading.Thread] = None
        while True:
            with _exclusive_lock():
                is_due = time.monotonic() >= next_check
                if is_due:
                    next_check = time.monotonic() + _WATCH_INTERVAL
                    # A job that has steps here is running. Slurm's controller is asked only if there are others.
                    if set(leftover_jobs()) - _jobs_with_steps():
                        remove_ended_jobs(run, settings.machine)
                # A change that fails now may succeed the next time.
                with contextlib.suppress(GpumeshError, OSError):
                    # A reload of the rules of the host may have removed ours.
                    _load_rules(run)
                    _ensure_forwarding(run, settings)
                if not has_leftovers():
                    fcntl.flock(watch_lock, fcntl.LOCK_UN)
                    return
            # The removal may take long, and nothing waits for it.
            if is_due and (removal_thread is None or not removal_thread.is_alive()):
                removal_thread = threading.Thread(
                    target=trash.remove_discarded, args=(run, _session_directories()), name=_REMOVAL_THREAD, daemon=True
                )
                removal_thread.start()
            route_notices.wait(next_check - time.monotonic())


def _jobs_with_steps() -> Set[int]:
    """Return the jobs that have a step on this node."""
    job_ids = set()
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as stream:
                step_match = _STEP_COMMAND.match(stream.read(64))
                # A program of any user can have this name.
                if step_match is not None and _process_user(pid) == os.geteuid():
                    job_ids.add(int(step_match.group(1)))
    return job_ids


def _process_user(pid: str) -> int:
    """Return the user of a process. The owner of its files is not sufficient: root also owns those of untraceable ones."""
    with open(f"/proc/{pid}/status", "rb") as stream:
        return next((int(line.split()[2]) for line in stream if line.startswith(b"Uid:")), -1)


@contextlib.contextmanager
def _exclusive_lock() -> Iterator[None]:
    """Let one prolog or epilog run at a time on this node. The kernel releases the lock when its owner ends."""
    os.makedirs(RUN_DIRECTORY, mode=0o755, exist_ok=True)
    with _open_lock_file(".lock") as lock_descriptor:
        fcntl.flock(lock_descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _open_lock_file(file_name: str) -> Iterator[int]:
    """Open a lock file that only root can open, since anyone who can open it can lock it."""
    lock_descriptor = os.open(f"{RUN_DIRECTORY}/{file_name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(lock_descriptor, 0o600)
        yield lock_descriptor
    finally:
        os.close(lock_descriptor)
