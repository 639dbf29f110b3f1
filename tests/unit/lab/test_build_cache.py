# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What Ansible makes of modules, plugins and YAML is used again by the next run, unless its source has changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: As the .pth file of the environment does it, with another folder.
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
import gpumesh_lab_bytecode, gpumesh_kept_builds
gpumesh_lab_bytecode.FOLDER = sys.argv[3]
from ansible.cli.adhoc import AdHocCLI
AdHocCLI.cli_executor(["ansible", "--inventory", "localhost,", "--connection", "local", "--module-name", "some.own.say", "all"])
"""
#: Loads a file with each of the common loaders, twice, and changes what it gets. Prints all of it, and how often one of
#: them has parsed.
YAML_PROGRAM = """
import json, sys
sys.path[:0] = sys.argv[1:3]
import gpumesh_lab_bytecode, gpumesh_kept_builds
gpumesh_lab_bytecode.FOLDER = sys.argv[3]
import yaml
values, scans = [], []
scan = yaml.CSafeLoader.get_single_data
yaml.CSafeLoader.get_single_data = lambda self: scans.append(1) or scan(self)
for attempt in range(2):
    for Loader in (yaml.SafeLoader, yaml.BaseLoader, yaml.CSafeLoader, yaml.CBaseLoader):
        with open(sys.argv[4]) as stream:
            value = yaml.load(stream, Loader=Loader)
        values.append(json.loads(json.dumps(value)))
        value["numbers"].clear()
print(json.dumps([values, len(scans)]))
"""
MODULE = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.some.own.plugins.module_utils.words import WORD
AnsibleModule(argument_spec={}).exit_json(word=WORD)
"""


class Project:
    """A collection with one module, and the folder in which archives are kept."""

    def __init__(self, folder: Path) -> None:
        self.kept = folder / "kept"
        self.kept.mkdir()
        self.collections = folder / "collections"
        self._plugins = self.collections / "ansible_collections/some/own/plugins"
        (self._plugins / "modules").mkdir(parents=True)
        (self._plugins / "module_utils").mkdir()
        (self._plugins / "modules/say.py").write_text(MODULE)

    def write_word(self, word: str) -> None:
        """Change what the module imports."""
        (self._plugins / "module_utils/words.py").write_text(f"WORD = '{word}'\n")

    def run_module(self) -> str:
        """Return what a run of Ansible prints."""
        paths = [str(ROOT / "lab/image/prepared"), str(ROOT / "tests"), str(self.kept)]
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(self.collections),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        }
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *paths],
            check=True,
            capture_output=True,
            text=True,
            timeout=240,
            env=environment,
        ).stdout

    def find_archives(self) -> set[Path]:
        """Return the kept archives of the module."""
        return {path for path in self.kept.glob("*/*") if path.parent.name.startswith("ansible_collections.some.own.")}


@pytest.fixture(name="project")
def _project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_an_archive_is_used_again_until_one_of_its_files_changes(project: Project) -> None:
    project.write_word("first")
    assert "word: first" in project.run_module()
    (first,) = project.find_archives()
    project.write_word("second")
    assert "word: second" in project.run_module()
    (second,) = project.find_archives() - {first}
    # The next run finds the archive where the one before it has left it.
    shutil.copyfile(first, second)
    assert "word: first" in project.run_module()
    assert project.find_archives() == {first, second}


def load_yaml(path: Path, kept: Path) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "lab/image/prepared"), str(ROOT / "tests"), str(kept), str(path)]
    return subprocess.run(
        [sys.executable, "-c", YAML_PROGRAM, *paths], check=False, capture_output=True, text=True, timeout=240
    )


@pytest.mark.parametrize("length", [3, 3000])
def test_yaml_is_parsed_once_by_each_loader(tmp_path: Path, length: int) -> None:
    path, kept = tmp_path / "given.yml", tmp_path / "kept"
    kept.mkdir()
    numbers = list(range(length))
    path.write_text(f"numbers: {numbers}\n", encoding="ascii")
    given, texts = {"numbers": numbers}, {"numbers": [str(number) for number in numbers]}
    expected = [given, texts, given, texts] * 2
    is_short = length == 3
    assert json.loads(load_yaml(path, kept).stdout) == [expected, 2 if is_short else 1]
    assert json.loads(load_yaml(path, kept).stdout) == [expected, 2 if is_short else 0]
    assert len(list(kept.glob("yaml-*"))) == (0 if is_short else 4)


def test_without_a_place_to_keep_it_everything_is_built(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "given.yml"
    path.write_text(f"numbers: {list(range(3000))}\n", encoding="ascii")
    _values, parsings = json.loads(load_yaml(path, tmp_path / "nowhere").stdout)
    assert parsings == 2
    project.write_word("first")
    project.kept.rmdir()
    assert "word: first" in project.run_module()
    assert not project.kept.exists()


def test_an_error_in_yaml_has_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "given.yml"
    path.write_text(f"numbers: {list(range(3000))}\nbad: [\n", encoding="ascii")
    for _attempt in range(2):
        completed = load_yaml(path, tmp_path)
        assert completed.returncode != 0
        assert f'in "{path}", line' in completed.stderr
    assert not list(tmp_path.glob("yaml-*"))
