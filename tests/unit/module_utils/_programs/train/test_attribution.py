# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of many ranks that end together, the one is named whose end caused the others."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RankEnd

PEER_ERROR = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 90, in train\n'
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.12]:41234\n"
)
OWN_ERROR = 'Traceback (most recent call last):\n  File "train.py", line 80, in load\nValueError: shard 7 is damaged\n'


def test_own_error_is_blamed_before_peer_errors() -> None:
    # By its clock, the follower ended first.
    ends = [
        RankEnd(0, "n1", 1, 99.0, PEER_ERROR),
        RankEnd(5, "n3", 1, 100.0, OWN_ERROR),
        RankEnd(1, "n1", 1, 99.5, PEER_ERROR),
    ]
    found = attribution.attribute_crash(ends)
    assert found is not None
    assert (found.kind, found.rank, found.node) == ("crash", 5, "n3")
    assert "ValueError: shard 7 is damaged" in found.detail


def test_connection_to_external_server_is_not_a_peer_error() -> None:
    """The others, which live, are not to blame."""
    reset = RankEnd(1, "n2", 1, 1.0, "ConnectionResetError: [Errno 104] Connection reset by peer")
    assert not attribution.all_consequences([reset])
    found = attribution.attribute_crash([reset])
    assert found is not None and (found.kind, found.rank, found.node) == ("crash", 1, "n2")
    # It may be that of a peer that was killed.
    found = attribution.attribute_crash([reset, RankEnd(0, "n1", -9, 2.0, "")])
    assert found is not None and found.node == "n1"


def test_killed_rank_is_blamed_without_output() -> None:
    found = attribution.attribute_crash([RankEnd(0, "n1", 1, 10.0, PEER_ERROR), RankEnd(2, "n2", -9, 10.4)])
    assert found is not None
    assert (found.rank, found.node) == (2, "n2")
    assert "SIGKILL" in found.detail


def test_first_rank_is_blamed_when_all_name_a_peer() -> None:
    found = attribution.attribute_crash([RankEnd(3, "n2", 1, 11.0, PEER_ERROR), RankEnd(1, "n1", 1, 10.0, PEER_ERROR)])
    assert found is not None
    assert found.rank == 1


def test_successful_ranks_are_not_blamed() -> None:
    assert attribution.attribute_crash([RankEnd(0, "n1", 0, 1.0), RankEnd(1, "n2", 0, 2.0)]) is None


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (OWN_ERROR, "exit status 1: ValueError: shard 7 is damaged"),
        (
            "torch.OutOfMemoryError: CUDA out of memory.\n\n",
            "exit status 1: torch.OutOfMemoryError: CUDA out of memory.",
        ),
        ("make: *** [all] broken", "exit status 1: make: *** [all] broken"),
        ("", "exit status 1"),
    ],
)
def test_error_is_described_in_one_line(tail: str, line: str) -> None:
    assert attribution.format_error(RankEnd(0, "n1", 1, 0.0, tail)) == line


NODES = {0: "n1", 1: "n2", 2: "n3"}
IN_STEP = {0: 41, 1: 41, 2: 41}


def stall_snapshot(**overrides: dict[int, Any]) -> attribution.StallSnapshot:
    return attribution.StallSnapshot(
        NODES, overrides.get("steps", IN_STEP), overrides.get("stopped", {}), overrides.get("places", {})
    )


def test_stopped_rank_is_blamed_for_hang() -> None:
    found = attribution.attribute_hang(
        stall_snapshot(stopped={1: "stopped (SIGSTOP)"}, places={0: "all_reduce (train.py:88)"}), 60
    )
    assert (found.kind, found.rank, found.node) == ("hang", 1, "n2")
    assert found.detail == "rank 1 on n2 is stopped (SIGSTOP); the others wait for it in all_reduce (train.py:88)"


def test_single_lagging_rank_is_blamed_for_hang() -> None:
    assert attribution.attribute_hang(stall_snapshot(steps={0: 41, 1: 41, 2: 40}), 60).rank == 2
    assert attribution.attribute_hang(stall_snapshot(), 60).rank is None
    assert attribution.attribute_hang(stall_snapshot(steps={}), 60).rank is None
    assert attribution.attribute_hang(stall_snapshot(steps={0: 41}), 60).rank is None


def test_single_rank_at_another_location_is_blamed_for_hang() -> None:
    there = "all_reduce (train.py:88)"
    found = attribution.attribute_hang(stall_snapshot(places={0: there, 1: "load (data.py:7)", 2: there}), 60)
    assert (found.rank, found.detail) == (
        1,
        "rank 1 on n2 is in load (data.py:7); the others wait for it in all_reduce (train.py:88)",
    )
    assert (
        attribution.attribute_hang(stall_snapshot(places=dict.fromkeys(NODES, there)), 60).detail
        == f"no progress for 60 s; all are in {there}"
    )
    assert attribution.attribute_hang(stall_snapshot(places={0: there, 1: "a (x:1)", 2: "b (x:2)"}), 60).rank is None
