# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The queue and the accounting, from one manager to the next."""

from __future__ import annotations

import getpass
import gzip
import json
import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import daemon
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import state
from ansible_collections.gpumesh.cluster.plugins.modules import slurm_state

ME = getpass.getuser()


@pytest.fixture(name="former")
def _former(tmp_path: Path) -> Path:
    folder = tmp_path / "former"
    (folder / "hash.1").mkdir(parents=True)
    (folder / "clustername").write_text("lab")
    (folder / "hash.1" / "script").write_bytes(b"#!/bin/sh")
    # Larger than a part, and not compressible.
    (folder / "accounting.sql").write_bytes(os.urandom(2500))
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
        state.write_part(str(new), number, state.read_part(str(former), number, ME), ME)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_of_it_arrives_in_parts_for_its_owner_alone(former: Path, new: Path) -> None:
    before = contents(former)
    packed = state.pack(str(former), ME)
    assert packed.parts >= 3
    carry(former, new, packed)
    assert not state.in_use(str(new))
    assert state.unpack(str(new), packed.checksum, ME) == sorted(before)
    assert contents(new) == before
    assert {path.stat().st_mode & 0o777 for path in new.rglob("*") if path.is_file()} == {0o600}
    assert os.stat(former / state.ARCHIVE).st_mode & 0o777 == 0o600


def test_a_hand_over_that_was_cut_off_begins_anew(former: Path, new: Path) -> None:
    old = state.pack(str(former), ME)
    carry(former, new, old)
    (former / "accounting.sql").write_bytes(b"shorter")
    packed = state.pack(str(former), ME)
    assert packed.parts < old.parts
    carry(former, new, packed)
    state.unpack(str(new), packed.checksum, ME)
    assert (new / "accounting.sql").read_bytes() == b"shorter"


def test_a_part_that_is_missing_is_noticed(former: Path, new: Path) -> None:
    packed = state.pack(str(former), ME)
    for number in range(packed.parts - 1):
        state.write_part(str(new), number, state.read_part(str(former), number, ME), ME)
    with pytest.raises(InputError, match="differs from what was packed"):
        state.unpack(str(new), packed.checksum, ME)
    assert not state.in_use(str(new))


def arrive(new: Path, content: bytes) -> list[str]:
    """What a former manager transfers, whatever has packed it."""
    (new / state.ARCHIVE).write_bytes(content)
    return state.unpack(str(new), state._checksum(str(new / state.ARCHIVE)), ME)


def packed(*files: tuple[object, object, bytes]) -> bytes:
    heads = ((json.dumps({"name": name, "size": size}).encode() + b"\n", data) for name, size, data in files)
    return gzip.compress(b"".join(head + data for head, data in heads), mtime=0)


@pytest.mark.parametrize(
    "name",
    [
        "../stray",
        "/stray",
        "hash.1/../../stray",
        "",
        ".",
        "..",
        "a//b",
        "a/",
        "./a",
        "a\n",
        "\0",
        state.ARCHIVE,
        state.MARKER,
        7,
        None,
    ],
)
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, new: Path, name: object) -> None:
    with pytest.raises(InputError):
        arrive(new, packed((name, 1, b"x")))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [state.ARCHIVE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        packed(("script", 10, b"short")),
        packed(("script", -1, b"")),
        packed(("script", True, b"x")),
        packed(("script", 2**70, b"x")),
        packed(("clustername", 10000, b"x" * 10000)),
        packed(("a", 1, b"x"), ("a/b", 1, b"x")),
        packed(("a" * 300, 1, b"x")),
        packed(("script", 5, b"longer than it says")),
        packed(("script", 5, b"cut"))[:-12],
        gzip.compress(b"[" * 100000, mtime=0),
        gzip.compress(b"[]\n", mtime=0),
    ],
)
def test_what_is_no_state_is_refused(new: Path, content: bytes) -> None:
    if content == b"":
        assert arrive(new, content) == []
    else:
        with pytest.raises((InputError, HostStateError)):
            arrive(new, content)
    assert not state.in_use(str(new))


def test_no_more_is_written_than_there_is_room_for(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros compresses to a thousandth."""
    monkeypatch.setattr(state, "room", lambda folder: 1 << 20)
    with pytest.raises(HostStateError, match="no room"):
        arrive(new, packed(("a", 1 << 19, b"\0" * (1 << 19)), ("b", (1 << 19) + 1, b"\0" * ((1 << 19) + 1))))
    assert not (new / "b").exists()
    monkeypatch.setattr(state, "room", lambda folder: 2)
    with pytest.raises(HostStateError, match="no room"):
        state.write_part(str(new), 0, "AAAA", ME)


def test_a_part_has_its_place(new: Path) -> None:
    for number, content in ((state.MOST_PARTS, "AAAA"), (-1, "AAAA"), (0, "A" * 2000)):
        with pytest.raises(InputError, match="at most"):
            state.write_part(str(new), number, content, ME)
    with pytest.raises(HostStateError, match="part 0"):
        state.write_part(str(new), 1, "AAAA", ME)


def test_links_and_devices_are_not_packed(former: Path, new: Path) -> None:
    (former / "link").symlink_to("/etc/hostname")
    (former / "folder").symlink_to("/etc")
    os.mkfifo(former / "fifo")
    carry(former, new, found := state.pack(str(former), ME))
    assert state.unpack(str(new), found.checksum, ME) == ["accounting.sql", "clustername", "hash.1/script"]


def test_refused(new: Path, former: Path) -> None:
    with pytest.raises(HostStateError, match="no state of a controller"):
        state.pack(str(new), ME)
    with pytest.raises(HostStateError, match="state=packed"):
        state.read_part(str(former), 0, ME)
    with pytest.raises(InputError, match="Export it again"):
        state.write_part(str(new), 0, "no base64", ME)
    with pytest.raises(HostStateError, match="does not exist"):
        state.unpack(str(new), "", ME)


def test_a_controller_that_runs_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would change while they are read, and a second one would start with them."""
    asked: list[tuple[str, int]] = []

    def running(_tree: Tree, program: str, uid: int = 0) -> list[list[str]]:
        asked.append((program, uid))
        return [["/usr/sbin/slurmctld", "-D"]] if uid == 0 else []

    monkeypatch.setattr(daemon, "commands_of", running)
    with pytest.raises(HostStateError, match="slurmctld of the former manager still runs here"):
        slurm_state.refuse_running("root")
    slurm_state.refuse_running("nobody")
    slurm_state.refuse_running("no-such-user")
    assert [program for program, _uid in asked] == ["slurmctld", "slurmctld"]
