# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hostlist expressions of Slurm, such as ``n[1-3,07-09],head``."""

from __future__ import annotations

import re
from typing import Dict, Iterable, List, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

#: Numbers have up to 18 digits; longer ones are part of a name.
_NUMBERED_HOST = re.compile(r"(.*?)([0-9]{1,18})", re.DOTALL)
_NUMBER_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
#: Slurm itself accepts at most 64 Ki hosts in one expression.
_MAX_HOSTS = 65536
_MAX_BRACKETS = 16


def expand_hostlist(expression: str) -> List[str]:
    """Return the hosts in their order. Raises InputError, also for more than 65,536 hosts."""
    hosts: List[str] = []
    for term in _split_terms(expression):
        hosts += _expand_term(expression, term)
        if len(hosts) > _MAX_HOSTS:
            raise InputError(f"{expression!r} stands for more than {_MAX_HOSTS} hosts.", "Give fewer.")
    return hosts


def compress_hostlist(hosts: Iterable[str]) -> str:
    """Return the short form with each host once, sorted by the part before the last number, and then by that number."""
    numbers_by_prefix: Dict[Tuple[str, int], List[int]] = {}
    plain_hosts: Dict[str, None] = {}
    for host in hosts:
        if not host or re.search(r"[\[\],\s]", host):
            raise InputError(f"{host!r} is not a valid host name.", "Use names without brackets, commas and spaces.")
        match = _NUMBERED_HOST.fullmatch(host)
        if match is None:
            plain_hosts[host] = None
            continue
        digits = match.group(2)
        # 7 and 07 are different hosts: only numbers with leading zeros have a width.
        width = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        numbers_by_prefix.setdefault((match.group(1), width), []).append(int(digits))
    # n08 and n12 belong together: a number with as many digits as the width of others has that width.
    for prefix, width in [key for key in numbers_by_prefix if key[1]]:
        unpadded_numbers = numbers_by_prefix.get((prefix, 0), [])
        fitting_numbers = [number for number in unpadded_numbers if len(str(number)) == width]
        numbers_by_prefix[(prefix, width)] += fitting_numbers
        if unpadded_numbers:
            numbers_by_prefix[(prefix, 0)] = [
                number for number in unpadded_numbers if number not in set(fitting_numbers)
            ]
    terms = [
        _format_term(prefix, width, sorted(set(numbers)))
        for (prefix, width), numbers in sorted(numbers_by_prefix.items())
        if numbers
    ]
    return ",".join(sorted(plain_hosts) + terms)


def _format_term(prefix: str, width: int, numbers: List[int]) -> str:
    number_ranges: List[Tuple[int, int]] = []
    for number in numbers:
        if number_ranges and number == number_ranges[-1][1] + 1:
            number_ranges[-1] = (number_ranges[-1][0], number)
        else:
            number_ranges.append((number, number))
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    formatted_ranges = [
        f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in number_ranges
    ]
    return f"{prefix}[{','.join(formatted_ranges)}]"


def _split_terms(expression: str) -> List[str]:
    """Split at the commas outside of brackets."""
    terms, bracket_depth, current_term = [], 0, ""
    for character in expression:
        bracket_depth += {"[": 1, "]": -1}.get(character, 0)
        if bracket_depth not in (0, 1):
            raise InputError(f"The brackets of {expression!r} do not match.", "Write it as n[1-3,5].")
        if character == "," and bracket_depth == 0:
            terms.append(current_term)
            current_term = ""
        else:
            current_term += character
    if bracket_depth:
        raise InputError(f"The brackets of {expression!r} do not match.", "Write it as n[1-3,5].")
    return [term.strip() for term in [*terms, current_term] if term.strip()]


def _expand_term(expression: str, term: str) -> List[str]:
    host_prefix, bracket, after_bracket = term.partition("[")
    if not bracket:
        return [term]
    bracket_content, _closing, suffix_expression = after_bracket.partition("]")
    if "[" in suffix_expression and suffix_expression.count("[") > _MAX_BRACKETS:
        raise InputError(f"{expression[:60]!r} has more than {_MAX_BRACKETS} brackets.", "Give fewer.")
    expanded_suffixes = _expand_term(expression, suffix_expression) if suffix_expression else [""]
    hosts: List[str] = []
    for range_text in bracket_content.split(","):
        match = _NUMBER_RANGE.fullmatch(range_text.strip())
        first_number, last_number = (match.group(1), match.group(2) or match.group(1)) if match else ("1", "0")
        if int(last_number) < int(first_number):
            raise InputError(
                f"{range_text!r} in {expression!r} is not a number or an ascending range.", "Write it as n[1-3,5]."
            )
        if (int(last_number) - int(first_number) + 1) * len(expanded_suffixes) + len(hosts) > _MAX_HOSTS:
            raise InputError(f"{expression!r} stands for more than {_MAX_HOSTS} hosts.", "Give fewer.")
        width = len(first_number) if first_number.startswith("0") else 0
        hosts += [
            f"{host_prefix}{number:0{width}d}{suffix}"
            for number in range(int(first_number), int(last_number) + 1)
            for suffix in expanded_suffixes
        ]
    return hosts
