# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A job of an ordinary user fills what it may write to, and lays traps for the run that takes its files along."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import parse_mountinfo
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import folder as job_folder

LIMIT_BYTES = 128 * 1024 * 1024


def run_without_systemd(argv: list[str], **options: Any) -> command.CommandResult:
    """Run a command, except for systemctl: mounts are real, but this machine may not have systemd."""
    return command.CommandResult(0, "", "") if argv[0] == "systemctl" else command.run(argv, **options)


class JobsDirectory:
    """A directory as the role creates it, in a file system of 160 MiB that stands for /run."""

    def __init__(self, top: Path, units: Path) -> None:
        self.top_directory, self.unit_directory, self.path = top, units, top / "jobs"
        self.path.mkdir()
        self.path.chmod(0o1777)

    def ensure(self, present: bool = True) -> bool:
        mounts = parse_mountinfo(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
        host = job_folder.read_mount_state(str(self.path), mounts, True, str(self.unit_directory))
        plan = job_folder.plan_jobs_mount(str(self.path), host, present)
        if plan.changed:
            assert (
                job_folder.apply_jobs_mount(run_without_systemd, plan, str(self.path), str(self.unit_directory)) == ""
            )
        return plan.changed


@pytest.fixture
def folder(attacker: pwd.struct_passwd, tmp_path: Path) -> Iterator[JobsDirectory]:
    top_directory = Path(attacker.pw_dir) / "run"
    top_directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160m,nr_inodes=65536,mode=755", "stands-for-run", str(top_directory)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        top_directory.rmdir()
        pytest.skip("nothing can be mounted here")
    jobs_directory = JobsDirectory(top_directory, tmp_path)
    try:
        yield jobs_directory
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", str(jobs_directory.path)], check=True, capture_output=True)
        subprocess.run(["umount", str(top_directory)], check=True)
        top_directory.rmdir()


def run_as_attacker(attacker: pwd.struct_passwd, script: str) -> str:
    return subprocess.run(
        ["sh", "-c", script], user=attacker.pw_uid, group=attacker.pw_gid, check=False, capture_output=True, text=True
    ).stderr


def test_job_that_fills_its_directory_leaves_space_beside_it(
    attacker: pwd.struct_passwd, folder: JobsDirectory
) -> None:
    assert folder.ensure()
    assert "No space left" in run_as_attacker(attacker, f"dd if=/dev/zero of={folder.path}/x bs=1M")
    room = os.statvfs(folder.top_directory)
    assert room.f_bavail * room.f_frsize > 20 * 1024 * 1024
    assert os.statvfs(folder.path).f_blocks * os.statvfs(folder.path).f_frsize == LIMIT_BYTES
    os.unlink(folder.path / "x")
    many = f"cd {folder.path} && seq -f %.0f.hosts 40000 | xargs touch"
    assert "No space left" in run_as_attacker(attacker, many)
    assert room.f_favail > 65536 - 1000
    # The directory is removed, and mounted again by the next run.
    assert folder.ensure(present=False)
    assert not os.path.ismount(folder.path)
    assert list(folder.path.iterdir()) == []
    assert folder.ensure()
    assert not folder.ensure()
    assert folder.path.stat().st_mode & 0o7777 == 0o1777


def test_running_jobs_keep_their_files_and_traps_are_ignored(
    attacker: pwd.struct_passwd, folder: JobsDirectory
) -> None:
    secret = folder.top_directory / "secret"
    secret.write_text("of root", encoding="utf-8")
    secret.chmod(0o600)
    traps = f"""
        cd {folder.path} && echo n1 n2 > 7.0.hosts && chmod 6640 7.0.hosts && echo n1 > 8.hosts
        ln -s {secret} 9.0.hosts; mkfifo 9.1.hosts; echo > 9.2.hosts; ln 9.2.hosts 9.6.hosts; ln -s /dev/zero 9.3.hosts
        mkdir 9.4.hosts; truncate -s 9M 9.4.hosts/filler; echo > not-a-hostfile; truncate -s 1G 9.5.hosts
        ln -s {secret} {folder.path}.new
    """
    run_as_attacker(attacker, traps)
    assert folder.ensure()
    assert sorted(os.listdir(folder.path)) == ["7.0.hosts", "8.hosts"]
    for name, text, mode in (("7.0.hosts", "n1 n2\n", 0o640), ("8.hosts", "n1\n", 0o644)):
        path = folder.path / name
        assert path.read_text(encoding="utf-8") == text
        assert (path.stat().st_uid, path.stat().st_mode & 0o7777) == (attacker.pw_uid, mode)
    assert secret.read_text(encoding="utf-8") == "of root"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert not os.path.lexists(f"{folder.path}.new")
    subprocess.run(["umount", str(folder.path)], check=True)
    assert os.listdir(folder.path) == [], "what is under the mount takes no room"
