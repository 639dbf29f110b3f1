# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for the largest packet that fits a path. Pure: it returns the sizes to try, and is told which passed.

Each size that does not pass costs a timeout, so many sizes are tried at once: each round narrows the bounds by a factor
of 17, and three rounds give the exact size.
"""

from __future__ import annotations

from typing import Collection, List, Optional

_AT_ONCE = 16


class Search:
    """``smallest`` to ``largest`` in bytes, both included."""

    def __init__(self, smallest: int, largest: int) -> None:
        self._first = True
        self._low: Optional[int] = None
        self._smallest = min(smallest, largest)
        self._high = largest

    def sizes(self) -> List[int]:
        """The sizes to try next; empty when the result is known."""
        if self._first:
            return sorted({self._smallest, self._high})
        if self._low is None or self._low == self._high:
            return []
        step = self._high - self._low
        return sorted({self._low + max(1, step * index // _AT_ONCE) for index in range(1, _AT_ONCE + 1)})

    def learn(self, passed: Collection[int]) -> None:
        """Process which of the last ``sizes`` passed. If a larger one passed, a smaller one was lost by chance."""
        tried = self.sizes()
        self._first = False
        arrived = [size for size in tried if size in passed]
        if arrived:
            self._low = max(arrived)
        lost = [size for size in tried if self._low is not None and size > self._low]
        self._high = min(lost) - 1 if lost else self._low if self._low is not None else self._high

    @property
    def found(self) -> Optional[int]:
        """The largest size known to pass; None if nothing passed."""
        return self._low


def is_black_hole(interface: Optional[int], measured: Optional[int], signalled: Optional[int]) -> bool:
    """Whether packets that should fit disappear: only ``measured`` passes, and the kernel has not been notified."""
    if interface is None or measured is None:
        return False
    believed = interface if signalled is None else min(interface, signalled)
    return measured < believed
