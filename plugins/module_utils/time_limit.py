# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time limits as people write them, besides the formats that Slurm reads. Pure."""

from __future__ import annotations

import re
from typing import Any, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

_WITH_UNIT = re.compile(r"(\d{1,6})([mhd])")
_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}


def unit_minutes(text: str) -> Optional[int]:
    """The minutes of a time with a unit, as 90m, 2h or 3d; None for any other text."""
    found = _WITH_UNIT.fullmatch(text)
    return int(found.group(1)) * _MINUTES[found.group(2)] if found else None


def number_refusal(name: str, value: Any) -> InputError:
    """Why the option ``name`` cannot be a number, which may have been written as a time."""
    return InputError(
        f"{name} is the number {value}: YAML takes 2:00:00 without quotes for 7200.",
        "Write the time as 0-02:00:00 or 2h, or in quotes.",
    )
