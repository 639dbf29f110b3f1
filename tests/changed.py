# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the unit tests and scenarios that the files changed since origin/main can affect: `make changed`.

A file affects what imports it and what names it: by its path, or as `gpumesh.cluster.NAME`. A file of a layer affects
the scenarios that have the layer in the table below: others may run it, but do not prove it. A file that nothing refers
to, such as the requirements, affects every test.

    tests/changed.py [--list] [BASE]    --list only prints what would run; BASE is origin/main by default
"""

from __future__ import annotations

import argparse
import ast
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

_RECORD_LAYERS = frozenset({"cluster", "reachability"})
_BASE_LAYERS = _RECORD_LAYERS | {"mesh", "wireguard", "names", "firewall", "ssh_trust"}
_TAILNET_LAYERS = _BASE_LAYERS - {"wireguard"} | {"tailscale"}
_SCHEDULER_LAYERS = frozenset({"munge", "job_environment", "slurm"})
#: The layers whose behaviour each scenario proves on hosts: roles, and the two kinds of mesh.
LAYERS_BY_SCENARIO: dict[str, frozenset[str]] = {
    "awx": _BASE_LAYERS | _SCHEDULER_LAYERS | {"check", "discover", "session", "storage", "tracking", "train"},
    "chaos": _BASE_LAYERS | _SCHEDULER_LAYERS | {"storage"},
    "check": _RECORD_LAYERS | _SCHEDULER_LAYERS | {"check", "ssh_trust", "storage"},
    "default": _BASE_LAYERS | _SCHEDULER_LAYERS | {"check", "discover", "train"},
    "guides": _BASE_LAYERS | _SCHEDULER_LAYERS | {"check", "discover", "storage"},
    "kernel": _RECORD_LAYERS | _SCHEDULER_LAYERS | {"mesh", "wireguard", "storage"},
    "registry": _RECORD_LAYERS | {"firewall"},
    "session": _SCHEDULER_LAYERS | {"session"},
    "slurm": _RECORD_LAYERS | _SCHEDULER_LAYERS,
    "slurm_bookworm": _SCHEDULER_LAYERS,
    "tailscale": _TAILNET_LAYERS | _SCHEDULER_LAYERS | {"check"},
    "tracking": _SCHEDULER_LAYERS | {"tracking", "train"},
    "wireguard": frozenset({"mesh", "wireguard", "firewall"}),
    "work": _SCHEDULER_LAYERS | {"train"},
}
_ALL_LAYERS = frozenset().union(*LAYERS_BY_SCENARIO.values())
#: The directories whose files tests read by path.
_REFERENCED_DIRECTORIES = ("docs", "examples", "inventories", "meta", "playbooks", "plugins", "roles")
#: The files that no unit test and no scenario reads.
_UNTESTED_PATTERN = re.compile(
    r"(changelogs/|tests/(bench|integration|publication)/|tests/upgrade/upgrade\.py$|\.github/|[A-Z]+\.md$|LICENSE$|\.gitignore$)"
)
_COLLECTION_PREFIX = "ansible_collections.gpumesh.cluster."
_PLUGIN_NAME_PATTERN = re.compile(r"\bgpumesh\.cluster\.([a-z_]+)(:?)")
_PATH_PATTERN = re.compile(rf"\b(?:{'|'.join(_REFERENCED_DIRECTORIES)}|tests|extensions)(?:/[\w.-]+)+")
#: The hosts of another scenario, in a molecule.yml.
_SHARED_HOSTS_PATTERN = re.compile(r"\.\./(\w+)/")
_JOINED_PATH_PATTERN = re.compile(rf'"(?:{"|".join(_REFERENCED_DIRECTORIES)})"(?: / "[\w.-]+")*')


class SelectedTests(NamedTuple):
    """The files of unit tests and the names of scenarios to run, sorted."""

    unit_tests: list[str]
    scenarios: list[str]


def select_tests(files: Iterable[str], changed_files: Iterable[str], texts_by_path: Mapping[str, str]) -> SelectedTests:
    """Return what the changed files can affect.

    ``files``: all files of the repository, including deleted ones; ``texts_by_path``: the texts of those that have one.
    """
    graph = _ReferenceGraph(files, texts_by_path)
    selected_units: set[str] = set()
    selected_scenarios: set[str] = set()
    for changed_file in changed_files:
        if _UNTESTED_PATTERN.match(changed_file):
            continue
        affected_nodes = graph.find_affected(changed_file)
        layer = _layer_of(changed_file)
        layers = {layer} if layer else {node.partition("/")[2] for node in affected_nodes if node.startswith("roles/")}
        affected_units = {node for node in affected_nodes if _is_unit_test(node)}
        affected_scenarios = {
            scenario for scenario, scenario_layers in LAYERS_BY_SCENARIO.items() if layers & scenario_layers
        }
        if not layer:
            affected_scenarios |= {
                scenario for scenario in LAYERS_BY_SCENARIO if f"extensions/molecule/{scenario}" in affected_nodes
            }
        if not affected_units and not affected_scenarios:
            affected_units, affected_scenarios = (
                {node for node in graph.files if _is_unit_test(node)},
                set(LAYERS_BY_SCENARIO),
            )
        selected_units |= affected_units
        selected_scenarios |= affected_scenarios
    return SelectedTests(sorted(selected_units), sorted(selected_scenarios))


class _ReferenceGraph:
    """The references between nodes. A node is a file, a role or a scenario."""

    def __init__(self, files: Iterable[str], texts_by_path: Mapping[str, str]) -> None:
        self.files = sorted(files)
        self._nodes_below: dict[str, set[str]] = defaultdict(set)
        for name in self.files:
            parts = name.split("/")
            for depth in range(1, len(parts) + 1):
                self._nodes_below["/".join(parts[:depth])].add(_node_of(name))
        self._path_by_module = {
            name.rsplit("/", 1)[-1].removesuffix(".py"): name for name in self.files if _is_imported_by_name(name)
        }
        self._referrers: dict[str, set[str]] = defaultdict(set)
        for name in self.files:
            for target in self._find_references(name, texts_by_path.get(name, "")):
                self._referrers[target].add(_node_of(name))
            self._add_scenario_references(name, texts_by_path.get(name, ""))

    def find_affected(self, path: str) -> set[str]:
        """Return the nodes that change with this file. A role that another one calls is proven by its own tests."""
        affected_nodes = {_node_of(path)}
        unvisited_nodes = list(affected_nodes)
        while unvisited_nodes:
            node = unvisited_nodes.pop()
            for referrer in self._referrers[node] - affected_nodes:
                if not (node.startswith("roles/") and referrer.startswith(("roles/", "playbooks/"))):
                    affected_nodes.add(referrer)
                    unvisited_nodes.append(referrer)
        return affected_nodes

    def _add_scenario_references(self, path: str, text: str) -> None:
        """Add what a scenario needs: its directory, and the hosts of the scenario that it names, but not the tests of
        that one.
        """
        parts = path.split("/")
        if _node_of(path) == path and parts[:2] == ["extensions", "molecule"] and len(parts) > 3:
            self._referrers[path].add("/".join(parts[:3]))
        if path.startswith("extensions/molecule/") and parts[-1] == "molecule.yml":
            for scenario in set(_SHARED_HOSTS_PATTERN.findall(text)):
                scenario_directory = f"extensions/molecule/{scenario}"
                for host_node in self._nodes_below[scenario_directory] - {scenario_directory}:
                    self._referrers[host_node].add("/".join(parts[:3]))

    def _find_references(self, path: str, text: str) -> Iterator[str]:
        is_test = path.startswith(("tests/unit/", "extensions/molecule/"))
        yield from self._find_implicit_references(path)
        if path.endswith(".py"):
            imported_modules, strings = _parse_python(text)
            for module in imported_modules:
                yield from self._find_module(module)
            # The documentation of a plugin names others, too, which it does not use.
            used_strings = [
                string for string in strings if is_test or (path.startswith("plugins/") and " " not in string)
            ]
            for match in _PLUGIN_NAME_PATTERN.finditer("\n".join(used_strings)):
                yield from self._find_plugins_and_roles(match[1], True, is_test)
        elif path.startswith(("roles/", "playbooks/", "extensions/molecule/")):
            for match in _PLUGIN_NAME_PATTERN.finditer("" if path.endswith("argument_specs.yml") else text):
                yield from self._find_plugins_and_roles(match[1], bool(match[2]), not match[2])
        if is_test or path.startswith("tests/support/"):
            for referenced_path in _find_paths(text):
                # The test that uses a helper decides what it is for.
                if is_test or referenced_path.startswith(("docs", "examples")):
                    yield from self._nodes_below.get(referenced_path, ())

    def _find_implicit_references(self, path: str) -> Iterator[str]:
        """Yield what a file needs without naming it: data beside it, the hosts of a scenario, the module of a unit
        test.
        """
        if path.startswith("extensions/molecule/"):
            yield from self._nodes_below["lab"]
        directory = path.rpartition("/")[0]
        if path.startswith("plugins/") and path.endswith(".py"):
            yield from (
                neighbour
                for neighbour in self._nodes_below[directory]
                if neighbour.rpartition("/")[0] == directory and not neighbour.endswith(".py")
            )
        if not _is_unit_test(path):
            return
        for neighbour in self._nodes_below[directory]:
            relative_path = neighbour[len(directory) + 1 :]
            if not _is_unit_test(neighbour) and ("/" not in relative_path or relative_path.startswith("fixtures/")):
                yield neighbour
        yield "tests/unit/conftest.py"
        if path.startswith("tests/unit/modules/test_"):
            yield from self._find_plugins_and_roles(path.rsplit("/test_", 1)[1].removesuffix(".py"), True, False)
        if path.startswith("tests/unit/roles/"):
            yield "/".join(path.split("/")[2:4])

    def _find_plugins_and_roles(self, name: str, as_plugin: bool, as_role: bool) -> Iterator[str]:
        """Yield what has this name: a task's key is a plugin, other mentions in YAML are a role, a playbook or a
        filter.
        """
        paths = [f"plugins/{kind}/{name}.py" for kind in (("action", "modules") if as_plugin else ())]
        paths += [f"roles/{name}", f"playbooks/{name}.yml"] if as_role else []
        for path in (*paths, *(f"plugins/{kind}/{name}.py" for kind in ("callback", "filter", "inventory"))):
            yield from self._nodes_below.get(path, ())

    def _find_module(self, module: str) -> Iterator[str]:
        if not module.startswith(_COLLECTION_PREFIX):
            if module in self._path_by_module:
                yield self._path_by_module[module]
            yield from self._nodes_below.get(f"tests/{module.replace('.', '/')}.py", ())
            return
        yield from self._nodes_below.get(f"{module[len(_COLLECTION_PREFIX) :].replace('.', '/')}.py", ())


def _node_of(path: str) -> str:
    """Return the node of a file: its role, the scenario to whose tests it belongs, or the file itself."""
    parts = path.split("/")
    if parts[0] == "roles" and len(parts) > 2:
        return "/".join(parts[:2])
    if parts[:2] == ["extensions", "molecule"] and parts[3:4] == ["tests"]:
        return "/".join(parts[:3])
    return path


def _layer_of(path: str) -> str:
    """Return the layer that a plugin or a role belongs to by its name; empty for what is shared."""
    parts = path.removesuffix(".py").split("/")
    matching_layer = ""
    for part in parts if parts[0] in ("plugins", "roles") else ():
        for layer in _ALL_LAYERS:
            if part == layer or part.startswith(f"{layer}_"):
                matching_layer = layer
    return matching_layer


def _find_paths(text: str) -> Iterator[str]:
    """Yield the paths in a text, also those that are joined from strings."""
    for match in _PATH_PATTERN.finditer(text):
        yield match[0].rstrip(".")
    for match in _JOINED_PATH_PATTERN.finditer(text):
        parts = re.findall(r'"([^"]+)"', match[0])
        for part_count in range(1, len(parts) + 1):
            if part_count == len(parts) or "." in parts[part_count - 1]:
                yield "/".join(parts[:part_count])


def _is_unit_test(path: str) -> bool:
    return path.startswith("tests/unit/") and path.rsplit("/", 1)[-1].startswith("test_") and path.endswith(".py")


def _is_imported_by_name(path: str) -> bool:
    """Return whether tests import the file by its last name alone."""
    return path.startswith(
        ("tests/support/", "tests/chaos/", "plugins/module_utils/_programs/train/gpumesh_")
    ) and path.endswith(".py")


def _parse_python(text: str) -> tuple[set[str], list[str]]:
    """Return the imported names of a Python file, and its strings."""
    imported_modules: set[str] = set()
    strings: list[str] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported_modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported_modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
    return imported_modules, strings


def _list_git_files(*arguments: str) -> list[str]:
    git_command = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [name for name in git_command.stdout.split("\0") if name]


def read_repository(base: str) -> tuple[set[str], set[str], dict[str, str]]:
    """Return all files, those that differ from the last common commit with ``base``, and the texts that tests read."""
    untracked_files = set(_list_git_files("ls-files", "--others", "--exclude-standard"))
    changed_files = untracked_files | set(_list_git_files("diff", "--name-only", "--no-renames", "--merge-base", base))
    files = untracked_files | changed_files | set(_list_git_files("ls-files"))
    suffixes = (".py", ".yml", ".j2", ".md", ".sh")
    readable_files = [name for name in files if name.endswith(suffixes) and (ROOT / name).is_file()]
    return files, changed_files, {name: (ROOT / name).read_text(encoding="utf-8") for name in readable_files}


def main() -> int:
    """Return the exit status: 0 if everything that was selected passed."""
    parser = argparse.ArgumentParser(description="Run the tests that the changed files can affect.")
    parser.add_argument("--list", action="store_true", help="only print them")
    parser.add_argument("base", nargs="?", default="origin/main")
    arguments = parser.parse_args()
    files, changed_files, texts_by_path = read_repository(arguments.base)
    selection = select_tests(files, changed_files, texts_by_path)
    unit_tests = [name for name in selection.unit_tests if (ROOT / name).exists()]
    print(
        f"{len(changed_files)} changed files affect {len(unit_tests)} files of unit tests and {len(selection.scenarios)} scenarios:"
    )
    print("\n".join([*unit_tests, *(f"molecule: {name}" for name in selection.scenarios)]), flush=True)
    commands = []
    if unit_tests:
        commands.append([sys.executable, "-m", "pytest", "-q", "-n", "auto", *unit_tests])
    if selection.scenarios:
        commands.append(["env", f"SCENARIO={' '.join(selection.scenarios)}", "tests/run", "molecule"])
    failed = False
    for command in commands if not arguments.list else ():
        print(f"\n=== {shlex.join(command[-2:] if command[0] == 'env' else command[:6])}", flush=True)
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
