# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of ranks is shown as it grows, each line once, and with its rank if there are several."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import logs
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> Path:
    place = tmp_path / "attempts" / "001"
    place.mkdir(parents=True)
    return place


def append_output(path: Path, text: bytes) -> None:
    with path.open("ab") as stream:
        stream.write(text)


def test_each_complete_line_is_shown_once(place: Path) -> None:
    shown: list[str] = []
    follower = logs.LogFollower(RunDirectory(str(place.parents[1])), 0, shown.append)
    follower.copy_new(1, False)
    append_output(place / "rank-0.log", b"one\ntw")
    follower.copy_new(1, False)
    assert shown == ["one\n"]
    append_output(place / "rank-0.log", b"o\n")
    follower.copy_new(1, False)
    follower.copy_new(1, False)
    assert shown == ["one\n", "two\n"]
    append_output(place / "rank-0.log", b"\xff the end")
    follower.copy_new(1, True)
    assert shown == ["one\n", "two\n", "\ufffd the end"]


def test_progress_bar_is_shown_while_its_line_grows(place: Path) -> None:
    shown: list[str] = []
    follower = logs.LogFollower(RunDirectory(str(place.parents[1])), 0, shown.append)
    append_output(place / "rank-0.log", b"\r 1/9\r 2/9\r 3/")
    follower.copy_new(1, False)
    assert "".join(shown).split() == ["1/9", "2/9"]


def test_unterminated_line_is_shown_in_chunks(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_CHUNK_BYTES", 10)
    shown: list[str] = []
    append_output(place / "rank-0.log", b"x" * 35)
    logs.LogFollower(RunDirectory(str(place.parents[1])), 0, shown.append).copy_new(1, False)
    assert shown == ["x" * 10] * 3


def test_all_ranks_are_shown_in_order_with_rank_prefix(place: Path) -> None:
    for rank in (10, 9, 0):
        append_output(place / f"rank-{rank}.log", b"step 1\n")
    (place / "rank-x.log").touch()
    expected = ["[rank 0] step 1\n", "[rank 9] step 1\n", "[rank 10] step 1\n"]
    for copy in (
        lambda write: logs.LogFollower(RunDirectory(str(place.parents[1])), None, write).copy_new(1, False),
        lambda write: logs.copy_logs(RunDirectory(str(place.parents[1])), None, 1, write),
    ):
        shown: list[str] = []
        copy(shown.append)
        assert shown == expected
