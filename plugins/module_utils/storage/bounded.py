# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Work on a file system whose server may be dead: in a process of its own, with a time limit.

A process that waits for such a server in the kernel cannot always be killed. It is abandoned, with none of the caller's
files open.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError


class VolumeError(HostStateError):
    """A volume does not work as required. The message has the reason, without the volume's name."""


def bounded(work: Callable[[], Dict[str, Any]], seconds: float) -> Dict[str, Any]:
    """The JSON result of ``work``. Raises VolumeError if it fails or exceeds the time limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _work(work, writer)
    os.close(writer)
    try:
        answer = _read_all(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        # Not waited for: in the kernel, signals may not reach it.
        os.waitpid(child, os.WNOHANG)
    if answer is None:
        raise VolumeError(f"no answer within {seconds:g} s")
    told = json.loads(answer or b'{"trouble": "the process that looked at it died"}')
    if "trouble" in told:
        raise VolumeError(told["trouble"])
    value: Dict[str, Any] = told["value"]
    return value


def _work(work: Callable[[], Dict[str, Any]], writer: int) -> None:
    """In the child process. From here on, nothing may return into the caller's code or run its exit handlers."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        # A process that reads the module's output to its end must not wait for a hanging process.
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        told: Dict[str, Any] = {}
        try:
            told = {"value": work()}
        except OSError as failure:
            told = {"trouble": f"{failure.strerror}{f': {failure.filename}' if failure.filename else ''}"}
        except HostStateError as failure:
            told = {"trouble": failure.message}
        os.write(writer, json.dumps(told).encode())
    finally:
        os._exit(0)


def _read_all(reader: int, deadline: float) -> Optional[bytes]:
    """Everything until the other end is closed; None if that does not happen in time."""
    parts: List[bytes] = []
    while True:
        ready, _writable, _broken = select.select([reader], [], [], max(deadline - time.monotonic(), 0.0))
        if not ready:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
