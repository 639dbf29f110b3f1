# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A shared volume that does not answer when a job starts, such as after a power cut: a file server boots more slowly.

On a soft mount, an access fails; on a hard mount, it never returns; and without the mount, the directory is missing.
"""

from __future__ import annotations

import errno
import os
import queue
import threading
import time
from typing import Callable, Sequence, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import NO_ROOM, GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

LOG = "supervisor.log"
#: Seconds between two accesses, and after which a volume has not answered.
_SPACING = 1.0
_SLOW = 5.0
#: Errors of a volume that answers, but takes no new file.
_FULL = (*NO_ROOM, errno.EROFS, errno.EACCES)


def open_log(folder: Folder) -> int:
    """A descriptor of the supervisor's log; of /dev/null if the volume is full. Raises OSError."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(str(folder.path / LOG), flags, 0o644)
    except OSError as failure:
        if failure.errno not in _FULL:
            raise
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def arrived(
    folder: Folder, volumes: Sequence[str], check: Callable[[Folder], None], limit: float, tell: Callable[[str], None]
) -> int:
    """A descriptor of the supervisor's log, as soon as the volume of a run answers.

    ``check``: raises GpumeshError for a directory that must not be used. ``tell``: is called once if it takes long.
    After ``limit`` seconds, raises HostStateError if the run no longer exists, and TimeoutError otherwise.
    """
    answers: queue.Queue[Union[int, GpumeshError]] = queue.Queue()
    # An access to a hard mount does not return. The thread ends with the process.
    absent = threading.Event()
    threading.Thread(target=_try, args=(folder, check, absent, answers.put), daemon=True).start()
    began, wait = time.monotonic(), min(_SLOW, limit)
    while True:
        try:
            answer = answers.get(timeout=wait)
        except queue.Empty:
            if time.monotonic() - began < limit:
                tell(f"waiting for the volume of {folder.path}")
                wait = max(0.0, limit - (time.monotonic() - began))
                continue
            if absent.is_set() and any(_has(volume, folder) for volume in volumes):
                raise HostStateError(f"There is no run in {folder.path}.", "It was deleted: start it again.") from None
            raise TimeoutError(errno.ETIMEDOUT, "The shared volume does not answer", str(folder.path)) from None
        if isinstance(answer, GpumeshError):
            raise answer
        return answer


def _try(
    folder: Folder,
    check: Callable[[Folder], None],
    absent: threading.Event,
    answer: Callable[[Union[int, GpumeshError]], None],
) -> None:
    while True:
        try:
            # What the kernel remembers of a file system that is away is enough for stat(), but not for this.
            (folder.path / "request.json").read_bytes()
            check(folder)
            found: Union[int, GpumeshError] = open_log(folder)
        except OSError as failure:
            # A server may export a directory before its own disk is mounted there.
            (absent.set if isinstance(failure, FileNotFoundError) else absent.clear)()
            time.sleep(_SPACING)
            continue
        except GpumeshError as failure:
            found = failure
        answer(found)
        return


def _has(volume: str, folder: Folder) -> bool:
    """Whether this volume is mounted, and contains the folder of the run."""
    return str(folder.path).startswith(f"{volume}/") and os.path.ismount(volume)
