# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a program may show no sign of life before it is considered hung.

Programs pause: they validate, save, compile. The limit of a run follows what it has already shown to be normal.
"""

from __future__ import annotations

import time
from typing import Dict, NamedTuple, Optional

#: Additional seconds before the first step of an attempt, to load libraries, connect the ranks and read a checkpoint.
STARTING = 120.0
#: A pause may be this many times as long as the longest one of the run so far,
_LONGER = 3.0
#: but not longer than this many times the given limit, so that a hang is found in the end.
_MOST = 4.0
#: A program prints regularly if it has done so for the given limit, with pauses of at most this part of it.
_PART = 1 / 3
#: A thread that has something to do every second, and has done nothing for so many, was stopped with its process.
STOPPED = 5.0


def clock() -> float:
    """Seconds of a monotonic clock that goes on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Keepalives:
    """The keepalives that this process sends, which show for how long it was stopped. Times are those of ``clock``."""

    def __init__(self, now: float) -> None:
        self._sent: Optional[float] = now
        self._total = 0.0

    def sent(self, now: float) -> None:
        """Record a keepalive."""
        if self._sent is not None:
            self._total += _stop(now - self._sent)
        self._sent = now

    def end(self) -> None:
        """Record that no more are sent."""
        self._sent = None

    def stopped(self, now: float) -> float:
        """For how many seconds the process was stopped until now, in all. Another thread may send one meanwhile."""
        # In this order: otherwise, it might miss the time that is being added.
        sent = self._sent
        return self._total + (0.0 if sent is None else _stop(now - sent))


def _stop(gap: float) -> float:
    return gap if gap > STOPPED else 0.0


class Limits(NamedTuple):
    """The longest pause between two signs of life, and the longest start of this run, in seconds."""

    gap: float = 0.0
    start: float = 0.0

    def with_gap(self, seconds: float) -> Limits:
        """The limits after a pause."""
        return self._replace(gap=max(self.gap, seconds))

    def with_start(self, seconds: float) -> Limits:
        """The limits after a start."""
        return self._replace(start=max(self.start, seconds))

    def of_gap(self, given: float) -> float:
        """The seconds that a pause may take."""
        return max(given, min(_LONGER * self.gap, _MOST * given))

    def of_start(self, given: float) -> float:
        """The seconds that a start may take."""
        return max(given, min(_LONGER * self.start, _MOST * given))


#: The limits of a run of which nothing is known yet.
UNKNOWN = Limits()


class Output:
    """The output of all ranks of a program that reports nothing. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._printed: Dict[str, int] = {}
        self._since: Optional[float] = None
        self._last = 0.0
        self._gap = 0.0

    def tell(self, node: str, printed: int, now: float) -> None:
        """Process the number of bytes that the ranks of a node have printed."""
        if printed <= self._printed.get(node, 0):
            return
        self._printed[node] = printed
        if self._since is None:
            self._since = now
        else:
            self._gap = max(self._gap, now - self._last)
        self._last = now

    def excuse(self, now: float) -> None:
        """Do not count the time until now, in which nobody has listened."""
        if self._since is not None:
            self._last = now

    def regular(self, limit: float) -> bool:
        """Whether the program has printed for so long, and so regularly, that its silence means something."""
        return self._since is not None and self._last - self._since >= limit and self._gap <= _PART * limit

    def stopped(self, limit: float, now: float, since: float = 0.0) -> bool:
        """Whether the program has printed regularly, and nothing for longer than the limit.

        ``since``: what was before is not counted.
        """
        return self.regular(limit) and now - max(self._last, since) > limit
