# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role's documented options match its defaults, with the same values, and vice versa."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if path.is_dir())

# A layer may use variables that another layer has published under its own name.
SHARED_VARIABLES = {"cluster_record"}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


def entry_points(role: Path) -> dict[str, dict[str, Any]]:
    document = load(role / "meta" / "argument_specs.yml")
    assert document, f"{role.name} has no meta/argument_specs.yml"
    return document["argument_specs"]


def documented_options(role: Path) -> dict[str, dict[str, Any]]:
    """The options of all entry points; an option of several ones must be the same in each."""
    options: dict[str, dict[str, Any]] = {}
    for entry, spec in entry_points(role).items():
        for name, option in (spec.get("options") or {}).items():
            known = options.setdefault(name, option)
            assert known.get("default") == option.get("default"), (
                f"{role.name}: {name} has another default in entry point {entry}"
            )
    return options


def of_this_role(role: Path, name: str) -> bool:
    return name.startswith(f"{role.name}_") and name not in SHARED_VARIABLES


def test_there_are_roles():
    assert ROLES


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_are_documented_with_their_values(role):
    defaults = load(role / "defaults" / "main.yml") or {}
    options = documented_options(role)
    undocumented = sorted(set(defaults) - set(options))
    assert not undocumented, f"in defaults/main.yml, not in meta/argument_specs.yml: {undocumented}"
    differing = {
        name: {"defaults": value, "argument_specs": options[name].get("default")}
        for name, value in defaults.items()
        if options[name].get("default") != value
    }
    assert not differing, differing


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_documented_defaults_are_there(role):
    defaults = load(role / "defaults" / "main.yml") or {}
    promised = {
        name
        for name, option in documented_options(role).items()
        if of_this_role(role, name) and "default" in option and name not in defaults
    }
    assert not promised, f"in meta/argument_specs.yml with a default, not in defaults/main.yml: {sorted(promised)}"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_each_entry_point_that_others_may_call_is_described(role):
    entries = entry_points(role)
    assert "main" in entries or not (role / "tasks" / "main.yml").exists()
    for entry, spec in entries.items():
        assert (role / "tasks" / f"{entry}.yml").exists(), f"{role.name}: there is no tasks/{entry}.yml"
        assert spec.get("short_description"), f"{role.name}/{entry} has no short_description"
        for name, option in (spec.get("options") or {}).items():
            assert option.get("description"), f"{role.name}/{entry}: {name} has no description"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_names_tell_public_from_internal(role):
    for name in load(role / "defaults" / "main.yml") or {}:
        assert name.startswith(f"{role.name}_"), f"public variable {name} does not carry its role's name"
    for name in load(role / "vars" / "main.yml") or {}:
        assert name.startswith(f"__{role.name}_"), f"internal variable {name} does not carry __{role.name}_"


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_metadata(role):
    info = load(role / "meta" / "main.yml")["galaxy_info"]
    assert info["license"] == "GPL-3.0-or-later"
    assert info["min_ansible_version"] == "2.18"
    assert info["description"]
    debian = next(platform for platform in info["platforms"] if platform["name"] == "Debian")
    assert {"bookworm", "trixie"} <= set(debian["versions"])


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_own_variable_in_use_is_defined(role):
    """Finds misspelt variables of the role before they reach a host."""
    known = set(load(role / "defaults" / "main.yml") or {}) | set(load(role / "vars" / "main.yml") or {})
    known |= set(documented_options(role)) | SHARED_VARIABLES
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("tasks", "handlers", "templates", "vars", "defaults")
        for path in sorted((role / folder).rglob("*"))
        if path.is_file()
    )
    known |= set(re.findall(rf"\b(?:register|loop_var|index_var): (__{role.name}_\w+)", text))
    known |= set(re.findall(rf"^\s+(__{role.name}_\w+):", text, flags=re.MULTILINE))
    used = set(re.findall(rf"(?<![\w.'\"/-])__{role.name}_\w+", text))
    assert used <= known, f"used, and defined nowhere: {sorted(used - known)}"


def tasks_of(role: Path) -> list[dict[str, Any]]:
    """All tasks of a role in the order of their files, including those in blocks."""
    found: list[dict[str, Any]] = []

    def walk(tasks: list[dict[str, Any]]) -> None:
        for task in tasks:
            found.append(task)
            for part in ("block", "rescue", "always"):
                walk(task.get(part) or [])

    for path in sorted((role / "tasks").rglob("*.yml")):
        walk(load(path))
    return found


#: Actions that fail with the reason of a result that they are given, and the option; their own tests prove it.
SAYING_WHY = {"gpumesh.cluster.munge": "manager"}


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_task_that_hides_its_result_is_followed_by_one_that_says_why_it_failed(role):
    tasks = tasks_of(role)
    for task, following in zip(tasks, [*tasks[1:], {}], strict=True):
        # Values that are computed on the controller have no reason to fail.
        if task.get("no_log", False) is False or "ansible.builtin.set_fact" in task:
            continue
        said = (following.get("ansible.builtin.assert") or {}).get("fail_msg", "")
        assert task.get("failed_when") is False, f"{role.name}: {task['name']}"
        given = [(following.get(action) or {}).get(option) for action, option in SAYING_WHY.items()]
        handed_on = f"{{{{ {task['register']} }}}}" in given and not following.get("no_log", False)
        assert f"{task['register']}.msg" in said or handed_on, f"{role.name}: {task['name']}"
