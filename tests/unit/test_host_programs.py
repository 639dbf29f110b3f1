# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A layer installs what it runs on hosts: programs, and libraries of Python.

What runs there is found in the sources: lists of arguments, searches for programs, units and tasks. Each of these
programs has a package (``_core/debian_packages.py``), and the layer whose code runs it installs this package or one that
depends on it, unless all hosts have it or the layer does without it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.debian_packages import (
    PACKAGE_BY_PROGRAM,
    describe_installation,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry, session

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
PACKAGES_PATH = PLUGINS / "module_utils" / "_core" / "debian_packages.py"
LAYERS = [layer.name for layer in registry.LAYERS]

#: What debootstrap's variant minbase has: Essential packages, and those of the priority `required`.
MINIMAL = {"apt", "coreutils", "dash", "findutils", "mount", "passwd", "util-linux"}
#: What a host must have before it can become a member: how Ansible reaches it, how it is read, and its init system.
PREREQUISITES = {"iproute2", "openssh-server", "python3", "systemd"}
#: Programs without which the layers do, and why.
OPTIONAL = {
    "dcgmi": "the diagnostics of DCGM, if an administrator has installed them",
    "firewall-cmd": "changes the firewall of an administrator who has installed it",
    "git": "gpumesh-train notes the commit of a directory that is a repository of Git",
    "ib_write_bw": "measures RDMA where it is installed",
    "ib_write_lat": "measures RDMA where it is installed",
    "iperf3": "measures throughput where it is installed, otherwise the reachability test itself does",
    "make": "builds the collective tests from check_collective_source, with compilers and MPI of the administrator's choice",
    "modprobe": "each kernel package depends on it, and a container cannot load modules",
    "mpirun": "a launcher of the collective test that has to be chosen",
    "nsys": "profiles a run if the user asks for it, and comes with CUDA",
    "nvidia-smi": "comes with the driver",
    "tailscale": "the role mesh installs it from its makers' repository or archive",
    "tailscaled": "the role mesh installs it from its makers' repository or archive",
    "sudo": "only a host on which Ansible uses it has to have it",
    "ufw": "changes the firewall of an administrator who has installed it",
}
#: Packages that others depend on, and those that do.
DEPENDENTS = {
    "mariadb-client": {"mariadb-server"},
    "openssh-client": {"openssh-server"},
    "openssl": {"postgresql"},
    "postgresql-client-common": {"postgresql"},
    "postgresql-common": {"postgresql"},
}
#: The layers that a layer requires, whose packages it has too. Shared code is run for any of its callers.
REQUIRED_LAYERS = {
    "job_environment": ("slurm", "munge"),
    "session": ("slurm", "munge", "ssh_trust"),
    "slurm": ("munge",),
    "train": ("slurm", "munge", "ssh_trust"),
}
LAYER_BY_ROOM = {"trace": "train", "wireguard": "mesh", "tailscale": "mesh", "accounting": "slurm", "daemon": ""}
#: Libraries of Python that hosts import, and their packages. community.mysql, which the role slurm uses, imports pymysql.
LIBRARIES = {"yaml": "python3-yaml", "pymysql": "python3-pymysql"}
#: Libraries of the programs of users and of MLflow, which are in environments of their own.
ENVIRONMENT_LIBRARIES = {"flask", "mlflow", "torch", "transformers"}
#: Directories whose files are not the programs of packages.
OWN_PROGRAMS = re.compile(r"/(etc|opt|run|usr/include|usr/local|var)/")

#: Programs that run the one that their arguments name.
WRAPPERS = ("env", "ionice", "nice", "setpriv", "ssh-agent", "timeout")
_WRAPPER_COMMANDS = tuple(f"*{name}_command" for name in WRAPPERS)
#: The first arguments of podman, which stand in a list of their own, and a library among programs.
ARGUMENTS = {("runtime_podman.py", "run"), ("session.py", "yaml")}

_PROGRAM = re.compile(r"(?:/[\w./+-]+/)?[a-z][a-z0-9_.+-]*\Z")
#: Functions that run, or look for, what their first argument names.
_RUNNERS = re.compile(
    r"(?:^|_)(?:run|runner|command|commands|batch|process|popen|background)(?:_|$)|ChildProcess|Popen|CommandError"
)
_SEARCHES = ("find_program", "which", "require_program")
_COMMAND_NAMES = re.compile(r"(?:command|argv)s?$", re.IGNORECASE)
_PROGRAM_NAMES = re.compile(r"(?:^|_)(?:program|tool)s?(?:_by_\w+)?$", re.IGNORECASE)
#: Reserved words and builtins of sh and bash.
_SHELL_WORDS = {
    *("case", "do", "done", "elif", "else", "esac", "eval", "exit", "export", "fi", "for", "function", "if", "in"),
    *("local", "return", "set", "then", "trap", "unset", "wait", "while"),
}
_UNIT_COMMAND = re.compile(r"^Exec(?:Start|Stop|Reload)(?:Pre|Post)?=[-@:+!]*(\S+)", re.MULTILINE)


class Use(NamedTuple):
    """Where a program is used."""

    program: str
    path: Path
    line: int

    @property
    def layer(self) -> str:
        """The layer whose code this is; empty for code that several share."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        if parts[0] == "roles":
            room = parts[1]
        elif parts[1] in ("module_utils", "plugin_utils"):
            room = parts[3] if parts[2] in ("_layers", "_programs") else ""
        else:
            room = parts[2]
        candidates = [name for name in LAYERS if room == name or room.startswith(f"{name}_")]
        return max(candidates, key=len, default=LAYER_BY_ROOM.get(room.partition("_")[0], ""))


@cache
def trees() -> dict[Path, ast.Module]:
    # The code of a layer on the controller chooses programs too, such as those of daemons.
    rooms = ("module_utils", "modules", "plugin_utils/_layers")
    paths = [path for room in rooms for path in sorted((PLUGINS / room).rglob("*.py")) if path != PACKAGES_PATH]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


def bindings(tree: ast.Module) -> dict[str, ast.expr]:
    """The values of the names of a module."""
    values: dict[str, ast.expr] = {}
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            values[ast.unparse(statement.target)] = statement.value
        elif isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                values.update({ast.unparse(name): item for name, item in zip(target.elts, value.elts, strict=True)})
            else:
                values[ast.unparse(target)] = value
    return values


@cache
def public_bindings() -> dict[str, ast.expr]:
    return {
        name: value for tree in trees().values() for name, value in bindings(tree).items() if not name.startswith("_")
    }


class Finder:
    """Finds the programs in one source."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path, self.tree = path, tree
        self.values = {**public_bindings(), **bindings(tree)}
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def uses(self) -> Iterator[Use]:
        for node in ast.walk(self.tree):
            for expression in self.programs_in(node):
                program = self.text(expression)
                if program is None or (self.path.name, program) in ARGUMENTS:
                    continue
                if _PROGRAM.match(program) and not OWN_PROGRAMS.match(program):
                    yield Use(program.rpartition("/")[2], self.path, getattr(expression, "lineno", 0))

    def text(self, expression: ast.expr) -> str | None:
        """The string that an expression names, if it can be seen here."""
        if isinstance(expression, ast.Constant):
            return expression.value if isinstance(expression.value, str) else None
        if isinstance(expression, (ast.Name, ast.Attribute)):
            value = self.values.get(ast.unparse(expression).rpartition(".")[2])
            return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None
        if isinstance(expression, ast.BoolOp):
            return self.text(expression.values[-1])
        return None

    def programs_in(self, node: ast.AST) -> Iterator[ast.expr]:
        if isinstance(node, ast.Call):
            yield from self.in_call(node)
        elif isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
            if self.is_option(node.elts[1]):
                yield node.elts[0]
            if isinstance(node.elts[0], ast.Starred) and ast.unparse(node.elts[0]) in _WRAPPER_COMMANDS:
                yield from self.wrapped(node.elts)[:1]
            if self.text(node.elts[0]) in WRAPPERS:
                yield from self.wrapped(node.elts)[:1]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            yield from self.in_value(ast.unparse(target), node.value)
        elif isinstance(node, ast.FunctionDef) and _COMMAND_NAMES.search(node.name):
            for child in ast.walk(node):
                if isinstance(child, ast.Return) and child.value is not None:
                    yield from self.in_value(node.name, child.value)

    def in_call(self, call: ast.Call) -> Iterator[ast.expr]:
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in _SEARCHES:
            yield from call.args[:1]
        elif _RUNNERS.search(name):
            yield from (item.elts[0] for item in call.args if isinstance(item, (ast.List, ast.Tuple)) and item.elts)
        # A function of this source that looks for its arguments, or begins a list of arguments with them.
        if name in self.functions:
            names = [parameter.arg for parameter in self.functions[name].args.args]
            passed = self.run_parameters(self.functions[name])
            yield from (value for parameter, value in zip(names, call.args, strict=False) if parameter in passed)

    def wrapped(self, items: list[ast.expr]) -> list[ast.expr]:
        """The words of a wrapper's arguments that can be a program."""
        words = [item for item in items if isinstance(item, (ast.Constant, ast.Name))]
        texts = {item: self.text(item) for item in words}
        return [
            item
            for item, text in texts.items()
            if text not in WRAPPERS and (text is None or re.fullmatch(r"[a-z][\w.-]*", text))
        ]

    def run_parameters(self, function: ast.FunctionDef) -> set[str]:
        """The parameters of a function that it looks for, or that name the program of a list of arguments."""
        searched = {
            ast.unparse(node.args[0])
            for node in ast.walk(function)
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _SEARCHES and node.args
        }
        chosen = {
            ast.unparse(name)
            for node in ast.walk(function)
            if isinstance(node, ast.IfExp) and searched & {ast.unparse(node.body)}
            for name in (node.body, node.orelse)
        }
        lists = [node.elts for node in ast.walk(function) if isinstance(node, ast.List) and node.elts]
        begun = {ast.unparse(items[0]) for items in lists}
        begun |= {
            ast.unparse(item) for items in lists if self.text(items[0]) in WRAPPERS for item in self.wrapped(items)[:1]
        }
        return searched | chosen | begun

    def is_option(self, expression: ast.expr) -> bool:
        if isinstance(expression, ast.JoinedStr) and expression.values:
            expression = expression.values[0] if isinstance(expression.values[0], ast.Constant) else expression
        text = self.text(expression)
        return text is not None and text.startswith("-")

    @staticmethod
    def in_value(name: str, value: ast.expr) -> Iterator[ast.expr]:
        literals = [node for node in ast.walk(value) if isinstance(node, (ast.List, ast.Tuple)) and node.elts]
        name = name.rpartition(".")[2]
        if _COMMAND_NAMES.search(name):
            yield from (literal.elts[0] for literal in literals)
        elif _PROGRAM_NAMES.search(name):
            if isinstance(value, ast.Constant):
                yield value
            elif isinstance(value, ast.Dict) and name.endswith("_BY_PROGRAM"):
                yield from (key for key in value.keys if key is not None)
            elif isinstance(value, ast.Dict):
                yield from value.values
            if not name.endswith("_BY_PROGRAM"):
                yield from (item for literal in literals for item in literal.elts)


def task_programs(tasks: Any) -> Iterator[str]:
    """The programs of the tasks in a file of a role."""
    if isinstance(tasks, list):
        for item in tasks:
            yield from task_programs(item)
    elif isinstance(tasks, dict):
        argv = tasks.get("argv")
        if isinstance(argv, list):
            # Programs that run another one.
            yield from [word for word in argv[:3] if word == argv[0] or (argv[0] == "timeout" and word.isalpha())]
        elif isinstance(argv, str):
            yield from re.findall(r"\[\s*'([\w-]+)'", argv)[:1]
        for value in tasks.values():
            yield from task_programs(value)


def script_programs(text: str) -> set[str]:
    """The programs of a script of the shell, without what the shell itself does and the script defines."""
    code = re.sub(r"^\s*#.*|'[^']*'", "", text, flags=re.MULTILINE)
    commands = set(
        re.findall(r"(?:^|[;|&(!]|\b(?:then|do|else|if|while)\b)\s*([a-z][\w-]*)(?=[\s;)])", code, re.MULTILINE)
    )
    return commands - _SHELL_WORDS - set(re.findall(r"(\w+)\(\)", code))


@cache
def all_uses() -> tuple[Use, ...]:
    uses = [use for path, tree in trees().items() for use in Finder(path, tree).uses()]
    for path in sorted(ROOT.glob("roles/*/tasks/*.yml")):
        tasks = yaml.safe_load(path.read_text(encoding="utf-8"))
        uses += [Use(program, path, 0) for program in task_programs(tasks)]
    for path in sorted(ROOT.glob("roles/*/files/*")):
        if path.suffix in (".sh", ".bash", "") and path.is_file():
            uses += [Use(program, path, 0) for program in script_programs(path.read_text(encoding="utf-8"))]
    sources = [*PLUGINS.rglob("*.py"), *ROOT.glob("roles/*/templates/*")]
    for path in sources:
        commands = _UNIT_COMMAND.findall(path.read_text(encoding="utf-8"))
        uses += [
            Use(command.rpartition("/")[2], path, 0)
            for command in commands
            if _PROGRAM.match(command) and not OWN_PROGRAMS.match(command)
        ]
    return tuple(uses)


@cache
def installed_packages() -> dict[str, set[str]]:
    """The packages that the code of each layer names in a list or a mapping: those that it installs."""
    names = {
        *PACKAGE_BY_PROGRAM.values(),
        *LIBRARIES.values(),
        *(name for group in DEPENDENTS.values() for name in group),
    }
    packages: dict[str, set[str]] = defaultdict(set)
    # Actions install; two modules and the room of tracking report names of packages to them.
    paths = [*PLUGINS.glob("action/*.py"), *PLUGINS.glob("plugin_utils/_layers/*.py")]
    paths += [PLUGINS / "module_utils" / "_layers" / name for name in ("munge_apply.py", "tracking/server.py")]
    paths.append(PLUGINS / "modules" / "tracking.py")
    for path in paths:
        layer = Use("", path, 0).layer
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            items = node.elts if isinstance(node, (ast.List, ast.Tuple)) else []
            items = node.values if isinstance(node, ast.Dict) else items
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
                items = node.args
            packages[layer] |= {item.value for item in items if isinstance(item, ast.Constant) and item.value in names}
    for path in ROOT.glob("roles/*/tasks/*.yml"):
        for names in re.findall(r"gpumesh\.cluster\.packages:\n +name: \[(.+)\]", path.read_text(encoding="utf-8")):
            packages[Use("", path, 0).layer] |= set(names.split(", "))
    return packages


def providers(package: str) -> set[str]:
    return {package, *DEPENDENTS.get(package, ())}


def available_packages(layer: str) -> set[str]:
    """The packages that hosts have where the code of a layer runs; any layer's for code that they share."""
    layers = (layer, *REQUIRED_LAYERS.get(layer, ()), "") if layer else tuple(installed_packages())
    return {package for name in layers for package in installed_packages().get(name, ())}


def unmapped(uses: tuple[Use, ...]) -> list[str]:
    known = {*PACKAGE_BY_PROGRAM, *OPTIONAL}
    return sorted(
        {f"{use.program}: {use.path.relative_to(ROOT)}:{use.line}" for use in uses if use.program not in known}
    )


def not_installed(uses: tuple[Use, ...]) -> list[str]:
    faults = set()
    for use in uses:
        package = PACKAGE_BY_PROGRAM.get(use.program)
        if package is None or use.program in OPTIONAL or package in MINIMAL | PREREQUISITES:
            continue
        if not providers(package) & available_packages(use.layer):
            faults.add(f"{use.program} ({package}), {use.layer or 'shared'}: {use.path.relative_to(ROOT)}:{use.line}")
    return sorted(faults)


def imported_libraries() -> dict[str, set[str]]:
    """The libraries beyond Python's own that code on hosts imports, with the layers."""
    libraries: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        names: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names.append(node.module or "")
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names += [item.value for item in node.args if isinstance(item, ast.Constant)]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                # The text of a program for `python3 -c`.
                listed = re.match(r"import ([\w, ]+)", node.value)
                names += listed.group(1).split(", ") if listed else []
        for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
            if name not in ("ansible", "ansible_collections") and not name.startswith("gpumesh_"):
                libraries[name].add(Use("", path, 0).layer)
    return libraries


def test_each_program_that_runs_on_hosts_has_a_package() -> None:
    assert unmapped(all_uses()) == []


def test_each_layer_installs_the_programs_that_it_runs() -> None:
    assert not_installed(all_uses()) == []


def test_each_layer_installs_the_libraries_that_it_imports() -> None:
    libraries = imported_libraries()
    assert libraries.keys() - ENVIRONMENT_LIBRARIES <= LIBRARIES.keys()
    for name in libraries.keys() & LIBRARIES.keys():
        for layer in libraries[name]:
            assert LIBRARIES[name] in available_packages(layer), (name, layer)
    assert LIBRARIES["pymysql"] in available_packages("slurm")


def test_nothing_is_listed_that_is_not_used() -> None:
    used = {use.program for use in all_uses()}
    assert sorted({*PACKAGE_BY_PROGRAM, *OPTIONAL} - used) == []
    assert not OPTIONAL.keys() & {name for name, package in PACKAGE_BY_PROGRAM.items() if package in MINIMAL}


def test_programs_are_found_in_each_form() -> None:
    source = """
_TOOL = "tool"
OTHER_PROGRAMS = ("first", "second")
def begin(name): return [name, "x"]
def look():
    run(["direct", argument])
    run(["env", *names, "A=1", "wrapped", "argument"])
    plain = [_TOOL, "--option"]
    also = [*timeout_command, "launcher", "--option"]
    find_program("searched")
    begin("passed")
    last_command = ["ready"] if x else ["/usr/bin/other", x]
    words = ["text", "program"]
"""
    found = {use.program for use in Finder(PLUGINS / "modules" / "x.py", ast.parse(source)).uses()}
    expected = "direct env wrapped tool launcher searched passed ready other first second"
    assert found == set(expected.split())
    assert set(task_programs([{"block": [{"m": {"arguments": {"argv": ["timeout", "20", "inner"]}}}]}])) >= {"inner"}
    assert script_programs("f() {\n    ip link\n}\nf && wg-quick up x\n# comment here\n") == {"ip", "wg-quick"}


def test_unknown_programs_and_missing_packages_are_reported() -> None:
    path = PLUGINS / "module_utils" / "_layers" / "storage" / "mounts.py"
    assert unmapped((Use("unheard-of", path, 7),)) == [f"unheard-of: {path.relative_to(ROOT)}:7"]
    assert not_installed((Use("wg", path, 7),)) == [f"wg (wireguard-tools), storage: {path.relative_to(ROOT)}:7"]
    assert not_installed((Use("exportfs", path, 7), Use("mount", path, 8))) == []


def test_layers_install_the_certificates_that_verify_their_downloads() -> None:
    assert "ca-certificates" in session.PACKAGE_BY_PROGRAM.values()
    for path in (path for name in LAYERS for path in ROOT.glob(f"roles/{name}/tasks/*.yml")):
        text = path.read_text(encoding="utf-8")
        assert text.count("ansible.builtin.get_url") <= text.count("ca-certificates"), path


@pytest.mark.parametrize(
    ("program", "remedy"),
    [
        ("ip", "Install ip, which is in Debian's package iproute2."),
        ("/usr/sbin/nft", "Install /usr/sbin/nft, which is in Debian's package nftables."),
        ("podman", "Install podman."),
        ("nvidia-smi", "Install nvidia-smi."),
    ],
)
def test_the_remedy_names_the_package(program: str, remedy: str) -> None:
    assert describe_installation(program) == remedy
