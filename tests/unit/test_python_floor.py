# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Code for hosts runs on Python 3.8, and imports nothing that a host may lack."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ON_HOSTS = sorted([*(ROOT / "plugins" / "modules").glob("*.py"), *(ROOT / "plugins" / "module_utils").rglob("*.py")])
ALLOWED = {"ansible", "ansible_collections", *sys.stdlib_module_names}


def python_3_8():
    """The path of a Python 3.8, or None."""
    candidates = [shutil.which("python3.8"), *Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")]
    return next((str(path) for path in candidates if path and works(str(path))), None)


def works(path):
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30)
    return done.returncode == 0 and " 3.8." in done.stdout


@pytest.mark.parametrize("path", ON_HOSTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_grammar(path):
    """The parser of any Python can be restricted to the grammar of 3.8."""
    ast.parse(path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", ON_HOSTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    named += [node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    foreign = {name for name in named if name.split(".")[0] not in ALLOWED}
    assert not foreign, f"not in the standard library: {sorted(foreign)}"


def test_compiles_on_python_3_8():
    python = python_3_8()
    if python is None:
        pytest.skip("NOT CHECKED: there is no Python 3.8 here; only its grammar was, by this Python's parser")
    program = "import sys\nfor path in sys.argv[1:]:\n    compile(open(path, encoding='utf-8').read(), path, 'exec')\n"
    done = subprocess.run(
        [python, "-c", program, *map(str, ON_HOSTS)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
