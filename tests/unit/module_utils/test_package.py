# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs as archives: what is in them, and when one is written."""

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

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import program
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Settings

ROOT = package.__name__.rpartition(".")[0]
MODULE_UTILS = Path(package.__file__).parent

#: A program that needs other modules of the collection, and the standard library alone.
SETTINGS = dict.fromkeys(Settings._fields, "")
BUILT = package.build(sys.executable, program.__name__, SETTINGS)


def test_imports_are_found_as_python_finds_them() -> None:
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
        assert set(package.imported(source)) == expected, path


def is_module(name: str) -> bool:
    """Whether the collection has this module, from its files."""
    path = MODULE_UTILS.joinpath(*name[len(ROOT) + 1 :].split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_sources_are_found_without_running_them_in_an_archive_as_ansible_sends_it(tmp_path: Path) -> None:
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
        f"from {ROOT} import package\n"
        f"assert package.__file__.startswith({str(archive)!r})\n"
        "before = set(sys.modules)\n"
        f"built = package.build(sys.executable, {program.__name__!r}, {SETTINGS!r})\n"
        f"print(sorted(name for name in set(sys.modules) - before if name.startswith({ROOT!r})))\n"
        "print(hashlib.sha256(built).hexdigest())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["[]", hashlib.sha256(BUILT).hexdigest()]


def test_a_module_that_is_missing_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        package.sources(f"{ROOT}.no_such_module")


def installed(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    package.part(str(path), BUILT).apply()
    return path


def test_a_program_is_written_once(tmp_path: Path) -> None:
    path = installed(tmp_path)
    assert path.stat().st_mode & 0o7777 == 0o755
    assert not package.part(str(path), BUILT).changed


def test_the_program_runs_from_its_byte_code(tmp_path: Path) -> None:
    """A source that nothing could compile shows which of the two Python has taken."""
    path = installed(tmp_path)
    broken = _changed(path.read_bytes(), lambda name, content: b"(" if name.endswith(".py") else content)
    path.write_bytes(broken)
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_another_python_takes_the_sources(tmp_path: Path) -> None:
    path = installed(tmp_path)
    other = b"\x00" * 4
    path.write_bytes(
        _changed(path.read_bytes(), lambda name, content: other + content[4:] if name.endswith(".pyc") else content)
    )
    done = subprocess.run([str(path), "--help"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    # The host's own Python gets its byte code with the next run of the playbook.
    assert package.part(str(path), BUILT).changed


def test_an_error_shows_where_it_happened(tmp_path: Path) -> None:
    path = tmp_path / "program"
    # Its settings are missing.
    package.part(str(path), package.build(sys.executable, program.__name__, {})).apply()
    done = subprocess.run([str(path), "list"], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert f'File "{path}/{program.__name__.replace(".", "/")}.py", line' in done.stderr


@pytest.mark.parametrize("content", [b"", b"#!/bin/sh\n", BUILT, b"no line end", BUILT[:-100]])
def test_any_other_file_is_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "program"
    path.write_bytes(content)
    os.chmod(path, 0o755)
    assert package.part(str(path), BUILT).changed


@pytest.mark.parametrize("suffix", [".py", ".pyc"])
def test_a_damaged_program_is_replaced(tmp_path: Path, suffix: str) -> None:
    path = installed(tmp_path)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(io.BytesIO(bytes(content))) as reader:
        found = next(one for one in reader.infolist() if one.filename.endswith(f"session/program{suffix}"))
    # In the middle of the member, which is stored as it is.
    content[found.header_offset + found.file_size // 2] ^= 1
    path.write_bytes(bytes(content))
    assert package.part(str(path), BUILT).changed


def test_an_archive_that_is_damaged_in_any_way_ends_in_no_other_error() -> None:
    """Such as by the number of a compression that does not exist."""
    whole = package.rebundled({"one.py": b"x = 1\n"})
    found = []
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            found.append(package.bundled(bytes(damaged)))
    assert {} in found and package.bundled(whole) == {"one.py": b"x = 1\n"}


def test_a_new_setting_is_a_change(tmp_path: Path) -> None:
    path = installed(tmp_path)
    assert package.part(
        str(path), package.build(sys.executable, program.__name__, {**SETTINGS, "machine": "n1"})
    ).changed


def _changed(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """The program with other files."""
    first_line = content[: content.index(b"\n") + 1]
    target = io.BytesIO()
    target.write(first_line)
    with zipfile.ZipFile(io.BytesIO(content)) as reader, zipfile.ZipFile(target, "w") as writer:
        for name in reader.namelist():
            writer.writestr(name, change(name, reader.read(name)))
    return target.getvalue()
