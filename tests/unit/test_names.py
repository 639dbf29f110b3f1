# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in plugins and in what tests share say what a value is: see "Words" in docs/guides/architecture.md."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support.documentation import read_documentation

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
#: What is no test itself, or starts a host or a network of its own.
TEST_DIRECTORIES = ("bench", "chaos", "integration", "runner", "security", "support", "upgrade")
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
    ("module_utils/_programs/trace/models.py", "other"),
    ("module_utils/_programs/train/gpumesh_run.py", "what"),
}


#: Keys of modules that are worse in public than inside, where the code around them explains them.
VAGUE_IN_PUBLIC = VAGUE | {
    "ahead",
    "answering",
    "ask",
    "barred",
    "earlier",
    "forgotten",
    "handing",
    "left",
    "line",
    "lost",
    "of_another",
    "silent",
    "spared",
    "unanswered",
    "unseen",
    "visitors",
    "was_on",
    "whole",
}
#: Values of a state that would only read: a module of that kind is an ``_info`` module.
QUERIES = {"agreed", "asked", "exported", "followed", "inspected", "look", "movable"}


def bindings(path: Path) -> Iterator[str]:
    """The assigned names and the parameters of a file."""
    yield from assigned_names(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.arg):
            yield node.arg


def assigned_names(path: Path) -> Iterator[str]:
    """The names of variables to which a file assigns values."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def test_no_name_is_vague() -> None:
    vague = {
        (path.relative_to(PLUGINS).as_posix(), name)
        for path in PLUGINS.rglob("*.py")
        for name in bindings(path)
        if name in VAGUE
    }
    assert vague == PUBLIC


def test_no_name_of_the_tests_helpers_is_vague() -> None:
    paths = [path for name in TEST_DIRECTORIES for path in sorted((ROOT / "tests" / name).rglob("*.py"))]
    # A directory without a file has another name now.
    assert {path.relative_to(ROOT / "tests").parts[0] for path in paths} == set(TEST_DIRECTORIES)
    vague = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in [*paths, ROOT / "tests" / "changed.py"]
        for name in bindings(path)
        if name in VAGUE
    }
    assert vague == set()


def test_no_variable_is_an_underscore() -> None:
    # `ansible-test sanity` refuses it, and only `make matrix` runs that test.
    paths = [path for name in ("extensions", "lab", "plugins", "tests") for path in (ROOT / name).rglob("*.py")]
    assert not [path for path in paths if "_" in assigned_names(path)]


def test_names_are_specific() -> None:
    """Half of the names of a well-kept code base have more than one word; here, 96 of 100 had one."""
    names = Counter(name.lower() for path in PLUGINS.rglob("*.py") for name in bindings(path))
    count = sum(names.values())
    assert sum(number for name, number in names.items() if "_" not in name) / count < 0.7
    assert len(names) / count > 0.2


def documented_keys(options: Mapping[str, Any]) -> Iterator[str]:
    """The names of options or results, those within them, and the values that they accept."""
    for name, option in options.items():
        yield name
        yield from map(str, option.get("choices") or ())
        yield from documented_keys(option.get("suboptions") or option.get("contains") or {})


@pytest.mark.parametrize("folder", ["modules", "doc_fragments"])
def test_no_public_key_is_vague(folder: str) -> None:
    """The options, the results and the accepted values of the modules are what other people's playbooks depend on."""
    keys = {
        (path.stem, key)
        for path in (PLUGINS / folder).glob("*.py")
        for name, document in read_documentation(path).items()
        for key in documented_keys(document if name == "RETURN" else document.get("options") or {})
    }
    assert len(keys) > 20
    assert {(module, key) for module, key in keys if key in VAGUE_IN_PUBLIC | QUERIES} == set()


def test_no_result_has_a_name_by_which_ansible_judges_a_task() -> None:
    """A list of hosts that do not answer, as ``unreachable``, would make the host of the task one of them."""
    results = {
        (path.stem, key)
        for path in (PLUGINS / "modules").glob("*.py")
        for key in read_documentation(path).get("RETURN") or {}
    }
    assert len(results) > 50
    assert {(module, key) for module, key in results if key in ("failed", "unreachable", "skipped", "results")} == set()


def test_a_module_that_only_reads_has_no_state() -> None:
    """Its name ends in ``_info``, unless it decides something, and it supports check mode."""
    for path in sorted((PLUGINS / "modules").glob("*_info.py")):
        documentation = read_documentation(path)["DOCUMENTATION"]
        assert "gpumesh.cluster.attributes.info_module" in documentation["extends_documentation_fragment"], path.stem
        assert "state" not in (documentation.get("options") or {}), path.stem


def test_no_registered_variable_is_vague() -> None:
    """In roles and playbooks, it says what a result is about: of the role, or of the playbook, in front of it."""
    registered = {
        name
        for folder in ("roles", "playbooks")
        for path in (PLUGINS.parent / folder).rglob("*.yml")
        for name in re.findall(r"^\s+register: (\w+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(registered) > 20
    assert {name for name in registered if name.rpartition("_")[2] in VAGUE_IN_PUBLIC | {"judged"}} == set()


#: Ansible's names.
SHARED_CLASSES = {"ActionModule", "CallbackModule", "FilterModule", "LookupModule", "ModuleDocFragment"}


def test_each_class_name_stands_for_one_class() -> None:
    counts = Counter(
        node.name
        for path in PLUGINS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in counts.items() if count > 1} == SHARED_CLASSES
