# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The difference of two clocks, computed as in NTP."""

from __future__ import annotations

from typing import NamedTuple, Sequence


class ClockSample(NamedTuple):
    """Four times in seconds since the epoch: the first and the last on our clock, the others on the peer's."""

    request_sent: float
    request_received: float
    reply_sent: float
    reply_received: float

    @property
    def round_trip(self) -> float:
        """Seconds on the wire, without the time that the peer took."""
        return (self.reply_received - self.request_sent) - (self.reply_sent - self.request_received)

    @property
    def offset(self) -> float:
        """The peer's clock minus ours, in seconds. The error is at most half the round trip."""
        return ((self.request_received - self.request_sent) + (self.reply_sent - self.reply_received)) / 2


def choose_sample(samples: Sequence[ClockSample]) -> ClockSample:
    """The sample with the shortest round trip: time spent in queues makes the others less precise.

    A clock that was stepped during a query gives a negative round trip; such samples are ignored if there are others.
    """
    possible = [sample for sample in samples if sample.round_trip >= 0] or list(samples)
    return min(possible, key=lambda sample: abs(sample.round_trip))
