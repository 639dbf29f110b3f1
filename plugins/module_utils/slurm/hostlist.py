# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's short form of a list of hosts: ``n[1-3,07-09],head``."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

#: Numbers have up to 18 digits; longer ones are part of a name.
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
#: Slurm itself accepts at most 64 Ki hosts in one expression.
_MOST = 65536
_MOST_BRACKETS = 16


def expand(expression: str) -> List[str]:
    """The hosts in their order. Raises InputError, also for more than 65,536 hosts."""
    hosts: List[str] = []
    for term in _split(expression):
        hosts += _expand_term(expression, term)
        if len(hosts) > _MOST:
            raise InputError(f"{expression!r} stands for more than {_MOST} hosts.", "Give fewer.")
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """The short form, each host once: sorted by what precedes the last number, and then by that number."""
    groups: Dict[Tuple[str, int], List[int]] = {}
    plain: Dict[str, None] = {}
    for host in hosts:
        if not host or re.search(r"[\[\],\s]", host):
            raise InputError(f"{host!r} is not a valid host name.", "Use names without brackets, commas and spaces.")
        match = _NUMBERED.fullmatch(host)
        if match is None:
            plain[host] = None
            continue
        digits = match.group(2)
        # 7 and 07 are different hosts: only numbers with leading zeros have a width.
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((match.group(1), width), []).append(int(digits))
    # n08 and n12 belong together: a number with as many digits as the width of others has that width.
    for prefix, width in [key for key in groups if key[1]]:
        rest = groups.get((prefix, 0), [])
        fitting = [number for number in rest if len(str(number)) == width]
        groups[(prefix, width)] += fitting
        if rest:
            groups[(prefix, 0)] = [number for number in rest if number not in set(fitting)]
    terms = [
        _term(prefix, width, sorted(set(numbers))) for (prefix, width), numbers in sorted(groups.items()) if numbers
    ]
    return ",".join(sorted(plain) + terms)


def _term(prefix: str, width: int, numbers: List[int]) -> str:
    runs: List[Tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    shown = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
    return f"{prefix}[{','.join(shown)}]"


def _split(expression: str) -> List[str]:
    """Split at the commas outside of brackets."""
    terms, depth, current = [], 0, ""
    for character in expression:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise InputError(f"The brackets of {expression!r} do not match.", "Write it as n[1-3,5].")
        if character == "," and depth == 0:
            terms.append(current)
            current = ""
        else:
            current += character
    if depth:
        raise InputError(f"The brackets of {expression!r} do not match.", "Write it as n[1-3,5].")
    return [term.strip() for term in [*terms, current] if term.strip()]


def _expand_term(expression: str, term: str) -> List[str]:
    head, bracket, rest = term.partition("[")
    if not bracket:
        return [term]
    inside, _closing, tail = rest.partition("]")
    if "[" in tail and tail.count("[") > _MOST_BRACKETS:
        raise InputError(f"{expression[:60]!r} has more than {_MOST_BRACKETS} brackets.", "Give fewer.")
    tails = _expand_term(expression, tail) if tail else [""]
    hosts: List[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (match.group(1), match.group(2) or match.group(1)) if match else ("1", "0")
        if int(high) < int(low):
            raise InputError(
                f"{part!r} in {expression!r} is not a number or an ascending range.", "Write it as n[1-3,5]."
            )
        if (int(high) - int(low) + 1) * len(tails) + len(hosts) > _MOST:
            raise InputError(f"{expression!r} stands for more than {_MOST} hosts.", "Give fewer.")
        width = len(low) if low.startswith("0") else 0
        hosts += [f"{head}{number:0{width}d}{end}" for number in range(int(low), int(high) + 1) for end in tails]
    return hosts
