# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of many ranks that end together, the one is named whose end caused the others."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import cause
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import RankEnd

PEER_GONE = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 90, in train\n'
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.1.0.12]:41234\n"
)
OWN = 'Traceback (most recent call last):\n  File "train.py", line 80, in load\nValueError: shard 7 is damaged\n'


def test_an_error_of_its_own_comes_before_those_that_name_a_peer() -> None:
    # By its clock, the follower ended first.
    ends = [RankEnd(0, "n1", 1, 99.0, PEER_GONE), RankEnd(5, "n3", 1, 100.0, OWN), RankEnd(1, "n1", 1, 99.5, PEER_GONE)]
    found = cause.crash(ends)
    assert found is not None
    assert (found.kind, found.rank, found.node) == ("crash", 5, "n3")
    assert "ValueError: shard 7 is damaged" in found.detail


def test_a_connection_to_a_server_outside_is_no_peer() -> None:
    """The others, which live, are not to blame."""
    reset = RankEnd(1, "n2", 1, 1.0, "ConnectionResetError: [Errno 104] Connection reset by peer")
    assert not cause.only_follow([reset])
    found = cause.crash([reset])
    assert found is not None and (found.kind, found.rank, found.node) == ("crash", 1, "n2")
    # It may be that of a peer that was killed.
    found = cause.crash([reset, RankEnd(0, "n1", -9, 2.0, "")])
    assert found is not None and found.node == "n1"


def test_a_rank_that_was_killed_has_no_last_words() -> None:
    found = cause.crash([RankEnd(0, "n1", 1, 10.0, PEER_GONE), RankEnd(2, "n2", -9, 10.4)])
    assert found is not None
    assert (found.rank, found.node) == (2, "n2")
    assert "SIGKILL" in found.detail


def test_where_all_name_a_peer_the_first_is_taken() -> None:
    found = cause.crash([RankEnd(3, "n2", 1, 11.0, PEER_GONE), RankEnd(1, "n1", 1, 10.0, PEER_GONE)])
    assert found is not None
    assert found.rank == 1


def test_ranks_that_end_well_are_no_cause() -> None:
    assert cause.crash([RankEnd(0, "n1", 0, 1.0), RankEnd(1, "n2", 0, 2.0)]) is None


@pytest.mark.parametrize(
    ("tail", "line"),
    [
        (OWN, "exit status 1: ValueError: shard 7 is damaged"),
        (
            "torch.OutOfMemoryError: CUDA out of memory.\n\n",
            "exit status 1: torch.OutOfMemoryError: CUDA out of memory.",
        ),
        ("make: *** [all] broken", "exit status 1: make: *** [all] broken"),
        ("", "exit status 1"),
    ],
)
def test_the_line_that_says_why(tail: str, line: str) -> None:
    assert cause.error_line(RankEnd(0, "n1", 1, 0.0, tail)) == line


NODES = {0: "n1", 1: "n2", 2: "n3"}
IN_STEP = {0: 41, 1: 41, 2: 41}


def seen(**known: dict[int, Any]) -> cause.Seen:
    return cause.Seen(NODES, known.get("steps", IN_STEP), known.get("stopped", {}), known.get("places", {}))


def test_a_stopped_rank_is_to_blame_for_a_hang() -> None:
    found = cause.hang(seen(stopped={1: "stopped (SIGSTOP)"}, places={0: "all_reduce (train.py:88)"}), 60)
    assert (found.kind, found.rank, found.node) == ("hang", 1, "n2")
    assert found.detail == "rank 1 on n2 is stopped (SIGSTOP); the others wait for it in all_reduce (train.py:88)"


def test_else_the_one_rank_that_is_behind() -> None:
    assert cause.hang(seen(steps={0: 41, 1: 41, 2: 40}), 60).rank == 2
    assert cause.hang(seen(), 60).rank is None
    assert cause.hang(seen(steps={}), 60).rank is None
    assert cause.hang(seen(steps={0: 41}), 60).rank is None


def test_else_the_one_rank_that_is_somewhere_else() -> None:
    there = "all_reduce (train.py:88)"
    found = cause.hang(seen(places={0: there, 1: "load (data.py:7)", 2: there}), 60)
    assert (found.rank, found.detail) == (
        1,
        "rank 1 on n2 is in load (data.py:7); the others wait for it in all_reduce (train.py:88)",
    )
    assert (
        cause.hang(seen(places=dict.fromkeys(NODES, there)), 60).detail == f"no progress for 60 s; all are in {there}"
    )
    assert cause.hang(seen(places={0: there, 1: "a (x:1)", 2: "b (x:2)"}), 60).rank is None
