# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit how long a program may show no sign of life before it is considered hung.

Programs pause: they validate, save, compile. The limit of a run follows the longest pause that has been normal so far.
"""

from __future__ import annotations

import time
from typing import Dict, NamedTuple, Optional

#: Additional seconds before the first step of an attempt, to load libraries, connect the ranks and read a checkpoint.
START_ALLOWANCE = 120.0
#: A pause may be this many times as long as the longest one of the run so far.
_PAUSE_FACTOR = 3.0
#: No pause may be longer than this many times the requested limit, so that a hang is found in the end.
_MAX_LIMIT_FACTOR = 4.0
#: A program prints regularly if it has done so for the limit, with pauses of at most this fraction of it.
_REGULAR_FRACTION = 1 / 3
#: A thread that has work every second, and has done none for so many seconds, was stopped with its process.
STOPPED_GAP = 5.0


def clock() -> float:
    """Return the seconds of a monotonic clock that continues while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Keepalives:
    """The keepalives that this process sends, which show for how long it was stopped. Times come from ``clock``."""

    def __init__(self, now: float) -> None:
        self._last_sent: Optional[float] = now
        self._total_stopped = 0.0

    def record_sent(self, now: float) -> None:
        """Record a keepalive."""
        if self._last_sent is not None:
            self._total_stopped += _stopped_time(now - self._last_sent)
        self._last_sent = now

    def stop(self) -> None:
        """Record that no more keepalives are sent."""
        self._last_sent = None

    def stopped_seconds(self, now: float) -> float:
        """Return for how many seconds the process was stopped until now, while another thread may send a keepalive."""
        # The time of the last keepalive is read first: the sum might otherwise lack the time that is being added.
        last_sent = self._last_sent
        return self._total_stopped + (0.0 if last_sent is None else _stopped_time(now - last_sent))


def _stopped_time(gap: float) -> float:
    return gap if gap > STOPPED_GAP else 0.0


class PauseLimits(NamedTuple):
    """The longest pause between two signs of life, and the longest start of this run, in seconds."""

    longest_gap: float = 0.0
    longest_start: float = 0.0

    def with_gap(self, seconds: float) -> PauseLimits:
        """Return the limits after a pause."""
        return self._replace(longest_gap=max(self.longest_gap, seconds))

    def with_start(self, seconds: float) -> PauseLimits:
        """Return the limits after a start."""
        return self._replace(longest_start=max(self.longest_start, seconds))

    def gap_limit(self, base_limit: float) -> float:
        """Return the seconds that a pause may take."""
        return max(base_limit, min(_PAUSE_FACTOR * self.longest_gap, _MAX_LIMIT_FACTOR * base_limit))

    def start_limit(self, base_limit: float) -> float:
        """Return the seconds that a start may take."""
        return max(base_limit, min(_PAUSE_FACTOR * self.longest_start, _MAX_LIMIT_FACTOR * base_limit))


#: The limits of a run about which nothing is known yet.
UNKNOWN_LIMITS = PauseLimits()


class OutputActivity:
    """The output of all ranks of a program that reports nothing. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._printed_bytes: Dict[str, int] = {}
        self._first_output: Optional[float] = None
        self._last_output = 0.0
        self._longest_gap = 0.0

    def record_output(self, node: str, printed_bytes: int, now: float) -> None:
        """Record the number of bytes that the ranks of a node have printed."""
        if printed_bytes <= self._printed_bytes.get(node, 0):
            return
        self._printed_bytes[node] = printed_bytes
        if self._first_output is None:
            self._first_output = now
        else:
            self._longest_gap = max(self._longest_gap, now - self._last_output)
        self._last_output = now

    def forgive_gap(self, now: float) -> None:
        """Leave out the time until now, in which nobody has listened."""
        if self._first_output is not None:
            self._last_output = now

    def is_regular(self, silence_limit: float) -> bool:
        """Whether the program has printed for so long, and so regularly, that its silence shows a hang."""
        return (
            self._first_output is not None
            and self._last_output - self._first_output >= silence_limit
            and self._longest_gap <= _REGULAR_FRACTION * silence_limit
        )

    def has_stopped(self, silence_limit: float, now: float, counted_since: float = 0.0) -> bool:
        """Whether the program has printed regularly, and nothing for longer than the limit.

        ``counted_since``: the time before is not counted.
        """
        return self.is_regular(silence_limit) and now - max(self._last_output, counted_since) > silence_limit
