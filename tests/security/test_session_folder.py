# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attacks on what root creates for the job of a session: filling /run, on which all of the host depends."""

from __future__ import annotations

import fcntl
import os
import pwd
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import models, node, trash
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

NODE_SETTINGS = SessionSettings("n1", "n1", "lo", {"n1": "127.0.0.1"}, ["10.192.0.0/10"], [], False, [], [], [], "/x")
JOB_IDS = (900601, 900602)
#: A program that fills the working directory with data, and then with files, and prints what stopped it.
_FILL_PROGRAM = """
import os
def fill(step, most):
    for number in range(most):
        try:
            step(number)
        except OSError as failure:
            return os.strerror(failure.errno)
    return "nothing"
def data(number):
    with open("data", "ab") as stream:
        stream.write(bytes(1 << 20))
print(fill(data, 256), "and", fill(lambda number: open(f"f{number}", "x").close(), 40000))
"""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="file systems are root's to mount")


@pytest.fixture(name="folders")
def _folders(attacker: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[Path]]:
    """Create the directories of two jobs, the first of which is the attacker's."""
    monkeypatch.setattr(node, "start_watching", lambda _run: None)
    for name in ("RUN_DIRECTORY", "STORAGE_ROOT", "_NAMESPACE_DIRECTORY"):
        monkeypatch.setattr(node, name, str(tmp_path / name))
    try:
        yield [start_job(job, attacker.pw_uid) for job in JOB_IDS]
    finally:
        for job in JOB_IDS:
            node.epilog(run, {"SLURM_JOB_ID": str(job)})


def start_job(job_id: int, uid: int, settings: SessionSettings = NODE_SETTINGS) -> Path:
    slurm_variables = {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_UID": str(uid), "SLURM_JOB_NODELIST": "n1"}
    node.prolog(run, settings, {**slurm_variables, node.SESSION_VARIABLE: "-;x;main;1"})
    return Path(node.job_directory(job_id))


def test_job_cannot_fill_run(folders: list[Path], attacker: pwd.struct_passwd) -> None:
    command = ["setpriv", f"--reuid={attacker.pw_uid}", "--clear-groups", sys.executable, "-I", "-c", _FILL_PROGRAM]
    completed = subprocess.run(command, cwd=folders[0] / "0", capture_output=True, text=True, check=True)
    assert completed.stdout == "No space left on device and No space left on device\n"
    assert len({os.stat(path).st_dev for path in (*folders, "/run")}) == 3
    # The jobs of others, and what root does on the node, go on.
    (folders[1] / "0" / "file").write_bytes(bytes(1 << 20))
    assert node.read_plan(JOB_IDS[1])["here"] == ["main1"]
    node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
    assert not folders[0].exists()
    assert str(folders[0]) not in Path("/proc/self/mountinfo").read_text()
    assert start_job(JOB_IDS[0], attacker.pw_uid).exists()


def test_directory_is_removed_with_its_job_while_open(folders: list[Path], attacker: pwd.struct_passwd) -> None:
    """A process elsewhere may have it open."""
    descriptor = os.open(folders[0] / "0", os.O_RDONLY)
    try:
        node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
        assert not folders[0].exists()
    finally:
        os.close(descriptor)


def test_host_that_cannot_mount_reports_it(
    folders: list[Path], attacker: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rented container: sessions with the network of their nodes run there as well."""
    node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
    monkeypatch.setattr(node, "_MOUNT_OPTIONS", "nonsense")
    assert not (start_job(JOB_IDS[0], attacker.pw_uid) / "plan.json").exists()
    with pytest.raises(Exception, match="No file system can be mounted at"):
        node.read_plan(JOB_IDS[0])
    monkeypatch.setattr(node, "has_capability", lambda _status, _number: False)
    assert (start_job(JOB_IDS[0], attacker.pw_uid) / "plan.json").exists()
    assert "Nothing can be mounted in this container" in capfd.readouterr().err


def run_as_attacker(attacker: pwd.struct_passwd, directory: Path, code: str) -> None:
    argv = ["setpriv", f"--reuid={attacker.pw_uid}", "--clear-groups", sys.executable, "-I", "-c", code]
    subprocess.run(argv, cwd=directory, check=True)


def find_mounts_below(top_directory: str) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{top_directory}/")]


def list_trash() -> list[str]:
    return [str(path) for path in Path(node.STORAGE_ROOT).glob(".trash-*")]


@pytest.fixture(name="mounted")
def _mounted(folders: list[Path], attacker: pwd.struct_passwd) -> Iterator[Path]:
    """Mount file systems in the attacker's own directory, one in another, as with fusermount3."""
    job_directory = Path(node.storage_directory(JOB_IDS[0])) / "0"
    mount_point = job_directory / "a b\\" / "mount"
    run_as_attacker(attacker, job_directory, f"import os; os.makedirs({str(mount_point.relative_to(job_directory))!r})")
    for mount_directory in (mount_point, mount_point / "inner", mount_point):
        mount_directory.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "gpumesh-test", mount_directory], check=True)
    try:
        yield mount_point
    finally:
        for point in reversed(find_mounts_below(node.STORAGE_ROOT)):
            subprocess.run(["umount", "--lazy", point.replace("\\040", " ").replace("\\134", "\\")], check=True)


