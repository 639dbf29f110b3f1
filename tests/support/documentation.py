# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The documentation in the files of modules, without running ansible-doc."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import yaml


@cache
def read_documentation(path: Path) -> dict[str, Any]:
    """Return the documentation of a module or of a fragment: what it assigns to names in capitals, as YAML."""
    return {
        node.targets[0].id: yaml.safe_load(node.value.value)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id.isupper()
        and node.targets[0].id != "EXAMPLES"
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and ":" in node.value.value
    }
