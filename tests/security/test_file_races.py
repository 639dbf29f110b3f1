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

_RACE_SECONDS = float(os.environ.get("GPUMESH_RACE_SECONDS", "3"))
_SECRET_TEXT = "root's alone\n"

#: A program that puts a link where a file of root has just appeared, and a file of its own back.
_SWAP_FILE_PROGRAM = """
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
_SWAP_DIRECTORY_PROGRAM = """
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
_SWAP_PROBE_PROGRAM = """
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


class RaceGround(NamedTuple):
    """A directory of a user, and a file and a directory of root that the user would like to have."""

    user: str
    uid: int
    home: Path
    file: Path
    directory: Path

    def find_gains(self) -> list[str]:
        """Return what the user has gained by now."""
        gains = []
        file_status = self.file.stat()
        if (file_status.st_uid, stat.S_IMODE(file_status.st_mode)) != (0, 0o600):
            gains.append(f"the file belongs to {file_status.st_uid} with mode {file_status.st_mode & 0o7777:o}")
        if self.file.read_text() != _SECRET_TEXT:
            gains.append("the file was overwritten")
        if self.directory.stat().st_uid != 0 or os.listdir(self.directory) != ["precious"]:
            gains.append(f"the folder belongs to {self.directory.stat().st_uid}: {os.listdir(self.directory)}")
        # The user may remove files meanwhile, or make us look at files of root by a link.
        with contextlib.suppress(OSError):
            for _path, _directories, names, directory_descriptor in os.fwalk(self.home):
                gains += [
                    f"{name} has what only root could read" for name in names if _is_leak(name, directory_descriptor)
                ]
        return gains


def _is_leak(name: str, directory_descriptor: int) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory_descriptor)
    except OSError:
        return False
    with open(descriptor, "rb") as stream:
        return os.fstat(descriptor).st_uid != 0 and _SECRET_TEXT.encode() in stream.read()


@pytest.fixture
def ground(attacker: pwd.struct_passwd) -> Iterator[RaceGround]:
    uid = attacker.pw_uid
    with tempfile.TemporaryDirectory(prefix="gpumesh-race-", dir="/var/tmp") as base:
        os.chmod(base, 0o755)
        home, directory, file = Path(base, "home"), Path(base, "folder"), Path(base, "file")
        home.mkdir()
        directory.mkdir()
        (directory / "precious").write_text(_SECRET_TEXT)
        file.write_text(_SECRET_TEXT)
        file.chmod(0o600)
        (directory / "precious").chmod(0o600)
        os.chown(home, uid, uid)
        yield RaceGround(attacker.pw_name, uid, home, file, directory)


def run_race(ground: RaceGround, program: str, arguments: list[str], work: Callable[[], object]) -> list[str]:
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
    gains, deadline = ground.find_gains(), time.monotonic() + _RACE_SECONDS
    try:
        while time.monotonic() < deadline and not gains:
            # The user can spoil what is done for that user only.
            with contextlib.suppress(GpumeshError, OSError):
                work()
            gains = ground.find_gains()
    finally:
        os.kill(attacker, signal.SIGKILL)
        os.waitpid(attacker, 0)
    return gains


def apply_entry(entry: dict[str, object]) -> None:
    for desired in managed_files.parse_entries([entry]):
        step = managed_files.plan_change(
            desired, managed_files.read_current(desired.path), managed_files.resolve_owner(desired)
        )
        if step is not None:
            managed_files.apply_file_change(step)


def test_file_of_a_user_gives_no_access_to_files_of_root(ground: RaceGround) -> None:
    path = ground.home / "authorized_keys"
    turns = iter(range(1_000_000))

    def work() -> None:
        apply_entry(
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
    assert run_race(ground, _SWAP_FILE_PROGRAM, [str(path), str(ground.file)], work) == []


def test_directory_of_a_user_gives_no_access_to_directories_of_root(ground: RaceGround) -> None:
    ssh = ground.home / ".ssh"
    turns = iter(range(1_000_000))

    def work() -> None:
        apply_entry({"path": str(ssh), "state": "directory", "owner": ground.user, "mode": f"07{next(turns) % 4}0"})
        apply_entry({"path": str(ssh / "authorized_keys"), "content": str(next(turns)), "owner": ground.user})

    work()
    assert run_race(ground, _SWAP_DIRECTORY_PROGRAM, [str(ssh), str(ground.directory)], work) == []


def test_volume_of_a_user_gives_no_access_to_files_of_root(ground: RaceGround) -> None:
    limits = probe.ProbeLimits(1 << 20, 3, 5, 100)

    def work() -> None:
        run_with_deadline(partial(probe.write_and_measure, str(ground.home), "run", "n1", 1, limits), 20)
        run_with_deadline(partial(probe.check_members, str(ground.home), "run", ["n1"], "n1", limits), 20)
        run_with_deadline(partial(probe.remove_own_files, str(ground.home), "run", "n1"), 20)

    assert run_race(ground, _SWAP_PROBE_PROGRAM, [str(ground.home), str(ground.file)], work) == []


def test_directory_of_root_on_a_volume_survives_the_check(ground: RaceGround) -> None:
    """The user gives it the name that the check gives to its own."""
    theirs = ground.home / ".gpumesh-check-old-n1"
    theirs.mkdir()
    (theirs / "precious").write_text(_SECRET_TEXT)
    os.utime(theirs, (0, 0))
    limits = probe.ProbeLimits(0, 0, 5, 100)
    run_with_deadline(partial(probe.write_and_measure, str(ground.home), "run", "n1", 1, limits), 20)
    run_with_deadline(partial(probe.remove_own_files, str(ground.home), "old", "n1"), 20)
    assert (theirs / "precious").read_text() == _SECRET_TEXT
