# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The search for the largest packet that fits a path. Pure: it returns sizes to try, and receives those that passed.

Each size that does not pass costs a timeout, so many sizes are tried at once: each round narrows the bounds by a factor
of 17, and three rounds give the exact size.
"""

from __future__ import annotations

from typing import Collection, List, Optional

_SIZES_PER_ROUND = 16


class MtuSearch:
    """A search from ``smallest_size`` to ``largest_size`` in bytes, both included."""

    def __init__(self, smallest_size: int, largest_size: int) -> None:
        self._is_first_round = True
        self._largest_passed: Optional[int] = None
        self._smallest_size = min(smallest_size, largest_size)
        self._upper_bound = largest_size

    def next_sizes(self) -> List[int]:
        """The sizes to try next; empty when the result is known."""
        if self._is_first_round:
            return sorted({self._smallest_size, self._upper_bound})
        if self._largest_passed is None or self._largest_passed == self._upper_bound:
            return []
        step = self._upper_bound - self._largest_passed
        return sorted(
            {
                self._largest_passed + max(1, step * index // _SIZES_PER_ROUND)
                for index in range(1, _SIZES_PER_ROUND + 1)
            }
        )

    def record_results(self, passed_sizes: Collection[int]) -> None:
        """Process which of the last ``next_sizes`` passed. If a larger one passed, a smaller one was lost by chance."""
        tried_sizes = self.next_sizes()
        self._is_first_round = False
        arrived = [size for size in tried_sizes if size in passed_sizes]
        if arrived:
            self._largest_passed = max(arrived)
        lost = [size for size in tried_sizes if self._largest_passed is not None and size > self._largest_passed]
        self._upper_bound = (
            min(lost) - 1 if lost else self._largest_passed if self._largest_passed is not None else self._upper_bound
        )

    @property
    def largest_passed(self) -> Optional[int]:
        """The largest size known to pass; None if nothing passed."""
        return self._largest_passed


def is_black_hole(interface: Optional[int], measured: Optional[int], signalled: Optional[int]) -> bool:
    """Whether packets that should fit disappear: only ``measured`` passes, and the kernel has not been notified."""
    if interface is None or measured is None:
        return False
    believed = interface if signalled is None else min(interface, signalled)
    return measured < believed
