"""Checkpoints that are complete or not there, written while the training goes on. Nothing here needs PyTorch.

A file has a line with the step, the size and the checksum of what follows. It is written under another name and renamed. The
last few are kept: where the newest is damaged, because a disk was, the one before is taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

_PATTERN = "step-*.checkpoint"
#: Seconds between two tries to write what a full or absent volume does not take.
_SPACING = 5.0


def _path(folder: Path, step: int) -> Path:
    return folder / f"step-{step:010}.checkpoint"


def write(folder: Path, step: int, content: bytes, keep: int) -> None:
    """Write a checkpoint, and only then remove those that are older than the last `keep`. Raises OSError."""
    head = {"step": step, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    path = _path(folder, step)
    draft = path.with_suffix(".new")
    try:
        with draft.open("wb") as stream:
            stream.write(json.dumps(head).encode() + b"\n")
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except OSError:
        # A full volume must not keep half a checkpoint, too.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    # Also what was left by a process that was killed while it wrote.
    for old in [*sorted(folder.glob(_PATTERN))[:-keep], *folder.glob("step-*.new")]:
        old.unlink(missing_ok=True)


def read(path: Path) -> bytes:
    """The content of a checkpoint. Raises ValueError for one that is damaged, and OSError."""
    with path.open("rb") as stream:
        head = json.loads(stream.readline(1000))
        content = stream.read()
    if not isinstance(head, dict) or len(content) != head.get("size"):
        raise ValueError("it is not complete")
    if hashlib.sha256(content).hexdigest() != head.get("sha256"):
        raise ValueError("its checksum is wrong")
    return content


def newest(folder: Path) -> tuple[int, bytes] | None:
    """The step and the content of the newest checkpoint that is whole; None where there is none at all.

    One that cannot be read, such as for EIO or ESTALE of a file server, is left out like a damaged one. Raises ValueError
    where there are some, and none of them can be used: to start from the beginning would lose the run.
    """
    paths = sorted(folder.glob(_PATTERN), reverse=True)
    for path in paths:
        try:
            return int(path.stem.partition("-")[2]), read(path)
        except (OSError, ValueError) as failure:
            print(f"{path} is left out: {failure}", file=sys.stderr)
    if paths:
        raise ValueError(f"none of the {len(paths)} checkpoints in {folder} can be used")
    return None


def agreed(folder: Path, rank: int, broadcast: Callable[[int | None], int | None]) -> bytes | None:
    """The content of the checkpoint from which all ranks go on; None where there is none.

    Rank 0 chooses it, and a rank that cannot read that one fails, with OSError or ValueError. If each rank chose, one
    whose volume shows the newest file late would go on from another step than the others, without an error.
    `broadcast` gives the value of rank 0 to all ranks.
    """
    chosen = newest(folder) if rank == 0 else None
    step = broadcast(chosen[0] if chosen else None)
    if step is None:
        return None
    return chosen[1] if chosen else read(_path(folder, step))


class Writer:
    """Writes checkpoints in the background, one at a time. The training waits only if the one before is not yet written.

    A volume that does not take one is tried again until the next one comes: the training goes on, and the last complete
    checkpoint stays.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._keep = keep
        self._thread: threading.Thread | None = None
        self._given_up = threading.Event()
        self._failure: OSError | None = None
        #: The step of the last one that is complete.
        self.saved: int | None = None

    def save(self, step: int, content: bytes) -> None:
        """Have it written."""
        self._given_up.set()
        self._join()
        self._given_up.clear()
        self._thread = threading.Thread(target=self._write, args=(step, content))
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait for the last one. Raises OSError where it could not be written in that time."""
        thread = self._thread
        if thread is not None:
            thread.join(seconds)
            self._given_up.set()
            self._join()
            if self._failure is not None:
                raise self._failure

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, step: int, content: bytes) -> None:
        while True:
            self._failure = None
            try:
                write(self._folder, step, content, self._keep)
            except OSError as failure:
                self._failure = failure
                print(f"{time.strftime('%H:%M:%S')} checkpoint {step} cannot be written: {failure}", file=sys.stderr)
                if self._given_up.wait(_SPACING):
                    return
            else:
                self.saved = step
                return
