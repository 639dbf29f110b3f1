# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that outlives the module, and ends whatever happens.

It is told to end, or asked, through an abstract Unix socket: no file, no process number that may have become somebody
else's, and nothing left behind by a host that loses power. Such names are per network namespace, like the ports.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from typing import Any, Callable, Collection, Dict, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError

_CREDENTIALS = struct.Struct("3i")
#: What ``ps -o comm`` shows; 15 characters at most.
PROCESS_NAME = "gpumesh-reach"


def detach(work: Callable[[], None], lifetime: int, keep: Collection[int]) -> None:
    """Run ``work`` in a process of its own session; return at once.

    After ``lifetime`` seconds the kernel ends it: the alarm needs no code of ours to run. Of the open files only the
    standard ones, on /dev/null, and the descriptors in ``keep`` stay.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # From here on nothing may return into the module's code or run its exit handlers.
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.alarm(lifetime)
        os.chdir("/")
        _only(keep)
        _name_process()
        work()
        status = 0
    finally:
        os._exit(status)


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
                # The one that listed the folder is gone already.
                continue


def _name_process() -> None:
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as stream:
            stream.write(PROCESS_NAME)
    except OSError:
        # Only for people who look at the list of processes.
        return


def control_socket(purpose: str, run: str) -> socket.socket:
    """The listening end. Raises HostStateError when this run has one already."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(_name(purpose, run))
        control.listen(8)
    except OSError as failure:
        control.close()
        raise HostStateError(
            f"The {purpose} of run {run} is on this host already: {failure.strerror}.",
            "Give each run a new `run`.",
            run=run,
        ) from failure
    return control


def may_ask(connection: socket.socket) -> bool:
    """Whether the other end belongs to root or to who runs this process: everybody can connect to such a name."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user = _CREDENTIALS.unpack(raw)[1]
    return user in (0, os.geteuid())


def ask(purpose: str, run: str, question: str, timeout: float) -> Optional[Dict[str, Any]]:
    """The answer of a detached process; None where there is none (any more). Raises HostStateError when it is mute."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        try:
            client.connect(_name(purpose, run))
            client.sendall(question.encode() + b"\n")
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        except (ConnectionError, FileNotFoundError):
            return None
        except OSError as failure:
            raise HostStateError(
                f"The {purpose} of run {run} did not answer within {timeout:g} s.",
                "It ends by itself at the end of its lifetime.",
                run=run,
            ) from failure
    try:
        value = json.loads(answer)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _name(purpose: str, run: str) -> str:
    return f"\0gpumesh/reach/{purpose}/{run}"
