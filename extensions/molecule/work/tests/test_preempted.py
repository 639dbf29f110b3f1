# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of higher priority takes the nodes of a run, which gives them up without blame and continues afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from train_programs import MANAGER
from train_runs import WAIT_TIMEOUT, TrainLab, assert_checkpoints_used

FILE, KEPT = "/etc/slurm/slurm.conf", "/root/slurm.conf"
#: The grace time is as long as it can be without a warning that comes later: Slurm sends it 90 seconds before the end.
PREEMPTION = """
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 GraceTime=80 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 State=UP
"""
ADD = 'cp -p "$1" "$2" && printf %s "$3" >>"$1" && scontrol reconfigure'
RESTORE = 'cp -p "$2" "$1" && rm "$2" && scontrol reconfigure'


@pytest.fixture(name="lab", scope="module")
def _lab() -> Iterator[TrainLab]:
    lab = TrainLab("molecule-work")
    lab.copy_program()
    lab.run(MANAGER, "sh", "-c", ADD, "-", FILE, KEPT, PREEMPTION)
    yield lab
    lab.run(MANAGER, "sh", "-c", RESTORE, "-", FILE, KEPT)


def test_a_preempted_run_continues(lab: TrainLab) -> None:
    """Without a grace time, Slurm requeues the job, which takes it two minutes."""
    lab.clear_queue()
    lab.start_run("yields", "--nodes", "2", "--partition", "low")
    nodes = lab.await_step("yields", 1, 5)["attempts"][0]["nodes"]
    urgent = ("srun", "--partition=high", "--exclusive", "--nodes=2", f"--nodelist={','.join(nodes)}", "--chdir=/tmp")
    lab.run(MANAGER, *urgent, "sleep", "1", timeout=WAIT_TIMEOUT)
    found = lab.await_end("yields")
    first, *_others = found["attempts"]
    assert (found["state"], len(found["attempts"])) == ("finished", 2), found
    cause = first["cause"]
    assert (cause["kind"], cause["detail"], cause["node"]) == ("warned", "Slurm has preempted the job", "")
    assert cause["rank"] is None
    assert_checkpoints_used(found)
