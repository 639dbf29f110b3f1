# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The timetable by which machines measure with each other.

Pure: all hosts derive the same plan from the same list of machines.
"""

from __future__ import annotations

from typing import List, NamedTuple, Optional, Sequence, Tuple


class SendSlot(NamedTuple):
    """A time to send to ``peer``: the half ``half`` (0 or 1) of the round ``round``, both counted from 0."""

    round: int
    half: int
    peer: str


def plan_rounds(machines: Sequence[str]) -> List[List[Tuple[str, str]]]:
    """A round-robin tournament: every machine is paired once with every other one, and at most once in each round.

    There are N - 1 rounds for an even N, N for an odd one, by the circle method: the first one stays, the others move
    by one place per round, and whoever is paired with the empty place of an odd number pauses.
    """
    circle_machines: List[Optional[str]] = list(machines)
    if len(circle_machines) % 2:
        circle_machines.append(None)
    plan = []
    for _round in range(len(circle_machines) - 1):
        half_count = len(circle_machines) // 2
        matches = zip(circle_machines[:half_count], reversed(circle_machines[half_count:]))
        plan.append(
            [
                (first_machine, second_machine)
                for first_machine, second_machine in matches
                if first_machine is not None and second_machine is not None
            ]
        )
        circle_machines[1:] = [circle_machines[-1], *circle_machines[1:-1]]
    return plan


def plan_slots(machines: Sequence[str], own_machine: str) -> List[SendSlot]:
    """Return when ``own_machine`` sends to which peer. In each pair, first one side sends, then the other."""
    slots = []
    for number, matches in enumerate(plan_rounds(machines)):
        for first_machine, second_machine in matches:
            if own_machine == first_machine:
                slots.append(SendSlot(number, 0, second_machine))
            elif own_machine == second_machine:
                slots.append(SendSlot(number, 1, first_machine))
    return slots
