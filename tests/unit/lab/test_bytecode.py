# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts of a lab import from archives, with folders of this machine in place of the hosts' own."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

PREPARED = Path(__file__).resolve().parents[3] / "lab" / "image" / "prepared"
#: As Ansible's wrapper does it.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
compiled = []
sys.addaudithook(lambda event, values: compiled.append(str(values[1])) if event == "compile" else None)
import gpumesh_lab_bytecode
gpumesh_lab_bytecode.FOLDER = sys.argv[3]
sys.path.insert(0, sys.argv[2])
import json, runpy
from package.inner import answer
said = runpy.run_module("package.program", run_name="__main__")["said"]
inside = [path.rpartition(".zip/")[2] for path in compiled if ".zip/" in path]
print(json.dumps([said, answer.__code__.co_filename, sorted(inside)]))
"""
SOURCES = {
    "package/__init__.py": "",
    "package/inner/__init__.py": "def answer():\n    return 1\n",
    "package/program.py": "from package.inner import answer\nsaid = answer()\n",
}


class Imported(NamedTuple):
    """What the program has said, the file of its function, and the sources that were compiled."""

    said: int
    file: str
    compiled: list[str]


def import_from(archive: Path, kept: Path, **changed: str) -> Imported:
    """Import the sources from a new archive with this name."""
    archive.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as written:
        for name, source in {**SOURCES, **{f"package/{key}.py": text for key, text in changed.items()}}.items():
            written.writestr(name, source)
    argv = [sys.executable, "-B", "-c", PROGRAM, str(PREPARED), str(archive), str(kept)]
    return Imported(*json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=240).stdout))


@pytest.fixture(name="kept")
def _kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def test_a_source_is_compiled_once(tmp_path: Path, kept: Path) -> None:
    first, second = (tmp_path / name / "payload.zip" for name in ("first", "second"))
    assert import_from(first, kept) == (1, f"{first}/package/inner/__init__.py", sorted(SOURCES))
    assert import_from(second, kept) == (1, f"{second}/package/inner/__init__.py", [])


def test_another_source_by_the_same_name_is_another(tmp_path: Path, kept: Path) -> None:
    archive = tmp_path / "payload.zip"
    import_from(archive, kept)
    changed = import_from(archive, kept, **{"inner/__init__": "def answer():\n    return 2\n"})
    assert (changed.said, changed.compiled) == (2, ["package/inner/__init__.py"])


def test_what_a_power_cut_has_left_is_made_again(tmp_path: Path, kept: Path) -> None:
    archive = tmp_path / "payload.zip"
    import_from(archive, kept)
    for number, path in enumerate(sorted(kept.iterdir())):
        path.write_bytes(path.read_bytes()[: number * 10])
    assert import_from(archive, kept)[::2] == (1, sorted(SOURCES))
    assert import_from(archive, kept)[::2] == (1, [])


def test_without_a_place_to_keep_it_everything_is_compiled(tmp_path: Path) -> None:
    archive = tmp_path / "payload.zip"
    for _attempt in range(2):
        assert import_from(archive, tmp_path / "nowhere")[::2] == (1, sorted(SOURCES))
    assert not (tmp_path / "nowhere").exists()
