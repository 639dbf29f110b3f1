# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies of data on a node's disk: complete, verified, reused, and private."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import stage


class Node:
    """A machine with its disk, and the run's folder, which it shares with others."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.disk = folder / "disk"
        self.run = run

    def start_staging(self) -> stage.Staging:
        made = stage.Staging(stage.read_manifest(str(self.run)), str(self.disk), str(self.run))
        made.start()
        return made

    def finish_staging(self) -> stage.Staging:
        """Wait until the copy is complete, or has failed."""
        made = self.start_staging()
        wait(made)
        return made

    def copies(self) -> list[str]:
        return sorted(path.name for path in self.disk.iterdir())


def wait(staging: stage.Staging) -> None:
    wait_until("the copy is complete, or has failed", lambda: staging.data_path or staging.failure)


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "deep" / "er").mkdir(parents=True)
    for number in range(5):
        (made / f"shard-{number}").write_bytes(bytes([number]) * 3_000_000)
    (made / "deep" / "er" / "list").write_text("shards\n")
    (made / "link").symlink_to("deep/er/list")
    return made


@pytest.fixture(name="node")
def _node(source: Path, tmp_path: Path) -> Node:
    run = tmp_path / "run"
    run.mkdir()
    stage.write_manifest(str(run), stage.build_manifest(str(source)))
    return Node(tmp_path, run)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def failure(staging: stage.Staging) -> str:
    found = staging.failure
    staging.stop()
    assert found is not None
    return str(found)


def test_a_copy_is_complete_and_reused(node: Node, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.finish_staging()
    assert content(Path(first.data_path)) == content(source)
    assert (first.copied_bytes, first.total_bytes) == (15_000_014, 15_000_014)
    first.stop()
    # The file server is no longer needed.
    source.rename(source.with_name("away"))
    monkeypatch.setattr(stage.Staging, "_fill_copy", None)
    second = node.finish_staging()
    assert second.data_path == first.data_path
    second.stop()


@pytest.mark.parametrize("damage", ["short", "touched", "gone", "half"])
def test_an_incomplete_copy_is_completed(node: Node, source: Path, damage: str) -> None:
    first = node.finish_staging()
    first.stop()
    shard = Path(first.data_path, "shard-3")
    kept = Path(first.data_path, "shard-1").stat().st_ino
    shard.chmod(0o600)
    if damage == "short":
        os.truncate(shard, 17)
    elif damage == "touched":
        shard.write_bytes(b"x" * 3_000_000)
    elif damage == "gone":
        shard.unlink()
    else:
        # A killed process leaves this state.
        os.truncate(shard, 17)
        Path(first.data_path).with_name("whole.json").unlink()
    second = node.finish_staging()
    assert content(Path(second.data_path)) == content(source)
    assert Path(second.data_path, "shard-1").stat().st_ino == kept
    second.stop()


def test_two_runs_on_a_node_share_one_copy(node: Node, source: Path) -> None:
    both = [node.start_staging(), node.start_staging()]
    for one in both:
        wait(one)
    assert both[0].data_path == both[1].data_path
    assert len(node.copies()) == 1
    assert content(Path(both[0].data_path)) == content(source)
    for one in both:
        one.stop()


def test_a_killed_process_leaves_no_complete_copy_and_no_lock(node: Node, source: Path) -> None:
    code = (
        "import sys, time\n"
        "from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import stage\n"
        "counted = stage.Staging._count\n"
        "def count(self, size):\n"
        "    counted(self, size)\n"
        "    print(flush=True)\n"
        "    time.sleep(120)\n"
        "stage.Staging._count = count\n"
        "made = stage.Staging(stage.read_manifest(sys.argv[2]), sys.argv[1], sys.argv[2])\n"
        "made.start()\n"
        "time.sleep(120)\n"
    )
    argv = [sys.executable, "-c", code, str(node.disk), str(node.run)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        mine = node.start_staging()
        time.sleep(1.0)
        assert not mine.data_path
        other.send_signal(signal.SIGKILL)
    wait(mine)
    assert content(Path(mine.data_path)) == content(source)
    mine.stop()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_changed_data_is_refused(
    node: Node, source: Path, when: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shard = source / "shard-2"
    if when == "before":
        shard.write_bytes(b"y" * 3_000_000)
    else:
        read = os.read

        def change(descriptor: int, size: int) -> bytes:
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(shard):
                shard.write_bytes(b"y" * 3_000_000)
            return read(descriptor, size)

        monkeypatch.setattr(os, "read", change)
    changed = node.finish_staging()
    assert isinstance(changed.failure, InputError)
    assert "shard-2 has changed since the run was submitted" in failure(changed)
    assert not list(node.disk.glob("*/whole.json"))
    monkeypatch.undo()
    # A resumed run writes a new manifest.
    stage.write_manifest(str(node.run), stage.build_manifest(str(source)))
    again = node.finish_staging()
    assert content(Path(again.data_path)) == content(source)
    again.stop()


def test_a_copy_that_differs_between_nodes_fails(node: Node, source: Path, tmp_path: Path) -> None:
    node.finish_staging().stop()
    other = Node(tmp_path / "other", node.run)
    other.disk.parent.mkdir()
    shard = source / "shard-0"
    about = shard.stat()
    shard.write_bytes(b"z" * about.st_size)
    os.utime(shard, ns=(about.st_mtime_ns, about.st_mtime_ns))
    found = other.finish_staging()
    assert isinstance(found.failure, HostStateError)
    assert "differs from that of another node" in failure(found)
    shard.write_bytes(bytes([0]) * about.st_size)
    os.utime(shard, ns=(about.st_mtime_ns, about.st_mtime_ns))
    again = other.finish_staging()
    assert content(Path(again.data_path)) == content(source)
    again.stop()


def test_a_full_shared_volume_does_not_prevent_staging(
    node: Node, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    found = node.finish_staging()
    assert content(Path(found.data_path)) == content(source)
    assert sorted(path.name for path in node.run.iterdir()) == ["stage.json"]
    found.stop()


def test_a_corrupting_disk_is_detected(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, part: write(descriptor, b"\xff" * len(part)))
    found = node.finish_staging()
    assert isinstance(found.failure, HostStateError)
    assert "returns different data than was written" in failure(found)


def test_a_full_disk_is_named_and_freed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _part: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    found = node.finish_staging()
    assert isinstance(found.failure, HostStateError)
    assert "GB free" in failure(found)
    assert not list(node.disk.glob("*/data"))


def test_unused_copies_are_removed_to_free_space(node: Node, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in range(4):
        (source / "more").write_text("x" * number)
        stage.write_manifest(str(node.run), stage.build_manifest(str(source)))
        made.append(node.finish_staging())
    keys = [Path(one.data_path).parent.name for one in made]
    for age, key in ((3, keys[0]), (1, keys[1]), (2, keys[2]), (0, keys[3])):
        os.utime(node.disk / key, (age, age))
    monkeypatch.setattr(
        os, "statvfs", lambda _place: SimpleNamespace(f_bavail=4 - len(node.copies()), f_frsize=stage._CHUNK_SIZE)
    )
    base = stage.open_private_dir(str(node.disk), "--stage-dir")
    assert not stage.free_space(base, keys[3], stage._CHUNK_SIZE)
    assert node.copies() == sorted(keys)
    for one in made[:3]:
        one.stop()
    assert stage.free_space(base, keys[3], stage._CHUNK_SIZE)
    assert node.copies() == sorted([keys[0], keys[2], keys[3]])
    assert stage.free_space(base, keys[3], 2 * stage._CHUNK_SIZE)
    assert node.copies() == sorted([keys[0], keys[3]])
    assert not stage.free_space(base, keys[3], 4 * stage._CHUNK_SIZE)
    assert node.copies() == [keys[3]]
    made[3].stop()
    os.close(base)


def test_a_concurrently_removed_copy_is_tolerated(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.disk.mkdir(0o700)
    there = node.disk / ("a" * 32)
    there.mkdir()
    monkeypatch.setattr(stage.os, "listdir", lambda _place: ["b" * 32, there.name])
    monkeypatch.setattr(os, "statvfs", lambda _place: SimpleNamespace(f_bavail=2 - there.exists(), f_frsize=1))
    base = stage.open_private_dir(str(node.disk), "--stage-dir")
    assert stage.free_space(base, "kept", 2)
    os.close(base)


def test_other_files_beside_the_copies_are_not_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory given with --stage-dir may contain more than copies."""
    others = [node.disk / name for name in ("checkpoints", "conda", "A" * 32, "a" * 33)]
    for other in others:
        other.mkdir(0o700, parents=True)
        (other / "whole.json").write_text("the user's", encoding="ascii")
    node.disk.chmod(0o700)
    monkeypatch.setattr(os, "statvfs", lambda _place: SimpleNamespace(f_bavail=0, f_frsize=1))
    assert "GB free" in failure(node.finish_staging())
    assert all((other / "whole.json").exists() for other in others)


