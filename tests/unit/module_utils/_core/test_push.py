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
from program_builds import build_zipapp, push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    ENTRY_MODULE,
    SessionSettings,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import programs

MODULES = Path(__file__).parents[4] / "plugins" / "modules"
ROOT = program_archive.__name__.rpartition("._core.")[0]
SETTINGS = dict.fromkeys(SessionSettings._fields, "")
CONTENTS = {"program": programs.bundle_program(ENTRY_MODULE), "one.py": b"x = 1\n"}
CONTENT_PARAMS = push_options(CONTENTS)
DIGEST_PARAMS = {"digests": CONTENT_PARAMS["digests"]}


def list_sent_modules(module: str) -> set[str]:
    """Return what is sent with a module: the modules of module_utils that it imports, directly or indirectly."""
    source = (MODULES / f"{module}.py").read_text(encoding="utf-8")
    found = {name for entry in programs.find_imports(source) for name in programs.collect_sources(entry)}
    return {name[len(ROOT) + 1 :] for name in found}


@pytest.mark.parametrize(
    ("module", "own"),
    [
        ("train", {"_programs.train.install", "_programs.train.paths"}),
        ("session", {f"_programs.session.{name}" for name in ("install", "network", "node", "plan")}),
        ("layer_info", {"_programs.train.apply", "_programs.train.paths", "_programs.session.apply"}),
        ("slurm", {"_checks.health.settings"}),
        ("node_health_program", {"_checks.health.settings"}),
    ],
)
def test_installing_modules_do_not_import_the_programs(module: str, own: set[str]) -> None:
    """Ansible would otherwise parse the programs, and each host would compile them, in each run."""
    found = list_sent_modules(module)
    assert own <= found
    assert {name for name in found if name.startswith(("_programs.train.", "_programs.trace."))} <= {
        "_programs.train.apply",
        "_programs.train.install",
        "_programs.train.paths",
    }
    if module != "layer_info":
        assert {name for name in found if name.startswith("_checks.health.")} <= {"_checks.health.settings"}
    # The modules for sessions remove what jobs have left behind, and check the settings.
    needed = ("apply", "desired", "install", "network", "node", "plan", "routing", "runtime", "models", "ssh", "trash")
    assert {name for name in found if name.startswith("_programs.session.")} <= {
        f"_programs.session.{name}" for name in needed
    }


def plan_program(path: Path, params: dict[str, Any] | None = None, **settings: str) -> LayerChange:
    return push.program_change(params or DIGEST_PARAMS, "program", str(path), ENTRY_MODULE, {**SETTINGS, **settings})


@pytest.fixture(name="path")
def _path(tmp_path: Path) -> Path:
    """Return the path of an installed program."""
    path = tmp_path / "bin" / "program"
    plan_program(path, CONTENT_PARAMS).apply()
    return path


def test_pushed_program_equals_a_locally_built_one(path: Path) -> None:
    built = build_zipapp(sys.executable, ENTRY_MODULE, SETTINGS)
    assert program_archive.strip_bytecode(path.read_bytes()) == built
    assert plan_program(path)[:3] == (False, "", "")
    assert not program_archive.zipapp_change(str(path), built).changed
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_program_is_requested_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "program"
    part = plan_program(path)
    assert push.missing_contents([part]) == ["program"]
    assert part[:3] == (True, "", f"{path}: the program\n") == plan_program(path, CONTENT_PARAMS)[:3]
    part.apply()
    assert not path.exists()


def test_present_sources_are_reused_for_new_settings(path: Path) -> None:
    part = plan_program(path, machine="n2")
    assert (part.changed, part.missing_content) == (True, "")
    assert part[:3] == (True, f"{path}: the previous program\n", f"{path}: the program\n")
    part.apply()
    assert not plan_program(path, machine="n2").changed
    assert program_archive.strip_bytecode(path.read_bytes()) == build_zipapp(
        sys.executable, ENTRY_MODULE, {**SETTINGS, "machine": "n2"}
    )


def test_present_sources_are_reused_for_a_new_python(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/usr/bin/python3.99")
        assert (plan_program(path).changed, plan_program(path).missing_content) == (True, "")
    monkeypatch.setattr(program_archive, "_BYTECODE_HEADER", b"another byte code")
    part = plan_program(path)
    assert (part.changed, part.missing_content) == (True, "")
    part.apply()
    assert path.read_bytes() != written
    assert not plan_program(path).changed


@pytest.mark.parametrize("how", ["mode", "source", "byte code", "other program", "no program"])
def test_any_other_program_is_replaced(path: Path, how: str) -> None:
    if how == "mode":
        path.chmod(0o700)
    elif how == "no program":
        path.write_bytes(b"#!/bin/sh\n")
    elif how == "other program":
        program_archive.zipapp_change(
            str(path), build_zipapp(sys.executable, f"{ROOT}._layers.names", SETTINGS)
        ).apply()
    else:
        content = bytearray(path.read_bytes())
        name = b"session/program.py" + (b"c" if how == "byte code" else b"")
        # In the middle of the member, which is stored as it is.
        content[content.index(name) + 200] ^= 1
        path.write_bytes(bytes(content))
    assert push.missing_contents([plan_program(path)]) == ["program"]
    part = plan_program(path, CONTENT_PARAMS)
    assert (part.changed, part.missing_content) == (True, "")
    part.apply()
    assert not plan_program(path).changed


def test_newer_program_is_requested(path: Path) -> None:
    newer = program_archive.pack_sources({**program_archive.unpack_sources(CONTENTS["program"]), "newer.py": b""})
    params = {"digests": {"program": push.content_digest(newer)}}
    assert push.missing_contents([plan_program(path, params)]) == ["program"]
    plan_program(path, {**params, "contents": {"program": push.encode_content(newer)}}).apply()
    assert not plan_program(path, params).changed
    assert push.missing_contents([plan_program(path)]) == ["program"]


def test_differing_file_is_requested(tmp_path: Path) -> None:
    path = tmp_path / "lib" / "one.py"
    assert push.missing_contents([push.pushed_file_change(DIGEST_PARAMS, "one.py", str(path))]) == ["one.py"]
    push.pushed_file_change(CONTENT_PARAMS, "one.py", str(path)).apply()
    assert path.read_bytes() == CONTENTS["one.py"] and path.stat().st_mode & 0o7777 == 0o644
    assert not push.pushed_file_change(DIGEST_PARAMS, "one.py", str(path)).changed
    path.chmod(0o600)
    assert push.pushed_file_change(DIGEST_PARAMS, "one.py", str(path)).missing_content == "one.py"
    push.pushed_file_change(CONTENT_PARAMS, "one.py", str(path)).apply()
    assert not push.pushed_file_change(DIGEST_PARAMS, "one.py", str(path)).changed
