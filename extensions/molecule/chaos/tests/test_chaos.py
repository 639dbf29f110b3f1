# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Six operations of a cluster's life, each killed at a moment that was drawn once; `make chaos` draws others."""

from __future__ import annotations

from lab_hosts import run_chaos

#: Always the same experiments: what was proven of a commit is what is tested again. They have kills of each kind, the power
#: cut of the manager while jobs run, and a hand-over.
SEED = 21


def test_the_same_command_again_finishes_what_was_killed() -> None:
    run_chaos(
        "chaos",
        "--sample",
        f"--seed={SEED}",
        "--running",
        "--keep",
        "--stop",
        "--lab=molecule-chaos",
        "--network=10.79.80",
    )
