# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Valid input with random damage: a parser must return a value, or reject the input with an explanation.

Random characters alone do not get past the first check of a parser. HYPOTHESIS_PROFILE=search tries 100,000 forms of
each input, different ones each time; a gate tries the same few.
"""

from __future__ import annotations

import copy
import os
import random
import string
from collections.abc import Callable
from typing import Any

SEARCH_PROFILE = os.environ.get("HYPOTHESIS_PROFILE") == "search"
TRY_COUNT = 100_000 if SEARCH_PROFILE else 1_000
SEED = random.SystemRandom().randrange(1 << 32) if SEARCH_PROFILE else 0

#: Input that has broken parsers before: line ends, zones, non-ASCII digits, long numbers, quotes, escapes, half a
#: surrogate pair.
BREAKING_PIECES = (
    *("\n", "\r", "\t", "\0", "\x1b[2J", "\x7f", "\u2028", "\u202e", "\ud800", "\u0663", "\u00b2", "\u00e9", "\uff11"),
    *("%", "%a\nb", "%eth0", "..", ".", "-", "--", "_", "/", "//", "../", ":", "::", "[", "]", "[]", "[1-3]", ",", ";"),
    *(
        "$(id)",
        "`id`",
        "'",
        '"',
        "\\",
        "{{ 1 }}",
        "#",
        "=",
        "@",
        "+",
        "*",
        " ",
        "0x7f",
        "0",
        "00",
        "9" * 20,
        "9" * 5000,
        "9" * 400,
        "[" * 9000,
        '{"a":' * 3000,
    ),
    *(
        "/0",
        "/33",
        "/129",
        "/-1",
        "65535",
        "65536",
        "true",
        "null",
        "NaN",
        "1e999",
        "localhost",
        "127.0.0.1",
        "fd00::1",
    ),
    *("224.0.0.1", "0.0.0.0", "fe80::1", "::ffff:127.0.0.1", "1.2.3", "all"),
)
#: JSON values of every kind, to replace one where another kind is expected.
ODD_JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 70,
    10**400,
    1.5,
    float("inf"),
    float("nan"),
    "",
    [],
    {},
    [None],
    [[]],
    {"": None},
    ["x"],
    {"name": []},
)


def damage_text(random_source: random.Random, text: str) -> str:
    """Apply one to three changes to a text."""
    for _turn in range(random_source.randint(1, 3)):
        start, end = sorted(random_source.randint(0, len(text)) for _end in "12")
        kind = random_source.randrange(5)
        if kind == 0:
            text = text[:start] + random_source.choice(BREAKING_PIECES) + text[start:]
        elif kind == 1:
            text = text[:start] + random_source.choice(BREAKING_PIECES) + text[end:]
        elif kind == 2:
            text = text[:start] + text[end:]
        elif kind == 3:
            text = text[:start] + text[start:end] * random_source.randint(2, 4) + text[end:]
        else:
            text = text[:start] + random_source.choice(string.printable) + text[start + 1 :]
        text = text[:20_000]
    return text


def damage_document(random_source: random.Random, document: Any) -> Any:
    """Return a copy in which one value, at any depth, is damaged, of another kind, missing or duplicated."""
    damaged_copy = copy.deepcopy(document)
    container = damaged_copy
    while True:
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        if not keys:
            return random_source.choice(ODD_JSON_VALUES)
        key = random_source.choice(keys)
        value = container[key]
        if isinstance(value, (dict, list)) and value and random_source.random() < 0.85:
            container = value
            continue
        kind = random_source.randrange(4)
        if kind < 2 and isinstance(value, str):
            container[key] = damage_text(random_source, value)
        elif kind == 2 and isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        elif kind == 3 and isinstance(container, dict):
            container[random_source.choice(["", "x", "options", "\n"])] = container.pop(key)
        else:
            container[key] = copy.deepcopy(random_source.choice(ODD_JSON_VALUES))
        return damaged_copy


def assert_endures(
    parse: Callable[[Any], Any],
    valid_inputs: tuple[Any, ...],
    refusal_types: tuple[type[Exception], ...],
    verify: Callable[[Any], Any] = lambda parsed: None,
    try_divisor: int = 1,
) -> None:
    """Call ``parse`` with damaged forms of ``valid_inputs``: it must return what ``verify`` accepts, or raise a
    refusal.

    ``try_divisor``: try only one in so many forms, if each takes long. Raises AssertionError with the seed.
    """
    random_source = random.Random(SEED)
    refusal_texts = []
    for valid_input in valid_inputs:
        parse(copy.deepcopy(valid_input))
    for try_number in range(TRY_COUNT // try_divisor):
        valid_input = random_source.choice(valid_inputs)
        damaged_input = (
            damage_text(random_source, valid_input)
            if isinstance(valid_input, str)
            else damage_document(random_source, valid_input)
        )
        try:
            parsed = parse(damaged_input)
        except refusal_types as refusal:
            refusal_texts.append(str(refusal))
            continue
        except Exception as traceback:
            raise AssertionError(f"{damaged_input!r} (seed {SEED}, turn {try_number})") from traceback
        try:
            verify(parsed)
        except Exception as traceback:
            raise AssertionError(
                f"{damaged_input!r} was taken as {parsed!r} (seed {SEED}, turn {try_number})"
            ) from traceback
    assert all(refusal_texts), f"refused without a reason (seed {SEED})"
