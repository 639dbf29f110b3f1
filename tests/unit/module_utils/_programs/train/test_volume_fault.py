# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An error of the shared volume is told as such, and one of a node's own disk is not."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution as causes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import failure, volume_fault
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause, RankEnd

IN_ORDER = volume_fault.VolumeState()
FULL = volume_fault.VolumeState(True, "is full: 3 MiB are left, and 1024 MiB are needed")
AWAY = volume_fault.VolumeState(False, "fails: Stale file handle")
SPACE = "OSError: [Errno 28] No space left on device"


@pytest.fixture(name="run")
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a run on a volume, beside a disk of the node."""
    for name in ("shared/runs/nano/checkpoints", "shared/home", "scratch"):
        (tmp_path / name).mkdir(parents=True)
    mounts = (
        f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / {tmp_path}/shared rw - nfs4 a:/x rw\n"
        f"3 1 8:2 / {tmp_path}/scratch rw - xfs /dev/sdb1 rw\n"
    )
    monkeypatch.setattr(volume_fault.processes, "read_process_file", lambda *_where: mounts)
    return f"{tmp_path}/shared/runs/nano"


def attribute(
    run: str,
    monkeypatch: pytest.MonkeyPatch,
    error: str,
    state: volume_fault.VolumeState = IN_ORDER,
    times: int = 0,
    had_no_room: bool = False,
    **changed: Any,
) -> Cause:
    """The cause of an attempt that has ended with this error of a rank, in which {top} is the place of the volumes."""
    top = run[: run.index("/shared")]
    cause = Cause("crash", f"rank 0 on n1: exit status 1: {error.format(top=top)}", 0, "n1")._replace(**changed)
    monkeypatch.setattr(volume_fault, "probe_volume", lambda _folder: state)
    return volume_fault.attribute_to_volume(cause, run, f"{top}/shared/home", times, had_no_room)


@pytest.mark.parametrize("state", [IN_ORDER, FULL, AWAY])
@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '{top}/shared/home/7.pt'",
        "OSError: [Errno 122] Disk quota exceeded: '{top}/shared/out/7.pt'",
        "cp: error writing '{top}/shared/home/7.pt': No space left on device",
        "write {top}/shared/home/7.pt: no space left on device",
        "OSError: [Errno 28] No space left on device: 'out/7.pt'",
        "OSError: [Errno 30] Read-only file system: '{top}/shared/home/7.pt'",
        "OSError: [Errno 116] Stale file handle: '{top}/shared/home'",
        "OSError: [Errno 5] Input/output error: '{top}/shared/home/7.pt'",
        # Lightning writes each checkpoint to a temporary file, and copies that.
        "OSError: [Errno 28] No space left on device: '{top}/scratch/tmp1' -> '{top}/shared/home/step=60.ckpt'",
        "OSError: [Errno 28] No space left on device: b'{top}/scratch/tmp1' -> b'{top}/shared/home/step=60.ckpt'",
        "OSError: [Errno 28] No space left on device: '{top}/shared/home/a' -> '{top}/shared/home/b'",
        "OSError: [Errno 5] Input/output error: '{top}/scratch/tmp1' -> '{top}/shared/home/step=60.ckpt'",
        "OSError: [Errno 5] Input/output error: '{top}/shared/home/step=60.ckpt' -> '{top}/scratch/tmp1'",
        "mv: cannot move '{top}/scratch/tmp1' to '{top}/shared/home/7.pt': No space left on device",
    ],
)
def test_an_error_with_a_path_on_the_volume_is_attributed_to_it(
    run: str, monkeypatch: pytest.MonkeyPatch, error: str, state: volume_fault.VolumeState
) -> None:
    found = attribute(run, monkeypatch, error, state)
    assert (found.kind, found.rank, found.node) == ("volume", None, "")
    assert found.detail.startswith("the shared volume ") and "rank 0 on n1: exit status 1: " in found.detail


@pytest.mark.parametrize("state", [IN_ORDER, FULL])
@pytest.mark.parametrize(
    "error",
    [
        "OSError: [Errno 28] No space left on device: '/dev/shm/nccl-7'",
        "OSError: [Errno 28] No space left on device: '{top}/scratch/7.pt'",
        "write {top}/scratch/7.pt: no space left on device",
        "OSError: [Errno 30] Read-only file system: '{top}/scratch/7.pt'",
        "OSError: [Errno 28] No space left on device: '{top}/shared/home/7.pt' -> '{top}/scratch/7.pt'",
        "OSError: [Errno 5] Input/output error: '{top}/scratch/tmp1' -> '{top}/scratch/tmp2'",
    ],
)
def test_an_error_with_a_local_path_is_attributed_to_the_node(
    run: str, monkeypatch: pytest.MonkeyPatch, error: str, state: volume_fault.VolumeState
) -> None:
    found = attribute(run, monkeypatch, error, state)
    assert (found.kind, found.rank, found.node) == ("crash", 0, "n1")


def test_temporary_files_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "OSError: [Errno 28] No space left on device: '/tmp/7.pt'"
    assert attribute("/mnt/shared/runs/nano", monkeypatch, error, FULL).kind == "crash"


@pytest.mark.parametrize(
    ("error", "state", "kind"),
    [
        (SPACE, FULL, "volume"),
        (SPACE, AWAY, "volume"),
        (SPACE, IN_ORDER, "crash"),
        ("tee: write error: No space left on device", FULL, "volume"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", FULL, "volume"),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", IN_ORDER, "crash"),
        ("OSError: 40000 requested and 1234 written", FULL, "volume"),
        ("RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 448 vs 344", FULL, "volume"),
        ("sqlite3.OperationalError: database or disk is full", FULL, "volume"),
        # A path of a container.
        ("OSError: [Errno 28] No space left on device: '/no-such-place/7.pt'", FULL, "volume"),
        ("OSError: [Errno 28] No space left on device: '/no-such-place/7.pt'", IN_ORDER, "crash"),
        ("OSError: [Errno 116] Stale file handle", AWAY, "volume"),
        ("OSError: [Errno 5] Input/output error", IN_ORDER, "crash"),
        # A full volume does not explain these errors.
        ("OSError: [Errno 5] Input/output error", FULL, "crash"),
        ("ValueError: bad sample 17", FULL, "crash"),
    ],
)
def test_without_a_path_the_state_of_the_volume_decides(
    run: str, monkeypatch: pytest.MonkeyPatch, error: str, state: volume_fault.VolumeState, kind: str
) -> None:
    found = attribute(run, monkeypatch, error, state)
    assert (found.kind, found.node) == (kind, "" if kind == "volume" else "n1")


def test_a_full_local_disk_is_reported_and_compared_like_any_error(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    says = "; the shared volume has room, so a disk of the node is full"
    assert attribute(run, monkeypatch, SPACE).detail.endswith(SPACE + says)
    several = attribute(run, monkeypatch, f"{SPACE} (3 other ranks failed after it)")
    assert several.detail.endswith(f"{says} (3 other ranks failed after it)")
    one, other = (
        Attempt(1, 41, ("n1",), 1, "n1", 0.0, cause=cause) for cause in (attribute(run, monkeypatch, SPACE), several)
    )
    assert failure.normalized_error(one) == failure.normalized_error(other)


@pytest.mark.parametrize(("error", "kind"), [("Input/output error", "crash"), ("No space left on device", "volume")])
def test_a_persistent_error_of_one_mount_is_not_blamed_on_the_volume_forever(
    run: str, monkeypatch: pytest.MonkeyPatch, error: str, kind: str
) -> None:
    text = f"OSError: {error}: '{{top}}/shared/home/7.pt'"
    assert attribute(run, monkeypatch, text, times=1).kind == "volume"
    assert attribute(run, monkeypatch, text, times=2).kind == kind
    assert attribute(run, monkeypatch, text, AWAY, times=2).kind == "volume"


def test_other_causes_are_unchanged(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("node", "cancelled"):
        assert attribute(run, monkeypatch, SPACE, FULL, kind=kind).kind == kind
    for kind in ("hang", "start"):
        assert attribute(run, monkeypatch, SPACE, FULL, kind=kind).kind == "volume"


def test_a_volume_that_was_full_during_the_attempt_is_blamed(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = attribute(run, monkeypatch, SPACE, had_no_room=True)
    assert (found.kind, found.node) == ("volume", "")
    assert found.detail.startswith("the shared volume had no room: rank 0 on n1")
    # An error that names a local disk, or does not mention space, is not explained by that.
    local = "OSError: [Errno 28] No space left on device: '{top}/scratch/7.pt'"
    assert attribute(run, monkeypatch, local, had_no_room=True).kind == "crash"
    assert attribute(run, monkeypatch, "OSError: [Errno 5] Input/output error", had_no_room=True).kind == "crash"


def test_missing_space_is_reported_if_another_error_ended_the_rank() -> None:
    frames = 'Traceback (most recent call last):\n  File "train.py", line 7, in save\n    write()\n'
    tail = (
        f"{frames}{SPACE}\n\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{frames}RuntimeError: cannot save"
    )
    found = causes.attribute_crash([RankEnd(0, "n1", 1, 1.0, tail)])
    assert found is not None
    assert found.detail == f"rank 0 on n1: exit status 1: RuntimeError: cannot save, after '{SPACE}'"
    # One that the program has handled says nothing.
    handled = tail.replace("During handling of the above exception, another exception occurred:\n\n", "")
    found = causes.attribute_crash([RankEnd(0, "n1", 1, 1.0, handled)])
    assert found is not None and SPACE not in found.detail


def set_free_space(monkeypatch: pytest.MonkeyPatch, blocks: int, left: int, files: int = 100, nodes: int = 50) -> None:
    """Have the volume this many MiB, of which so many are left."""
    found = SimpleNamespace(f_frsize=1 << 20, f_blocks=blocks, f_bavail=left, f_files=files, f_favail=nodes)
    monkeypatch.setattr(volume_fault.os, "statvfs", lambda _path: found)


def test_a_volume_is_full_without_room_for_the_largest_checkpoint(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free_space(monkeypatch, 1 << 20, 1023)
    assert volume_fault.probe_volume(run) == FULL._replace(
        problem="is full: 1023 MiB are left, and 1024 MiB are needed"
    )
    set_free_space(monkeypatch, 1 << 20, 1025)
    assert volume_fault.probe_volume(run) == IN_ORDER
    # A small volume does not need as much.
    set_free_space(monkeypatch, 500, 6)
    assert volume_fault.probe_volume(run) == IN_ORDER
    (Path(run) / "checkpoints/7").mkdir()
    with (Path(run) / "checkpoints/7/model.pt").open("wb") as stream:
        stream.truncate(7 << 20)
    assert volume_fault.probe_volume(run).is_full
    set_free_space(monkeypatch, 500, 60, nodes=0)
    assert volume_fault.probe_volume(run) == volume_fault.VolumeState(True, "has no inodes left")
    assert sorted(os.listdir(run)) == ["checkpoints"]


@pytest.mark.parametrize(
    ("number", "full"),
    [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False), (errno.EIO, False), (errno.ESTALE, False)],
)
def test_the_reason_of_an_unwritable_volume_is_reported(
    run: str, monkeypatch: pytest.MonkeyPatch, number: int, full: bool
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(volume_fault.os, "fsync", fail)
    found = volume_fault.probe_volume(run)
    assert (found.is_full, found.problem) == (full, "is full" if full else f"fails: {os.strerror(number)}")
