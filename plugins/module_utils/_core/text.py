# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse text of hosts and their users safely, and make it safe to display."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Dict, Iterable, Optional, Tuple, Union

#: No counter, size or process ID of a host has more digits; Python raises an error for thousands of digits.
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
#: A terminal interprets these sequences as commands (ECMA-48): colours, movements of the cursor.
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
#: The categories of control characters, direction changes, surrogates, and line separators.
_CONTROL_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
#: The number of names for which a sentence has room.
MAX_NAMED = 6


def parse_whole_number(text: Optional[str]) -> Optional[int]:
    """Parse a whole number; None for any other text. Only the digits 0 to 9 are accepted, unlike by ``isdecimal``."""
    return int(text) if text is not None and _WHOLE_NUMBER.fullmatch(text) else None


def parse_json(text: Union[str, bytes]) -> Any:
    """Parse JSON. Raises only ValueError, also for too deeply nested input."""
    try:
        return json.loads(text)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure


def parse_tool_json(text: Union[str, bytes]) -> Any:
    """Parse JSON that a program printed, with all names of fields in lower case. Raises only ValueError.

    The hosts of a cluster have different versions. OpenSSH 10.1 changed the case of the names that it prints.
    """
    try:
        return json.loads(text, object_pairs_hook=lower_names)
    except RecursionError as failure:
        raise ValueError("it is nested too deeply") from failure


def lower_names(pairs: Iterable[Tuple[str, Any]]) -> Dict[str, Any]:
    """Return fields by lower-case name. Of two with one name, the first remains."""
    fields: Dict[str, Any] = {}
    for name, value in pairs:
        fields.setdefault(name.lower(), value)
    return fields


def join_names(names: Iterable[object], conjunction: str = "and", max_named: Optional[int] = MAX_NAMED) -> str:
    """Join names in a sentence: ``n1``, ``n1 and n2``, ``n1, n2 and n3``; empty if there are none.

    Without a ``conjunction``, there are only commas. Of more names than ``max_named``, the last ones are counted, at
    least two: ``n1, n2 and 9 more``. None: all are named.
    """
    texts = [str(name) for name in names]
    if max_named is not None and len(texts) > max_named:
        named_texts = texts[: max_named - 1]
        return f"{', '.join(named_texts)} {conjunction or 'and'} {len(texts) - len(named_texts)} more"
    if not conjunction or len(texts) < 2:
        return ", ".join(texts)
    return f"{', '.join(texts[:-1])} {conjunction} {texts[-1]}"


def printable(text: str) -> str:
    """Return ``text`` without characters that move the cursor, change colours or the direction of writing."""
    if text.isprintable():
        return text
    return "".join(
        letter
        if letter.isprintable() or letter == "\n"
        else " "
        if letter == "\t"
        else "\ufffd"
        if unicodedata.category(letter) in _CONTROL_CATEGORIES
        else letter
        for letter in text.replace("\r\n", "\n")
    )


def strip_terminal_codes(text: str) -> str:
    """Return terminal output as plain text: no colours, and each state of a progress bar on a line of its own."""
    return _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n")).replace("\r", "\n")


def all_printable(value: Any) -> Any:
    """Apply ``printable`` to every text in lists and dictionaries."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {all_printable(key): all_printable(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [all_printable(element) for element in value]
    return value
