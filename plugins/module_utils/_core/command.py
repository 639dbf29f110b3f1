# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command on this host: always with limits of time and output, always in the C locale, never through a shell."""

from __future__ import annotations

import os
import select
import selectors
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.debian_packages import describe_installation
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

#: The PATH of an unprivileged login lacks sbin, which contains ip, wg and slurmd.
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: The output of some commands contains texts of users, such as the comments of their jobs, and can be of any length.
MAX_OUTPUT_BYTES = 64 << 20
_CHUNK_SIZE = 1 << 16

if TYPE_CHECKING:
    _Popen = subprocess.Popen[str]
else:
    _Popen = subprocess.Popen


class ChildProcess(_Popen):
    """A started program. AnsibleModule.run_command supports neither a timeout nor background processes."""


class CommandResult(NamedTuple):
    """The result of a command."""

    rc: int
    stdout: str
    stderr: str


#: The type of run(), a parameter of pure code, so that tests can pass recorded output.
Runner = Callable[..., CommandResult]


def find_program(program: str) -> Optional[str]:
    """Return the path of a program, or None if the host does not have it."""
    return shutil.which(program, path=os.environ.get("PATH", "") + os.pathsep + _SEARCH_PATH)


def run(
    argv: Sequence[str],
    stdin: Optional[str] = None,
    timeout: float = 30.0,
    check: bool = True,
    environment: Optional[Dict[str, str]] = None,
) -> CommandResult:
    """Run ``argv``; ``timeout`` in seconds. Secrets go through ``stdin``, never ``argv``.

    Raises CommandError if the program is missing, exceeds a limit of time or output, or with ``check`` exits non-zero.
    """
    program_path = require_program(argv)
    process_environment = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", **(environment or {})}
    try:
        with ChildProcess(
            [program_path, *argv[1:]],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=process_environment,
            bufsize=0,
        ) as process:
            try:
                stdout, stderr = _exchange(process, (stdin or "").encode("utf-8", "replace"), timeout)
            finally:
                # Killing a process that has already ended is harmless.
                process.kill()
    except subprocess.TimeoutExpired as expired:
        raise CommandError(argv, f"did not end within {timeout:g} s") from expired
    except OverflowError as overflow:
        raise CommandError(argv, f"wrote more than {MAX_OUTPUT_BYTES >> 20} MiB") from overflow
    except OSError as failure:
        raise CommandError(argv, f"cannot be run: {failure.strerror}") from failure
    if check and process.returncode != 0:
        raise CommandError(argv, f"exited {process.returncode}", rc=process.returncode, stderr=stderr)
    return CommandResult(process.returncode, stdout, stderr)


def _exchange(process: ChildProcess, input_bytes: bytes, timeout: float) -> List[str]:
    """Write to a process and read its output until it has ended. Popen.communicate would read without a limit.

    Raises TimeoutExpired, and OverflowError for too much output.
    """
    deadline, unwritten_input, output_size = time.monotonic() + timeout, memoryview(input_bytes), 0
    chunks_by_descriptor: Dict[int, List[bytes]] = {
        stream.fileno(): [] for stream in (process.stdout, process.stderr) if stream
    }
    with selectors.DefaultSelector() as selector:
        for descriptor in chunks_by_descriptor:
            selector.register(descriptor, selectors.EVENT_READ)
        if process.stdin:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for selector_key, _events in selector.select(max(deadline - time.monotonic(), 0)):
                if process.stdin and selector_key.fileobj is process.stdin:
                    unwritten_input = _write_chunk(selector_key.fd, unwritten_input)
                    if not unwritten_input:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                chunk = os.read(selector_key.fd, _CHUNK_SIZE)
                chunks_by_descriptor[selector_key.fd].append(chunk)
                output_size += len(chunk)
                if output_size > MAX_OUTPUT_BYTES:
                    raise OverflowError
                if not chunk:
                    selector.unregister(selector_key.fd)
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, timeout)
    process.wait(max(deadline - time.monotonic(), 0))
    output_texts = (b"".join(chunks).decode("utf-8", "replace") for chunks in chunks_by_descriptor.values())
    return [text.replace("\r\n", "\n").replace("\r", "\n") for text in output_texts]


def _write_chunk(descriptor: int, unwritten_input: memoryview) -> memoryview:
    """Write as much as never blocks. Return what is left, which is empty if nothing reads it."""
    try:
        return unwritten_input[os.write(descriptor, unwritten_input[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return unwritten_input[:0]


def require_program(argv: Sequence[str]) -> str:
    """Return the path of the program of a command. Raises CommandError if the host does not have it."""
    program_path = find_program(argv[0])
    if program_path is None:
        raise CommandError(argv, "cannot be run: the program is not installed", remedy=describe_installation(argv[0]))
    return program_path
