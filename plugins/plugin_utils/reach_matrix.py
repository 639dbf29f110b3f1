# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pairs as a matrix for the terminal, followed by a description of the faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import display_width

#: One letter per verdict, and its meaning. Letters, since colours are not visible in logs and to colour-blind readers.
SYMBOLS = {
    "ok": ("·", "reaches"),
    "reachable": ("·", "reaches"),
    "refused": ("R", "refused"),
    "filtered": ("F", "filtered (no answer)"),
    "no_route": ("X", "no route"),
    "no_answer": ("-", "member does not answer"),
    "wrong_interface": ("I", "wrong interface"),
    "wrong_host": ("H", "another host answers"),
    "nat": ("N", "NAT"),
    "mtu_black_hole": ("M", "MTU black hole"),
    "corrupted": ("C", "payload corrupted"),
    "asymmetric": ("A", "one way only"),
    "name_is_loopback": ("L", "name is loopback"),
    "clock_skew": ("T", "clocks differ"),
    "duplicate_address": ("D", "duplicate address"),
    "not_checked": ("?", "not checked"),
    "not_probed": ("?", "not checked"),
}
_OTHER = ("!", "other")
#: From this number of members on, columns are not separated by blanks.
_DENSE_FROM = 21
#: More members than this do not fit a terminal: then, only those with a fault are drawn.
_LARGEST = 100
_CORNER = "from \\ to"
#: The number of faults that are described.
_SAID = 100
#: The number of peers of a group that are named individually.
_NAMED = 6


def draw(pairs: Sequence[Mapping[str, Any]]) -> str:
    """The text, without a final newline. Each pair has from, to, status, verdict, message and remedy."""
    machines = list(dict.fromkeys(str(end) for pair in pairs for end in (pair["from"], pair["to"])))
    if not machines:
        return "There are no pairs of members."
    cells = {(str(pair["from"]), str(pair["to"])): pair for pair in pairs}
    lines: list[str] = []
    shown = machines
    if len(machines) > _LARGEST:
        number_of = Counter(end for pair in pairs if pair["status"] != "pass" for end in _ends(pair))
        chosen = {machine for machine, _number in number_of.most_common(_LARGEST)}
        shown = [machine for machine in machines if machine in chosen]
        lines.append(f"{len(machines)} members; the {len(machines) - len(shown)} with the fewest faults are not drawn.")
    if shown:
        place = {machine: number for number, machine in enumerate(machines, 1)}
        lines += _grid(shown, [place[machine] for machine in shown], cells)
        known = set(shown)
        lines += ["", _legend([cell for (one, other), cell in cells.items() if one in known and other in known])]
    faults = _in_words([pair for pair in pairs if pair["status"] != "pass"])
    return "\n".join([*lines, *(["", *faults] if faults else [])])


def _ends(pair: Mapping[str, Any]) -> tuple[str, str]:
    return str(pair["from"]), str(pair["to"])


def _symbol(verdict: str) -> tuple[str, str]:
    return SYMBOLS.get(verdict, (_OTHER[0], verdict.replace("_", " ")))


def _grid(
    machines: Sequence[str], numbers: Sequence[int], cells: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[str]:
    """Rows are senders, columns receivers, whose numbers are written vertically."""
    gap = "" if len(machines) >= _DENSE_FROM else " "
    names = [printable(machine) for machine in machines]
    digits = len(str(max(numbers)))
    wide = max(len(_CORNER) - digits - 1, *(display_width(name) for name in names))
    edge = wide + digits + 2
    lines = [gap.join(str(number).rjust(digits)[digit] for number in numbers).rstrip() for digit in range(digits)]
    lines = [(_CORNER if place == 0 else "").ljust(edge) + line for place, line in enumerate(lines)]
    for name, machine, number in zip(names, machines, numbers):
        row = []
        for other in machines:
            pair = cells.get((machine, other))
            row.append(" " if machine == other else _symbol(str(pair["verdict"]))[0] if pair else "?")
        padded = name + " " * (wide - display_width(name))
        lines.append(f"{str(number).rjust(digits)} {padded} {gap.join(row)}".rstrip())
    return lines


def _legend(pairs: Sequence[Mapping[str, Any]]) -> str:
    used = {_symbol(str(pair["verdict"])) for pair in pairs}
    order = [symbol for symbol in dict.fromkeys(SYMBOLS.values()) if symbol in used]
    order += sorted(used - set(order))
    return "   ".join(f"{letter} {words}" for letter, words in order)


def _in_words(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each fault once: what many pairs have in common is reported for all of them, with one as an example."""
    groups = _groups(pairs)
    # The largest group first, by the number of its pairs that are not yet described. A number in the heap may be
    # outdated, but never too small: then, the group is put back with the right one.
    waiting = [(-len(group), place, key) for place, (key, group) in enumerate(groups.items())]
    heapify(waiting)
    told: set[int] = set()
    lines: list[str] = []
    said = 0
    while waiting:
        number, place, key = heappop(waiting)
        group = [pair for pair in groups[key] if id(pair) not in told]
        if not group:
            continue
        if len(group) < -number:
            groups[key] = group
            heappush(waiting, (-len(group), place, key))
            continue
        told.update(id(pair) for pair in group)
        said += 1
        if said <= _SAID:
            lines += _say(group)
    if said > _SAID:
        lines.append(f"And {said - _SAID} more faults.")
    return lines


def _say(group: Sequence[Mapping[str, Any]]) -> list[str]:
    first = group[0]
    to_one = all(pair["to"] == first["to"] for pair in group)
    senders = _names([str(pair["from"]) for pair in group] if to_one else [str(first["from"])])
    receivers = str(first["to"]) if to_one else _names([str(pair["to"]) for pair in group])
    words = str(_symbol(str(first["verdict"]))[1])
    example = f"For example {first['from']} → {first['to']}: " if len(group) > 1 else ""
    lines = [printable(f"{senders} → {receivers}: {words}. {example}{first['message']}")]
    if first["remedy"]:
        lines.append(printable(f"    {first['remedy']}"))
    return lines


def _groups(pairs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """The pairs with the same verdict that share their receiver, and those that share their sender."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for end in ("to", "from"):
        for pair in pairs:
            groups.setdefault((end, str(pair["verdict"]), str(pair[end])), []).append(pair)
    return groups


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} others"
