# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The marker of a controller's state directory, and the removal of obsolete state."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import state, term

CURRENT_USER = getpass.getuser()
OUR_MARKER = term.StateMarker("0" * 32, "n1", (1, 5))


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "slurmctld"
    (folder / "hash.1").mkdir(parents=True)
    (folder / "clustername").write_text("lab")
    (folder / "hash.1" / "script").write_text("#!/bin/sh")
    os.utime(folder / "clustername", (0, 86400))
    return folder


def test_written_marker_is_read_back(folder: Path) -> None:
    assert term.read_controller_state(str(folder)) == term.ControllerState(True, None, False)
    term.write_marker(str(folder), OUR_MARKER, CURRENT_USER)
    (folder / "accounting.sql").touch()
    assert term.read_controller_state(str(folder)) == term.ControllerState(True, OUR_MARKER, True)
    assert (folder / state.MARKER_FILE).stat().st_mode & 0o777 == 0o600
    assert OUR_MARKER.generation == 5


def test_missing_directory_has_no_state(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert term.read_controller_state(missing) == term.ControllerState(False, None, False)
    assert not term.state_exists(missing)
    assert term.retire_state(missing, True, CURRENT_USER) == ""


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "[" * 100000, '{"cluster": "0", "machine": "n1", "tenures": [-1]}']
)
def test_a_damaged_marker_is_refused(folder: Path, text: str) -> None:
    (folder / state.MARKER_FILE).write_text(text)
    with pytest.raises(HostStateError, match="does not show whose queue"):
        term.read_controller_state(str(folder))


def test_a_marker_is_not_read_through_a_link(folder: Path) -> None:
    (folder / state.MARKER_FILE).symlink_to("/etc/hostname")
    with pytest.raises(HostStateError, match="cannot be read"):
        term.read_controller_state(str(folder))


def test_kept_state_is_moved_to_a_backup(folder: Path) -> None:
    term.write_marker(str(folder), OUR_MARKER, CURRENT_USER)
    aside = term.retire_state(str(folder), True, CURRENT_USER)
    assert aside == f"{folder}.19700102T000000Z"
    assert list(folder.iterdir()) == []
    assert sorted(path.name for path in Path(aside).rglob("*")) == ["clustername", "gpumesh.json", "hash.1", "script"]
    assert Path(aside).stat().st_mode & 0o777 == 0o700
    assert not term.state_exists(str(folder))


@pytest.mark.parametrize("keep", [True, False])
def test_interrupted_retirement_is_continued(folder: Path, keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory counts as having a state until it is empty."""
    term.write_marker(str(folder), OUR_MARKER, CURRENT_USER)
    (folder / "job_state").touch()
    left = len(list(folder.iterdir()))
    real_move, real_remove, real_tree = term.shutil.move, term.remove_file, term.shutil.rmtree
    budget = 0

    def spend() -> None:
        nonlocal budget
        if budget == 0:
            raise KeyboardInterrupt
        budget -= 1

    monkeypatch.setattr(term.shutil, "move", lambda *given: (spend(), real_move(*given)))
    monkeypatch.setattr(term, "remove_file", lambda *given: (spend(), real_remove(*given)))
    monkeypatch.setattr(term.shutil, "rmtree", lambda *given: (spend(), real_tree(*given)))
    for _step in range(left):
        assert term.state_exists(str(folder))
        with pytest.raises(KeyboardInterrupt):
            term.retire_state(str(folder), keep, CURRENT_USER)
        budget = 1
    term.retire_state(str(folder), keep, CURRENT_USER)
    assert list(folder.iterdir()) == []
    kept = [path for path in folder.parent.iterdir() if path != folder]
    assert [len(list(path.iterdir())) for path in kept] == ([left] if keep else [])


def test_links_are_deleted_and_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    term.retire_state(str(folder), False, CURRENT_USER)
    assert (tmp_path / "elsewhere" / "file").exists()


def test_marker_is_not_packed(folder: Path, tmp_path: Path) -> None:
    term.write_marker(str(folder), OUR_MARKER, CURRENT_USER)
    new = tmp_path / "new"
    new.mkdir()
    packed = state.pack_state(str(folder), CURRENT_USER)
    state.write_part(str(new), 0, state.read_part(str(folder), 0, CURRENT_USER), CURRENT_USER)
    assert state.unpack_state(str(new), packed.checksum, CURRENT_USER) == ["clustername", "hash.1/script"]
