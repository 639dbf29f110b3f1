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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError

#: sbin is not on the PATH of an unprivileged login, but contains ip, wg and slurmd.
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
#: Bytes of output. Users can make that of some commands longer, such as by the comments of their jobs.
LARGEST = 64 << 20
_PART = 1 << 16

if TYPE_CHECKING:
    _Popen = subprocess.Popen[str]
else:
    _Popen = subprocess.Popen


class Process(_Popen):
    """A program that was started. AnsibleModule.run_command supports neither a timeout nor background processes."""


class Completed(NamedTuple):
    """The result of a command."""

    rc: int
    stdout: str
    stderr: str


#: The type of run(), a parameter of pure code, so that tests can pass recorded output.
Runner = Callable[..., Completed]


def find(program: str) -> Optional[str]:
    """The path of a program, or None if the host does not have it."""
    return shutil.which(program, path=os.environ.get("PATH", "") + os.pathsep + _SEARCH_PATH)


def run(
    argv: Sequence[str],
    stdin: Optional[str] = None,
    timeout: float = 30.0,
    check: bool = True,
    environment: Optional[Dict[str, str]] = None,
) -> Completed:
    """Run ``argv``; ``timeout`` in seconds. Secrets go through ``stdin``, never ``argv``.

    Raises CommandError if the program is missing, exceeds the limit of time or output, or (with ``check``) exits non-zero.
    """
    program = _path_of(argv)
    variables = {**os.environ, "LC_ALL": "C", "LANGUAGE": "C", **(environment or {})}
    try:
        with Process(
            [program, *argv[1:]],
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=variables,
            bufsize=0,
        ) as process:
            try:
                stdout, stderr = _exchange(process, (stdin or "").encode("utf-8", "replace"), timeout)
            finally:
                # It may have ended meanwhile.
                process.kill()
    except subprocess.TimeoutExpired as expired:
        raise CommandError(argv, f"did not end within {timeout:g} s") from expired
    except OverflowError as overflow:
        raise CommandError(argv, f"wrote more than {LARGEST >> 20} MiB") from overflow
    except OSError as failure:
        raise CommandError(argv, f"cannot be run: {failure.strerror}") from failure
    if check and process.returncode != 0:
        raise CommandError(argv, f"exited {process.returncode}", rc=process.returncode, stderr=stderr)
    return Completed(process.returncode, stdout, stderr)


def _exchange(process: Process, given: bytes, timeout: float) -> List[str]:
    """Write to a process, and read its outputs until it has ended. Popen.communicate would read without a limit.

    Raises TimeoutExpired, and OverflowError for too much output.
    """
    end, left, size = time.monotonic() + timeout, memoryview(given), 0
    parts: Dict[int, List[bytes]] = {stream.fileno(): [] for stream in (process.stdout, process.stderr) if stream}
    with selectors.DefaultSelector() as selector:
        for descriptor in parts:
            selector.register(descriptor, selectors.EVENT_READ)
        if process.stdin:
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _events in selector.select(max(end - time.monotonic(), 0)):
                if process.stdin and key.fileobj is process.stdin:
                    left = _write_part(key.fd, left)
                    if not left:
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                part = os.read(key.fd, _PART)
                parts[key.fd].append(part)
                size += len(part)
                if size > LARGEST:
                    raise OverflowError
                if not part:
                    selector.unregister(key.fd)
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(process.args, timeout)
    process.wait(max(end - time.monotonic(), 0))
    texts = (b"".join(found).decode("utf-8", "replace") for found in parts.values())
    return [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]


def _write_part(descriptor: int, left: memoryview) -> memoryview:
    """Write as much as never blocks. Returns the rest, which is empty if nothing reads it."""
    try:
        return left[os.write(descriptor, left[: select.PIPE_BUF]) :]
    except BrokenPipeError:
        return left[:0]


def start_detached(argv: Sequence[str]) -> None:
    """Start a program that outlives this one, without input or output, in the root directory.

    Raises CommandError if it cannot be run. Its exit status is not collected.
    """
    null = subprocess.DEVNULL
    words = [_path_of(argv), *argv[1:]]
    try:
        process = Process(words, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True)
    except OSError as failure:
        raise CommandError(argv, f"cannot be run: {failure.strerror}") from failure
    # Otherwise, Python would warn that nothing has waited for it.
    process.returncode = 0


def _path_of(argv: Sequence[str]) -> str:
    program = find(argv[0])
    if program is None:
        raise CommandError(argv, "cannot be run: the program is not installed", remedy=f"Install {argv[0]}.")
    return program
