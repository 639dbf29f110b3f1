# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Sizes in binary units, for input and output."""

from __future__ import annotations

import re

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGTP])(?:iB)?")
_UNITS = "KMGTP"
_LARGEST = 1 << 60


def size_of(volume: str, text: str) -> int:
    """The bytes of a quota such as 500G or 2TiB. Raises InputError."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match.group(1)) * 1024 ** (_UNITS.index(match.group(2)) + 1)) // 1024 * 1024 if match else 0
    if not 0 < size <= _LARGEST:
        raise InputError(
            f"Volume '{volume}' has the quota '{text}'.",
            "Give a size in binary units, such as 500G, 1.5T or 2TiB.",
            volume=volume,
        )
    return size


def in_words(size: int) -> str:
    """Bytes in the largest unit of which they are at least one."""
    amount, unit = size / 1024, 0
    while amount >= 1024 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.4g} {_UNITS[unit]}iB"
