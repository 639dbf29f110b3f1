# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How far two clocks are apart, as NTP reckons it."""

from __future__ import annotations

from typing import NamedTuple, Sequence


class Sample(NamedTuple):
    """Four moments in seconds since the epoch: ``asked`` and ``heard`` on our clock, the others on the peer's."""

    asked: float
    received: float
    sent: float
    heard: float

    @property
    def round_trip(self) -> float:
        """Seconds on the wire, the peer's own time taken off."""
        return (self.heard - self.asked) - (self.sent - self.received)

    @property
    def offset(self) -> float:
        """The peer's clock less ours, in seconds; wrong by half the round trip at most."""
        return ((self.received - self.asked) + (self.sent - self.heard)) / 2


def best(samples: Sequence[Sample]) -> Sample:
    """The one with the shortest round trip: what waited in a queue tells least about the clocks.

    A clock that was stepped while we asked gives a negative round trip; such a sample is passed over where it can be.
    """
    possible = [sample for sample in samples if sample.round_trip >= 0] or list(samples)
    return min(possible, key=lambda sample: abs(sample.round_trip))
