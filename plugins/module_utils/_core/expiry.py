# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse and compare the expiry times of keys and certificates. Pure."""

from __future__ import annotations

import datetime
from typing import Optional

#: The expiry of a key or a certificate is reported from this many days before it on.
NOTICE_DAYS = 30

_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
_TIME_LENGTH = len("2027-05-01T08:00:00")
_SECONDS_PER_DAY = 24 * 3600


def parse_time(text: str) -> Optional[float]:
    """Return the seconds since 1970 of a time in UTC such as 2027-05-01T08:00:00Z; None for never.

    Tailscale omits a time that never comes, and Headscale sets its year to 1. Raises ValueError.
    """
    if not text:
        return None
    if not text.endswith("Z"):
        raise ValueError(f"'{text[:40]}' is not a time in UTC such as 2027-05-01T08:00:00Z")
    parsed_time = datetime.datetime.strptime(f"{text[:_TIME_LENGTH]}+0000", f"{_TIME_FORMAT}%z")
    return None if parsed_time.year == 1 else parsed_time.timestamp()


def format_time(timestamp: float) -> str:
    """Format seconds since 1970 as a time in UTC such as 2027-05-01T08:00:00Z."""
    return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc).strftime(f"{_TIME_FORMAT}Z")


def days_left(expires_at: float, now: float) -> int:
    """Return the whole days until the expiry; negative after it."""
    return int((expires_at - now) // _SECONDS_PER_DAY)
