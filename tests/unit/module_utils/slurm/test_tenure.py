# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whose state a controller's folder contains, and the handling of an obsolete one."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import state, tenure

ME = getpass.getuser()
OURS = tenure.Marker("0" * 32, "n1", (1, 5))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "slurmctld"
    (folder / "hash.1").mkdir(parents=True)
    (folder / "clustername").write_text("lab")
    (folder / "hash.1" / "script").write_text("#!/bin/sh")
    os.utime(folder / "clustername", (0, 86400))
    return folder


def test_a_marker_is_read_as_it_was_written(folder: Path) -> None:
    assert tenure.read(str(folder)) == tenure.Kept(True, None, False)
    tenure.mark(str(folder), OURS, ME)
    (folder / "accounting.sql").touch()
    assert tenure.read(str(folder)) == tenure.Kept(True, OURS, True)
    assert (folder / state.MARKER).stat().st_mode & 0o777 == 0o600
    assert OURS.generation == 5


def test_without_a_folder_there_is_nothing(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert tenure.read(missing) == tenure.Kept(False, None, False)
    assert not tenure.is_there(missing)
    assert tenure.retire(missing, True, ME) == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[" * 100000, '{"cluster": "0", "machine": "n1", "tenures": [-1]}']
)
def test_a_damaged_marker_is_refused(folder: Path, text: str) -> None:
    (folder / state.MARKER).write_text(text)
    with pytest.raises(HostStateError, match="does not show whose queue"):
        tenure.read(str(folder))


def test_a_marker_is_not_read_through_a_link(folder: Path) -> None:
    (folder / state.MARKER).symlink_to("/etc/hostname")
    with pytest.raises(HostStateError, match="cannot be read"):
        tenure.read(str(folder))


def test_what_is_kept_is_moved_aside_whole(folder: Path) -> None:
    tenure.mark(str(folder), OURS, ME)
    aside = tenure.retire(str(folder), True, ME)
    assert aside == f"{folder}.19700102T000000Z"
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in Path(aside).rglob("*")) == ["clustername", "gpumesh.json", "hash.1", "script"]
    assert Path(aside).stat().st_mode & 0o777 == 0o700
    assert not tenure.is_there(str(folder))


@pytest.mark.parametrize("keep", [True, False])
def test_it_can_be_cut_off_anywhere(folder: Path, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until nothing is left, the folder is known to contain a state."""
    tenure.mark(str(folder), OURS, ME)
    (folder / "job_state").touch()
    left = len(list(folder.iterdir()))
    real_move, real_remove, real_tree = tenure.shutil.move, tenure.remove_file, tenure.shutil.rmtree
    budget = 0

    def spend() -> None:
        nonlocal budget
        if budget == 0:
            raise KeyboardInterrupt
        budget -= 1

    monkeypatch.setattr(tenure.shutil, "move", lambda *given: (spend(), real_move(*given)))
    monkeypatch.setattr(tenure, "remove_file", lambda *given: (spend(), real_remove(*given)))
    monkeypatch.setattr(tenure.shutil, "rmtree", lambda *given: (spend(), real_tree(*given)))
    for _step in range(left):
        assert tenure.is_there(str(folder))
        with pytest.raises(KeyboardInterrupt):
            tenure.retire(str(folder), keep, ME)
        budget = 1
    tenure.retire(str(folder), keep, ME)
    assert list(folder.iterdir()) == []
    kept = [path for path in folder.parent.iterdir() if path != folder]
    assert [len(list(path.iterdir())) for path in kept] == ([left] if keep else [])


def test_links_are_deleted_and_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    tenure.retire(str(folder), False, ME)
    assert (tmp_path / "elsewhere" / "file").exists()


def test_a_marker_is_not_handed_over(folder: Path, tmp_path: Path) -> None:
    tenure.mark(str(folder), OURS, ME)
    new = tmp_path / "new"
    new.mkdir()
    packed = state.pack(str(folder), ME)
    state.write_part(str(new), 0, state.read_part(str(folder), 0, ME), ME)
    assert state.unpack(str(new), packed.checksum, ME) == ["clustername", "hash.1/script"]
