# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue and the accounting, from one manager to the next."""

from __future__ import annotations

import getpass
import os
import tarfile
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import state

ME = getpass.getuser()


@pytest.fixture(name="former")
def _former(tmp_path: Path) -> Path:
    folder = tmp_path / "former"
    (folder / "hash.1").mkdir(parents=True)
    (folder / "clustername").write_text("lab")
    (folder / "hash.1" / "script").write_bytes(b"#!/bin/sh")
    # Larger than a part, and it does not compress.
    (folder / "accounting.sql.gz").write_bytes(os.urandom(2500))
    return folder


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "PART", 1000)


@pytest.fixture(name="new")
def _new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


def carry(former: Path, new: Path, packed: state.Packed) -> None:
    for number in range(packed.parts):
        state.write_part(str(new), number, state.read_part(str(former), number))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_of_it_arrives_in_parts_for_its_owner_alone(former: Path, new: Path) -> None:
    before = contents(former)
    packed = state.pack(str(former))
    assert packed.parts >= 3
    carry(former, new, packed)
    assert not state.in_use(str(new))
    assert state.unpack(str(new), packed.checksum, ME) == sorted(before)
    assert contents(new) == before
    assert {path.stat().st_mode & 0o777 for path in new.rglob("*") if path.is_file()} == {0o600}
    assert os.stat(former / state.ARCHIVE).st_mode & 0o777 == 0o600


def test_a_hand_over_that_was_cut_off_begins_anew(former: Path, new: Path) -> None:
    old = state.pack(str(former))
    carry(former, new, old)
    (former / "accounting.sql.gz").write_bytes(b"shorter")
    packed = state.pack(str(former))
    assert packed.parts < old.parts
    carry(former, new, packed)
    state.unpack(str(new), packed.checksum, ME)
    assert (new / "accounting.sql.gz").read_bytes() == b"shorter"


def test_a_part_that_is_missing_is_noticed(former: Path, new: Path) -> None:
    packed = state.pack(str(former))
    for number in range(packed.parts - 1):
        state.write_part(str(new), number, state.read_part(str(former), number))
    with pytest.raises(InputError, match="not what was packed"):
        state.unpack(str(new), packed.checksum, ME)
    assert not state.in_use(str(new))


def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, new: Path) -> None:
    with tarfile.open(new / state.ARCHIVE, "w:gz") as archive:
        archive.add(__file__, arcname="../stray")
    with pytest.raises(InputError, match="outside of its folder"):
        state.unpack(str(new), state._checksum(str(new / state.ARCHIVE)), ME)
    assert not (tmp_path / "stray").exists()


def test_refused(new: Path, former: Path) -> None:
    with pytest.raises(HostStateError, match="no state of a controller"):
        state.pack(str(new))
    with pytest.raises(HostStateError, match="state=packed"):
        state.read_part(str(former), 0)
    with pytest.raises(InputError, match="Export it again"):
        state.write_part(str(new), 0, "no base64")
    with pytest.raises(HostStateError, match="is not there"):
        state.unpack(str(new), "", ME)
