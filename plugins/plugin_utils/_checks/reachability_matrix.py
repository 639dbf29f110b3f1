# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pairs as a matrix for the terminal, followed by a description of the faults."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import TEXT_WIDTH, display_width

#: Letters for the verdicts, and their meanings. Colours are not visible in logs and to colour-blind readers.
VERDICT_SYMBOLS = {
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
_OTHER_SYMBOL = ("!", "other")
#: The number of members from which on columns are not separated by blanks.
_DENSE_FROM = 21
#: The number of members that fit a terminal; of more, only those with a fault are drawn.
_MAX_DRAWN_MEMBERS = 100
_CORNER_LABEL = "from \\ to"
#: The number of faults that are described.
_MAX_DESCRIBED_FAULTS = 100


def draw_matrix(pairs: Sequence[Mapping[str, Any]], describes_faults: bool = True) -> str:
    """Draw the matrix, without a final newline. Each pair has from, to, status, verdict, message and remedy.

    ``describes_faults``: text below the matrix describes the faults. A check describes them with its other findings.
    """
    machines = list(dict.fromkeys(str(machine) for pair in pairs for machine in (pair["from"], pair["to"])))
    if not machines:
        return "There are no pairs of members."
    pair_by_machines = {(str(pair["from"]), str(pair["to"])): pair for pair in pairs}
    lines: list[str] = []
    drawn_machines = machines
    if len(machines) > _MAX_DRAWN_MEMBERS:
        fault_counts = Counter(
            machine for pair in pairs if pair["status"] != "pass" for machine in _pair_machines(pair)
        )
        faulty_machines = {machine for machine, _fault_count in fault_counts.most_common(_MAX_DRAWN_MEMBERS)}
        drawn_machines = [machine for machine in machines if machine in faulty_machines]
        lines.append(
            f"{len(machines)} members; the {len(machines) - len(drawn_machines)} with the fewest faults are not drawn."
        )
    if drawn_machines:
        position_by_machine = {machine: position for position, machine in enumerate(machines, 1)}
        lines += _draw_grid(
            drawn_machines, [position_by_machine[machine] for machine in drawn_machines], pair_by_machines
        )
        drawn_set = set(drawn_machines)
        lines += [
            "",
            *_draw_legend(
                [
                    cell
                    for (sender, receiver), cell in pair_by_machines.items()
                    if sender in drawn_set and receiver in drawn_set
                ]
            ),
        ]
    fault_lines = _describe_faults([pair for pair in pairs if pair["status"] != "pass"]) if describes_faults else []
    return "\n".join([*lines, *(["", *fault_lines] if fault_lines else [])])


def _pair_machines(pair: Mapping[str, Any]) -> tuple[str, str]:
    return str(pair["from"]), str(pair["to"])


def describe_verdict(verdict: str) -> str:
    """Return a verdict on a pair in words."""
    return _verdict_symbol(verdict)[1]


def _verdict_symbol(verdict: str) -> tuple[str, str]:
    return VERDICT_SYMBOLS.get(verdict, (_OTHER_SYMBOL[0], verdict.replace("_", " ")))


def _draw_grid(
    machines: Sequence[str], positions: Sequence[int], pair_by_machines: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[str]:
    """Draw rows for senders and columns for receivers, whose numbers are written vertically."""
    column_gap = "" if len(machines) >= _DENSE_FROM else " "
    printable_names = [printable(sender) for sender in machines]
    digit_count = len(str(max(positions)))
    name_width = max(len(_CORNER_LABEL) - digit_count - 1, *(display_width(name) for name in printable_names))
    label_width = name_width + digit_count + 2
    lines = [
        column_gap.join(str(position).rjust(digit_count)[digit_index] for position in positions).rstrip()
        for digit_index in range(digit_count)
    ]
    lines = [
        (_CORNER_LABEL if line_index == 0 else "").ljust(label_width) + line for line_index, line in enumerate(lines)
    ]
    for name, sender, position in zip(printable_names, machines, positions):
        row_symbols = []
        for receiver in machines:
            pair = pair_by_machines.get((sender, receiver))
            row_symbols.append(" " if sender == receiver else _verdict_symbol(str(pair["verdict"]))[0] if pair else "?")
        padded_name = name + " " * (name_width - display_width(name))
        lines.append(f"{str(position).rjust(digit_count)} {padded_name} {column_gap.join(row_symbols)}".rstrip())
    return lines


def _draw_legend(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    used_symbols = {_verdict_symbol(str(pair["verdict"])) for pair in pairs}
    ordered_symbols = [symbol for symbol in dict.fromkeys(VERDICT_SYMBOLS.values()) if symbol in used_symbols]
    ordered_symbols += sorted(used_symbols - set(ordered_symbols))
    legend_lines: list[str] = []
    for letter, meaning in ordered_symbols:
        entry = f"{letter} {meaning}"
        if legend_lines and display_width(f"{legend_lines[-1]}   {entry}") <= TEXT_WIDTH:
            legend_lines[-1] += f"   {entry}"
        else:
            legend_lines.append(entry)
    return legend_lines


def _describe_faults(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe each fault once.

    What many pairs have in common is reported for all of them, with one as an example.
    """
    pairs_by_group = _group_pairs(pairs)
    # The largest group comes first, by the number of its pairs that are not yet described. A number in the heap may be
    # outdated, but never too small: then, the group is put back with the right one.
    group_heap = [
        (-len(group), group_index, group_key) for group_index, (group_key, group) in enumerate(pairs_by_group.items())
    ]
    heapify(group_heap)
    described_pairs: set[int] = set()
    fault_lines: list[str] = []
    described_count = 0
    while group_heap:
        negative_size, group_index, group_key = heappop(group_heap)
        group = [pair for pair in pairs_by_group[group_key] if id(pair) not in described_pairs]
        if not group:
            continue
        if len(group) < -negative_size:
            pairs_by_group[group_key] = group
            heappush(group_heap, (-len(group), group_index, group_key))
            continue
        described_pairs.update(id(pair) for pair in group)
        described_count += 1
        if described_count <= _MAX_DESCRIBED_FAULTS:
            fault_lines += _describe_group(group)
    if described_count > _MAX_DESCRIBED_FAULTS:
        fault_lines.append(f"And {described_count - _MAX_DESCRIBED_FAULTS} more faults.")
    return fault_lines


def _describe_group(similar_pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    first_pair = similar_pairs[0]
    same_receiver = all(pair["to"] == first_pair["to"] for pair in similar_pairs)
    senders = join_names([pair["from"] for pair in similar_pairs] if same_receiver else [first_pair["from"]], "")
    receivers = str(first_pair["to"]) if same_receiver else join_names((pair["to"] for pair in similar_pairs), "")
    verdict_meaning = describe_verdict(str(first_pair["verdict"]))
    example = f"For example {first_pair['from']} → {first_pair['to']}: " if len(similar_pairs) > 1 else ""
    fault_lines = _wrap_paragraph(
        f"{senders} → {receivers}: {verdict_meaning}. {example}{first_pair['message']}", "", "  "
    )
    if first_pair["remedy"]:
        fault_lines += _wrap_paragraph(first_pair["remedy"], "    ", "    ")
    return fault_lines


def _wrap_paragraph(text: str, indent: str, hanging_indent: str) -> list[str]:
    return textwrap.wrap(
        printable(text),
        TEXT_WIDTH,
        initial_indent=indent,
        subsequent_indent=hanging_indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _group_pairs(pairs: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str], list[Mapping[str, Any]]]:
    """Group the pairs with the same verdict that share their receiver, and those that share their sender."""
    pairs_by_group: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for shared_end in ("to", "from"):
        for pair in pairs:
            pairs_by_group.setdefault((shared_end, str(pair["verdict"]), str(pair[shared_end])), []).append(pair)
    return pairs_by_group
