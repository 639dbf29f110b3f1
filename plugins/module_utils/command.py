# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command on this host: always with a time limit, always in the C locale, never through a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError

#: sbin is not on the PATH of an unprivileged login, but contains ip, wg and slurmd.
_SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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

    Raises CommandError if the program is missing, exceeds the time limit, or (with ``check``) exits non-zero.
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
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                stdout, stderr = process.communicate(stdin, timeout=timeout)
            finally:
                # It may have ended meanwhile.
                process.kill()
    except subprocess.TimeoutExpired as expired:
        raise CommandError(argv, f"did not end within {timeout:g} s") from expired
    except OSError as failure:
        raise CommandError(argv, f"cannot be run: {failure.strerror}") from failure
    if check and process.returncode != 0:
        raise CommandError(argv, f"exited {process.returncode}", rc=process.returncode, stderr=stderr)
    return Completed(process.returncode, stdout, stderr)


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
