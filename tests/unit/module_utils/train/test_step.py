# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What srun itself says during the step of an attempt."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import lines, step, watch


def test_a_task_that_was_killed_for_its_memory_becomes_a_message_of_its_node() -> None:
    said = [lines.Decoder().feed(line) for line in step.of_memory("srun: error: t2: task 1: Out Of Memory\n")]
    assert said == [lines.Said(watch.MEMORY, "t2", {})]


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: t2: task 1: Killed\n",
        "srun: error: t2: task 1: Exited with exit code 1\n",
        "@gpumesh t2 .{}\n",
        "CUDA error: out of memory\n",
    ],
)
def test_other_lines_do_not(line: str) -> None:
    assert step.of_memory(line) == []