def test_an_invalid_data_set_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory"):
        stage.build_manifest(str(source / "shard-1"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="There are no files in"):
        stage.build_manifest(str(tmp_path / "empty"))
    (source / "loop").symlink_to(".")
    with pytest.raises(InputError, match="loop is a link to a directory"):
        stage.build_manifest(str(source))
    (source / "loop").unlink()
    (source / "broken").symlink_to("nothing")
    with pytest.raises(InputError, match="broken cannot be read"):
        stage.build_manifest(str(source))


def test_a_damaged_manifest_is_reported(node: Node) -> None:
    (node.run / "stage.json").write_text("{}")
    with pytest.raises(GpumeshError, match="is damaged"):
        stage.read_manifest(str(node.run))


def test_a_differing_copy_in_use_is_not_removed(node: Node, source: Path, tmp_path: Path) -> None:
    reading = node.finish_staging()
    run = tmp_path / "later"
    run.mkdir()
    stage.write_manifest(str(run), stage.build_manifest(str(source)))
    (run / stage._CHECKSUM_NAME).write_text("another node's", encoding="ascii")
    refused = Node(tmp_path, run).finish_staging()
    assert "differs from that of another node" in failure(refused)
    assert content(Path(reading.data_path)) == content(source)
    reading.stop()


def test_a_temporary_volume_error_does_not_fail_staging(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> str | None:
        if path.endswith(stage._CHECKSUM_NAME):
            raise HostStateError(f"{path}: Stale file handle.")
        return read(path)

    read = stage.read_text
    monkeypatch.setattr(stage, "read_text", fail)
    made = node.finish_staging()
    assert made.data_path and made.failure is None
    made.stop()
