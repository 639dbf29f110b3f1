# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Of each end in ``ends``, the right rank is blamed, in the words that a person would use.

An end of "a run of our own" is the output of that run with other paths. One with an address has the message of the
program that this public report shows, with paths, names, addresses and numbers of our own. A "composed" one was written
for its test. ``living`` are ranks that have not ended.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution, last_words
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RankEnd

FOLDER = Path(__file__).parent / "ends"
KINDS = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.yml"))]
ENDS = [(kind["kind"], end) for kind in KINDS for end in kind["ends"]]


def rank_ends(end: dict[str, Any]) -> list[RankEnd]:
    return [RankEnd(**rank) for rank in end["ranks"]]


def seen(end: dict[str, Any]) -> attribution.StallSnapshot:
    living = end.get("living", {})
    nodes = {rank["rank"]: rank["node"] for rank in end["ranks"]} | {
        rank: what["node"] for rank, what in living.items()
    }
    stopped = {rank: what["stopped"] for rank, what in living.items() if "stopped" in what}
    errors = {rank: last_words.find_final_error(what.get("output", "")) for rank, what in living.items()}
    return attribution.StallSnapshot(
        nodes, {}, stopped, {}, (), {rank: error for rank, error in errors.items() if error}
    )


@pytest.mark.parametrize(("kind", "end"), ENDS, ids=[f"{kind}: {end['name']}" for kind, end in ENDS])
def test_the_right_rank_is_blamed_in_the_words_of_its_error(kind: str, end: dict[str, Any]) -> None:
    ends = rank_ends(end)
    if "living" in end:
        assert attribution.all_consequences(ends)
        found = attribution.blame_survivor(ends, seen(end))
        assert found is not None and found.kind == end["kind"]
        assert found.detail == f"rank {found.rank} on {found.node} is {end['says']}"
    else:
        found = attribution.attribute_crash(ends)
        assert found is not None and found.kind == "crash"
        assert found.detail.startswith(f"rank {found.rank} on {found.node}: {end['says']}")
        rest = found.detail[len(f"rank {found.rank} on {found.node}: {end['says']}") :]
        others = len([one for one in ends if one.status]) - 1
        assert rest == (f" ({others} other rank{'s' if others > 1 else ''} failed after it)" if others else "")
    assert found.rank == end["culprit"]
    assert found.node == (seen(end).node_by_rank[end["culprit"]])
    assert found.hardware == end["hardware"]
    assert found.detail.isprintable()


def test_the_ends_are_many_of_many_kinds_and_no_two_differ_only_in_numbers() -> None:
    assert len({kind["kind"] for kind in KINDS}) >= 25
    real = [end for _kind, end in ENDS if not end["source"].startswith("composed")]
    assert len(real) >= 60
    alike = Counter(
        tuple(sorted((re.sub(r"0x[0-9a-f]+|\d+", "0", rank["tail"]), rank["status"]) for rank in end["ranks"]))
        for _kind, end in ENDS
    )
    assert max(alike.values()) == 1


def test_each_end_says_where_it_is_from() -> None:
    sources = [end["source"] for _kind, end in ENDS]
    assert all(
        re.match(r"a run of our own: |https://github\.com/[\w.-]+/[\w.-]+/(?:issues|pull)/\d+|composed: ", one)
        for one in sources
    )
