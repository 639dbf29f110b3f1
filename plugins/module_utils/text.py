# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of hosts and their users: read without surprises, and made fit to be shown."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Optional, Union

#: Control characters, what turns the direction of writing, halves of characters, and separators of lines.
#: No counter, size or process of a host has more digits; Python refuses thousands of them with an error.
_WHOLE = re.compile(r"[0-9]{1,18}")
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def whole_number(text: Optional[str]) -> Optional[int]:
    """The number; None for any other text. Unlike ``isdecimal``, only the digits 0 to 9 are accepted."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def from_json(text: Union[str, bytes]) -> Any:
    """What ``json.loads`` makes of it. Raises ValueError, and nothing else, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure


def printable(text: str) -> str:
    """``text`` without anything that moves the cursor, changes colours or turns the direction of writing."""
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter == "\n"
        else " "
        if letter == "\t"
        else "\ufffd"
        if unicodedata.category(letter) in _STEERING
        else letter
        for letter in text.replace("\r\n", "\n")
    )


def all_printable(value: Any) -> Any:
    """The same with every text in lists and dictionaries."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {all_printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_printable(item) for item in value]
    return value
