# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which machines measure with each other, and when.

Pure: all hosts derive the same plan from the same list of machines.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple


class Slot(NamedTuple):
    """Send to ``peer`` in the half ``half`` (0 or 1) of the round ``round``, both counted from 0."""

    round: int
    half: int
    peer: str


def rounds(machines: Sequence[str]) -> List[List[Tuple[str, str]]]:
    """A round-robin tournament: every machine is paired once with every other one, and at most once in each round.

    There are N - 1 rounds for an even N, N for an odd one, by the circle method: the first one stays, the others move
    by one place per round, and whoever is paired with the empty place of an odd number pauses.
    """
    places: List[Optional[str]] = list(machines)
    if len(places) % 2:
        places.append(None)
    plan = []
    for _round in range(len(places) - 1):
        half = len(places) // 2
        matches = zip(places[:half], reversed(places[half:]))
        plan.append([(one, other) for one, other in matches if one is not None and other is not None])
        places[1:] = [places[-1], *places[1:-1]]
    return plan


def timetable(machines: Sequence[str], machine: str) -> List[Slot]:
    """When ``machine`` sends to which peer. In each pair, first one side sends, then the other."""
    slots = []
    for number, matches in enumerate(rounds(machines)):
        for one, other in matches:
            if machine == one:
                slots.append(Slot(number, 0, other))
            elif machine == other:
                slots.append(Slot(number, 1, one))
    return slots
