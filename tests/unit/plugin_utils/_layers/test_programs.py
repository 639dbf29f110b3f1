# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The sources of programs: what is collected, and that no program reaches a host in any other way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import programs

ROOT = program_archive.__name__.rpartition("._core.")[0]
MODULE_UTILS = Path(program_archive.__file__).parents[1]
PLUGINS = MODULE_UTILS.parent
#: The only places that read the source of a module to run it elsewhere, each with its reason in architecture.md: ranks
#: that gpumesh-train starts, one command of a check, and what MLflow's Python imports on one host.
SOURCE_READERS = {
    "_checks/collective/launch.py",
    "_layers/tracking/server.py",
    "_layers/tracking/settings.py",
    "_programs/train/rank_modules.py",
}


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
        assert set(programs.find_imports(source)) == expected, path


def is_module(name: str) -> bool:
    """Whether the collection has a file or package for this module."""
    path = MODULE_UTILS.joinpath(*name[len(ROOT) + 1 :].split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_missing_module_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        programs.collect_sources(f"{ROOT}.no_such_module")


def test_programs_are_only_pushed() -> None:
    readers = {
        str(path.relative_to(MODULE_UTILS))
        for path in MODULE_UTILS.rglob("*.py")
        if "getsource(" in path.read_text(encoding="utf-8")
    }
    assert readers == SOURCE_READERS
    builders = {
        str(path.relative_to(PLUGINS))
        for path in PLUGINS.rglob("*.py")
        if re.search(r"\bassemble_zipapp\(", path.read_text(encoding="utf-8"))
    }
    assert builders == {"module_utils/_core/program_archive.py", "module_utils/_core/push.py"}
