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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import state
from ansible_collections.gpumesh.cluster.plugins.modules import slurm_state

CURRENT_USER = getpass.getuser()


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
    monkeypatch.setattr(state, "PART_SIZE", 1000)


@pytest.fixture(name="new")
def _new(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    folder.mkdir()
    return folder


def transfer_parts(former: Path, new: Path, packed: state.StateArchive) -> None:
    for number in range(packed.part_count):
        state.write_part(str(new), number, state.read_part(str(former), number, CURRENT_USER), CURRENT_USER)


def read_contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_state_is_transferred_with_private_permissions(former: Path, new: Path) -> None:
    before = read_contents(former)
    packed = state.pack_state(str(former), CURRENT_USER)
    assert packed.part_count >= 3
    transfer_parts(former, new, packed)
    assert not state.has_controller_state(str(new))
    assert state.unpack_state(str(new), packed.checksum, CURRENT_USER) == sorted(before)
    assert read_contents(new) == before
    assert {path.stat().st_mode & 0o777 for path in new.rglob("*") if path.is_file()} == {0o600}
    assert os.stat(former / state.ARCHIVE_FILE).st_mode & 0o777 == 0o600


def test_interrupted_handover_starts_again(former: Path, new: Path) -> None:
    old = state.pack_state(str(former), CURRENT_USER)
    transfer_parts(former, new, old)
    (former / "accounting.sql").write_bytes(b"shorter")
    packed = state.pack_state(str(former), CURRENT_USER)
    assert packed.part_count < old.part_count
    transfer_parts(former, new, packed)
    state.unpack_state(str(new), packed.checksum, CURRENT_USER)
    assert (new / "accounting.sql").read_bytes() == b"shorter"


def test_missing_part_is_detected(former: Path, new: Path) -> None:
    packed = state.pack_state(str(former), CURRENT_USER)
    for number in range(packed.part_count - 1):
        state.write_part(str(new), number, state.read_part(str(former), number, CURRENT_USER), CURRENT_USER)
    with pytest.raises(InputError, match="differs from what was packed"):
        state.unpack_state(str(new), packed.checksum, CURRENT_USER)
    assert not state.has_controller_state(str(new))


def unpack_archive(new: Path, content: bytes) -> list[str]:
    """Unpack an archive of a former manager, which may have any content."""
    (new / state.ARCHIVE_FILE).write_bytes(content)
    return state.unpack_state(str(new), state._compute_checksum(str(new / state.ARCHIVE_FILE)), CURRENT_USER)


def build_archive(*files: tuple[object, object, bytes]) -> bytes:
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
        state.ARCHIVE_FILE,
        state.MARKER_FILE,
        7,
        None,
    ],
)
def test_files_outside_the_directory_are_refused(tmp_path: Path, new: Path, name: object) -> None:
    with pytest.raises(InputError):
        unpack_archive(new, build_archive((name, 1, b"x")))
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [state.ARCHIVE_FILE]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        build_archive(("script", 10, b"short")),
        build_archive(("script", -1, b"")),
        build_archive(("script", True, b"x")),
        build_archive(("script", 2**70, b"x")),
        build_archive(("clustername", 10000, b"x" * 10000)),
        build_archive(("a", 1, b"x"), ("a/b", 1, b"x")),
        build_archive(("a" * 300, 1, b"x")),
        build_archive(("script", 5, b"longer than it says")),
        build_archive(("script", 5, b"cut"))[:-12],
        gzip.compress(b"[" * 100000, mtime=0),
        gzip.compress(b"[]\n", mtime=0),
    ],
)
def test_invalid_archives_are_refused(new: Path, content: bytes) -> None:
    if content == b"":
        assert unpack_archive(new, content) == []
    else:
        with pytest.raises((InputError, HostStateError)):
            unpack_archive(new, content)
    assert not state.has_controller_state(str(new))


def test_archive_larger_than_free_space_is_refused(new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of zeros compresses to a thousandth."""
    monkeypatch.setattr(state, "available_bytes", lambda folder: 1 << 20)
    with pytest.raises(HostStateError, match="not enough free space"):
        unpack_archive(
            new, build_archive(("a", 1 << 19, b"\0" * (1 << 19)), ("b", (1 << 19) + 1, b"\0" * ((1 << 19) + 1)))
        )
    assert not (new / "b").exists()
    monkeypatch.setattr(state, "available_bytes", lambda folder: 2)
    with pytest.raises(HostStateError, match="not enough free space"):
        state.write_part(str(new), 0, "AAAA", CURRENT_USER)


def test_part_number_is_validated(new: Path) -> None:
    for number, content in ((state.MAX_PARTS, "AAAA"), (-1, "AAAA"), (0, "A" * 2000)):
        with pytest.raises(InputError, match="at most"):
            state.write_part(str(new), number, content, CURRENT_USER)
    with pytest.raises(HostStateError, match="part 0"):
        state.write_part(str(new), 1, "AAAA", CURRENT_USER)


def test_only_regular_files_are_packed(former: Path, new: Path) -> None:
    (former / "link").symlink_to("/etc/hostname")
    (former / "folder").symlink_to("/etc")
    os.mkfifo(former / "fifo")
    transfer_parts(former, new, found := state.pack_state(str(former), CURRENT_USER))
    assert state.unpack_state(str(new), found.checksum, CURRENT_USER) == [
        "accounting.sql",
        "clustername",
        "hash.1/script",
    ]


def test_missing_state_and_archive_are_refused(new: Path, former: Path) -> None:
    with pytest.raises(HostStateError, match="no state of a controller"):
        state.pack_state(str(new), CURRENT_USER)
    with pytest.raises(HostStateError, match="state=packed"):
        state.read_part(str(former), 0, CURRENT_USER)
    with pytest.raises(InputError, match="Read it again"):
        state.write_part(str(new), 0, "no base64", CURRENT_USER)
    with pytest.raises(HostStateError, match="does not exist"):
        state.unpack_state(str(new), "", CURRENT_USER)


def test_running_controller_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would change while they are read, and a second one would start with them."""
    asked: list[tuple[str, int]] = []

    def running(_tree: Tree, program: str, uid: int = 0) -> list[list[str]]:
        asked.append((program, uid))
        return [["/usr/sbin/slurmctld", "-D"]] if uid == 0 else []

    monkeypatch.setattr(service, "find_command_lines", running)
    with pytest.raises(HostStateError, match="slurmctld of the former manager still runs here"):
        slurm_state.refuse_running("root")
    slurm_state.refuse_running("nobody")
    slurm_state.refuse_running("no-such-user")
    assert [program for program, _uid in asked] == ["slurmctld", "slurmctld"]
