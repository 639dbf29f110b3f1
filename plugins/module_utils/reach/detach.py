# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that outlives the module, and ends in any case.

It is stopped or queried through an abstract Unix socket: no file, no process ID that may have been reused, and nothing
is left behind by a host that loses power. Such names belong to the network namespace, as ports do.

A request is one line: the command, then the connection of the requester. ``stop`` ends the process, ``replace`` ends
one whose controller is gone or starts again; both are answered when its ports are free.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import threading
import time
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import lease
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

_CREDENTIALS = struct.Struct("3i")
#: The name that ``ps -o comm`` shows; 15 characters at most.
PROCESS_NAME = "gpumesh-reach"
_PREFIX = "gpumesh/reach/"
#: The processes that a run of probes starts on a host, by the purpose in their names.
_OF_A_RUN = ("listener", "runner")
#: Seconds for the processes of earlier runs to end. Those that do not are ended by their alarm.
_REPLACE_SECONDS = 5.0


class Question(NamedTuple):
    """A request to a detached process, and its connection."""

    what: str
    connection: Optional[lease.Process]


def new_lease(lifetime: int) -> lease.Lease:
    """The lease of what this module starts."""
    tree = Tree()
    return lease.Lease(lifetime, lease.connection_of(tree, os.getpid()), tree)


def detach(work: Callable[[], None], term: lease.Lease, keep: Collection[int]) -> None:
    """Run ``work`` in a process with its own session; return immediately.

    The process ends when ``term`` is over. After its lifetime, the kernel ends it: the alarm does not depend on our
    code. Of the open files, only the standard ones, on /dev/null, and the descriptors in ``keep`` stay open.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # From here on, nothing may return into the module's code or run its exit handlers.
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.alarm(term.lifetime)
        # It has the secret of its run, which must not be written to disk in a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir("/")
        _only(keep)
        _name_process()
        threading.Thread(target=_end_with, args=(term,), daemon=True).start()
        work()
        status = 0
    finally:
        os._exit(status)


def _end_with(term: lease.Lease) -> None:
    term.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def _only(keep: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                # The descriptor with which the folder was listed is already closed.
                continue


def _name_process() -> None:
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as stream:
            stream.write(PROCESS_NAME)
    except OSError:
        # Only for people who list processes.
        return


def control_socket(purpose: str, run: str) -> socket.socket:
    """The listening socket. Raises HostStateError if this run already has one."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(_name(purpose, run))
        control.listen(8)
    except OSError as failure:
        control.close()
        raise HostStateError(
            f"The {purpose} of run {run} already exists on this host: {failure.strerror}.",
            "Use a new `run` for each run.",
            run=run,
        ) from failure
    return control


def may_ask(connection: socket.socket) -> bool:
    """Whether the other end belongs to root or to the user of this process, since any user can connect to such a name."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    return user in (0, os.geteuid())


def parse_question(line: bytes) -> Question:
    """The received command. An unknown one counts as a query of the state."""
    what, _blank, rest = line.decode("ascii", "replace").strip().partition(" ")
    return Question(what, lease.from_text(rest))


def ask(purpose: str, run: str, what: str, timeout: float) -> Optional[Dict[str, Any]]:
    """The reply of a detached process; None if there is none. Raises HostStateError if it does not respond."""
    return _ask(_name(purpose, run), what, timeout)


def replace_others(run: str, spared: Collection[str] = ()) -> int:
    """End what earlier runs have left on this host, unless another controller that still exists owns it.

    ``spared``: other runs of the same controller. Returns the number of processes that were asked.
    """
    kept = {run, *spared}
    return _ask_all([name for name in _names() if name.rpartition("/")[2] not in kept], "replace")


def ports_of_others(run: str) -> Set[int]:
    """The TCP ports on which the listeners of other runs listen."""
    found: Set[int] = set()
    for name in _names():
        if name.startswith(_name("listener", "")) and name != _name("listener", run):
            with contextlib.suppress(HostStateError):
                found.update((_ask(name, "ports", _REPLACE_SECONDS) or {}).get("ports", ()))
    return found


def stop_all() -> int:
    """End what any run has left on this host, whose ports are needed.

    Returns the number of processes that were asked.
    """
    return _ask_all(_names(), "stop")


def _ask_all(names: List[str], what: str) -> int:
    end = time.monotonic() + _REPLACE_SECONDS
    asked = 0
    for name in names:
        try:
            asked += _ask(name, what, max(0.1, end - time.monotonic())) is not None
        except HostStateError:
            # Stopped or busy: its alarm will end it.
            continue
    return asked


def _names() -> List[str]:
    """The sockets of all runs that are bound in this network namespace."""
    lines = (Tree().read("proc/self/net/unix") or "").splitlines()[1:]
    found = [line.split()[-1] for line in lines if len(line.split()) == 8]
    # The kernel shows the zero byte at the start of an abstract name as @. A connection to it has the same name.
    ours = tuple(f"@{_PREFIX}{purpose}/" for purpose in _OF_A_RUN)
    return ["\0" + name[1:] for name in dict.fromkeys(found) if name.startswith(ours)]


def _ask(name: str, what: str, timeout: float) -> Optional[Dict[str, Any]]:
    question = f"{what} {lease.as_text(lease.connection_of(Tree(), os.getpid()))}\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        try:
            client.connect(name)
            if not may_ask(client):
                return None
            client.sendall(question.encode())
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        except (ConnectionError, FileNotFoundError):
            return None
        except OSError as failure:
            purpose, _slash, run = name[len(_PREFIX) + 1 :].partition("/")
            raise HostStateError(
                f"The {purpose} of run {run} did not respond within {timeout:g} s.",
                "It ends by itself at the end of its lifetime.",
                run=run,
            ) from failure
    try:
        value = from_json(answer)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _name(purpose: str, run: str) -> str:
    return f"\0{_PREFIX}{purpose}/{run}"
