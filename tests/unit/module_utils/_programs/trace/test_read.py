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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import read as reading

TRACE = {
    "schemaVersion": 1,
    "distributedInfo": {"rank": 3, "ranks": [0, 1]},
    "traceEvents": [{"ph": "X", "name": 'aten::"µ"\\', "ts": 12.5}, {"ph": "M"}, {"ph": "X", "ts": -1e3}],
    "traceName": "x, y: {",
    "baseTimeNanoseconds": 1790857026000000000,
}
ABOUT = {name: value for name, value in TRACE.items() if name != "traceEvents"}


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    about, events, skipped = read_damaged(path)
    assert skipped == 0
    return about, events


def read_damaged(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    events: list[dict[str, Any]] = []
    about, skipped = reading.read_events(str(path), events.append, ABOUT)
    return about, events, skipped


@pytest.mark.parametrize("part", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
def test_values_across_chunk_boundaries_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, indent: int | None
) -> None:
    monkeypatch.setattr(reading, "_CHUNK_SIZE", part)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(TRACE, indent=indent, ensure_ascii=False), encoding="utf-8")
    assert read(path) == (ABOUT, TRACE["traceEvents"])
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path) == (ABOUT, TRACE["traceEvents"])


def test_an_array_of_events_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"ph": "X"}, 7, null, {"ph": "M"}]', encoding="ascii")
    assert read(path) == ({}, [{"ph": "X"}, {"ph": "M"}])


@given(st.integers(0, len(json.dumps(TRACE)) - 1), st.booleans())
def test_a_truncated_trace_is_refused(tmp_path_factory: pytest.TempPathFactory, length: int, packed: bool) -> None:
    path = tmp_path_factory.mktemp("cut") / "trace.json"
    whole = json.dumps(TRACE).encode()
    path.write_bytes(gzip.compress(whole)[: length + 20 if packed else None] if packed else whole[:length])
    if packed and length + 20 >= len(gzip.compress(whole)):
        return
    with pytest.raises(HostStateError, match=r"trace\.json is damaged"):
        read(path)


@pytest.mark.parametrize("text", ["", "no", "{]", '{"traceEvents": [{]}', "[" * 100_000, '{"a": ' + "[" * 100_000])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="ascii")
    with pytest.raises(HostStateError, match=r"trace\.json is damaged"):
        read(path)


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    """Another user may have created it."""
    os.mkfifo(tmp_path / "rank-0.json")
    with pytest.raises(HostStateError, match="rank-0.json is a named pipe"):
        read(tmp_path / "rank-0.json")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HostStateError, match="cannot be read"):
        read(tmp_path / "none")


def kineto(name: str, number: int) -> str:
    """An event as PyTorch writes it, which does not escape the name."""
    args = f'"args": {{\n      "External id": {number}, "Input Dims": [[2, 3], []]\n    }}'
    return f'{{\n    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 7, "tid": 7,\n    {args}\n  }}'


@pytest.mark.parametrize("part", [1, 64, 1 << 21])
@pytest.mark.parametrize(
    ("name", "skipped"),
    [
        ("a\nb\tc", 0),
        (r"\d+", 1),
        (r"C:\user", 1),
        ('a "b" c', 1),
        ('""', 1),
        ('{"device": "cpu", "dtype": "float32"}(12): run', 1),
        ('x {"name": 1', 1),
    ],
)
@pytest.mark.parametrize("place", [0, 20, 39])
def test_an_unescaped_name_costs_only_its_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int, name: str, skipped: int, place: int
) -> None:
    monkeypatch.setattr(reading, "_CHUNK_SIZE", part)
    made = [kineto(name if number == place else "aten::add", number) for number in range(40)]
    made.append('{\n    "name": "Record Window End", "ph": "i", "s": "g"\n  }')
    text = '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + ",\n  ".join(made) + '\n  ],\n  "traceName": "x"\n}\n'
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    about, events, found = read_damaged(path)
    assert (about, found) == ({"schemaVersion": 1, "traceName": "x"}, skipped)
    read_numbers = [event["args"]["External id"] for event in events if event["ph"] == "X"]
    assert read_numbers == [number for number in range(40) if not skipped or number != place]
    assert not [event for event in events if event["ph"] == "X" and event["name"] not in ("aten::add", name)]


@pytest.mark.parametrize("name", [r"\d", 'a "b" c', '{"a": ["'])
def test_text_after_a_damaged_event_is_not_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reading, "_CHUNK_SIZE", 1 << 12)
    lengths: list[int] = []
    fill = reading._JsonText._read_more

    def counted(source: reading._JsonText) -> None:
        fill(source)
        lengths.append(len(source._text))

    monkeypatch.setattr(reading._JsonText, "_read_more", counted)
    made = [kineto(name if number % 100 == 0 else "aten::add", number) for number in range(5_000)]
    path = tmp_path / "trace.json"
    path.write_text("[" + ",\n".join(made) + "]", encoding="utf-8")
    assert len(read_damaged(path)[1]) == 4_950
    assert max(lengths) < 3 << 12
    # Chunks are decoded once or twice, however long the trace is.
    assert len(lengths) < path.stat().st_size / (1 << 12) + 3


def test_text_that_never_becomes_a_value_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_CHUNK_SIZE", 1 << 12)
    monkeypatch.setattr(reading, "_MAX_VALUE_LENGTH", 1 << 14)
    path = tmp_path / "trace.json"
    path.write_text('[{"name": "' + " " * (1 << 15) + '\n{"ph": "X"}]', encoding="utf-8")
    assert read_damaged(path)[1:] == ([{"ph": "X"}], 1)
    path.write_text('{"name": "' + " " * (1 << 15), encoding="utf-8")
    with pytest.raises(HostStateError, match=r"trace\.json is damaged") as failure:
        read(path)
    assert "again" not in failure.value.remedy


def test_another_recording_is_advised_only_where_it_helps(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text, again in (('[{"ph": "X"}', True), ('{"a": b, "traceEvents": [{"ph": "X"}, {"ph": "X"}]}', False)):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(HostStateError, match="is damaged") as failure:
            read(path)
        assert ("again" in failure.value.remedy) is again
