# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces are read in pieces, whatever is at the edge of a piece, and damaged ones are refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import read as reading

TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 3, "ranks": [0, 1]},
    "traceEvents": [{"ph": "X", "name": 'aten::"µ"\\', "ts": 12.5}, {"ph": "M"}, {"ph": "X", "ts": -1e3}],
    "traceName": "x, y: {",
    "baseTimeNanoseconds": 1790857026000000000,
}
ABOUT = {name: value for name, value in TRACE.items() if name != "traceEvents"}


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return reading.read(str(path), events.append), events


@pytest.mark.parametrize("part", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_the_edges_of_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, indent: int | None) -> None:
    monkeypatch.setattr(reading, "_PART", part)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert read(path) == (ABOUT, TRACE["traceEvents"])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == (ABOUT, TRACE["traceEvents"])


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X"}, 7, null, {"ph": "M"}]', encoding="ascii")
    assert read(path) == ({}, [{"ph": "X"}, {"ph": "M"}])


@given(st.integers(0, len(json.dumps(TRACE)) - 1), st.booleans())
def test_a_trace_that_was_cut_off_is_refused(
    tmp_path_factory: pytest.TempPathFactory, length: int, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    whole = json.dumps(TRACE).encode()
    path.write_bytes(gzip.compress(whole)[: length + 20 if packed else None] if packed else whole[:length])
    if packed and length + 20 >= len(gzip.compress(whole)):
        return
    with pytest.raises(HostStateError, match=r"trace\.json is damaged"):
        read(path)


@pytest.mark.parametrize("text", ["", "no", "{]", '{"traceEvents": [{]}', "[" * 100_000, '{"a": ' + "[" * 100_000])
def test_what_is_no_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="ascii")
    with pytest.raises(HostStateError, match=r"trace\.json is damaged"):
        read(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Another user may have created it."""
    os.mkfifo(tmp_path / "rank-0.json")
    with pytest.raises(HostStateError, match="rank-0.json is a named pipe"):
        read(tmp_path / "rank-0.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HostStateError, match="cannot be read"):
        read(tmp_path / "none")
