# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attacks on the names of directories: where all users can create some, another user takes that of the victim first."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import stage

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="attacks need accounts")

#: A program that starts a run, and copies its data, as gpumesh-train does. It prints both directories, and what was
#: wrong.
_VICTIM_PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import stage
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import RunRequest
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.store import RunDirectory
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.settings import TrainSettings
volume, local, data, name = sys.argv[1:]
settings = TrainSettings({"volumes": [volume], "run_dir": "", "stage_dir": local + "/gpumesh-{user}"})
found = settings.runs_dir("", True)
folder = f"{found}/{name}"
RunDirectory(folder).create(RunRequest(name=name, command=["true"], folder=folder))
stage.write_manifest(folder, stage.build_manifest(data))
staging = stage.Staging(stage.read_manifest(folder), settings.staging_dir(""), folder)
staging.start()
staging._thread.join(60)
staging.stop()
print(json.dumps([found, settings.runs_dir(""), staging.data_path, str(staging.failure or "")]))
"""


def run_as_victim(victim: str, *arguments: object) -> list[str]:
    """Start a run as the victim. Returns what it has found."""
    account = pwd.getpwnam(victim)
    command = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    command += [sys.executable, "-c", _VICTIM_PROGRAM, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=_victim_environment())
    assert completed.returncode == 0, completed.stderr
    run_paths: list[str] = json.loads(completed.stdout)
    return run_paths


def _victim_environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(name="data_paths")
def _data_paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Create a volume and a local directory in which everybody can create directories, and data."""
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o011)
        if path.parent == Path("/"):
            break
    created = (tmp_path / "volume", tmp_path / "local", tmp_path / "data")
    for path in created:
        path.mkdir()
    for path in created[:2]:
        path.chmod(0o1777)
    created[2].chmod(0o755)
    (created[2] / "shard").write_text("data", encoding="ascii")
    return created


@pytest.mark.parametrize("kind", ["directory", "open directory", "link", "file"])
def test_user_with_squatted_names_can_run_and_copy_data(
    data_paths: tuple[Path, Path, Path], attacker: pwd.struct_passwd, kind: str
) -> None:
    volume, local, data = data_paths
    victim = "nobody"
    for path in (volume / victim, local / f"gpumesh-{victim}"):
        for squatted_path in (path, path.with_name(f"{path.name}.aaaaaaaa")):
            if kind == "file":
                squatted_path.touch()
            elif kind == "link":
                squatted_path.symlink_to(volume)
            else:
                squatted_path.mkdir()
                squatted_path.chmod(0o777 if kind == "open directory" else 0o700)
            os.chown(squatted_path, attacker.pw_uid, attacker.pw_gid, follow_symlinks=False)
    runs, runs_again, copied_data, failure = run_as_victim(victim, volume, local, data, "nano")
    assert not failure
    assert (Path(copied_data) / "shard").read_text() == "data"
    assert Path(copied_data).parents[2] == local
    assert runs == runs_again
    assert Path(runs).parents[1] == volume
    for path, mode in ((Path(runs).parent, 0o755), (Path(copied_data).parents[1], 0o700)):
        path_status = path.lstat()
        assert (path_status.st_uid, stat.S_IMODE(path_status.st_mode)) == (pwd.getpwnam(victim).pw_uid, mode)
    # Later runs find the same directories.
    assert run_as_victim(victim, volume, local, data, "giga") == [runs, runs, copied_data, ""]


def test_user_gets_the_plain_names_if_free(data_paths: tuple[Path, Path, Path]) -> None:
    volume, local, data = data_paths
    runs, runs_again, copied_data, failure = run_as_victim("nobody", volume, local, data, "nano")
    assert (runs, runs_again, failure) == (f"{volume}/nobody/runs", runs, "")
    assert Path(copied_data).parents[1] == local / "gpumesh-nobody"
    assert sorted(path.name for path in local.iterdir()) == ["gpumesh-nobody"]


def test_directory_of_an_administrator_is_used_unchanged(tmp_path: Path) -> None:
    """Nobody can have taken its name, and it may be that of a group."""
    (tmp_path / "team").mkdir()
    os.chown(tmp_path / "team", 1234, 1234)
    tmp_path.chmod(0o755)
    assert stage.find_private_dir(str(tmp_path / "team"), 0o700) == str(tmp_path / "team")
    assert [path.name for path in tmp_path.iterdir()] == ["team"]
