# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run operations on a file system whose server may be dead: in a process of their own, with a time limit.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError


class VolumeError(HostStateError):
    """A volume does not work as required. The message has the reason, without the volume's name."""


def run_with_deadline(operation: Callable[[], Dict[str, Any]], timeout: float) -> Dict[str, Any]:
    """Return the JSON result of ``operation``. Raises VolumeError if it fails or exceeds the time limit."""
    read_descriptor, write_descriptor = os.pipe()
    child_pid = os.fork()
    if not child_pid:
        _run_in_child(operation, write_descriptor)
    os.close(write_descriptor)
    try:
        response_bytes = _read_until_closed(read_descriptor, time.monotonic() + timeout)
    finally:
        os.close(read_descriptor)
        os.kill(child_pid, signal.SIGKILL)
        # The child is not waited for: a signal may not reach a process that waits in the kernel.
        os.waitpid(child_pid, os.WNOHANG)
    if response_bytes is None:
        raise VolumeError(f"no answer within {timeout:g} s")
    response = json.loads(response_bytes or b'{"trouble": "the process that looked at it died"}')
    if "trouble" in response:
        raise VolumeError(response["trouble"])
    result: Dict[str, Any] = response["value"]
    return result


def _run_in_child(operation: Callable[[], Dict[str, Any]], write_descriptor: int) -> None:
    """Run the operation in the child process, from which nothing may return into the caller or its exit handlers."""
    try:
        null_descriptor = os.open(os.devnull, os.O_RDWR)
        # A process that reads the module's output to its end must not wait for a hanging process.
        for descriptor in (0, 1, 2):
            os.dup2(null_descriptor, descriptor)
        response: Dict[str, Any] = {}
        try:
            response = {"value": operation()}
        except OSError as failure:
            response = {"trouble": f"{failure.strerror}{f': {failure.filename}' if failure.filename else ''}"}
        except HostStateError as failure:
            response = {"trouble": failure.message}
        os.write(write_descriptor, json.dumps(response).encode())
    finally:
        os._exit(0)


def _read_until_closed(read_descriptor: int, deadline: float) -> Optional[bytes]:
    """Read until the other end is closed; None if that does not happen in time."""
    chunks: List[bytes] = []
    while True:
        readable, _writable, _broken = select.select([read_descriptor], [], [], max(deadline - time.monotonic(), 0.0))
        if not readable:
            return None
        chunk = os.read(read_descriptor, 1 << 16)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
