# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The size and depth of the collection: figures that need no hosts.

    python tests/bench/bench_house.py

Lines are those of plugins and roles, with their documentation. A level is a file with tasks: the playbook, each role
and each file that is imported or included on the way to a module. Variables are the internal ones of the roles,
``__x``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
#: The modules that run other tasks: the option that names them, and whether it is a role or a task file.
IMPORT_KINDS = {
    f"ansible.builtin.{verb}_{kind}": kind for verb in ("import", "include") for kind in ("role", "tasks", "playbook")
}


def list_tracked(*directories: str) -> list[Path]:
    """Return the files of the repository below these directories."""
    git_output = subprocess.run(
        ["git", "ls-files", *directories], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / line for line in git_output.splitlines() if (ROOT / line).is_file()]


def iterate_tasks(content: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a task file or playbook, including those in blocks."""
    for entry in content or []:
        inner_keys = [
            name for name in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks") if name in entry
        ]
        for name in inner_keys:
            yield from iterate_tasks(entry[name])
        for role in entry.get("roles", []):
            yield {"ansible.builtin.import_role": {"name": role["role"]}}
        if not inner_keys and "hosts" not in entry:
            yield entry


def find_imported_files(path: Path, task: dict[str, Any]) -> list[Path]:
    """Return the files whose tasks a task runs; none for a module, or where the name is a template."""
    for name, kind in IMPORT_KINDS.items():
        import_options = task.get(name)
        if import_options is None:
            continue
        if kind != "role":
            file_name = import_options if isinstance(import_options, str) else import_options["file"]
            imported_path = path.parent / file_name
        else:
            entry = import_options.get("tasks_from", "main").removesuffix(".yml")
            imported_path = ROOT / "roles" / import_options["name"].rpartition(".")[2] / "tasks" / f"{entry}.yml"
        if "{{" in str(imported_path):
            return sorted(ROOT.glob(re.sub(r"\{\{.*?\}\}", "*", str(imported_path.relative_to(ROOT)))))
        return [imported_path]
    return []


def count_levels(path: Path) -> int:
    """Return the length of the longest path from this file to a module, counting the file itself."""
    levels_below = [
        count_levels(imported_path)
        for task in iterate_tasks(yaml.safe_load(path.read_text(encoding="utf-8")))
        for imported_path in find_imported_files(path, task)
        if imported_path != path
    ]
    return 1 + max(levels_below, default=0)


def main() -> None:
    """Print one line per figure, with its limit."""
    sources = list_tracked("plugins", "roles")
    tasks_by_file = {
        path: list(iterate_tasks(yaml.safe_load(path.read_text(encoding="utf-8"))))
        for path in list_tracked("roles", "playbooks")
        if path.suffix == ".yml" and ("tasks" in path.parts or path.parent.name in ("playbooks", "layers"))
    }
    role_tasks = [task for path, all_tasks in tasks_by_file.items() if "roles" in path.parts for task in all_tasks]
    all_tasks = [task for all_tasks in tasks_by_file.values() for task in all_tasks]
    internal_variables = {
        name
        for path in list_tracked("roles")
        if path.suffix == ".yml"
        for name in re.findall(r"\b__[a-z][a-z0-9_]*", path.read_text(encoding="utf-8"))
        if not name.endswith("__")
    }
    line_count = sum(path.read_bytes().count(b"\n") for path in sources)
    filters = [path for path in list_tracked("plugins/filter") if path.suffix == ".py"]
    levels_by_playbook = {path.stem: count_levels(path) for path in sorted((ROOT / "playbooks").glob("*.yml"))}
    name, depth = max(levels_by_playbook.items(), key=lambda item: item[1])
    print(f"lines of plugins and roles: {line_count} (limit: 32000)")
    print(f"filters: {len(filters)} (limit: 10)")
    print(f"internal variables of roles: {len(internal_variables)} (limit: 100)")
    for description, task_list_entries in (
        ("tasks", all_tasks),
        ("tasks of roles, without the playbooks' lists", role_tasks),
    ):
        import_count = sum(any(name in task for name in IMPORT_KINDS) for task in task_list_entries)
        print(
            f"{description}, that import or include others: {import_count} of {len(task_list_entries)}, "
            f"{import_count / len(task_list_entries):.0%} (limit: 15%)"
        )
    print(f"levels from a playbook to a module: {depth}, in {name} (limit: 3)")


if __name__ == "__main__":
    main()
