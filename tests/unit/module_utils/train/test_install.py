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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences
from ansible_collections.gpumesh.cluster.plugins.module_utils.layers import NOT_SET_UP, compare_modules
from ansible_collections.gpumesh.cluster.plugins.module_utils.supplied import outdated
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import install, paths, profile
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.programs import digests, packed
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.train import contents

WANTED = {
    "state": "present",
    "volumes": ["/mnt/shared"],
    "run_dir": "",
    "stage_dir": "/var/tmp/gpumesh-{user}",
    "digests": digests(contents()),
}
SENT = {name: packed(content) for name, content in contents().items()}


@pytest.fixture(name="place", autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "PATH", str(tmp_path / "bin" / "gpumesh-train"))
    monkeypatch.setattr(paths, "TRACE_PATH", str(tmp_path / "bin" / "gpumesh-trace"))
    monkeypatch.setattr(paths, "LIBRARY", str(tmp_path / "lib" / "gpumesh" / "python"))
    return tmp_path


def bring_about(**changes: str) -> None:
    for part in install.parts({**WANTED, "contents": SENT, **changes}).values():
        part.apply()


def test_the_controller_has_the_modules_that_a_run_has() -> None:
    modules = {name: content.decode() for name, content in contents().items() if name.endswith(".py")}
    assert modules == profile.modules()


def test_a_host_lacks_only_what_differs() -> None:
    def lacking(**changes: str) -> list[str]:
        return outdated(install.parts({**WANTED, **changes}).values())

    assert lacking() == list(SENT)
    assert lacking(state="absent") == []
    bring_about()
    assert lacking() == []
    for name in ("gpumesh_track.py", "gpumesh_run.py"):
        Path(paths.LIBRARY, name).write_text("")
        assert lacking() == sorted({name, "gpumesh_track.py"})
    # The settings are in the programs, but not among their sources.
    assert lacking(run_dir="/mnt/other") == ["gpumesh_run.py", "gpumesh_track.py"]


def test_a_host_is_compared_with_the_programs_that_the_module_writes(place: Path) -> None:
    assert compare_modules(run, {"train": WANTED}) == {"train": NOT_SET_UP}
    bring_about()
    assert install.differences(run, WANTED) == Differences([], False)
    both = [f"{place}/bin/gpumesh-{name} differs" for name in ("train", "trace")]
    assert compare_modules(run, {"train": {**WANTED, "run_dir": "/mnt/other"}}) == {"train": ", ".join(both)}
    library = Path(paths.LIBRARY)
    (place / "bin" / "gpumesh-trace").chmod(0o644)
    (library / "gpumesh_run.py").unlink()
    expected = [f"{place}/bin/gpumesh-trace differs", f"{library}/gpumesh_run.py is missing"]
    assert install.differences(run, WANTED) == Differences(expected, False)
    bring_about(state="absent")
    assert sorted(path.name for path in place.rglob("*")) == ["bin", "lib"]
    assert install.differences(run, {**WANTED, "state": "absent"}) == Differences([], False)


def test_what_others_have_beside_the_modules_stays(place: Path) -> None:
    library = Path(paths.LIBRARY)
    bring_about()
    # As left by a program of root that has imported both.
    compiled = library / "__pycache__"
    compiled.mkdir()
    for name in ("gpumesh_run.cpython-311.pyc", "other.cpython-311.pyc"):
        (compiled / name).touch()
    (library / "other.py").touch()
    bring_about(state="absent")
    assert sorted(path.name for path in library.rglob("*")) == ["__pycache__", "other.cpython-311.pyc", "other.py"]
    for path in (compiled / "other.cpython-311.pyc", library / "other.py"):
        path.unlink()
    # No differing file is left, and the folders are removed as well.
    assert install.differences(run, {**WANTED, "state": "absent"}) == Differences([], False)
    bring_about(state="absent")
    assert not list((place / "lib").iterdir())


def test_gpumesh_trace_starts_a_program_with_the_modules_that_are_installed(place: Path) -> None:
    bring_about()
    code = "import gpumesh_run; gpumesh_run.progress(1); print(gpumesh_run.__file__)"
    argv = [str(place / "bin" / "gpumesh-trace"), "record", "--", sys.executable, "-c", code]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GPUMESH_", "PYTHON"))}
    done = subprocess.run(argv, env=variables, cwd=place, capture_output=True, text=True, check=False, timeout=240)
    assert (done.returncode, done.stdout) == (0, f"{paths.LIBRARY}/gpumesh_run.py\n"), done.stderr
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
