# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a background process with a lease: it outlives the module, but not for long its controller.

It is stopped or queried through an abstract Unix socket: no file, no process ID that may have been reused, and nothing
is left behind by a host that loses power. Such names belong to the network namespace, as ports do.

A request is one line: the command, then the connection of the requester. ``stop`` ends the process, ``replace`` ends
one whose controller is gone or starts again; both are answered when its ports are free.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from typing import Any, Callable, Collection, Dict, List, NamedTuple, Optional, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import lease
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.background import run_in_background
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

_CREDENTIALS_FORMAT = struct.Struct("3i")
#: The name that ``ps -o comm`` shows; 15 characters at most.
PROCESS_NAME = "gpumesh-reach"
_SOCKET_PREFIX = "gpumesh/reach/"
#: The processes that a run of probes starts on a host, by the purpose in their names.
_RUN_PURPOSES = ("listener", "runner")
#: Seconds for the processes of earlier runs to end. Those that do not are ended by their alarm.
_REPLACE_SECONDS = 5.0


class ControlRequest(NamedTuple):
    """A request to a background process, and the connection of its sender."""

    command: str
    ssh_connection: Optional[lease.ProcessIdentity]


def new_lease(lifetime: int) -> lease.Lease:
    """The lease of what this module starts."""
    tree = Tree()
    return lease.Lease(lifetime, lease.find_connection(tree, os.getpid()), tree)


def run_leased(
    background_work: Callable[[], None], process_lease: lease.Lease, kept_descriptors: Collection[int]
) -> None:
    """Run ``background_work`` in the background until ``process_lease`` is over; return immediately."""

    def work_within_lease() -> None:
        threading.Thread(target=_end_with_lease, args=(process_lease,), daemon=True).start()
        background_work()

    run_in_background(work_within_lease, kept_descriptors, process_lease.lifetime_seconds, PROCESS_NAME)


def _end_with_lease(process_lease: lease.Lease) -> None:
    process_lease.wait_until_over()
    os.kill(os.getpid(), signal.SIGTERM)


def open_control_socket(purpose: str, run_id: str) -> socket.socket:
    """The listening socket. Raises HostStateError if this run already has one."""
    unix_socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        unix_socket.bind(_socket_name(purpose, run_id))
        unix_socket.listen(8)
    except OSError as failure:
        unix_socket.close()
        raise HostStateError(
            f"The {purpose} of run {run_id} already exists on this host: {failure.strerror}.",
            "Use a new `run` for each run.",
            run=run_id,
        ) from failure
    return unix_socket


def is_authorized(connection: socket.socket) -> bool:
    """Whether the other end belongs to root or to the user of this process: any user can connect to such a name."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_FORMAT.size)
    user = _CREDENTIALS_FORMAT.unpack(raw)[1]
    return user in (0, os.geteuid())


def parse_request(line: bytes) -> ControlRequest:
    """The received command. An unknown one counts as a query of the state."""
    command, _blank, connection_text = line.decode("ascii", "replace").strip().partition(" ")
    return ControlRequest(command, lease.parse_process(connection_text))


def query_process(purpose: str, run: str, command: str, timeout: float) -> Optional[Dict[str, Any]]:
    """Return the reply of a background process; None if there is none. Raises HostStateError if it does not respond."""
    return _query_socket(_socket_name(purpose, run), command, timeout)


def end_earlier_runs(run: str, spared_runs: Collection[str] = ()) -> int:
    """End what earlier runs have left on this host, unless another controller that still exists owns it.

    ``spared_runs``: other runs of the same controller. Returns the number of processes that were asked to end.
    """
    kept_runs = {run, *spared_runs}
    return _query_all([name for name in _list_sockets() if name.rpartition("/")[2] not in kept_runs], "replace")


def find_foreign_ports(run: str) -> Set[int]:
    """The TCP ports on which the listeners of other runs listen."""
    foreign_ports: Set[int] = set()
    for name in _list_sockets():
        if name.startswith(_socket_name("listener", "")) and name != _socket_name("listener", run):
            with contextlib.suppress(HostStateError):
                foreign_ports.update((_query_socket(name, "ports", _REPLACE_SECONDS) or {}).get("ports", ()))
    return foreign_ports


def stop_all_runs() -> int:
    """End what any run has left on this host, whose ports are needed.

    Returns the number of processes that were asked to end.
    """
    return _query_all(_list_sockets(), "stop")


def _query_all(names: List[str], command: str) -> int:
    deadline = time.monotonic() + _REPLACE_SECONDS
    queried_count = 0
    for name in names:
        try:
            queried_count += _query_socket(name, command, max(0.1, deadline - time.monotonic())) is not None
        except HostStateError:
            # A stopped or busy process is ended by its alarm.
            continue
    return queried_count


def _list_sockets() -> List[str]:
    """The sockets of all runs that are bound in this network namespace."""
    lines = (Tree().read("proc/self/net/unix") or "").splitlines()[1:]
    bound_names = [line.split()[-1] for line in lines if len(line.split()) == 8]
    # The kernel shows the zero byte at the start of an abstract name as @. A connection to it has the same name.
    our_prefixes = tuple(f"@{_SOCKET_PREFIX}{purpose}/" for purpose in _RUN_PURPOSES)
    return ["\0" + name[1:] for name in dict.fromkeys(bound_names) if name.startswith(our_prefixes)]


def _query_socket(socket_name: str, command: str, response_timeout: float) -> Optional[Dict[str, Any]]:
    question = f"{command} {lease.format_process(lease.find_connection(Tree(), os.getpid()))}\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(response_timeout)
        try:
            client.connect(socket_name)
            if not is_authorized(client):
                return None
            client.sendall(question.encode())
            response_bytes = b"".join(iter(lambda: client.recv(1 << 16), b""))
        except (ConnectionError, FileNotFoundError):
            return None
        except OSError as failure:
            purpose, _slash, run = socket_name[len(_SOCKET_PREFIX) + 1 :].partition("/")
            raise HostStateError(
                f"The {purpose} of run {run} did not respond within {response_timeout:g} s.",
                "It ends by itself at the end of its lifetime.",
                run=run,
            ) from failure
    try:
        response = parse_json(response_bytes)
    except ValueError:
        return None
    return response if isinstance(response, dict) else None


def _socket_name(purpose: str, run: str) -> str:
    return f"\0{_SOCKET_PREFIX}{purpose}/{run}"
