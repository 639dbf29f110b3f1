# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A session's job on this node: what root creates before it starts, and what is removed afterwards.

Everything has the job ID in its name, so that whatever a killed prolog or epilog leaves behind is found again: by a
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
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner, find, start_detached
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    GpumeshError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import give
from ansible_collections.gpumesh.cluster.plugins.module_utils.processes import (
    CAP_SYS_ADMIN,
    has_capability,
    runs_systemd,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.program import complain
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network, plan, routing, trash
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    ENDED,
    NAME,
    NO_SLOT,
    STORAGE,
    Container,
    Settings,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand

#: For data that lasts until the node is shut down, and for large data. Each has a directory for each job. Users can write
#: to the former only in file systems of their jobs.
FOLDER = "/run/gpumesh/session"
TABLE_FILE = "/etc/gpumesh/session.nft"
_NAMESPACES = "/run/netns"
_SOURCE = "gpumesh-session"
#: The most that a job can use up. The programs of a container keep less than a hundredth of it there.
_OPTIONS = "mode=0755,nosuid,nodev,size=128m,nr_inodes=32768"
#: What the Slurm plugin passes on.
VARIABLE = "SPANK_GPUMESH_SESSION"
#: Seconds for the kernel to forget an identifier.
_PATIENCE = 20.0
#: Seconds between two checks of the watching process.
_WATCH = 15.0
#: The thread that removes what jobs leave behind.
_REMOVAL = "removal"
_STEP = re.compile(rb"slurmstepd: \[([0-9]{1,10})[.\]]")
_PLAN, _PRIVATE, _ERROR = "plan.json", "private", "error"
_FORWARDED = ".forwarded"


def folder(job: int) -> str:
    """Of a job, on this node."""
    return f"{FOLDER}/{job}"


def storage(job: int) -> str:
    """Where the containers of a job are."""
    return f"{STORAGE}/{job}"


def read_plan(job: int) -> Dict[str, Any]:
    """What the prolog has written. Raises HostStateError with its message if it failed."""
    said = read_text(f"{folder(job)}/{_ERROR}")
    if said is not None:
        raise HostStateError(said.strip())
    text = read_text(f"{folder(job)}/{_PLAN}")
    if text is None:
        raise HostStateError(
            f"Job {job} has no session on this node.",
            "Check the log of slurmd, and whether session_enabled is set for this node.",
        )
    return dict(json.loads(text))


# --- Before a job


def prolog(run: Runner, settings: Settings, variables: Mapping[str, str]) -> None:
    """Create what the job needs on this node. An error is written for its tasks, which then do not start."""
    job, uid = int(variables["SLURM_JOB_ID"]), int(variables["SLURM_JOB_UID"])
    with _locked():
        sweep(run, settings.machine, job)
        forget(run, job)
        os.mkdir(folder(job), 0o755)
        # While the lock is held: a watching process about to end has seen the directory, or has ended.
        guard(run)
        # From here on, no task of the job starts without a namespace.
        write_atomic(f"{folder(job)}/{_PRIVATE}", "", 0o644)
        try:
            _mount(run, folder(job))
            # It was hidden.
            write_atomic(f"{folder(job)}/{_PRIVATE}", "", 0o644)
            _prepare(run, settings, variables, job, uid)
        except (GpumeshError, OSError, KeyError) as failure:
            write_atomic(f"{folder(job)}/{_ERROR}", f"{settings.machine}: {failure}\n", 0o644)


def _prepare(run: Runner, settings: Settings, variables: Mapping[str, str], job: int, uid: int) -> None:
    if uid == 0:
        raise InputError("root cannot own a session.", "Start it as another user: session_user.")
    token = plan.parse_token(variables[VARIABLE])
    # Slurm 22.05 tells a prolog its nodes by the second name alone.
    nodes = expand(variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST") or "")
    slot = plan.slot_of(token, job, settings.pools)
    session = plan.places(token, slot, nodes, settings.members, settings.pools)
    here = [one for one in session if one.node == settings.machine]
    document = {
        "name": token.name,
        "slot": slot,
        "job": job,
        "containers": [one._asdict() for one in session],
        "here": [one.name for one in here],
    }
    _refuse_many(run, job, len(nodes), len(here))
    _make_folders(job, uid, here, settings.storage)
    if slot == NO_SLOT:
        os.unlink(f"{folder(job)}/{_PRIVATE}")
    else:
        _refuse_taken(slot, job)
        _load_rules(run)
        for one in here:
            make(run, job, one, session, settings)
        if settings.nat:
            _settle(run, settings)
    write_atomic(f"{folder(job)}/{_PLAN}", json.dumps(document, indent=1) + "\n", 0o644)


def _refuse_many(run: Runner, job: int, nodes: int, containers: int) -> None:
    """Each container has a CPU at least: a job that claims more would only keep the node busy, and other prologs waiting."""
    try:
        done = run(["squeue", "--noheader", f"--jobs={job}", "--format=%C"])
    except CommandError:
        # A controller that does not answer must not end sessions.
        return
    cpus = done.stdout.strip()
    if cpus.isdecimal() and containers > -(-int(cpus) // nodes):
        raise InputError(
            f"The job has {cpus} CPUs on {nodes} nodes, too few for {containers} containers on one of them.",
            "Start sessions with gpumesh-session.",
        )


def _mount(run: Runner, path: str) -> None:
    """A file system that the processes of the job cannot fill for others."""
    done = run(["mount", "--types=tmpfs", f"--options={_OPTIONS}", _SOURCE, path], check=False)
    if done.rc:
        reason = " ".join(done.stderr.split())
        if has_capability(read_text("/proc/self/status") or "", CAP_SYS_ADMIN):
            raise HostStateError(f"No file system can be mounted at {path}: {reason}", "See the log of the kernel.")
        complain(
            f"{NAME}: Nothing can be mounted in this container, so a job can fill the file system of {path}: {reason}"
        )


def _unmount(run: Runner, path: str) -> None:
    """At once, whatever still has open files there."""
    while os.path.ismount(path):
        if run(["umount", "--lazy", path], check=False).rc:
            return


def _make_folders(job: int, uid: int, here: Sequence[Container], storage_dir: str) -> None:
    try:
        account = pwd.getpwuid(uid)
    except KeyError as failure:
        raise HostStateError(f"There is no user {uid} on this node.", "Create the user on all nodes.") from failure
    os.makedirs(STORAGE, mode=0o711, exist_ok=True)
    for top in (folder(job), storage(job)):
        os.makedirs(top, mode=0o755, exist_ok=True)
        for one in here:
            path = f"{top}/{one.local}"
            os.mkdir(path, 0o700)
            os.chown(path, uid, account.pw_gid)
    give(os.path.normpath(storage_dir.replace("{user}", account.pw_name)), uid, account.pw_gid)


def _refuse_taken(slot: int, job: int) -> None:
    """Two sessions never share a subnet on a node: the first one keeps it."""
    for name in os.listdir(FOLDER):
        if name.isdecimal() and int(name) != job:
            text = read_text(f"{folder(int(name))}/{_PLAN}")
            other = json.loads(text) if text else {}
            if other.get("slot") == slot:
                raise HostStateError(
                    f"The subnet of the session is used by job {other['job']}.", "Start the session again."
                )


def _load_rules(run: Runner) -> None:
    """The rules are loaded once after a boot."""
    if run(["nft", "list", "table", "inet", network.TABLE], check=False).rc:
        routing.load(run, read_text(TABLE_FILE) or "", forwarded())


def load_rules(run: Runner, text: str) -> None:
    """Load the table of this host, which replaces the existing one. Raises CommandError."""
    with _locked():
        routing.load(run, text, forwarded())


def forwarded() -> str:
    """The file with the former settings of interfaces that forward for sessions."""
    return f"{FOLDER}/{_FORWARDED}"


def _settle(run: Runner, settings: Settings) -> None:
    routing.settle(run, settings, read_text(TABLE_FILE) or "", forwarded())


def _close(run: Runner) -> None:
    """Whatever this cannot restore is restored by the watching process."""
    with contextlib.suppress(GpumeshError, OSError):
        routing.close(run, forwarded())


def make(run: Runner, job: int, own: Container, session: Sequence[Container], settings: Settings) -> None:
    """The namespace of a container with its network. Raises CommandError."""
    name = network.namespace(job, own.local)
    wanted = network.commands(job, own, session, settings, _interface_mtu(run, settings.interface))
    run(["ip", "netns", "add", name])
    run(["ip", "netns", "exec", name, find("sysctl") or "sysctl", "--ignore", "--quiet", "--write", *network.SYSCTLS])
    _batch(run, ["ip", "-batch", "-"], wanted.host)
    _batch(run, ["ip", "-netns", name, "-batch", "-"], wanted.inside)
    _batch(run, ["bridge", "-netns", name, "-batch", "-"], wanted.bridge)
    _batch(run, ["ip", "-batch", "-"], wanted.after)


def _batch(run: Runner, argv: Sequence[str], lines: Sequence[str]) -> None:
    """The kernel releases what a namespace had shortly after it is gone, and refuses to reuse it until then."""
    if not lines:
        return
    rest, end = list(lines), time.monotonic() + _PATIENCE
    while True:
        done = run(argv, stdin="".join(f"{line}\n" for line in rest), check=False)
        if not done.rc:
            return
        failed = re.search(r"Command failed \S+:([0-9]{1,5})", done.stderr)
        if failed is None or "exist" not in done.stderr.lower() or time.monotonic() > end:
            raise CommandError(argv, f"exited {done.rc}", rc=done.rc, stderr=done.stderr)
        rest = rest[int(failed.group(1)) - 1 :]
        time.sleep(0.2)


def _interface_mtu(run: Runner, interface: str) -> int:
    done = run(["ip", "-json", "link", "show", "dev", interface], check=False)
    if done.rc:
        raise HostStateError(
            f"There is no interface {interface}, which should have the cluster's address.", "Run site."
        )
    try:
        return int(json.loads(done.stdout)[0]["mtu"])
    except (ValueError, LookupError, TypeError) as failure:
        raise ParseError("ip -json link", f"{interface} has no mtu") from failure


# --- After a job


def epilog(run: Runner, variables: Mapping[str, str]) -> None:
    """Remove what the job had on this node."""
    with _locked():
        forget(run, int(variables["SLURM_JOB_ID"]))
        _close(run)


def forget(run: Runner, job: int) -> None:
    """Remove what has the number of the job; its directories are discarded. Processes that still run in its namespaces
    are killed."""
    for name in _namespaces(job):
        for pid in inside(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # Another process may hold the namespace open, and it exists until that is closed.
        run(["ip", "-force", "-netns", name, "-batch", "-"], stdin=network.REMOVAL, check=False)
        run(["ip", "netns", "delete", name], check=False)
    _unmount(run, folder(job))
    for path in (storage(job), folder(job)):
        trash.discard(path)


def _namespaces(job: int) -> List[str]:
    return [name for name in names_in(_NAMESPACES) if network.owner(name) == job]


def inside(name: str) -> List[int]:
    """The processes in a namespace."""
    try:
        wanted = os.stat(f"{_NAMESPACES}/{name}")
    except FileNotFoundError:
        return []
    found = []
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/{pid}/ns/net")
                if (about.st_dev, about.st_ino) == (wanted.st_dev, wanted.st_ino):
                    found.append(int(pid))
    return found


def jobs_here() -> List[int]:
    """The jobs of which anything is left on this node."""
    jobs = {network.owner(name) for name in names_in(_NAMESPACES)}
    jobs |= {int(name) for top in (FOLDER, STORAGE) for name in names_in(top) if name.isdecimal()}
    return sorted(jobs - {0})


def anything_here() -> bool:
    """Whether anything of sessions is left on this node."""
    return bool(jobs_here() or trash.found(_tops())) or os.path.exists(forwarded())


def _tops() -> List[str]:
    return [FOLDER, STORAGE]


def sweep(run: Runner, machine: str, current: int = 0) -> List[int]:
    """Remove what is left of jobs that are not on this node any more; those. Where Slurm does not answer, nothing.

    For whoever has the lock.
    """
    left = [job for job in jobs_here() if job != current]
    if not left:
        return []
    argv = ["squeue", "--noheader", "--states=all", f"--nodelist={machine}", "--format=%A|%T"]
    try:
        done = run(argv)
    except CommandError:
        return []
    # A job that is started again is on other nodes, or none yet.
    over = (*ENDED, "pending")
    lines = (line.strip().partition("|") for line in done.stdout.splitlines())
    alive = {int(job) for job, _bar, state in lines if job.isdecimal() and not state.lower().startswith(over)}
    gone = [job for job in left if job not in alive]
    for job in gone:
        # What cannot be removed now is found again, and must not block others.
        with contextlib.suppress(CommandError):
            forget(run, job)
    return gone


def clean(run: Runner, machine: str) -> List[int]:
    """The same while no job begins or ends: one that is started again may come to this node meanwhile."""
    if not anything_here():
        return []
    with _locked():
        gone = sweep(run, machine)
        _close(run)
    trash.empty(run, _tops())
    return gone


def clear(run: Runner) -> None:
    """Remove everything of all jobs on this node, even if they still run."""
    if not anything_here():
        return
    with _locked():
        for job in jobs_here():
            forget(run, job)
        routing.close(run, forwarded())
    trash.empty(run, _tops())


# --- While anything is left


def guard(run: Runner) -> None:
    """Start watching in the background."""
    in_background(run, "watch")


def in_background(run: Runner, verb: str) -> None:
    """Start a task of root in the background, outside the cgroup of slurmd, which starts this."""
    program = os.path.abspath(sys.argv[0])
    if runs_systemd():
        options = ["--quiet", "--collect", "--no-block", "--property=Restart=on-failure"]
        run(["systemd-run", *options, program, verb], check=False)
        return
    start_detached([program, verb])


def watch(run: Runner, settings: Settings) -> None:
    """Remove what ended jobs leave behind, and keep what sessions need forwarded as routes change, until nothing is left.
    One process on each node does this."""
    os.makedirs(FOLDER, mode=0o755, exist_ok=True)
    with _lock_file(".watch") as lock, contextlib.closing(routing.Notices()) as notices:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        due = time.monotonic() + _WATCH
        removal = threading.Thread()
        while True:
            with _locked():
                is_due = time.monotonic() >= due
                if is_due:
                    due = time.monotonic() + _WATCH
                    # A job with steps here is running. Slurm's controller is asked only about others.
                    if set(jobs_here()) - _stepping():
                        sweep(run, settings.machine)
                # What fails now may succeed the next time.
                with contextlib.suppress(GpumeshError, OSError):
                    # Whoever reloads the rules of the host may have removed ours.
                    _load_rules(run)
                    _settle(run, settings)
                if not anything_here():
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    return
            # It may take long, and nobody waits for it.
            if is_due and not removal.is_alive():
                removal = threading.Thread(target=trash.empty, args=(run, _tops()), name=_REMOVAL, daemon=True)
                removal.start()
            notices.wait(due - time.monotonic())


def _stepping() -> Set[int]:
    """The jobs that have a step on this node."""
    found = set()
    for pid in os.listdir("/proc"):
        if pid.isdecimal():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as stream:
                step = _STEP.match(stream.read(64))
                # Any program can have this name.
                if step is not None and _user_of(pid) == os.geteuid():
                    found.add(int(step.group(1)))
    return found


def _user_of(pid: str) -> int:
    """The user of a process. The owner of its files does not tell: root also owns those of an untraceable process."""
    with open(f"/proc/{pid}/status", "rb") as stream:
        return next((int(line.split()[2]) for line in stream if line.startswith(b"Uid:")), -1)


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """One prolog or epilog at a time on this node. The lock ends with the process that holds it."""
    os.makedirs(FOLDER, mode=0o755, exist_ok=True)
    with _lock_file(".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _lock_file(name: str) -> Iterator[int]:
    """A file that only root can open, since anyone who can open it can lock it."""
    lock = os.open(f"{FOLDER}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(lock, 0o600)
        yield lock
    finally:
        os.close(lock)
