# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and format sizes in binary units."""

from __future__ import annotations

import re

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_SIZE_PATTERN = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGTP])(?:iB)?")
_UNIT_PREFIXES = "KMGTP"
_MAX_SIZE = 1 << 60


def parse_size(volume_name: str, text: str) -> int:
    """Return the bytes of a quota such as 500G or 2TiB. Raises InputError."""
    match = _SIZE_PATTERN.fullmatch(text.strip())
    size = (
        int(float(match.group(1)) * 1024 ** (_UNIT_PREFIXES.index(match.group(2)) + 1)) // 1024 * 1024 if match else 0
    )
    if not 0 < size <= _MAX_SIZE:
        raise InputError(
            f"Volume '{volume_name}' has the quota '{text}'.",
            "Give a size in binary units, such as 500G, 1.5T or 2TiB.",
            volume=volume_name,
        )
    return size


def format_size(byte_count: int) -> str:
    """Format bytes in the largest unit of which there is at least one."""
    amount, unit_index = byte_count / 1024, 0
    while amount >= 1024 and unit_index < len(_UNIT_PREFIXES) - 1:
        amount, unit_index = amount / 1024, unit_index + 1
    return f"{amount:.4g} {_UNIT_PREFIXES[unit_index]}iB"
