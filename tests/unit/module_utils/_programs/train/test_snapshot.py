# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The code of a run: what a copy contains, what it excludes, and that an incomplete one does not count."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import snapshot


@pytest.fixture(name="source")
def _source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    (made / "lib" / "__pycache__").mkdir(parents=True)
    (made / ".git").mkdir()
    (made / ".git" / "HEAD").write_text("x")
    (made / "lib" / "__pycache__" / "a.pyc").write_text("x")
    (made / "train.py").write_text("print()\n")
    (made / "lib" / "run.sh").write_text("#!/bin/sh\n")
    (made / "lib" / "run.sh").chmod(0o4755)
    return made


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    made = tmp_path / "runs" / "nano"
    made.mkdir(parents=True)
    return made


def create_copy(source: Path, folder: Path) -> Path:
    snapshot.create_snapshot(str(source), str(folder), snapshot.DEFAULT_LIMIT_MIB, snapshot.excluded_paths(str(folder)))
    return folder / "code"


def names(copy: Path) -> list[str]:
    return sorted(str(path.relative_to(copy)) for path in copy.rglob("*"))


def test_a_copy_keeps_permissions_and_times(source: Path, folder: Path) -> None:
    (source / "lib").chmod(0o555)
    os.utime(source / "train.py", ns=(1, 12345678912345678))
    copy = create_copy(source, folder)
    (source / "lib").chmod(0o755)
    assert names(copy) == ["lib", "lib/run.sh", "train.py"]
    assert (copy / "train.py").read_text() == "print()\n"
    assert (copy / "train.py").stat().st_mtime_ns == 12345678912345678
    # Running it later must not change the user, and its creator must be able to remove it.
    assert stat.S_IMODE((copy / "lib" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((copy / "lib").stat().st_mode) == 0o755
    assert [path.name for path in folder.iterdir()] == ["code"]


@pytest.mark.parametrize(
    ("path", "target", "copied"),
    [
        ("now", "train.py", "train.py"),
        ("lib/up", "../train.py", "../train.py"),
        ("inside", "{root}/lib/run.sh", "lib/run.sh"),
        ("lib/data", "../../data", "{root}/../data"),
        ("absolute", "/data", "/data"),
        ("broken", "nothing", "nothing"),
    ],
)
def test_links_point_into_the_copy_or_outside(source: Path, folder: Path, path: str, target: str, copied: str) -> None:
    (source / path).symlink_to(target.format(root=source))
    expected = copied.format(root=source)
    copy = create_copy(source, folder)
    assert os.readlink(copy / path) == (os.path.normpath(expected) if ".." in target and "data" in target else expected)


def test_pipes_and_sockets_are_excluded(source: Path, folder: Path) -> None:
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(source / "s"))
        assert names(create_copy(source, folder)) == ["lib", "lib/run.sh", "train.py"]


def test_the_directory_of_the_runs_is_excluded(source: Path) -> None:
    for base, run_name in ((source / "runs", "nano"), (source, "pico")):
        folder = base / run_name
        folder.mkdir(parents=True)
        assert "train.py" in names(create_copy(source, folder))
        assert not [name for name in names(folder / "code") if run_name in name]


def test_vanished_files_are_skipped(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [*snapshot.list_entries(str(source)), snapshot.SnapshotEntry(".train.py.swp", stat.S_IFREG, 3)]
    monkeypatch.setattr(snapshot, "list_entries", lambda *_given: iter(found))
    assert names(create_copy(source, folder)) == ["lib", "lib/run.sh", "train.py"]


def test_a_constantly_changing_file_is_refused_without_leftovers(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.lseek

    def seek(descriptor: int, *rest: int) -> int:
        with (source / "train.py").open("a") as stream:
            stream.write("x")
        return real(descriptor, *rest)

    monkeypatch.setattr(os, "lseek", seek)
    with pytest.raises(HostStateError, match=r"train.py keeps changing"):
        create_copy(source, folder)
    assert list(folder.iterdir()) == []


def test_an_oversized_source_is_refused_with_its_largest_entries(source: Path) -> None:
    with (source / "weights.bin").open("wb") as stream:
        stream.truncate(300 << 20)
    with pytest.raises(
        InputError, match=r"has 300 MiB, more than the limit of 256 MiB .*\(weights.bin 300 MiB, .*--code-limit"
    ):
        snapshot.check_source(str(source), ["python3"], "/", snapshot.DEFAULT_LIMIT_MIB)
    snapshot.check_source(str(source), ["python3"], "/", 301)


def test_a_file_that_grows_during_the_copy_is_refused(source: Path, folder: Path) -> None:
    with (source / "log").open("wb") as stream:
        stream.truncate(2 << 20)
    with pytest.raises(InputError, match="has grown in the meantime"):
        snapshot.create_snapshot(str(source), str(folder), 1)
    assert list(folder.iterdir()) == []


def test_a_relative_command_must_exist_in_the_code(source: Path) -> None:
    snapshot.check_source(str(source), ["lib/run.sh"], "/", 1)
    snapshot.check_source(str(source), ["./run.sh"], str(source / "lib"), 1)
    for wrong in ("./run.sh", "./train.py"):
        with pytest.raises(InputError, match="has no command"):
            snapshot.check_source(str(source), [wrong], "/", 1)
    with pytest.raises(InputError, match="is not a directory"):
        snapshot.check_source(str(source / "train.py"), ["true"], "/", 1)


def test_where_the_command_starts(source: Path) -> None:
    def begin(directory: str) -> str:
        return snapshot.start_directory(str(source), directory, "/runs/nano")

    assert begin(str(source)) == begin("/elsewhere") == begin(f"{source}-2") == "/runs/nano/code"
    assert begin(str(source / "lib")) == "/runs/nano/code/lib"


def test_the_git_commit_is_recorded(source: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        subprocess.run(["git", "-C", str(source), *identity, *arguments], check=True, capture_output=True)

    (source / ".git" / "HEAD").unlink()
    (source / ".git").rmdir()
    assert snapshot.git_commit(run, str(source)) == ""
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "x")
    git("tag", "-a", "v1", "-m", "x")
    clean = snapshot.git_commit(run, str(source))
    assert len(clean) == 40
    (source / "train.py").write_text("print(1)\n")
    assert snapshot.git_commit(run, str(source)) == f"{clean}-dirty"


def test_without_git_the_commit_is_empty() -> None:
    def missing(argv: list[str], **_options: object) -> CommandResult:
        raise CommandError(argv, "cannot be run")

    assert snapshot.git_commit(missing, "/x") == ""
