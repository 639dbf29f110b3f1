# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The version of this collection, as in galaxy.yml, which hosts do not have; a test compares the two."""

from __future__ import annotations

import re
from typing import Tuple

VERSION = "1.0.0"

#: A semantic version has three numbers, possibly a pre-release such as dev.2, and possibly build metadata.
_SEMANTIC_VERSION = re.compile(
    r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?(?:\+[0-9A-Za-z.-]+)?"
)
_MAX_LENGTH = 100

VersionPrecedence = Tuple[Tuple[int, int, int], bool, Tuple[Tuple[bool, int, str], ...]]


def version_precedence(version: str) -> VersionPrecedence:
    """Return the sort key of a semantic version. Raises ValueError."""
    match = _SEMANTIC_VERSION.fullmatch(version) if len(version) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"'{version[:60]}' is not a semantic version such as 1.2.0 or 1.3.0-dev.2")
    release_numbers = (int(match.group(1)), int(match.group(2)), int(match.group(3)))
    prerelease_parts = match.group(4).split(".") if match.group(4) else []
    # A pre-release precedes its release, and numeric identifiers precede alphanumeric ones.
    prerelease_order = tuple(
        (False, int(part), "") if part.isdecimal() else (True, 0, part) for part in prerelease_parts
    )
    return release_numbers, not prerelease_parts, prerelease_order


def is_older(version: str, other_version: str) -> bool:
    """Whether a version precedes another. Build metadata does not count. Raises ValueError."""
    return version_precedence(version) < version_precedence(other_version)


def require_version(version: str) -> str:
    """Return the version itself. Raises ValueError if it is not a semantic version."""
    version_precedence(version)
    return version
