# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How task files bring in others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.tests.support.task_files import PATHS, ROOT, tasks_of

TEMPLATE = re.compile(r"\{\{.*?\}\}")


def templated(path: Path, task: dict[str, Any]) -> list[Path]:
    """The files that a task may bring in by a name that is a template."""
    found = ""
    if call := task.get("ansible.builtin.include_tasks"):
        file = call if isinstance(call, str) else call["file"]
        found = f"{path.parent.relative_to(ROOT)}/{file}"
    elif call := task.get("ansible.builtin.include_role"):
        found = f"roles/{call['name'].removeprefix('gpumesh.cluster.')}/tasks/{call.get('tasks_from', 'main')}.yml"
    return list(ROOT.glob(TEMPLATE.sub("*", found))) if TEMPLATE.search(found) else []


def test_a_file_whose_name_is_a_template_imports_no_other() -> None:
    """Before ansible-core 2.19 it fails, and only when it runs."""
    below = {found for path in PATHS for task in tasks_of(path) for found in templated(path, task)}
    assert ROOT / "roles/slurm/tasks/leave.yml" in below
    imports = {"ansible.builtin.import_tasks", "ansible.builtin.import_role"}
    assert [path for path in below if any(imports & task.keys() for task in tasks_of(path))] == []
