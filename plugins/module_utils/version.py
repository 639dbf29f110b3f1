# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of this collection, as in galaxy.yml, which hosts do not have; a test compares the two."""

from __future__ import annotations

import re
from typing import Tuple

VERSION = "1.0.0"

#: A semantic version: numbers, possibly a pre-release such as dev.2, and possibly build metadata.
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?")
_LONGEST = 100

Precedence = Tuple[Tuple[int, int, int], bool, Tuple[Tuple[bool, int, str], ...]]


def precedence(version: str) -> Precedence:
    """The place of a version in the order of semantic versions. Raises ValueError."""
    found = _VERSION.fullmatch(version) if len(version) <= _LONGEST else None
    if found is None:
        raise ValueError(f"'{version[:60]}' is not a semantic version such as 1.2.0 or 1.3.0-dev.2")
    numbers = (int(found.group(1)), int(found.group(2)), int(found.group(3)))
    parts = found.group(4).split(".") if found.group(4) else []
    # A pre-release precedes its release, and its numbers precede its words.
    order = tuple((False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts)
    return numbers, not parts, order


def is_older(version: str, other: str) -> bool:
    """Whether a version precedes another. Build metadata does not count. Raises ValueError."""
    return precedence(version) < precedence(other)


def valid(version: str) -> str:
    """The version itself. Raises ValueError if it is not a semantic version."""
    precedence(version)
    return version
