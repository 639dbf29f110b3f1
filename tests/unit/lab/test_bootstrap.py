# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What `lab/bootstrap engine` installs beside an engine that is there, on a machine whose commands are scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from module_runs import write_programs

BOOTSTRAP = Path(__file__).resolve().parents[3] / "lab" / "bootstrap"
USED = ("cat", "cut", "date", "dirname", "grep", "mktemp", "rm", "sh", "sleep", "tail", "tr")


def engine(folder: Path, installed: str, **commands: str) -> tuple[int, str, list[str]]:
    """Run it where these packages are installed. Returns the exit status, the output and what apt-get was called with."""
    calls = folder / "calls"
    calls.touch()
    scripts = {
        "id": "echo 0",
        "dpkg-query": f'case " {installed} " in *" $3 "*) echo installed;; esac',
        "apt-get": f'echo "$@" >> {calls}; exit 1',
        **commands,
    }
    programs = write_programs(folder / "bin", scripts)
    for name in USED:
        (programs / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [str(programs / "sh"), str(BOOTSTRAP), "engine"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr, calls.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("commands", [{"docker": "exit 0"}, {"docker": "exit 0", "dockerd": "exit 0"}])
def test_an_engine_that_answers_is_used_as_it_is(tmp_path: Path, commands: dict[str, str]) -> None:
    assert engine(tmp_path, "iproute2 mmdebstrap containerd.io", **commands) == (0, "", [])


def test_without_one_debians_is_installed(tmp_path: Path) -> None:
    code, output, calls = engine(tmp_path, "iproute2 mmdebstrap")
    assert code == 1 and "could not install docker.io" in output
    assert calls == ["update -q"]


def test_what_conflicts_with_debians_is_named(tmp_path: Path) -> None:
    code, output, calls = engine(tmp_path, "iproute2 mmdebstrap containerd.io")
    assert code == 1 and calls == []
    assert "containerd.io is installed without Docker. Install docker-ce" in output