def clean_node(inspect_command: Callable[[list[str]], None]) -> None:
    """Clean up, as a run of the playbook does, and the watching process all the time."""

    def run_inspected(argv: list[str], **options: Any) -> CommandResult:
        inspect_command(argv)
        return CommandResult(0, "", "") if argv[0] == "squeue" else run(argv, **options)

    node.clean_up(run_inspected, "n1")


def test_removal_of_job_files_delays_nobody(folders: list[Path], attacker: pwd.struct_passwd) -> None:
    """The end of the job and the prolog of another do not wait: the removal of files takes minutes."""
    job_directory = Path(node.storage_directory(JOB_IDS[0])) / "0"
    run_as_attacker(attacker, job_directory, "for number in range(500): open(str(number), 'x').close()")
    node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
    assert not job_directory.exists()
    start_job(JOB_IDS[0], attacker.pw_uid)
    (trash_path,) = list_trash()
    assert len(os.listdir(f"{trash_path}/0")) == 500
    ionice_used: list[bool] = []

    def inspect_command(argv: list[str]) -> None:
        if trash_path in argv:
            with open(f"{node.RUN_DIRECTORY}/.lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ionice_used.append("ionice" in argv)

    clean_node(inspect_command)
    assert (list_trash(), ionice_used) == ([], [True])


def test_mounts_of_a_user_are_removed_with_the_job(mounted: Path) -> None:
    node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
    assert not Path(node.storage_directory(JOB_IDS[0])).exists()
    clean_node(lambda _argv: None)
    assert (list_trash(), find_mounts_below(node.STORAGE_ROOT)) == ([], [])


def test_root_unmounts_nothing_outside_the_job_directory(
    mounted: Path, attacker: pwd.struct_passwd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user replaces the directory above a mount point, which is known by its path, with a link."""
    elsewhere = tmp_path / "mount"
    elsewhere.mkdir()
    node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
    (trash_path,) = list_trash()
    above = Path(trash_path, "0", mounted.parent.name)
    points = trash._mount_points(os.fsencode(trash_path))
    subprocess.run(["mount", "-t", "tmpfs", "gpumesh-test", elsewhere], check=True)
    try:
        above.rename(above.with_name("moved"))
        above.symlink_to(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(trash, "_mount_points", lambda _top: points)
            trash.remove_discarded(run, [node.STORAGE_ROOT])
        assert os.path.ismount(elsewhere)
    finally:
        subprocess.run(["umount", elsewhere], check=True)
    trash.remove_discarded(run, [node.STORAGE_ROOT])
    assert list_trash() == []


def test_directory_of_another_user_cannot_be_taken(
    attacker: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first session of the other user starts later."""
    monkeypatch.setattr(node, "start_watching", lambda _run: None)
    monkeypatch.setattr(node, "STORAGE_ROOT", str(tmp_path / "session"))
    monkeypatch.setattr(node, "RUN_DIRECTORY", str(tmp_path / "run"))
    settings = NODE_SETTINGS._replace(
        storage=models.DEFAULT_STORAGE_DIR.replace(models.STORAGE_ROOT, node.STORAGE_ROOT)
    )
    tmp_path.chmod(0o755)
    victim = pwd.getpwnam("nobody")
    path = settings.storage.replace("{user}", victim.pw_name)
    squat_program = f"import os; os.makedirs({path!r}, exist_ok=True)"
    command = ["setpriv", f"--reuid={attacker.pw_uid}", "--clear-groups", sys.executable, "-I", "-c", squat_program]
    try:
        for account in (attacker, victim):
            start_job(JOB_IDS[0], account.pw_uid, settings)
            assert os.stat(settings.storage.replace("{user}", account.pw_name)).st_uid == account.pw_uid
            if account is attacker:
                completed = subprocess.run(command, capture_output=True, text=True, check=False)
                assert "PermissionError" in completed.stderr
    finally:
        node.epilog(run, {"SLURM_JOB_ID": str(JOB_IDS[0])})
