# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An option of a role gets into an action in one way, by its full name, and the module of the action documents it.

The way is ``HostAction.options``, which reads the variables of the host. Tasks pass options only to the modules that people
use in playbooks of their own.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import plugin_preload
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import entry_points, role_names
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.host_module import HostModule
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry
from ansible_collections.gpumesh.cluster.tests.support.documentation import read_documentation
from ansible_collections.gpumesh.cluster.tests.support.task_files import TASK_FILES, load_tasks

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "ansible_collections.gpumesh.cluster"
ACTIONS = sorted((ROOT / "plugins" / "action").glob("*.py"))
CONTROLLER_CODE = [*ACTIONS, *sorted((ROOT / "plugins" / "plugin_utils").rglob("*.py"))]
READERS = ("options", "options_by_host")
#: Options that are read as they were given, with ``read_option``, since validation would change them.
GIVEN = {"cluster_registration": {"storage_volumes"}, "storage": {"storage_volumes"}}
#: What actions read for each layer in the list.
READ_FOR_LAYERS = {
    "firewall": {option for layer in registry.LAYERS for option in layer.port_options},
    "layer_info": {
        option for layer in registry.LAYERS for option in (*layer.options, *layer.further_options, *layer.port_options)
    },
    "layer_plan": {option for layer in registry.LAYERS for option in layer.request_options},
}
#: Methods of the base class that read an option themselves.
READ_BY_METHOD = {"older_version": {"cluster_older_version"}}
#: Internal modules that get options from tasks, and why.
NO_LAYER = {
    "host_module": "runs any module with the options of that one",
    "job_account": "is for the accounts of two roles",
    "node_health_program": "installs the program where it is told, and is told by one role",
    "play_members": "compares a record with the name and the manager that it must have at this step",
    "print_text": "prints any text",
}
#: Options that roles set for the entry points of other roles.
PASSED_BY_ROLES = {"cluster_adopted_record", "reachability_layer"}
#: Only the option, perhaps with a default: not a decision between steps that depends on one.
ONLY_AN_OPTION = re.compile(r"\{\{ (\w+)( \| (default\([^)]*\)|bool|int|float))*( or omit)? \}\}")
#: The readers of the base class itself.
BASE = ROOT / "plugins" / "plugin_utils" / "_core" / "action.py"


