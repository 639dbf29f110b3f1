# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The interface for Python programs under `gpumesh-train`, instead of files and variables: ``import gpumesh_run``.

It is available in every rank, requires only Python, and does nothing if the program is run without `gpumesh-train`.

    gpumesh_run.progress(step, steps, loss=loss, checkpoint=saved)    after each step
    if gpumesh_run.stopping(): save a checkpoint and exit
    with gpumesh_run.waiting(): all_reduce(...)                       to identify a rank that is slower than the others
    with gpumesh_run.busy("validation", 1800): ...                    for up to so many seconds without a step

    callbacks=[gpumesh_run.hf()], callbacks=[gpumesh_run.lightning()]
    gpumesh_run.newest_checkpoint(directory)                          the newest one that is complete

The first one is also what `--profile torch` needs, and `gpumesh-trace record` in jobs without `gpumesh-train`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

_PROGRESS_FILE = os.environ.get("GPUMESH_PROGRESS_FILE", "")
_STOP_FILE = os.environ.get("GPUMESH_STOP_FILE", "")
_PROFILE = os.environ.get("GPUMESH_PROFILE", "").startswith("torch")
_warnings: List[int] = []
_waited: Dict[str, float] = {}
_recorders: List[Any] = []
_told: Dict[str, Any] = {}
_busy: List[Dict[str, Any]] = []


def progress(
    step: int, steps: Optional[int] = None, loss: Optional[float] = None, checkpoint: Optional[int] = None
) -> None:
    """Report the progress of the program. ``checkpoint``: the step of the last complete checkpoint."""
    _told.setdefault("first", step)
    _told.update({"step": step, "steps": steps, "loss": loss, "checkpoint": checkpoint})
    _report()
    if _PROFILE and not _recorders:
        _recorders.append(importlib.import_module("gpumesh_profile").recorder())
    for recorder in _recorders:
        recorder.step(step)


def _report() -> None:
    if _PROGRESS_FILE:
        told = {**_told, **_waited, **(_busy[-1] if _busy else {})}
        # A full disk must not stop the training. A later report may have room.
        with contextlib.suppress(OSError):
            with open(_PROGRESS_FILE + ".new", "w", encoding="ascii") as stream:
                json.dump(told, stream)
            os.replace(_PROGRESS_FILE + ".new", _PROGRESS_FILE)


@contextlib.contextmanager
def busy(what: str, limit: float) -> Iterator[None]:
    """Marks code that makes no steps, such as a validation or a large checkpoint, and may take ``limit`` seconds.

    Without it, code that takes longer than ``--hang-timeout`` is taken for a hang.
    """
    _busy.append({"busy": what, "limit": float(limit)})
    _report()
    try:
        yield
    finally:
        _busy.pop()
        _report()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Marks code that waits for other ranks: a barrier, an exchange of gradients."""
    begun = time.monotonic()
    try:
        yield
    finally:
        _waited["waited"] = _waited.get("waited", 0.0) + time.monotonic() - begun


def stopping() -> bool:
    """Whether to save a checkpoint and exit now: the time limit is near, or the node is to be released."""
    return bool(_warnings) or (bool(_STOP_FILE) and os.path.exists(_STOP_FILE))


def hf() -> Any:
    """A callback for the Trainer of Hugging Face: Trainer(..., callbacks=[gpumesh_run.hf()])."""
    return importlib.import_module("gpumesh_frameworks").hf(sys.modules[__name__])


def lightning() -> Any:
    """A callback for the Trainer of Lightning: Trainer(..., callbacks=[gpumesh_run.lightning()])."""
    return importlib.import_module("gpumesh_frameworks").lightning(sys.modules[__name__])


def newest_checkpoint(directory: str = "") -> Optional[str]:
    """The path of the newest complete checkpoint in a directory, by default GPUMESH_CHECKPOINT_DIR; None without one.

    It knows those of torch.save, of Hugging Face's Trainer, of Lightning and of torch.distributed.checkpoint.
    """
    directory = directory or os.environ.get("GPUMESH_CHECKPOINT_DIR", ".")
    found: Optional[str] = importlib.import_module("gpumesh_frameworks").newest_checkpoint(directory)
    return found


def warn(number: int, _frame: Any) -> None:
    """The handler of the signal that announces the end."""
    _warnings.append(number)


if _PROGRESS_FILE:
    # Print the stacks of all threads, for a rank that hangs.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, warn)
