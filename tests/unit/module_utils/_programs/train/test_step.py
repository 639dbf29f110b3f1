# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What srun itself says during the step of an attempt."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import protocol, step, watch


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: t2: task 1: Out Of Memory\n",
        # Slurm 24.11 with OverMemoryKill.
        "slurmstepd-t2: error: StepId=19.2 exceeded memory limit (2616889344 > 2097152000), being killed\n",
        "slurmstepd-t2: error: JobId=19 exceeded memory limit (2616889344 > 2097152000), being killed\n",
    ],
)
def test_an_out_of_memory_line_becomes_a_message_of_its_node(line: str) -> None:
    said = [protocol.MessageDecoder().feed(each) for each in step.parse_oom_line(line)]
    assert said == [protocol.AgentMessage(watch.OOM_EVENT, "t2", {})]


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: t2: task 1: Killed\n",
        "slurmstepd-t2: error: *** STEP 19.2 ON t2 CANCELLED AT 2026-11-27T17:06:45 ***\n",
        "srun: error: t2: task 1: Exited with exit code 1\n",
        "@gpumesh t2 .{}\n",
        "CUDA error: out of memory\n",
    ],
)
def test_other_lines_are_ignored(line: str) -> None:
    assert step.parse_oom_line(line) == []
