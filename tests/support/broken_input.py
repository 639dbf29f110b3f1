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

SEARCH = os.environ.get("HYPOTHESIS_PROFILE") == "search"
TRIES = 100_000 if SEARCH else 1_000
SEED = random.SystemRandom().randrange(1 << 32) if SEARCH else 0

#: Input that has broken parsers before: line ends, zones, non-ASCII digits, long numbers, quotes, escapes, half a
#: surrogate pair.
PIECES = (
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
ODD: tuple[Any, ...] = (
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


def broken(choose: random.Random, text: str) -> str:
    """Apply one to three changes to a text."""
    for _turn in range(choose.randint(1, 3)):
        at, end = sorted(choose.randint(0, len(text)) for _end in "12")
        kind = choose.randrange(5)
        if kind == 0:
            text = text[:at] + choose.choice(PIECES) + text[at:]
        elif kind == 1:
            text = text[:at] + choose.choice(PIECES) + text[end:]
        elif kind == 2:
            text = text[:at] + text[end:]
        elif kind == 3:
            text = text[:at] + text[at:end] * choose.randint(2, 4) + text[end:]
        else:
            text = text[:at] + choose.choice(string.printable) + text[at + 1 :]
        text = text[:20_000]
    return text


def broken_document(choose: random.Random, document: Any) -> Any:
    """Return a copy in which one value, at any depth, is damaged, of another kind, missing or duplicated."""
    new = copy.deepcopy(document)
    here = new
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return choose.choice(ODD)
        key = choose.choice(keys)
        value = here[key]
        if isinstance(value, (dict, list)) and value and choose.random() < 0.85:
            here = value
            continue
        kind = choose.randrange(4)
        if kind < 2 and isinstance(value, str):
            here[key] = broken(choose, value)
        elif kind == 2 and isinstance(here, list):
            here.insert(key, copy.deepcopy(value))
        elif kind == 3 and isinstance(here, dict):
            here[choose.choice(["", "x", "options", "\n"])] = here.pop(key)
        else:
            here[key] = copy.deepcopy(choose.choice(ODD))
        return new


def endures(
    take: Callable[[Any], Any],
    good: tuple[Any, ...],
    refusals: tuple[type[Exception], ...],
    proves: Callable[[Any], Any] = lambda taken: None,
    share: int = 1,
) -> None:
    """Call ``parse`` with damaged forms of ``valid_inputs``: it must return what ``verify`` accepts, or raise a
    refusal.

    ``try_divisor``: try only one in so many forms, if each takes long. Raises AssertionError with the seed.
    """
    choose = random.Random(SEED)
    told = []
    for one in good:
        take(copy.deepcopy(one))
    for turn in range(TRIES // share):
        one = choose.choice(good)
        wrong = broken(choose, one) if isinstance(one, str) else broken_document(choose, one)
        try:
            taken = take(wrong)
        except refusals as refusal:
            told.append(str(refusal))
            continue
        except Exception as traceback:
            raise AssertionError(f"{wrong!r} (seed {SEED}, turn {turn})") from traceback
        try:
            proves(taken)
        except Exception as traceback:
            raise AssertionError(f"{wrong!r} was taken as {taken!r} (seed {SEED}, turn {turn})") from traceback
    assert all(told), f"refused without a reason (seed {SEED})"
