# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs as zipapps: their content, and when one is written."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from program_builds import build_zipapp

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import program
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import SessionSettings

#: This program needs other modules of the collection, and otherwise only the standard library.
SETTINGS = dict.fromkeys(SessionSettings._fields, "")
BUILT = build_zipapp(sys.executable, program.__name__, SETTINGS)


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
    program_archive.zipapp_change(str(path), build_zipapp(sys.executable, program.__name__, {})).apply()
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
        str(path), build_zipapp(sys.executable, program.__name__, {**SETTINGS, "machine": "n1"})
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
