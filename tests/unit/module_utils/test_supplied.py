# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs whose sources come from the controller: which modules import none of them, and when a host asks for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import package, supplied
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import ENTRY, Settings
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.programs import digests, packed

MODULES = Path(__file__).parents[3] / "plugins" / "modules"
ROOT = package.__name__.rpartition(".")[0]
SETTINGS = dict.fromkeys(Settings._fields, "")
CONTENTS = {"program": package.bundle(ENTRY), "one.py": b"x = 1\n"}
ASKED = {"digests": digests(CONTENTS)}
SENT = {**ASKED, "contents": {name: packed(content) for name, content in CONTENTS.items()}}


def imported(module: str) -> set[str]:
    """What is sent with a module: the modules of module_utils that it imports, and those that these import."""
    source = (MODULES / f"{module}.py").read_text(encoding="utf-8")
    found = {name for entry in package.imported(source) for name in package.sources(entry)}
    return {name[len(ROOT) + 1 :] for name in found}


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("train", {"train.install", "train.paths"}),
        ("session", {f"session.{name}" for name in ("install", "network", "node", "plan")}),
        ("layer_info", {"train.install", "train.paths", "session.install"}),
    ],
)
def test_modules_that_install_programs_import_nothing_that_only_the_programs_need(module: str, own: set[str]) -> None:
    """Ansible would parse it, and each host would compile it, in each run."""
    found = imported(module)
    assert own <= found
    assert {name for name in found if name.startswith(("train.", "trace."))} <= {"train.install", "train.paths"}
    # Those of the session remove what jobs have left, and check the settings.
    needed = ("install", "network", "node", "plan", "routing", "runtime", "shapes", "ssh", "trash")
    assert {name for name in found if name.startswith("session.")} <= {f"session.{name}" for name in needed}


def program_part(path: Path, params: dict[str, Any] | None = None, **settings: str) -> Part:
    return supplied.program_part(params or ASKED, str(path), ENTRY, {**SETTINGS, **settings})


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """Of an installed program."""
    path = tmp_path / "bin" / "program"
    program_part(path, SENT).apply()
    return path


def test_what_is_written_is_what_the_host_would_have_built(path: Path) -> None:
    built = package.build(sys.executable, ENTRY, SETTINGS)
    assert package.without_byte_code(path.read_bytes()) == built
    assert program_part(path)[:3] == (False, "", "")
    assert not package.part(str(path), built).changed
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_host_without_the_program_asks_for_it_and_writes_nothing_before(tmp_path: Path) -> None:
    path = tmp_path / "program"
    part = program_part(path)
    assert supplied.outdated([part]) == ["program"]
    assert part[:3] == (True, "", f"{path}: the program\n") == program_part(path, SENT)[:3]
    part.apply()
    assert not path.exists()


def test_the_sources_on_the_host_serve_for_other_settings(path: Path) -> None:
    part = program_part(path, machine="n2")
    assert (part.changed, part.lacks) == (True, "")
    assert part[:3] == (True, f"{path}: the previous program\n", f"{path}: the program\n")
    part.apply()
    assert not program_part(path, machine="n2").changed
    assert package.without_byte_code(path.read_bytes()) == package.build(
        sys.executable, ENTRY, {**SETTINGS, "machine": "n2"}
    )


def test_the_sources_on_the_host_serve_for_its_new_python(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/usr/bin/python3.99")
        assert (program_part(path).changed, program_part(path).lacks) == (True, "")
    monkeypatch.setattr(package, "_UNCHECKED", b"another byte code")
    part = program_part(path)
    assert (part.changed, part.lacks) == (True, "")
    part.apply()
    assert path.read_bytes() != written
    assert not program_part(path).changed


@pytest.mark.parametrize("how", ["mode", "source", "byte code", "other program", "no program"])
def test_any_other_program_is_replaced(path: Path, how: str) -> None:
    if how == "mode":
        path.chmod(0o700)
    elif how == "no program":
        path.write_bytes(b"#!/bin/sh\n")
    elif how == "other program":
        package.part(str(path), package.build(sys.executable, f"{ROOT}.names", SETTINGS)).apply()
    else:
        content = bytearray(path.read_bytes())
        name = b"session/program.py" + (b"c" if how == "byte code" else b"")
        # In the middle of the member, which is stored as it is.
        content[content.index(name) + 200] ^= 1
        path.write_bytes(bytes(content))
    assert supplied.outdated([program_part(path)]) == ["program"]
    part = program_part(path, SENT)
    assert (part.changed, part.lacks) == (True, "")
    part.apply()
    assert not program_part(path).changed


def test_a_newer_program_is_asked_for(path: Path) -> None:
    newer = package.rebundled({**package.bundled(CONTENTS["program"]), "newer.py": b""})
    params = {"digests": {"program": supplied.digest(newer)}}
    assert supplied.outdated([program_part(path, params)]) == ["program"]
    program_part(path, {**params, "contents": {"program": packed(newer)}}).apply()
    assert not program_part(path, params).changed
    assert supplied.outdated([program_part(path)]) == ["program"]


def test_a_file_is_asked_for_where_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "one.py"
    assert supplied.outdated([supplied.file_part(ASKED, str(path))]) == ["one.py"]
    supplied.file_part(SENT, str(path)).apply()
    assert path.read_bytes() == CONTENTS["one.py"] and path.stat().st_mode & 0o7777 == 0o644
    assert not supplied.file_part(ASKED, str(path)).changed
    path.chmod(0o600)
    assert supplied.file_part(ASKED, str(path)).lacks == "one.py"
    supplied.file_part(SENT, str(path)).apply()
    assert not supplied.file_part(ASKED, str(path)).changed
