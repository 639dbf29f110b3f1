# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When keys and certificates expire. Pure."""

from __future__ import annotations

import datetime
from typing import Optional

#: Days before the end of a key or a certificate from which it is reported.
NOTICE = 30

_FORMAT = "%Y-%m-%dT%H:%M:%S"
_LENGTH = len("2027-05-01T08:00:00")
_DAY = 24 * 3600


def moment(text: str) -> Optional[float]:
    """Seconds since 1970 of a time in UTC such as 2027-05-01T08:00:00Z; None for never.

    Tailscale leaves out what never comes, and Headscale sets it to the year 1. Raises ValueError.
    """
    if not text:
        return None
    if not text.endswith("Z"):
        raise ValueError(f"'{text[:40]}' is not a time in UTC such as 2027-05-01T08:00:00Z")
    parsed = datetime.datetime.strptime(f"{text[:_LENGTH]}+0000", f"{_FORMAT}%z")
    return None if parsed.year == 1 else parsed.timestamp()


def shown(seconds: float) -> str:
    """The same time as a text."""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime(f"{_FORMAT}Z")


def days_left(end: float, now: float) -> int:
    """The whole days that are left; negative after the end."""
    return int((end - now) // _DAY)
