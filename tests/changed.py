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

_RECORD = frozenset({"cluster", "reachability"})
_BASE = _RECORD | {"mesh", "wireguard", "names", "firewall", "ssh_trust"}
_TAILNET = _BASE - {"wireguard"} | {"tailscale"}
_SCHEDULER = frozenset({"munge", "job_environment", "slurm"})
#: The layers whose behaviour each scenario proves on hosts: roles, and the two kinds of mesh.
SCENARIOS: dict[str, frozenset[str]] = {
    "awx": _BASE | _SCHEDULER | {"check", "discover", "session", "storage", "tracking", "train"},
    "chaos": _BASE | _SCHEDULER | {"storage"},
    "check": _RECORD | _SCHEDULER | {"check", "ssh_trust", "storage"},
    "default": _BASE | _SCHEDULER | {"check", "discover", "train"},
    "guides": _BASE | _SCHEDULER | {"check", "discover", "storage"},
    "kernel": _RECORD | _SCHEDULER | {"mesh", "wireguard", "storage"},
    "registry": _RECORD,
    "session": _SCHEDULER | {"session"},
    "slurm": _RECORD | _SCHEDULER,
    "slurm_bookworm": _SCHEDULER,
    "tailscale": _TAILNET | _SCHEDULER | {"check"},
    "tracking": _SCHEDULER | {"tracking", "train"},
    "wireguard": frozenset({"mesh", "wireguard", "firewall"}),
    "work": _SCHEDULER | {"train"},
}
_LAYERS = frozenset().union(*SCENARIOS.values())
#: The directories whose files tests read by path.
_READ = ("docs", "examples", "inventories", "meta", "playbooks", "plugins", "roles")
#: The files that no unit test and no scenario reads.
_UNREAD = re.compile(
    r"(changelogs/|tests/(bench|integration|publication)/|tests/upgrade/upgrade\.py$|\.github/|[A-Z]+\.md$|LICENSE$|\.gitignore$)"
)
_PREFIX = "ansible_collections.gpumesh.cluster."
_NAMED = re.compile(r"\bgpumesh\.cluster\.([a-z_]+)(:?)")
_PATH = re.compile(rf"\b(?:{'|'.join(_READ)}|tests|extensions)(?:/[\w.-]+)+")
#: The hosts of another scenario, in a molecule.yml.
_OTHERS_HOSTS = re.compile(r"\.\./(\w+)/")
_JOINED = re.compile(rf'"(?:{"|".join(_READ)})"(?: / "[\w.-]+")*')


class Selection(NamedTuple):
    """The files of unit tests and the names of scenarios to run, sorted."""

    units: list[str]
    scenarios: list[str]


def select(files: Iterable[str], changed: Iterable[str], contents: Mapping[str, str]) -> Selection:
    """Return what the changed files can affect.

    ``files``: all files of the repository, including deleted ones; ``texts_by_path``: the texts of those that have one.
    """
    graph = _Graph(files, contents)
    units: set[str] = set()
    scenarios: set[str] = set()
    for name in changed:
        if _UNREAD.match(name):
            continue
        found = graph.affected_by(name)
        layer = _layer(name)
        layers = {layer} if layer else {node.partition("/")[2] for node in found if node.startswith("roles/")}
        tests = {node for node in found if _is_unit(node)}
        proven = {scenario for scenario, proved in SCENARIOS.items() if layers & proved}
        if not layer:
            proven |= {scenario for scenario in SCENARIOS if f"extensions/molecule/{scenario}" in found}
        if not tests and not proven:
            tests, proven = {node for node in graph.files if _is_unit(node)}, set(SCENARIOS)
        units |= tests
        scenarios |= proven
    return Selection(sorted(units), sorted(scenarios))


