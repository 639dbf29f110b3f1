# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which other playbooks of a user test reachability at the same time, from the files in their temporary folders."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability import find_concurrent_runs


def make_directory(parent: Path, name: str) -> Path:
    directory = parent / name
    directory.mkdir()
    return directory


def test_active_runs_of_other_playbooks_are_listed(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    own = make_directory(tmp_path, "own")
    (make_directory(tmp_path, "other") / f"gpumesh-run.cafe.{os.getppid()}").touch()
    (make_directory(tmp_path, "ended") / f"gpumesh-run.dead.{ended.pid}").touch()
    (make_directory(tmp_path, "plain") / "source").touch()
    (tmp_path / "file").touch()
    assert find_concurrent_runs("beef", own, os.getpid()) == ["cafe"]
    # Its own run is visible to others.
    assert find_concurrent_runs("cafe", make_directory(tmp_path, "third"), os.getppid()) == ["beef"]


def test_vanishing_temporary_directories_are_ignored(tmp_path: Path) -> None:
    own = make_directory(tmp_path, "own")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            for number in range(50):
                (tmp_path / f"other-{number}").mkdir()
            for number in range(50):
                (tmp_path / f"other-{number}").rmdir()

    coming = threading.Thread(target=come_and_go)
    coming.start()
    try:
        for number in range(300):
            assert find_concurrent_runs(f"run{number}", own, os.getpid()) == []
    finally:
        over.set()
        coming.join()
