# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ranks, for users: of one or of all, as far as it is there or as it grows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import open_plain
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import untyped
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder

#: Writes a text that may be anybody's.
Write = Callable[[str], Any]
#: The number of bytes of a log that are read at once.
_PART = 1 << 20


def _paths(folder: Folder, attempt: int, rank: Optional[int]) -> Dict[int, Path]:
    """The logs of an attempt by rank. ``rank``: only this one."""
    place = folder.attempt(attempt)
    if rank is not None:
        return {rank: place / f"rank-{rank}.log"}
    numbers = [path.stem.partition("-")[2] for path in place.glob("rank-*.log")]
    return {number: place / f"rank-{number}.log" for number in sorted(int(one) for one in numbers if one.isdigit())}


def _prefixed(text: str, rank: int, every: bool) -> str:
    """A line, with its rank if those of all ranks are shown."""
    return f"[rank {rank}] {text}" if every else text


def copy(folder: Folder, rank: Optional[int], attempt: int, write: Write) -> None:
    """Write the output of a rank (None: of all) in an attempt (0: the last one), line by line. Raises HostStateError."""
    number = attempt or len(folder.read().attempts)
    for one, path in _paths(folder, number, rank).items():
        try:
            with os.fdopen(open_plain(str(path)), encoding="utf-8", errors="replace", newline="\n") as stream:
                for line in limited.lines(stream):
                    write(_prefixed(untyped(line), one, rank is None))
        except OSError as failure:
            raise HostStateError(
                f"{path} cannot be read: {failure.strerror}.", "See the attempts of the run with 'gpumesh-train show'."
            ) from failure


class Follower:
    """The output of a rank (None: of all) as it grows, from the beginning of an attempt on."""

    def __init__(self, folder: Folder, rank: Optional[int], write: Write) -> None:
        self._folder = folder
        self._rank = rank
        self._write = write
        self._read: Dict[Path, int] = {}

    def copy(self, attempt: int, ended: bool) -> None:
        """Write what has been added to the logs of an attempt. ``ended``: also a last line without an end."""
        for rank, path in _paths(self._folder, attempt, self._rank).items():
            # A log that is not there yet, or that the volume cannot give now, may be later.
            with contextlib.suppress(OSError):
                for line in self._added(path, ended):
                    self._write(_prefixed(untyped(line), rank, self._rank is None))

    def _added(self, path: Path, ended: bool) -> List[str]:
        """The lines that have been added, a progress bar's included. Raises OSError."""
        lines: List[str] = []
        with os.fdopen(open_plain(str(path)), "rb") as stream:
            while True:
                stream.seek(self._read.get(path, 0))
                part = stream.read(_PART)
                length = max(part.rfind(b"\n"), part.rfind(b"\r")) + 1
                if ended or (not length and len(part) == _PART):
                    length = len(part)
                if not length:
                    return lines
                self._read[path] = self._read.get(path, 0) + length
                lines += part[:length].decode("utf-8", "replace").splitlines(keepends=True)
