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
_VICTIM = """
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


def start(victim: str, *words: object) -> list[str]:
    """Start a run as the victim. Returns what it has found."""
    account = pwd.getpwnam(victim)
    command = ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    command += [sys.executable, "-c", _VICTIM, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=_variables())
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def _variables() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(name="places")
def _places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Create a volume and a local directory in which everybody can create directories, and data."""
    for path in (tmp_path, *tmp_path.parents):
        path.chmod(path.stat().st_mode | 0o011)
        if path.parent == Path("/"):
            break
    made = (tmp_path / "volume", tmp_path / "local", tmp_path / "data")
    for path in made:
        path.mkdir()
    for path in made[:2]:
        path.chmod(0o1777)
    made[2].chmod(0o755)
    (made[2] / "shard").write_text("data", encoding="ascii")
    return made


@pytest.mark.parametrize("kind", ["directory", "open directory", "link", "file"])
def test_a_user_whose_names_another_has_taken_runs_and_copies_data(
    places: tuple[Path, Path, Path], attacker: pwd.struct_passwd, kind: str
) -> None:
    volume, local, data = places
    victim = "nobody"
    for path in (volume / victim, local / f"gpumesh-{victim}"):
        for taken in (path, path.with_name(f"{path.name}.aaaaaaaa")):
            if kind == "file":
                taken.touch()
            elif kind == "link":
                taken.symlink_to(volume)
            else:
                taken.mkdir()
                taken.chmod(0o777 if kind == "open directory" else 0o700)
            os.chown(taken, attacker.pw_uid, attacker.pw_gid, follow_symlinks=False)
    runs, again, copy, failure = start(victim, volume, local, data, "nano")
    assert not failure
    assert (Path(copy) / "shard").read_text() == "data"
    assert Path(copy).parents[2] == local
    assert runs == again
    assert Path(runs).parents[1] == volume
    for path, mode in ((Path(runs).parent, 0o755), (Path(copy).parents[1], 0o700)):
        about = path.lstat()
        assert (about.st_uid, stat.S_IMODE(about.st_mode)) == (pwd.getpwnam(victim).pw_uid, mode)
    # Later runs find the same directories.
    assert start(victim, volume, local, data, "giga") == [runs, runs, copy, ""]


def test_a_user_has_the_names_that_nobody_has_taken(places: tuple[Path, Path, Path]) -> None:
    volume, local, data = places
    runs, again, copy, failure = start("nobody", volume, local, data, "nano")
    assert (runs, again, failure) == (f"{volume}/nobody/runs", runs, "")
    assert Path(copy).parents[1] == local / "gpumesh-nobody"
    assert sorted(path.name for path in local.iterdir()) == ["gpumesh-nobody"]


def test_a_directory_that_only_an_administrator_could_create_is_used_as_it_is(tmp_path: Path) -> None:
    """Nobody can have taken its name, and it may be that of a group."""
    (tmp_path / "team").mkdir()
    os.chown(tmp_path / "team", 1234, 1234)
    tmp_path.chmod(0o755)
    assert stage.find_private_dir(str(tmp_path / "team"), 0o700) == str(tmp_path / "team")
    assert [path.name for path in tmp_path.iterdir()] == ["team"]
