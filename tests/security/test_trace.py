# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-trace` on traces that another user has prepared."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pwd
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import digest, load

RANK_METADATA = {"trace": "rank-0.trace.json.gz", "rank": 0, "ranks": 1}


@contextlib.contextmanager
def peak_below(limit: int) -> Iterator[None]:
    """Fail if Python holds this much memory, in bytes, at any moment of the body."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


def test_endless_metadata_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "rank-0.json").open("wb") as stream:
        stream.truncate(1 << 30)
    with peak_below(256 << 20), pytest.raises(GpumeshError):
        load.load_traces(load.find_sources(tmp_path))


#: A text that compresses to a hundredth at least.
LONG_TEXT = "x" * (2 << 20)
EVENT_FORMAT = '{"ph":"X","cat":"kernel","ts":%d,"dur":1,"name":"ncclDevKernel_AllReduce","pid":%s,"tid":%s,"args":%s}'


def join_parts(count: int, format_part: Callable[[int], str]) -> Iterator[str]:
    return (("," if number else "") + format_part(number) for number in range(count))


@pytest.mark.parametrize(
    ("before", "part"),
    [
        ("{", lambda number: f'"k{number}":"{LONG_TEXT}"'),
        ('{"traceEvents":[', lambda number: EVENT_FORMAT % (number, 1, f'"{number}{LONG_TEXT}"', "{}")),
        ('{"traceEvents":[', lambda number: EVENT_FORMAT % (number, f'["{number}{LONG_TEXT}"]', 1, "{}")),
        (
            '{"traceEvents":[',
            lambda number: EVENT_FORMAT % (number, 1, 2, f'{{"Process Group Name":"{number}{LONG_TEXT}"}}'),
        ),
        (
            '{"traceEvents":[',
            lambda number: EVENT_FORMAT % (number, 1, 2, f'{{"Process Group Name":["{number}{LONG_TEXT}"]}}'),
        ),
    ],
    ids=["other values", "threads", "processes", "groups", "lists"],
)
def test_small_file_uses_little_memory(tmp_path: Path, before: str, part: Callable[[int], str]) -> None:
    with gzip.open(tmp_path / "trace.json.gz", "wt", encoding="ascii", compresslevel=1) as stream:
        stream.write(before)
        stream.writelines(join_parts(120, part))
        stream.write("}" if before == "{" else "]}")
    assert (tmp_path / "trace.json.gz").stat().st_size < 2 << 20
    with peak_below(128 << 20), contextlib.suppress(GpumeshError):
        load.load_traces(load.find_sources(tmp_path))


@pytest.mark.parametrize(
    "part",
    [
        lambda number: EVENT_FORMAT % (number, 1, 2, "{}"),
        lambda number: EVENT_FORMAT % (number, 1, number, "{}"),
        lambda number: EVENT_FORMAT % (number, 1, 2, f'{{"Collective name":"{number}"}}'),
        lambda number: EVENT_FORMAT.replace("kernel", "cpu_op").replace("nccl", str(number)) % (number, 1, 2, "{}"),
        lambda number: EVENT_FORMAT.replace("kernel", "cuda_runtime") % (number, 1, 2, f'{{"correlation":{number}}}'),
    ],
    ids=["events", "threads", "kernels", "names", "launches"],
)
def test_endless_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: Callable[[int], str]) -> None:
    monkeypatch.setattr(digest, "MAX_KEPT_BYTES", 1 << 20)
    (tmp_path / "trace.json").write_text("".join(["[", *join_parts(500, part), "]"]), encoding="ascii")
    load.load_traces(load.find_sources(tmp_path))
    (tmp_path / "trace.json").write_text("".join(["[", *join_parts(20_000, part), "]"]), encoding="ascii")
    # Besides what is kept, the text and what is made of it.
    with peak_below(16 << 20), pytest.raises(InputError, match="has more events than"):
        load.load_traces(load.find_sources(tmp_path))


def test_value_of_many_small_values(tmp_path: Path) -> None:
    """Every value takes thirty times as much memory as its text."""
    (tmp_path / "trace.json").write_text('{"a":[' + "[]," * (5 << 20) + '[]],"traceEvents":[]}', encoding="ascii")
    with peak_below(192 << 20), pytest.raises(GpumeshError):
        load.load_traces(load.find_sources(tmp_path))


def create_link(path: Path, target: Path, owner: pwd.struct_passwd) -> None:
    path.symlink_to(target)
    os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def test_links_to_files_of_another_user(tmp_path: Path, attacker: pwd.struct_passwd) -> None:
    """The page would show it to the attacker, in whose directory it is."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "trace.json").write_text(json.dumps({"traceEvents": []}), encoding="utf-8")
    (private / "rank-0.json").write_text(json.dumps(RANK_METADATA), encoding="utf-8")
    traces = tmp_path / "traces"
    traces.mkdir()
    create_link(traces / "rank-0.json", private / "rank-0.json", attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.find_sources(traces)
    (traces / "rank-0.json").unlink()
    create_link(traces / "trace.json", private / "trace.json", attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.load_traces(load.find_sources(traces))


@pytest.mark.parametrize("link_path", ["profile", "profile/001"])
def test_links_to_directories_of_another_user(tmp_path: Path, attacker: pwd.struct_passwd, link_path: str) -> None:
    private, run = tmp_path / "private", tmp_path / "run"
    for directory in (private, private / "001"):
        directory.mkdir()
        (directory / "rank-0.json").write_text(json.dumps(RANK_METADATA), encoding="utf-8")
    (run / link_path).parent.mkdir(parents=True)
    create_link(run / link_path, private, attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.find_trace_dir(str(run), 0)
