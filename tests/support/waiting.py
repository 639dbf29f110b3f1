# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Wait for what other processes and threads do, with a limit that a busy machine does not reach."""

from __future__ import annotations

import time
from collections.abc import Callable

#: The longest that a test waits for what takes less than a second on an idle machine.
BUSY_MACHINE_TIMEOUT = 300.0


def wait_until(
    description: str, condition: Callable[[], object], seconds: float = BUSY_MACHINE_TIMEOUT, spacing: float = 0.05
) -> None:
    """Wait until ``condition`` returns true. Raises AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {description}"
        time.sleep(spacing)
