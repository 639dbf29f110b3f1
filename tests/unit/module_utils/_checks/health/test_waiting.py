# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The time for which a job waits for a volume."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import waiting
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError


@pytest.mark.parametrize(
    ("error_text", "still_starting"),
    [
        ("slurm_load_jobs error: Invalid job id specified", False),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", True),
    ],
)
def test_a_silent_controller_has_not_cancelled_a_job(error_text: str, still_starting: bool) -> None:
    def runner(argv: Any, **_options: Any) -> CommandResult:
        raise CommandError(argv, "exited 1", rc=1, stderr=error_text)

    assert waiting.is_still_starting(runner, "7") is still_starting


def test_pauses_grow_up_to_half_a_minute() -> None:
    assert list(waiting.iterate_pauses(100.0)) == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 10.0]
    assert list(waiting.iterate_pauses(-30.0)) == []


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ("PrologEpilogTimeout     = 65534\n", 600.0),
        ("PrologEpilogTimeout     = 300\n", 210.0),
        ("EpilogTimeout           = 10\nPrologTimeout           = 120 sec\n", 30.0),
        ("", 600.0),
    ],
)
def test_the_wait_ends_before_slurm_would_drain_the_node(config: str, seconds: float) -> None:
    assert waiting.read_wait_limit(lambda _argv, **_options: CommandResult(0, config, "")) == seconds
