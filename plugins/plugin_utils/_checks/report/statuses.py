# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The possible results of a check, and of a pair."""

from __future__ import annotations

#: The statuses from good to bad. ``skipped`` is not a judgement; ``error`` means "could not be checked".
STATUSES = ("pass", "skipped", "error", "fail")
