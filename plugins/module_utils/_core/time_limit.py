# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parse time limits as people write them, besides the formats that Slurm reads. Pure."""

from __future__ import annotations

import re
from typing import Any, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

_TIME_WITH_UNIT = re.compile(r"(\d{1,6})([mhd])")
_MINUTES_PER_UNIT = {"m": 1, "h": 60, "d": 24 * 60}


def parse_minutes(text: str) -> Optional[int]:
    """Return the minutes of a time with a unit, such as 90m, 2h or 3d; None for any other text."""
    match = _TIME_WITH_UNIT.fullmatch(text)
    return int(match.group(1)) * _MINUTES_PER_UNIT[match.group(2)] if match else None


def number_refusal(option_name: str, value: Any) -> InputError:
    """Return the error for an option with a number, which may have been written as a time."""
    return InputError(
        f"{option_name} is the number {value}: YAML takes 2:00:00 without quotes for 7200.",
        "Write the time as 0-02:00:00 or 2h, or in quotes.",
    )
