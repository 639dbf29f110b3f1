# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Root works in a directory of a user while that user swaps files and directories for links. The user gains nothing.

Each race lasts GPUMESH_RACE_SECONDS, 3 by default: 30 for a thorough test.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.subprocess_deadline import run_with_deadline
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import probe

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="not checked: only root can be attacked by a user")

_SECONDS = float(os.environ.get("GPUMESH_RACE_SECONDS", "3"))
_SECRET = "root's alone\n"

#: A program that puts a link where a file of root has just appeared, and a file of its own back.
_SWAP_FILE = """
path, target = paths
beside, last = path + ".mine", None
while True:
    try:
        inode = os.lstat(path).st_ino
        if inode != last:
            os.symlink(target, beside)
            os.rename(beside, path)
            for _turn in range(200):
                os.lstat(path)
            with open(beside, "w") as stream:
                stream.write("mine\\n")
            last = os.stat(beside).st_ino
            os.rename(beside, path)
    except OSError:
        if os.path.lexists(beside):
            os.unlink(beside)
"""

#: A program that puts a directory of its own and a link to one of root in turn.
_SWAP_FOLDER = """
path, target = paths
while True:
    try:
        os.rename(path, path + ".mine")
        os.symlink(target, path)
        os.unlink(path)
        os.rename(path + ".mine", path)
    except OSError:
        if os.path.islink(path):
            os.unlink(path)
"""

#: A program that removes the directory that the check has just created, and puts one of its own there, full of links.
_SWAP_PROBE = """
folder, target = paths
path, number = folder + "/.gpumesh-check-run-n1", 0
while True:
    number += 1
    try:
        os.mkdir(f"{folder}/mine{number}")
        for each in ("token", "lock", "data", "files"):
            os.symlink(target, f"{folder}/mine{number}/{each}")
        while True:
            try:
                os.rename(path, f"{folder}/theirs{number}")
                break
            except OSError:
                pass
        os.rename(f"{folder}/mine{number}", path)
        for _turn in range(2000):
            os.lstat(path)
        os.rename(path, f"{folder}/done{number}")
    except OSError:
        pass
"""


class Ground(NamedTuple):
    """A directory of a user, and a file and a directory of root that the user would like to have."""

    user: str
    uid: int
    home: Path
    file: Path
    folder: Path

    def gained(self) -> list[str]:
        """Return what the user has gained by now."""
        found = []
        about = self.file.stat()
        if (about.st_uid, stat.S_IMODE(about.st_mode)) != (0, 0o600):
            found.append(f"the file belongs to {about.st_uid} with mode {about.st_mode & 0o7777:o}")
        if self.file.read_text() != _SECRET:
            found.append("the file was overwritten")
        if self.folder.stat().st_uid != 0 or os.listdir(self.folder) != ["precious"]:
            found.append(f"the folder belongs to {self.folder.stat().st_uid}: {os.listdir(self.folder)}")
        # The user may remove files meanwhile, or make us look at files of root by a link.
        with contextlib.suppress(OSError):
            for _path, _folders, names, folder in os.fwalk(self.home):
                found += [f"{name} has what only root could read" for name in names if _leaks(name, folder)]
        return found


def _leaks(name: str, folder: int) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return False
    with open(descriptor, "rb") as stream:
        return os.fstat(descriptor).st_uid != 0 and _SECRET.encode() in stream.read()


@pytest.fixture
def ground(attacker: pwd.struct_passwd) -> Iterator[Ground]:
    uid = attacker.pw_uid
    with tempfile.TemporaryDirectory(prefix="gpumesh-race-", dir="/var/tmp") as base:
        os.chmod(base, 0o755)
        home, folder, file = Path(base, "home"), Path(base, "folder"), Path(base, "file")
        home.mkdir()
        folder.mkdir()
        (folder / "precious").write_text(_SECRET)
        file.write_text(_SECRET)
        file.chmod(0o600)
        (folder / "precious").chmod(0o600)
        os.chown(home, uid, uid)
        yield Ground(attacker.pw_name, uid, home, file, folder)


def race(ground: Ground, program: str, arguments: list[str], work: Callable[[], object]) -> list[str]:
    """Do the work as root while the user runs the program, until the first gain. Returns what the user has gained."""
    attacker = os.fork()
    if not attacker:
        try:
            os.setgroups([])
            os.setgid(ground.uid)
            os.setuid(ground.uid)
            exec(program, {"os": os, "paths": arguments})
        finally:
            os._exit(1)
    gained, end = ground.gained(), time.monotonic() + _SECONDS
    try:
        while time.monotonic() < end and not gained:
            # The user can spoil what is done for that user only.
            with contextlib.suppress(GpumeshError, OSError):
                work()
            gained = ground.gained()
    finally:
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
    return gained


def settle(entry: dict[str, object]) -> None:
    for wanted in managed_files.parse_entries([entry]):
        step = managed_files.plan_change(
            wanted, managed_files.read_current(wanted.path), managed_files.resolve_owner(wanted)
        )
        if step is not None:
            managed_files.apply_file_change(step)


def test_a_file_of_a_user_is_no_way_to_one_of_roots(ground: Ground) -> None:
    path = ground.home / "authorized_keys"
    turns = iter(range(1_000_000))

    def work() -> None:
        settle(
            {
                "path": str(path),
                "state": "block",
                "marker": "# {mark}",
                "content": f"key {next(turns)}",
                "owner": ground.user,
                "mode": f"06{next(turns) % 4}0",
            }
        )

    work()
    assert race(ground, _SWAP_FILE, [str(path), str(ground.file)], work) == []


def test_a_folder_of_a_user_is_no_way_to_one_of_roots(ground: Ground) -> None:
    ssh = ground.home / ".ssh"
    turns = iter(range(1_000_000))

    def work() -> None:
        settle({"path": str(ssh), "state": "directory", "owner": ground.user, "mode": f"07{next(turns) % 4}0"})
        settle({"path": str(ssh / "authorized_keys"), "content": str(next(turns)), "owner": ground.user})

    work()
    assert race(ground, _SWAP_FOLDER, [str(ssh), str(ground.folder)], work) == []


def test_a_volume_of_a_user_is_no_way_to_a_file_of_roots(ground: Ground) -> None:
    limits = probe.ProbeLimits(1 << 20, 3, 5, 100)

    def work() -> None:
        run_with_deadline(partial(probe.write_and_measure, str(ground.home), "run", "n1", 1, limits), 20)
        run_with_deadline(partial(probe.check_members, str(ground.home), "run", ["n1"], "n1", limits), 20)
        run_with_deadline(partial(probe.remove_own_files, str(ground.home), "run", "n1"), 20)

    assert race(ground, _SWAP_PROBE, [str(ground.home), str(ground.file)], work) == []


def test_a_folder_of_roots_on_a_volume_outlives_the_check(ground: Ground) -> None:
    """The user gives it the name that the check gives to its own."""
    theirs = ground.home / ".gpumesh-check-old-n1"
    theirs.mkdir()
    (theirs / "precious").write_text(_SECRET)
    os.utime(theirs, (0, 0))
    limits = probe.ProbeLimits(0, 0, 5, 100)
    run_with_deadline(partial(probe.write_and_measure, str(ground.home), "run", "n1", 1, limits), 20)
    run_with_deadline(partial(probe.remove_own_files, str(ground.home), "old", "n1"), 20)
    assert (theirs / "precious").read_text() == _SECRET
