# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let one look at the node end before the next one begins.

slurmd and the watcher of the kernel log both have the node looked at. Otherwise, a look that has begun before a fault
could resume the node that the other one has drained for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Iterator

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line

_RETRY_SECONDS = 0.2


@contextlib.contextmanager
def exclusive_look(state_folder: str, limit_seconds: float) -> Iterator[None]:
    """Wait for another look at this node, up to the limit.

    The look is then made without the lock, as it is on a disk that cannot be written to: either may be a reason to drain
    the node. A look that hangs in the kernel keeps its lock even when it is killed.
    """
    try:
        os.makedirs(state_folder, mode=0o700, exist_ok=True)
        # The directory itself is locked, so that no lock file is left.
        lock_descriptor = os.open(state_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as failure:
        print_line(f"{state_folder} cannot be used: {failure.strerror}")
        yield
        return
    try:
        if not _wait_for_lock(lock_descriptor, limit_seconds):
            print_line(f"Another health check of this node did not end within {limit_seconds:g} s.")
        yield
    finally:
        os.close(lock_descriptor)


def _wait_for_lock(lock_descriptor: int, limit_seconds: float) -> bool:
    """Return whether the lock was obtained."""
    deadline = time.monotonic() + limit_seconds
    while True:
        try:
            fcntl.flock(lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_RETRY_SECONDS)
        else:
            return True