class _Graph:
    """The references between nodes. A node is a file, a role or a scenario."""

    def __init__(self, files: Iterable[str], contents: Mapping[str, str]) -> None:
        self.files = sorted(files)
        self._below: dict[str, set[str]] = defaultdict(set)
        for name in self.files:
            parts = name.split("/")
            for number in range(1, len(parts) + 1):
                self._below["/".join(parts[:number])].add(_node(name))
        self._by_module = {name.rsplit("/", 1)[-1].removesuffix(".py"): name for name in self.files if _is_shared(name)}
        self._referring: dict[str, set[str]] = defaultdict(set)
        for name in self.files:
            for target in self._references(name, contents.get(name, "")):
                self._referring[target].add(_node(name))
            self._refer_scenario(name, contents.get(name, ""))

    def affected_by(self, name: str) -> set[str]:
        """Return the nodes that change with this file. A role that another one calls is proven by its own tests."""
        found = {_node(name)}
        left = list(found)
        while left:
            node = left.pop()
            for other in self._referring[node] - found:
                if not (node.startswith("roles/") and other.startswith(("roles/", "playbooks/"))):
                    found.add(other)
                    left.append(other)
        return found

    def _refer_scenario(self, name: str, text: str) -> None:
        """Add what a scenario needs: its directory, and the hosts of the scenario that it names, but not the tests of
        that one.
        """
        parts = name.split("/")
        if _node(name) == name and parts[:2] == ["extensions", "molecule"] and len(parts) > 3:
            self._referring[name].add("/".join(parts[:3]))
        if name.startswith("extensions/molecule/") and parts[-1] == "molecule.yml":
            for other in set(_OTHERS_HOSTS.findall(text)):
                folder = f"extensions/molecule/{other}"
                for shared in self._below[folder] - {folder}:
                    self._referring[shared].add("/".join(parts[:3]))

    def _references(self, name: str, text: str) -> Iterator[str]:
        is_test = name.startswith(("tests/unit/", "extensions/molecule/"))
        yield from self._beside(name)
        if name.endswith(".py"):
            imported, strings = _parsed(text)
            for module in imported:
                yield from self._imported(module)
            # The documentation of a plugin names others, too, which it does not use.
            used = [string for string in strings if is_test or (name.startswith("plugins/") and " " not in string)]
            for match in _NAMED.finditer("\n".join(used)):
                yield from self._called(match[1], True, is_test)
        elif name.startswith(("roles/", "playbooks/", "extensions/molecule/")):
            for match in _NAMED.finditer("" if name.endswith("argument_specs.yml") else text):
                yield from self._called(match[1], bool(match[2]), not match[2])
        if is_test or name.startswith("tests/support/"):
            for path in _paths(text):
                # The test that uses a helper decides what it is for.
                if is_test or path.startswith(("docs", "examples")):
                    yield from self._below.get(path, ())

    def _beside(self, name: str) -> Iterator[str]:
        """Yield what a file needs without naming it: data beside it, the hosts of a scenario, the module of a unit
        test.
        """
        if name.startswith("extensions/molecule/"):
            yield from self._below["lab"]
        folder = name.rpartition("/")[0]
        if name.startswith("plugins/") and name.endswith(".py"):
            yield from (
                other
                for other in self._below[folder]
                if other.rpartition("/")[0] == folder and not other.endswith(".py")
            )
        if not _is_unit(name):
            return
        for other in self._below[folder]:
            place = other[len(folder) + 1 :]
            if not _is_unit(other) and ("/" not in place or place.startswith("fixtures/")):
                yield other
        yield "tests/unit/conftest.py"
        if name.startswith("tests/unit/modules/test_"):
            yield from self._called(name.rsplit("/test_", 1)[1].removesuffix(".py"), True, False)
        if name.startswith("tests/unit/roles/"):
            yield "/".join(name.split("/")[2:4])

    def _called(self, name: str, plugin: bool, role: bool) -> Iterator[str]:
        """Yield what has this name: a task's key is a plugin, other mentions in YAML are a role, a playbook or a
        filter.
        """
        paths = [f"plugins/{kind}/{name}.py" for kind in (("action", "modules") if plugin else ())]
        paths += [f"roles/{name}", f"playbooks/{name}.yml"] if role else []
        for path in (*paths, *(f"plugins/{kind}/{name}.py" for kind in ("callback", "filter", "inventory"))):
            yield from self._below.get(path, ())

    def _imported(self, module: str) -> Iterator[str]:
        if not module.startswith(_PREFIX):
            if module in self._by_module:
                yield self._by_module[module]
            yield from self._below.get(f"tests/{module.replace('.', '/')}.py", ())
            return
        yield from self._below.get(f"{module[len(_PREFIX) :].replace('.', '/')}.py", ())


