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
    gpumesh_run.newest_checkpoint(directory)                          the newest complete checkpoint

`--profile torch`, and `gpumesh-trace record` in jobs without `gpumesh-train`, need only gpumesh_run.progress().
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
_PROFILE_REQUESTED = os.environ.get("GPUMESH_PROFILE", "").startswith("torch")
_warning_signals: List[int] = []
_waited_seconds: Dict[str, float] = {}
_recorders: List[Any] = []
_last_report: Dict[str, Any] = {}
_busy_stack: List[Dict[str, Any]] = []


def progress(
    step: int, steps: Optional[int] = None, loss: Optional[float] = None, checkpoint: Optional[int] = None
) -> None:
    """Report the progress of the program. ``checkpoint``: the step of the last complete checkpoint."""
    _last_report.setdefault("first", step)
    _last_report.update({"step": step, "steps": steps, "loss": loss, "checkpoint": checkpoint})
    _write_report()
    if _PROFILE_REQUESTED and not _recorders:
        _recorders.append(importlib.import_module("gpumesh_profile").recorder())
    for recorder in _recorders:
        recorder.step(step)


def _write_report() -> None:
    if _PROGRESS_FILE:
        full_report = {**_last_report, **_waited_seconds, **(_busy_stack[-1] if _busy_stack else {})}
        # A full disk must not stop the training. A later report may have room.
        with contextlib.suppress(OSError):
            with open(_PROGRESS_FILE + ".new", "w", encoding="ascii") as draft_stream:
                json.dump(full_report, draft_stream)
            os.replace(_PROGRESS_FILE + ".new", _PROGRESS_FILE)


@contextlib.contextmanager
def busy(what: str, limit: float) -> Iterator[None]:
    """Mark code that makes no steps, such as a validation or a large checkpoint, and may take ``limit`` seconds.

    Unmarked code that takes longer than ``--hang-timeout`` is taken for a hang.
    """
    _busy_stack.append({"busy": what, "limit": float(limit)})
    _write_report()
    try:
        yield
    finally:
        _busy_stack.pop()
        _write_report()


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Mark code that waits for other ranks, such as a barrier or an exchange of gradients."""
    started_at = time.monotonic()
    try:
        yield
    finally:
        _waited_seconds["waited"] = _waited_seconds.get("waited", 0.0) + time.monotonic() - started_at


def stopping() -> bool:
    """Whether to save a checkpoint and exit now: the time limit is near, or the node is to be released."""
    return bool(_warning_signals) or (bool(_STOP_FILE) and os.path.exists(_STOP_FILE))


def hf() -> Any:
    """Return a callback for the Trainer of Hugging Face: Trainer(..., callbacks=[gpumesh_run.hf()])."""
    return importlib.import_module("gpumesh_frameworks").hf(sys.modules[__name__])


def lightning() -> Any:
    """Return a callback for the Trainer of Lightning: Trainer(..., callbacks=[gpumesh_run.lightning()])."""
    return importlib.import_module("gpumesh_frameworks").lightning(sys.modules[__name__])


def newest_checkpoint(directory: str = "") -> Optional[str]:
    """Return the path of the newest complete checkpoint in a directory, by default GPUMESH_CHECKPOINT_DIR, or None.

    Checkpoints of torch.save, of Hugging Face's Trainer, of Lightning and of torch.distributed.checkpoint are
    recognised.
    """
    directory = directory or os.environ.get("GPUMESH_CHECKPOINT_DIR", ".")
    newest_path: Optional[str] = importlib.import_module("gpumesh_frameworks").newest_checkpoint(directory)
    return newest_path


def warn(number: int, _frame: Any) -> None:
    """Handle the signal that announces the end of the job."""
    _warning_signals.append(number)


if _PROGRESS_FILE:
    # Print the stacks of all threads, for a rank that hangs.
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        signal.signal(signal.SIGUSR1, warn)
