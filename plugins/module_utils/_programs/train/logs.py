# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Show users the output of one rank or of all ranks, once or as it grows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import open_regular_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import strip_terminal_codes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory

#: A function that writes text of any origin.
WriteText = Callable[[str], Any]
#: The number of bytes of a log that are read at once.
_CHUNK_BYTES = 1 << 20


def _find_logs(run_directory: RunDirectory, attempt: int, rank: Optional[int]) -> Dict[int, Path]:
    """Return the paths of an attempt's logs by rank. ``rank``: only this one."""
    attempt_directory = run_directory.attempt_dir(attempt)
    if rank is not None:
        return {rank: attempt_directory / f"rank-{rank}.log"}
    rank_names = [log_path.stem.partition("-")[2] for log_path in attempt_directory.glob("rank-*.log")]
    return {
        rank_number: attempt_directory / f"rank-{rank_number}.log"
        for rank_number in sorted(int(rank_name) for rank_name in rank_names if rank_name.isdigit())
    }


def _add_prefix(text: str, rank: int, all_ranks: bool) -> str:
    """Return a line, with its rank if all ranks are shown."""
    return f"[rank {rank}] {text}" if all_ranks else text


def copy_logs(run_directory: RunDirectory, rank: Optional[int], attempt: int, write_text: WriteText) -> None:
    """Write the output of a rank (None: of all ranks) in an attempt (0: in the last one). Raises HostStateError."""
    attempt_number = attempt or len(run_directory.read().attempts)
    for log_rank, log_path in _find_logs(run_directory, attempt_number, rank).items():
        try:
            with os.fdopen(
                open_regular_file(str(log_path)), encoding="utf-8", errors="replace", newline="\n"
            ) as log_stream:
                for line in bounded_read.read_lines(log_stream):
                    write_text(_add_prefix(strip_terminal_codes(line), log_rank, rank is None))
        except OSError as failure:
            raise HostStateError(
                f"{log_path} cannot be read: {failure.strerror}.",
                "See the attempts of the run with 'gpumesh-train show'.",
            ) from failure


class LogFollower:
    """Write the output of a rank (None: of all ranks) as it grows, from the beginning of an attempt on."""

    def __init__(self, run_directory: RunDirectory, rank: Optional[int], write_text: WriteText) -> None:
        self._run_directory = run_directory
        self._rank = rank
        self._write_text = write_text
        self._read_offsets: Dict[Path, int] = {}

    def copy_new(self, attempt: int, attempt_ended: bool) -> None:
        """Write what has been added to the logs of an attempt. ``attempt_ended``: also an unterminated last line."""
        for rank, log_path in _find_logs(self._run_directory, attempt, self._rank).items():
            # A log that does not exist yet, or that the volume cannot provide now, is read later.
            with contextlib.suppress(OSError):
                for line in self._read_new_lines(log_path, attempt_ended):
                    self._write_text(_add_prefix(strip_terminal_codes(line), rank, self._rank is None))

    def _read_new_lines(self, log_path: Path, attempt_ended: bool) -> List[str]:
        """Return the lines that have been added, including those of a progress bar. Raises OSError."""
        new_lines: List[str] = []
        with os.fdopen(open_regular_file(str(log_path)), "rb") as log_stream:
            while True:
                log_stream.seek(self._read_offsets.get(log_path, 0))
                chunk = log_stream.read(_CHUNK_BYTES)
                complete_length = max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
                if attempt_ended or (not complete_length and len(chunk) == _CHUNK_BYTES):
                    complete_length = len(chunk)
                if not complete_length:
                    return new_lines
                self._read_offsets[log_path] = self._read_offsets.get(log_path, 0) + complete_length
                new_lines += chunk[:complete_length].decode("utf-8", "replace").splitlines(keepends=True)