def calls_of(tree: ast.AST, *methods: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods:
            yield node


def options_read(path: Path) -> set[str]:
    """The names that an action passes to its readers, computed with the names of its module."""
    action = importlib.import_module(f"{COLLECTION}.plugins.action.{path.stem}")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    read: set[str] = set()
    for call in calls_of(tree, *READERS):
        if path.stem in READ_FOR_LAYERS and "layer." in ast.unparse(call):
            continue
        names = ast.Expression(ast.Tuple(call.args, ast.Load()))
        read.update(eval(compile(ast.fix_missing_locations(names), path.name, "eval"), vars(action)))
    read |= GIVEN.get(path.stem, set())
    read |= READ_FOR_LAYERS.get(path.stem, set())
    for method, names_read in READ_BY_METHOD.items():
        read |= names_read if any(calls_of(tree, method)) else set()
    return read


@pytest.fixture(autouse=True)
def _filters_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Ansible's own loader can load the filters, as some actions do."""
    monkeypatch.setattr(plugin_preload, "load_plugins", lambda: None)


@cache
def role_options() -> frozenset[str]:
    """The options of all entry points of all roles."""
    return frozenset(name for role in role_names() for options in entry_points(role).values() for name in options)


def documentation_of(module: str) -> dict[str, Any]:
    return dict(read_documentation(ROOT / "plugins" / "modules" / f"{module}.py")["DOCUMENTATION"])


def options_documented(module: str) -> set[str]:
    described = documentation_of(module)["description"]
    sentences = [line for line in described if line.startswith("Reads these options of roles: ")]
    assert len(sentences) <= 1
    return set(re.findall(r"C\((\w+)\)", "".join(sentences)))


@pytest.mark.parametrize("path", ACTIONS, ids=lambda path: path.stem)
def test_a_module_documents_the_options_that_its_action_reads(path: Path) -> None:
    read = options_read(path)
    assert read <= role_options()
    assert read == options_documented(path.stem)


@pytest.mark.parametrize("path", CONTROLLER_CODE, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_no_option_is_read_in_another_way(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if path != BASE:
        readers = ("resolve_variable", "resolve_inventory_variable", "variables_by_host", "read_option", "get")
        for call in calls_of(tree, *readers):
            assert isinstance(call.func, ast.Attribute)
            literals = {argument.value for argument in call.args if isinstance(argument, ast.Constant)}
            options = literals & role_options()
            # A pure function may look into the options that it is given.
            if call.func.attr == "get" and ast.unparse(call.func.value).endswith("options"):
                continue
            allowed = GIVEN.get(path.stem, set()) if call.func.attr == "read_option" else set()
            assert options <= allowed, f"line {call.lineno}: read these with self.options: {sorted(options)}"
    prefixes = {f"{role}_" for role in role_names()}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and len(node.values) > 1:
            first, second = node.values[:2]
            composed = (
                isinstance(first, ast.Constant) and first.value in prefixes and not isinstance(second, ast.Constant)
            )
            assert not composed, f"line {node.lineno}: an option stands by its full name, not as {ast.unparse(node)}"


@cache
def public_modules() -> frozenset[str]:
    """Those that a guide lists: their options are those of their own documentation."""
    return frozenset(
        path.stem
        for path in sorted((ROOT / "plugins" / "modules").glob("*.py"))
        if "gpumesh.cluster.internal" not in documentation_of(path.stem)["extends_documentation_fragment"]
    )


@cache
def only_runs_its_module(module: str) -> bool:
    action = importlib.import_module(f"{COLLECTION}.plugins.action.{module}").ActionModule
    return issubclass(action, HostModule) and "work" not in vars(action)


def tasks_and_defaults(path: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a file, and the options that its blocks and plays set for modules."""
    for task in load_tasks(path):
        yield task
        yield task.get("module_defaults", {})


def values_in(arguments: Any) -> Iterator[str]:
    if isinstance(arguments, dict):
        for value in arguments.values():
            yield from values_in(value)
    else:
        yield str(arguments)


@pytest.mark.parametrize("path", sorted(TASK_FILES), ids=lambda path: str(path.relative_to(ROOT)))
def test_tasks_pass_options_only_to_public_modules(path: Path) -> None:
    free = public_modules() | NO_LAYER.keys()
    for task in tasks_and_defaults(path):
        for action, arguments in task.items():
            module = action.removeprefix("gpumesh.cluster.")
            if module == action or module in free or not (ROOT / "plugins" / "modules" / f"{module}.py").exists():
                continue
            if only_runs_its_module(module):
                continue
            passed = {
                match.group(1)
                for value in values_in(arguments)
                if (match := ONLY_AN_OPTION.fullmatch(value)) and match.group(1) in role_options()
            }
            passed -= {"cluster_record", "reachability_members"}
            assert not passed, f"{task.get('name')}: the action of {module} reads {sorted(passed)} itself"


def test_each_option_is_shown_where_people_look_or_used_in_a_test() -> None:
    """An option that no guide explains, and that nobody sets, can go, together with the code that only it reaches."""
    texts = "\n".join(
        path.read_text(encoding="utf-8", errors="replace")
        for folder in ("docs/guides", "inventories", "examples", "playbooks", "extensions", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".md", ".yml", ".py")
        and path.is_file()
        and path.name not in ("test_options.py", "test_surveys.py")
    )
    mentioned = set(re.findall(r"\w+", texts))
    assert sorted(role_options() - mentioned - PASSED_BY_ROLES) == []
