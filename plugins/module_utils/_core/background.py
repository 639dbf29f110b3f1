# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start processes that outlive this program. No other code of the collection does."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from typing import Callable, Collection, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import ChildProcess, require_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError


def run_in_background(
    background_work: Callable[[], None],
    kept_descriptors: Collection[int] = (),
    lifetime_seconds: int = 0,
    process_name: str = "",
) -> None:
    """Run ``background_work`` in a process with its own session, in the root directory; return immediately.

    After ``lifetime_seconds``, if any, the kernel ends it: the alarm does not depend on our code. Of the open files,
    only the standard ones, on /dev/null, and ``kept_descriptors`` stay open. ``process_name``: what ``ps -o comm``
    shows, 15 characters at most; that of this program if it is empty.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # The child must neither return into the caller's code nor run its exit handlers.
    exit_status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.alarm(lifetime_seconds)
        # The process may have secrets, which must not be written to disk in a core dump.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir("/")
        _close_other_files(kept_descriptors)
        if process_name:
            _set_process_name(process_name)
        background_work()
        exit_status = 0
    finally:
        os._exit(exit_status)


def start_in_background(argv: Sequence[str]) -> None:
    """Start a program that outlives this one, with its own session, without input or output, in the root directory.

    Raises CommandError if it cannot be run. Its exit status is not collected.
    """
    dev_null = subprocess.DEVNULL
    arguments = [require_program(argv), *argv[1:]]
    try:
        process = ChildProcess(
            arguments, stdin=dev_null, stdout=dev_null, stderr=dev_null, cwd="/", start_new_session=True
        )
    except OSError as failure:
        raise CommandError(argv, f"cannot be run: {failure.strerror}") from failure
    # Without a return code, Python would warn that nothing has waited for the process.
    process.returncode = 0


def _close_other_files(kept_descriptors: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in kept_descriptors:
            try:
                os.close(descriptor)
            except OSError:
                # The descriptor with which the directory was listed is already closed.
                continue


def _set_process_name(process_name: str) -> None:
    try:
        with open("/proc/self/comm", "w", encoding="ascii") as stream:
            stream.write(process_name)
    except OSError:
        # The name only helps people who list processes.
        return
