# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How task files bring in others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.tests.support import task_files
from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES, load_tasks

TEMPLATE = re.compile(r"\{\{.*?\}\}")


def templated_includes(path: Path, task: dict[str, Any]) -> list[Path]:
    """The files that a task may bring in by a name that is a template."""
    found = ""
    if call := task.get("ansible.builtin.include_tasks"):
        file = call if isinstance(call, str) else call["file"]
        found = f"{path.parent.relative_to(ROOT)}/{file}"
    elif (call := task.get("ansible.builtin.include_role")) and TEMPLATE.search(call["name"]):
        return [
            ROOT / "roles" / role / "tasks" / f"{call.get('tasks_from', 'main')}.yml"
            for role in task_files.roles_of(task)
        ]
    elif call:
        found = f"roles/{call['name'].removeprefix('gpumesh.cluster.')}/tasks/{call.get('tasks_from', 'main')}.yml"
    return list(ROOT.glob(TEMPLATE.sub("*", found))) if TEMPLATE.search(found) else []


def test_a_file_included_by_a_template_includes_no_other() -> None:
    """An import in such a file fails before ansible-core 2.19, and only when it runs."""
    below = {found for path in TASK_FILES for task in load_tasks(path) for found in templated_includes(path, task)}
    assert ROOT / "roles/slurm/tasks/leave.yml" in below
    imports = {"ansible.builtin.import_tasks", "ansible.builtin.import_role"}
    assert [path for path in below if any(imports & task.keys() for task in load_tasks(path))] == []


def included_files(path: Path) -> list[Path]:
    """The files that a playbook or task file brings in."""
    found: list[Path] = []
    for task in [*load_tasks(path), *({"ansible.builtin.import_role": {"name": role}} for role in roles_of(path))]:
        for verb in ("import", "include"):
            if call := task.get(f"ansible.builtin.{verb}_tasks") or task.get(f"ansible.builtin.{verb}_playbook"):
                name = path.parent / (call if isinstance(call, str) else call["file"])
            elif call := task.get(f"ansible.builtin.{verb}_role"):
                file = f"{call.get('tasks_from', 'main').removesuffix('.yml')}.yml"
                for role in task_files.roles_of(task):
                    found += ROOT.glob(TEMPLATE.sub("*", f"roles/{role}/tasks/{file}"))
                continue
            else:
                continue
            found += ROOT.glob(TEMPLATE.sub("*", str(name.relative_to(ROOT))))
    return found


def roles_of(path: Path) -> list[str]:
    return [role["role"] for play in load_tasks(path) for role in play.get("roles", [])]


def include_chains(path: Path) -> list[list[str]]:
    """Each way from a file to one that brings in no other, as the names of its files."""
    below = [chain for found in included_files(path) for chain in include_chains(found)]
    return [[str(path.relative_to(ROOT)), *chain] for chain in below or [[]]]


@pytest.mark.parametrize("playbook", sorted((ROOT / "playbooks").glob("*.yml")), ids=lambda path: path.stem)
def test_a_task_is_at_most_four_files_below_what_people_run(playbook: Path) -> None:
    """The playbook, its list of layers, the entry point of a role, and one file beside it."""
    deep = {chain[-1] for chain in include_chains(playbook) if len(chain) > 4}
    # A loop over the parts of a queue, which may be larger than the memory of Ansible.
    assert deep <= {"roles/slurm/tasks/carry_over.yml"}
