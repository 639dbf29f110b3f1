# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands in containers, each started by a process that `docker exec` has started there once.

A `docker exec` for each command takes the engine 50 ms of processor, and a test that waits asks every second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence

#: The server in the container: it runs the command of each line of its input, and responds with its exit status and
#: output. A process that the command has left in the background may keep its output open.
_SERVER_PROGRAM = """
import json, os, select, subprocess, sys
kept = {name: value for name, value in os.environ.items() if name != "PYTHONCOERCECLOCALE"}
def run(argv):
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=kept,
            start_new_session=True,
        )
    except OSError as error:
        return 127, b"", str(error).encode()
    output = {child.stdout.fileno(): b"", child.stderr.fileno(): b""}
    reading = list(output)
    while reading:
        ended = child.poll() is not None
        ready = select.select(reading, [], [], 0 if ended else 0.2)[0]
        if ended and not ready:
            break
        for number in ready:
            data = os.read(number, 1 << 16)
            output[number] += data
            if not data:
                reading.remove(number)
    status = child.wait()
    child.stdout.close()
    child.stderr.close()
    return (status if status >= 0 else 128 - status, *output.values())
for line in sys.stdin.buffer:
    argv = json.loads(line)
    status, out, err = run(argv) if argv else (0, b"", b"")
    sys.stdout.buffer.write(b"%d %d %d\\n" % (status, len(out), len(err)) + out + err)
    sys.stdout.buffer.flush()
"""
#: The server's source comes through its input: otherwise it would be in the list of processes, which tests search.
_LOADER_PROGRAM = "import sys; exec(eval(sys.stdin.buffer.readline()))"
#: The status of a command whose container has gone, as `docker exec` has it.
_GONE_STATUS = 137

CompletedBytes = subprocess.CompletedProcess[bytes]


def build_exec_command(container: str) -> list[str]:
    """Return the command that starts another command, which is appended to it, in a container."""
    # Python would give each command a locale of its own choice without this variable.
    return ["docker", "exec", "--interactive", "--env=PYTHONCOERCECLOCALE=0", container]


class _GoneError(Exception):
    """The server has ended before it has answered."""


class _CommandServer:
    """A process in a container that runs one command at a time."""

    def __init__(self, container: str) -> None:
        self._client = subprocess.Popen(
            [*build_exec_command(container), "python3", "-c", _LOADER_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._received = b""
        self._sent_source = False

    def run(self, argv: Sequence[str], timeout: float) -> CompletedBytes:
        """Run a command. Raises _GoneError, and subprocess.TimeoutExpired, after which the server cannot be used."""
        source = b"" if self._sent_source else f"{_SERVER_PROGRAM!r}\n".encode()
        self._sent_source = True
        deadline = time.monotonic() + timeout
        assert self._client.stdin
        try:
            self._client.stdin.write(source + json.dumps(list(argv)).encode() + b"\n")
            self._client.stdin.flush()
        except BrokenPipeError:
            raise _GoneError from None
        header = self._receive_line(argv, deadline, timeout)
        status, stdout_size, stderr_size = map(int, header.split())
        while len(self._received) < stdout_size + stderr_size:
            self._receive(argv, deadline, timeout)
        body, self._received = self._received[: stdout_size + stderr_size], self._received[stdout_size + stderr_size :]
        return subprocess.CompletedProcess(list(argv), status, body[:stdout_size], body[stdout_size:])

    def end(self, grace_seconds: float = 5.0) -> CompletedBytes:
        """End the server, by force after ``grace_seconds``, and return how `docker exec` has ended."""
        assert self._client.stdin and self._client.stdout and self._client.stderr
        with contextlib.suppress(BrokenPipeError):
            self._client.stdin.close()
        self._client.stdout.close()
        stderr = b""
        try:
            self._client.wait(grace_seconds)
            stderr = self._client.stderr.read()
        except subprocess.TimeoutExpired:
            self._client.kill()
            self._client.wait()
        self._client.stderr.close()
        return subprocess.CompletedProcess([], max(self._client.returncode, 0) or _GONE_STATUS, b"", stderr)

    def _receive_line(self, argv: Sequence[str], deadline: float, timeout: float) -> bytes:
        while b"\n" not in self._received:
            self._receive(argv, deadline, timeout)
        line, _line_break, self._received = self._received.partition(b"\n")
        return line

    def _receive(self, argv: Sequence[str], deadline: float, timeout: float) -> None:
        assert self._client.stdout
        ready = select.select([self._client.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            raise subprocess.TimeoutExpired(list(argv), timeout)
        data = os.read(self._client.stdout.fileno(), 1 << 16)
        if not data:
            raise _GoneError
        self._received += data


_free_lock = threading.Lock()
_free_servers: dict[str, list[_CommandServer]] = {}


def run_command(container: str, argv: Sequence[str], timeout: float) -> CompletedBytes:
    """Run a command in a container as root. Where there is no such container, it fails as `docker exec` does.

    Raises subprocess.TimeoutExpired; the command may then go on.
    """
    server = _take_server(container)
    try:
        completed = server.run(argv, timeout)
    except _GoneError:
        return server.end()
    except BaseException:
        # The server's command still runs.
        server.end(grace_seconds=0)
        raise
    with _free_lock:
        _free_servers.setdefault(container, []).append(server)
    return completed


def _take_server(container: str) -> _CommandServer:
    """Return a free server that has not ended with its container, or a new one."""
    while True:
        with _free_lock:
            free_servers = _free_servers.get(container)
            server = free_servers.pop() if free_servers else None
        if server is None:
            return _CommandServer(container)
        try:
            server.run([], 60)
        except (_GoneError, subprocess.TimeoutExpired):
            server.end()
        else:
            return server


@atexit.register
def _end_servers() -> None:
    for servers in _free_servers.values():
        for server in servers:
            server.end()
