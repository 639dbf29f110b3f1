# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs as zipapps: their content, and when one is written."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

ROOT = program_archive.__name__.rpartition("._core.")[0]
MODULE_UTILS = Path(program_archive.__file__).parents[1]

#: This program needs other modules of the collection, and otherwise only the standard library.
SETTINGS = dict.fromkeys(SessionSettings._fields, "")
BUILT = program_archive.build_zipapp(sys.executable, program.__name__, SETTINGS)


def test_imports_match_those_that_python_finds() -> None:
    paths = sorted(MODULE_UTILS.rglob("*.py"))
    assert len(paths) > 100
    for path in paths:
        source = path.read_text(encoding="utf-8")
        expected = {
            name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(ROOT)
            for name in (
                [f"{node.module}.{alias.name}" for alias in node.names if is_module(f"{node.module}.{alias.name}")]
                or [str(node.module)]
            )
        }
        assert set(program_archive.find_imports(source)) == expected, path


def is_module(name: str) -> bool:
    """Whether the collection has a file or package for this module."""
    path = MODULE_UTILS.joinpath(*name[len(ROOT) + 1 :].split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_sources_are_collected_from_an_ansible_archive_without_running_them(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    folder = Path(*ROOT.split("."))
    paths = {folder / path.relative_to(MODULE_UTILS): path.read_bytes() for path in MODULE_UTILS.rglob("*.py")}
    packages = {above / "__init__.py" for path in paths for above in path.parents if above != Path()}
    with zipfile.ZipFile(archive, "w") as writer:
        for path, content in {**dict.fromkeys(packages, b""), **paths}.items():
            writer.writestr(str(path), content)
    code = (
        "import hashlib, sys\n"
        f"sys.path.insert(0, {str(archive)!r})\n"
        f"from {ROOT}._core import program_archive\n"
        f"assert program_archive.__file__.startswith({str(archive)!r})\n"
        "before = set(sys.modules)\n"
        f"built = program_archive.build_zipapp(sys.executable, {program.__name__!r}, {SETTINGS!r})\n"
        f"print(sorted(name for name in set(sys.modules) - before if name.startswith({ROOT!r})))\n"
        "print(hashlib.sha256(built).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", hashlib.sha256(BUILT).hexdigest()]


def test_missing_module_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        program_archive.collect_sources(f"{ROOT}.no_such_module")


def install_program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    program_archive.zipapp_change(str(path), BUILT).apply()
    return path


def test_program_is_written_once(tmp_path: Path) -> None:
    path = install_program(tmp_path)
    assert path.stat().st_mode & 0o7777 == 0o755
    assert not program_archive.zipapp_change(str(path), BUILT).changed


def test_program_runs_from_its_bytecode(tmp_path: Path) -> None:
    """An invalid source shows which of the two Python has used."""
    path = install_program(tmp_path)
    broken = _rewrite_archive(path.read_bytes(), lambda name, content: b"(" if name.endswith(".py") else content)
    path.write_bytes(broken)
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_python_uses_the_sources(tmp_path: Path) -> None:
    path = install_program(tmp_path)
    other = b"\x00" * 4
    path.write_bytes(
        _rewrite_archive(
            path.read_bytes(), lambda name, content: other + content[4:] if name.endswith(".pyc") else content
        )
    )
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # The next run of the playbook writes the bytecode for the Python of the host.
    assert program_archive.zipapp_change(str(path), BUILT).changed


def test_traceback_shows_the_source_file(tmp_path: Path) -> None:
    path = tmp_path / "program"
    # The settings of the program are missing.
    program_archive.zipapp_change(str(path), program_archive.build_zipapp(sys.executable, program.__name__, {})).apply()
    done = subprocess.run([str(path), "list"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f'File "{path}/{program.__name__.replace(".", "/")}.py", line' in done.stderr


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", BUILT, b"no line end", BUILT[:-100]])
def test_any_other_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "program"
    path.write_bytes(content)
    os.chmod(path, 0o755)
    assert program_archive.zipapp_change(str(path), BUILT).changed


@pytest.mark.parametrize("suffix", [".py", ".pyc"])
def test_damaged_program_is_replaced(tmp_path: Path, suffix: str) -> None:
    path = install_program(tmp_path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as reader:
        found = next(one for one in reader.infolist() if one.filename.endswith(f"session/program{suffix}"))
    # In the middle of the member, which is stored as it is.
    content[found.header_offset + found.file_size // 2] ^= 1
    path.write_bytes(bytes(content))
    assert program_archive.zipapp_change(str(path), BUILT).changed


def test_damaged_archive_raises_no_unexpected_error() -> None:
    """A flipped bit may also give the number of a compression that does not exist."""
    whole = program_archive.pack_sources({"one.py": b"x = 1\n"})
    found = []
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            found.append(program_archive.unpack_sources(bytes(damaged)))
    assert {} in found and program_archive.unpack_sources(whole) == {"one.py": b"x = 1\n"}


def test_new_setting_is_a_change(tmp_path: Path) -> None:
    path = install_program(tmp_path)
    assert program_archive.zipapp_change(
        str(path), program_archive.build_zipapp(sys.executable, program.__name__, {**SETTINGS, "machine": "n1"})
    ).changed


def _rewrite_archive(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """Return the program with changed files."""
    first_line = content[: content.index(b"\n") + 1]
    target = io.BytesIO()
    target.write(first_line)
    with zipfile.ZipFile(io.BytesIO(content)) as reader, zipfile.ZipFile(target, "w") as writer:
        for name in reader.namelist():
            writer.writestr(name, change(name, reader.read(name)))
    return target.getvalue()