def _node(name: str) -> str:
    """Return the node of a file: its role, the scenario to whose tests it belongs, or the file itself."""
    parts = name.split("/")
    if parts[0] == "roles" and len(parts) > 2:
        return "/".join(parts[:2])
    if parts[:2] == ["extensions", "molecule"] and parts[3:4] == ["tests"]:
        return "/".join(parts[:3])
    return name


def _layer(name: str) -> str:
    """Return the layer that a plugin or a role belongs to by its name; empty for what is shared."""
    parts = name.removesuffix(".py").split("/")
    found = ""
    for part in parts if parts[0] in ("plugins", "roles") else ():
        for layer in _LAYERS:
            if part == layer or part.startswith(f"{layer}_"):
                found = layer
    return found


def _paths(text: str) -> Iterator[str]:
    """Yield the paths in a text, also those that are joined from strings."""
    for match in _PATH.finditer(text):
        yield match[0].rstrip(".")
    for match in _JOINED.finditer(text):
        parts = re.findall(r'"([^"]+)"', match[0])
        for number in range(1, len(parts) + 1):
            if number == len(parts) or "." in parts[number - 1]:
                yield "/".join(parts[:number])


def _is_unit(name: str) -> bool:
    return name.startswith("tests/unit/") and name.rsplit("/", 1)[-1].startswith("test_") and name.endswith(".py")


def _is_shared(name: str) -> bool:
    """Return whether tests import the file by its last name alone."""
    return name.startswith(
        ("tests/support/", "tests/chaos/", "plugins/module_utils/_programs/train/gpumesh_")
    ) and name.endswith(".py")


def _parsed(text: str) -> tuple[set[str], list[str]]:
    """Return the imported names of a Python file, and its strings."""
    modules: set[str] = set()
    strings: list[str] = []
    for item in ast.walk(ast.parse(text)):
        if isinstance(item, ast.Import):
            modules |= {alias.name for alias in item.names}
        elif isinstance(item, ast.ImportFrom) and item.module:
            modules |= {item.module, *(f"{item.module}.{alias.name}" for alias in item.names)}
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
            strings.append(item.value)
    return modules, strings


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [name for name in done.stdout.split("\0") if name]


def read_repository(base: str) -> tuple[set[str], set[str], dict[str, str]]:
    """Return all files, those that differ from the last common commit with ``base``, and the texts that tests read."""
    new = set(_git("ls-files", "--others", "--exclude-standard"))
    changed = new | set(_git("diff", "--name-only", "--no-renames", "--merge-base", base))
    files = new | changed | set(_git("ls-files"))
    suffixes = (".py", ".yml", ".j2", ".md", ".sh")
    present = [name for name in files if name.endswith(suffixes) and (ROOT / name).is_file()]
    return files, changed, {name: (ROOT / name).read_text(encoding="utf-8") for name in present}


def main() -> int:
    """Return the exit status: 0 if everything that was selected passed."""
    parser = argparse.ArgumentParser(description="Run the tests that the changed files can affect.")
    parser.add_argument("--list", action="store_true", help="only print them")
    parser.add_argument("base", nargs="?", default="origin/main")
    given = parser.parse_args()
    files, changed, contents = read_repository(given.base)
    selection = select(files, changed, contents)
    units = [name for name in selection.units if (ROOT / name).exists()]
    print(
        f"{len(changed)} changed files affect {len(units)} files of unit tests and {len(selection.scenarios)} scenarios:"
    )
    print("\n".join([*units, *(f"molecule: {name}" for name in selection.scenarios)]), flush=True)
    commands = []
    if units:
        commands.append([sys.executable, "-m", "pytest", "-q", "-n", "auto", *units])
    if selection.scenarios:
        commands.append(["env", f"SCENARIO={' '.join(selection.scenarios)}", "tests/run", "molecule"])
    failed = False
    for command in commands if not given.list else ():
        print(f"\n=== {shlex.join(command[-2:] if command[0] == 'env' else command[:6])}", flush=True)
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
