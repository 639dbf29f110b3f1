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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    NO_SPACE_ERRNOS,
    GpumeshError,
    HostStateError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

LOG_NAME = "supervisor.log"
#: Seconds between two accesses, and after which a volume has not answered.
_RETRY_INTERVAL = 1.0
_SLOW_AFTER = 5.0
#: Errors of a volume that answers, but takes no new file.
_FULL_VOLUME_ERRORS = (*NO_SPACE_ERRNOS, errno.EROFS, errno.EACCES)


def open_log(run_directory: RunDirectory) -> int:
    """Return a descriptor of the supervisor's log, or of /dev/null if the volume is full. Raises OSError."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(str(run_directory.path / LOG_NAME), flags, 0o644)
    except OSError as failure:
        if failure.errno not in _FULL_VOLUME_ERRORS:
            raise
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def wait_for_volume(
    run_directory: RunDirectory,
    volumes: Sequence[str],
    check_directory: Callable[[RunDirectory], None],
    timeout: float,
    report_wait: Callable[[str], None],
) -> int:
    """Return a descriptor of the supervisor's log, as soon as the volume of a run answers.

    ``check_directory``: raises GpumeshError for a directory that must not be used. ``report_wait``: is called once if
    it takes long. After ``timeout`` seconds, raises HostStateError if the run no longer exists, and TimeoutError
    otherwise.
    """
    results: queue.Queue[Union[int, GpumeshError]] = queue.Queue()
    # A thread makes the access, since one to a hard mount may not return. The thread ends with the process.
    run_is_missing = threading.Event()
    threading.Thread(
        target=_access_volume, args=(run_directory, check_directory, run_is_missing, results.put), daemon=True
    ).start()
    started_at, queue_timeout = time.monotonic(), min(_SLOW_AFTER, timeout)
    while True:
        try:
            result = results.get(timeout=queue_timeout)
        except queue.Empty:
            if time.monotonic() - started_at < timeout:
                report_wait(f"waiting for the volume of {run_directory.path}")
                queue_timeout = max(0.0, timeout - (time.monotonic() - started_at))
                continue
            if run_is_missing.is_set() and any(_contains_run(volume, run_directory) for volume in volumes):
                raise HostStateError(
                    f"There is no run in {run_directory.path}.", "It was deleted: start it again."
                ) from None
            raise TimeoutError(errno.ETIMEDOUT, "The shared volume does not answer", str(run_directory.path)) from None
        if isinstance(result, GpumeshError):
            raise result
        return result


def _access_volume(
    run_directory: RunDirectory,
    check_directory: Callable[[RunDirectory], None],
    run_is_missing: threading.Event,
    deliver_result: Callable[[Union[int, GpumeshError]], None],
) -> None:
    while True:
        try:
            # The kernel's cache of an unavailable file system suffices for stat(), but not for reading.
            (run_directory.path / "request.json").read_bytes()
            check_directory(run_directory)
            result: Union[int, GpumeshError] = open_log(run_directory)
        except OSError as failure:
            # A server may export a directory before its own disk is mounted there.
            (run_is_missing.set if isinstance(failure, FileNotFoundError) else run_is_missing.clear)()
            time.sleep(_RETRY_INTERVAL)
            continue
        except GpumeshError as failure:
            result = failure
        deliver_result(result)
        return


def _contains_run(volume: str, run_directory: RunDirectory) -> bool:
    """Whether this volume is mounted, and contains the directory of the run."""
    return str(run_directory.path).startswith(f"{volume}/") and os.path.ismount(volume)
