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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import stage


class Node:
    """A machine with its disk, and the run's folder, which it shares with others."""

    def __init__(self, folder: Path, run: Path) -> None:
        self.disk = folder / "disk"
        self.run = run

    def begin(self) -> stage.Staging:
        made = stage.Staging(stage.read(str(self.run)), str(self.disk), str(self.run))
        made.begin()
        return made

    def bring(self) -> stage.Staging:
        """Wait until the copy is complete, or has failed."""
        made = self.begin()
        wait(made)
        return made

    def copies(self) -> list[str]:
        return sorted(path.name for path in self.disk.iterdir())


def wait(staging: stage.Staging) -> None:
    deadline = time.monotonic() + 120
    while not staging.path and not staging.failure:
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    stage.write(str(run), stage.listed(str(source)))
    return Node(tmp_path, run)


def content(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def failure(staging: stage.Staging) -> str:
    found = staging.failure
    staging.stop()
    assert found is not None
    return str(found)


def test_a_copy_is_the_data_and_is_used_again(node: Node, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = node.bring()
    assert content(Path(first.path)) == content(source)
    assert (first.done, first.total) == (15_000_014, 15_000_014)
    first.stop()
    # The file server is no longer needed.
    source.rename(source.with_name("away"))
    monkeypatch.setattr(stage.Staging, "_fill", None)
    second = node.bring()
    assert second.path == first.path
    second.stop()


@pytest.mark.parametrize("damage", ["short", "touched", "gone", "half"])
def test_a_copy_that_lacks_something_is_completed(node: Node, source: Path, damage: str) -> None:
    first = node.bring()
    first.stop()
    shard = Path(first.path, "shard-3")
    kept = Path(first.path, "shard-1").stat().st_ino
    shard.chmod(0o600)
    if damage == "short":
        os.truncate(shard, 17)
    elif damage == "touched":
        shard.write_bytes(b"x" * 3_000_000)
    elif damage == "gone":
        shard.unlink()
    else:
        # As a killed process leaves it.
        os.truncate(shard, 17)
        Path(first.path).with_name("whole.json").unlink()
    second = node.bring()
    assert content(Path(second.path)) == content(source)
    assert Path(second.path, "shard-1").stat().st_ino == kept
    second.stop()


def test_two_runs_on_a_node_make_one_copy(node: Node, source: Path) -> None:
    both = [node.begin(), node.begin()]
    for one in both:
        wait(one)
    assert both[0].path == both[1].path
    assert len(node.copies()) == 1
    assert content(Path(both[0].path)) == content(source)
    for one in both:
        one.stop()


def test_a_process_that_is_killed_in_the_middle_leaves_no_copy_and_no_lock(node: Node, source: Path) -> None:
    code = (
        "import sys, time\n"
        "from ansible_collections.gpumesh.cluster.plugins.module_utils.train import stage\n"
        "counted = stage.Staging._count\n"
        "def count(self, size):\n"
        "    counted(self, size)\n"
        "    print(flush=True)\n"
        "    time.sleep(120)\n"
        "stage.Staging._count = count\n"
        "made = stage.Staging(stage.read(sys.argv[2]), sys.argv[1], sys.argv[2])\n"
        "made.begin()\n"
        "time.sleep(120)\n"
    )
    argv = [sys.executable, "-c", code, str(node.disk), str(node.run)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        mine = node.begin()
        time.sleep(1.0)
        assert not mine.path
        other.send_signal(signal.SIGKILL)
    wait(mine)
    assert content(Path(mine.path)) == content(source)
    mine.stop()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_data_that_changes_is_refused(
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
    changed = node.bring()
    assert isinstance(changed.failure, InputError)
    assert "shard-2 has changed since the run was submitted" in failure(changed)
    assert not list(node.disk.glob("*/whole.json"))
    monkeypatch.undo()
    # As when the run is resumed.
    stage.write(str(node.run), stage.listed(str(source)))
    again = node.bring()
    assert content(Path(again.path)) == content(source)
    again.stop()


def test_a_node_whose_copy_differs_from_that_of_others_fails(node: Node, source: Path, tmp_path: Path) -> None:
    node.bring().stop()
    other = Node(tmp_path / "other", node.run)
    other.disk.parent.mkdir()
    shard = source / "shard-0"
    about = shard.stat()
    shard.write_bytes(b"z" * about.st_size)
    os.utime(shard, ns=(about.st_mtime_ns, about.st_mtime_ns))
    found = other.bring()
    assert isinstance(found.failure, HostStateError)
    assert "differs from that of another node" in failure(found)
    shard.write_bytes(bytes([0]) * about.st_size)
    os.utime(shard, ns=(about.st_mtime_ns, about.st_mtime_ns))
    again = other.bring()
    assert content(Path(again.path)) == content(source)
    again.stop()


def test_a_shared_volume_that_is_full_does_not_keep_ranks_from_their_data(
    node: Node, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_paths: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    found = node.bring()
    assert content(Path(found.path)) == content(source)
    assert sorted(path.name for path in node.run.iterdir()) == ["stage.json"]
    found.stop()


def test_a_disk_that_returns_other_data_is_found(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, part: write(descriptor, b"\xff" * len(part)))
    found = node.bring()
    assert isinstance(found.failure, HostStateError)
    assert "returns different data than was written" in failure(found)


def test_a_disk_that_runs_full_is_named_and_freed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, _part: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    found = node.bring()
    assert isinstance(found.failure, HostStateError)
    assert "GB free" in failure(found)
    assert not list(node.disk.glob("*/data"))


def test_room_is_made_of_what_nobody_uses(node: Node, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for number in range(4):
        (source / "more").write_text("x" * number)
        stage.write(str(node.run), stage.listed(str(source)))
        made.append(node.bring())
    keys = [Path(one.path).parent.name for one in made]
    for age, key in ((3, keys[0]), (1, keys[1]), (2, keys[2]), (0, keys[3])):
        os.utime(node.disk / key, (age, age))
    monkeypatch.setattr(
        os, "statvfs", lambda _place: SimpleNamespace(f_bavail=4 - len(node.copies()), f_frsize=stage._PART)
    )
    base = stage.owned(str(node.disk), "--stage-dir")
    assert not stage.make_room(base, keys[3], stage._PART)
    assert node.copies() == sorted(keys)
    for one in made[:3]:
        one.stop()
    assert stage.make_room(base, keys[3], stage._PART)
    assert node.copies() == sorted([keys[0], keys[2], keys[3]])
    assert stage.make_room(base, keys[3], 2 * stage._PART)
    assert node.copies() == sorted([keys[0], keys[3]])
    assert not stage.make_room(base, keys[3], 4 * stage._PART)
    assert node.copies() == [keys[3]]
    made[3].stop()
    os.close(base)


def test_a_copy_that_another_process_removes_at_the_same_time_fails_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.disk.mkdir(0o700)
    there = node.disk / ("a" * 32)
    there.mkdir()
    monkeypatch.setattr(stage.os, "listdir", lambda _place: ["b" * 32, there.name])
    monkeypatch.setattr(os, "statvfs", lambda _place: SimpleNamespace(f_bavail=2 - there.exists(), f_frsize=1))
    base = stage.owned(str(node.disk), "--stage-dir")
    assert stage.make_room(base, "kept", 2)
    os.close(base)


def test_what_else_the_user_keeps_beside_the_copies_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory given with --stage-dir may contain more than copies."""
    others = [node.disk / name for name in ("checkpoints", "conda", "A" * 32, "a" * 33)]
    for other in others:
        other.mkdir(0o700, parents=True)
        (other / "whole.json").write_text("the user's", encoding="ascii")
    node.disk.chmod(0o700)
    monkeypatch.setattr(os, "statvfs", lambda _place: SimpleNamespace(f_bavail=0, f_frsize=1))
    assert "GB free" in failure(node.bring())
    assert all((other / "whole.json").exists() for other in others)


def test_what_is_no_data_set_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a directory"):
        stage.listed(str(source / "shard-1"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="There are no files in"):
        stage.listed(str(tmp_path / "empty"))
    (source / "loop").symlink_to(".")
    with pytest.raises(InputError, match="loop is a link to a directory"):
        stage.listed(str(source))
    (source / "loop").unlink()
    (source / "broken").symlink_to("nothing")
    with pytest.raises(InputError, match="broken cannot be read"):
        stage.listed(str(source))


def test_a_damaged_manifest_is_said(node: Node) -> None:
    (node.run / "stage.json").write_text("{}")
    with pytest.raises(GpumeshError, match="is damaged"):
        stage.read(str(node.run))


def test_a_copy_that_another_run_reads_stays_though_it_differs(node: Node, source: Path, tmp_path: Path) -> None:
    reading = node.bring()
    run = tmp_path / "later"
    run.mkdir()
    stage.write(str(run), stage.listed(str(source)))
    (run / stage._SUM).write_text("another node's", encoding="ascii")
    refused = Node(tmp_path, run).bring()
    assert "differs from that of another node" in failure(refused)
    assert content(Path(reading.path)) == content(source)
    reading.stop()


def test_a_volume_that_fails_for_a_moment_does_not_fail_a_copy(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: str) -> str | None:
        if path.endswith(stage._SUM):
            raise HostStateError(f"{path}: Stale file handle.")
        return read(path)

    read = stage.read_text
    monkeypatch.setattr(stage, "read_text", fail)
    made = node.bring()
    assert made.path and made.failure is None
    made.stop()
