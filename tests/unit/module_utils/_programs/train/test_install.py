# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs on a host: what differs from the parameters is what the module would change."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import LayerDifferences
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import encode_content, missing_contents
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import NOT_SET_UP, compare_modules
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import install, paths, rank_modules
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import source_digests
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.train import program_sources

MODULE_PARAMS = {
    "state": "present",
    "volumes": ["/mnt/shared"],
    "run_dir": "",
    "stage_dir": "/var/tmp/gpumesh-{user}",
    "digests": source_digests(program_sources()),
}
PACKED_SOURCES = {name: encode_content(content) for name, content in program_sources().items()}


@pytest.fixture(name="place", autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "PROGRAM_PATH", str(tmp_path / "bin" / "gpumesh-train"))
    monkeypatch.setattr(paths, "TRACE_PATH", str(tmp_path / "bin" / "gpumesh-trace"))
    monkeypatch.setattr(paths, "LIBRARY_DIR", str(tmp_path / "lib" / "gpumesh" / "python"))
    return tmp_path


def apply_changes(**changes: str) -> None:
    for part in install.desired_changes({**MODULE_PARAMS, "contents": PACKED_SOURCES, **changes}).values():
        part.apply()


def test_controller_has_the_modules_of_a_run() -> None:
    modules = {name: content.decode() for name, content in program_sources().items() if name.endswith(".py")}
    assert modules == rank_modules.module_sources()


def test_only_differing_files_are_outdated() -> None:
    def outdated_files(**changes: str) -> list[str]:
        return missing_contents(install.desired_changes({**MODULE_PARAMS, **changes}).values())

    assert outdated_files() == list(PACKED_SOURCES)
    assert outdated_files(state="absent") == []
    apply_changes()
    assert outdated_files() == []
    for name in ("gpumesh_track.py", "gpumesh_run.py"):
        Path(paths.LIBRARY_DIR, name).write_text("")
        assert outdated_files() == sorted({name, "gpumesh_track.py"})
    # The settings are in the programs, but not among their sources.
    assert outdated_files(run_dir="/mnt/other") == ["gpumesh_run.py", "gpumesh_track.py"]


def test_host_is_compared_with_installed_programs(place: Path) -> None:
    assert compare_modules(run, {"train": MODULE_PARAMS}).drift == {"train": NOT_SET_UP}
    apply_changes()
    assert install.find_differences(run, MODULE_PARAMS) == LayerDifferences([], False)
    both = [f"{place}/bin/gpumesh-{name} differs" for name in ("train", "trace")]
    assert compare_modules(run, {"train": {**MODULE_PARAMS, "run_dir": "/mnt/other"}}).drift == {
        "train": ", ".join(both)
    }
    library = Path(paths.LIBRARY_DIR)
    (place / "bin" / "gpumesh-trace").chmod(0o644)
    (library / "gpumesh_run.py").unlink()
    expected = [f"{place}/bin/gpumesh-trace differs", f"{library}/gpumesh_run.py is missing"]
    assert install.find_differences(run, MODULE_PARAMS) == LayerDifferences(expected, False)
    apply_changes(state="absent")
    assert sorted(path.name for path in place.rglob("*")) == ["bin", "lib"]
    assert install.find_differences(run, {**MODULE_PARAMS, "state": "absent"}) == LayerDifferences([], False)


def test_foreign_files_beside_the_modules_are_kept(place: Path) -> None:
    library = Path(paths.LIBRARY_DIR)
    apply_changes()
    # As left by a program of root that has imported both.
    compiled = library / "__pycache__"
    compiled.mkdir()
    for name in ("gpumesh_run.cpython-311.pyc", "other.cpython-311.pyc"):
        (compiled / name).touch()
    (library / "other.py").touch()
    apply_changes(state="absent")
    assert sorted(path.name for path in library.rglob("*")) == ["__pycache__", "other.cpython-311.pyc", "other.py"]
    for path in (compiled / "other.cpython-311.pyc", library / "other.py"):
        path.unlink()
    # No differing file is left, and the folders are removed as well.
    assert install.find_differences(run, {**MODULE_PARAMS, "state": "absent"}) == LayerDifferences([], False)
    apply_changes(state="absent")
    assert not list((place / "lib").iterdir())


def test_gpumesh_trace_uses_installed_modules(place: Path) -> None:
    apply_changes()
    code = "import gpumesh_run; gpumesh_run.progress(1); print(gpumesh_run.__file__)"
    argv = [str(place / "bin" / "gpumesh-trace"), "record", "--", sys.executable, "-c", code]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMESH_", "PYTHON"))}
    done = subprocess.run(argv, env=variables, cwd=place, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{paths.LIBRARY_DIR}/gpumesh_run.py\n"), done.stderr
    refused = subprocess.run(
        argv, env={**variables, "GPUMESH_PROFILE": "perf"}, capture_output=True, text=True, check=False, timeout=240
    )
    assert refused.returncode == 2 and "Invalid profile 'perf'" in refused.stderr
    recorded = subprocess.run(
        argv,
        env={**variables, "GPUMESH_PROFILE": "torch:3", "SLURM_JOB_ID": "41"},
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert recorded.returncode == 0 and (place / "profile-41").is_dir()
    assert "no profile: it needs 10 steps, and the program has made 1" in recorded.stderr
