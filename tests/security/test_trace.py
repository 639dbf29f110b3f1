# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-trace` on traces that another user has prepared."""

from __future__ import annotations

import json
import os
import pwd
import tracemalloc
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import load

DESCRIBED = {"trace": "rank-0.trace.json.gz", "rank": 0, "ranks": 1}


def test_a_description_without_an_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "rank-0.json").open("wb") as stream:
        stream.truncate(1 << 30)
    tracemalloc.start()
    with pytest.raises(GpumeshError):
        load.load(load.sources(tmp_path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 256 << 20


def link(path: Path, target: Path, owner: pwd.struct_passwd) -> None:
    path.symlink_to(target)
    os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def test_links_to_what_belongs_to_somebody_else(tmp_path: Path, attacker: pwd.struct_passwd) -> None:
    """The page would show it to the attacker, in whose directory it is."""
    private = tmp_path / "private"
    private.mkdir()
    (private / "trace.json").write_text(json.dumps({"traceEvents": []}), encoding="utf-8")
    (private / "rank-0.json").write_text(json.dumps(DESCRIBED), encoding="utf-8")
    traces = tmp_path / "traces"
    traces.mkdir()
    link(traces / "rank-0.json", private / "rank-0.json", attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.sources(traces)
    (traces / "rank-0.json").unlink()
    link(traces / "trace.json", private / "trace.json", attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.load(load.sources(traces))


@pytest.mark.parametrize("place", ["profile", "profile/001"])
def test_links_to_directories_of_somebody_else(tmp_path: Path, attacker: pwd.struct_passwd, place: str) -> None:
    private, run = tmp_path / "private", tmp_path / "run"
    for folder in (private, private / "001"):
        folder.mkdir()
        (folder / "rank-0.json").write_text(json.dumps(DESCRIBED), encoding="utf-8")
    (run / place).parent.mkdir(parents=True)
    link(run / place, private, attacker)
    with pytest.raises(HostStateError, match="is a link of"):
        load.folder_of(str(run), 0)
