# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in plugins say what a value is: see "Words" in docs/guides/architecture.md."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
#: Names that could stand for anything.
VAGUE = {
    "asked",
    "done",
    "found",
    "given",
    "held",
    "here",
    "kept",
    "known",
    "look",
    "made",
    "meant",
    "one",
    "other",
    "others",
    "own",
    "place",
    "places",
    "rest",
    "said",
    "seen",
    "shown",
    "taken",
    "there",
    "things",
    "told",
    "wanted",
    "what",
    "wish",
    "word",
    "words",
}

#: Keys of JSON documents, and a parameter of users' programs.
PUBLIC = {
    ("module_utils/_checks/reachability/models.py", "seen"),
    ("module_utils/_layers/slurm/show.py", "held"),
    ("module_utils/_programs/trace/models.py", "other"),
    ("module_utils/_programs/train/gpumesh_run.py", "what"),
}


def bindings(path: Path) -> Iterator[str]:
    """The assigned names and the parameters of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def test_no_name_is_vague() -> None:
    vague = {
        (path.relative_to(PLUGINS).as_posix(), name)
        for path in PLUGINS.rglob("*.py")
        for name in bindings(path)
        if name in VAGUE
    }
    assert vague == PUBLIC


def test_names_are_specific() -> None:
    """Half of the names of a well-kept code base have more than one word; here, 96 of 100 had one."""
    names = Counter(name.lower() for path in PLUGINS.rglob("*.py") for name in bindings(path))
    count = sum(names.values())
    assert sum(number for name, number in names.items() if "_" not in name) / count < 0.7
    assert len(names) / count > 0.2
