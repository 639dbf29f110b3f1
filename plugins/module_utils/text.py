# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Text of hosts and their users: parsed safely, and made safe to display."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Optional, Union

#: No counter, size or process ID of a host has more digits; Python raises an error for thousands of them.
_WHOLE = re.compile(r"[0-9]{1,18}")
#: What a terminal takes for a command (ECMA-48): colours, movements of the cursor.
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
#: Control characters, characters that change the direction of writing, surrogates, and line separators.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


def whole_number(text: Optional[str]) -> Optional[int]:
    """The number; None for any other text. Unlike with ``isdecimal``, only the digits 0 to 9 are accepted."""
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def from_json(text: Union[str, bytes]) -> Any:
    """The result of ``json.loads``. Raises only ValueError, also for too deeply nested input."""
    try:
        return json.loads(text)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure


def printable(text: str) -> str:
    """``text`` without characters that move the cursor, change colours or the direction of writing."""
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


def untyped(text: str) -> str:
    """Output for a terminal as plain text: without colours, and with each state of a progress bar on a line of its own."""
    return _SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")


def all_printable(value: Any) -> Any:
    """The same for every text in lists and dictionaries."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {all_printable(key): all_printable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_printable(item) for item in value]
    return value
