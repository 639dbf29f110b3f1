# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ranks is shown as it grows, each line once, and with its rank if there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import logs
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.store import Folder


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    place = tmp_path / "attempts" / "001"
    place.mkdir(parents=True)
    return place


def add(path: Path, text: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(text)


def test_each_line_is_shown_once_and_only_when_it_is_complete(place: Path) -> None:
    shown: list[str] = []
    follower = logs.Follower(Folder(str(place.parents[1])), 0, shown.append)
    follower.copy(1, False)
    add(place / "rank-0.log", b"one\ntw")
    follower.copy(1, False)
    assert shown == ["one\n"]
    add(place / "rank-0.log", b"o\n")
    follower.copy(1, False)
    follower.copy(1, False)
    assert shown == ["one\n", "two\n"]
    add(place / "rank-0.log", b"\xff the end")
    follower.copy(1, True)
    assert shown == ["one\n", "two\n", "\ufffd the end"]


def test_a_progress_bar_is_shown_while_its_line_grows(place: Path) -> None:
    shown: list[str] = []
    follower = logs.Follower(Folder(str(place.parents[1])), 0, shown.append)
    add(place / "rank-0.log", b"\r 1/9\r 2/9\r 3/")
    follower.copy(1, False)
    assert "".join(shown).split() == ["1/9", "2/9"]


def test_a_line_without_an_end_does_not_fill_the_memory_or_stop(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_PART", 10)
    shown: list[str] = []
    add(place / "rank-0.log", b"x" * 35)
    logs.Follower(Folder(str(place.parents[1])), 0, shown.append).copy(1, False)
    assert shown == ["x" * 10] * 3


def test_all_ranks_are_shown_in_their_order_with_their_numbers(place: Path) -> None:
    for rank in (10, 9, 0):
        add(place / f"rank-{rank}.log", b"step 1\n")
    (place / "rank-x.log").touch()
    expected = ["[rank 0] step 1\n", "[rank 9] step 1\n", "[rank 10] step 1\n"]
    for copy in (
        lambda write: logs.Follower(Folder(str(place.parents[1])), None, write).copy(1, False),
        lambda write: logs.copy(Folder(str(place.parents[1])), None, 1, write),
    ):
        shown: list[str] = []
        copy(shown.append)
        assert shown == expected
