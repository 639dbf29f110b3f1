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
IMPORTS = {
    f"ansible.builtin.{verb}_{what}": what for verb in ("import", "include") for what in ("role", "tasks", "playbook")
}


def tracked(*folders: str) -> list[Path]:
    """Return the files of the repository below these directories."""
    listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


def tasks_in(content: Any) -> Iterator[dict[str, Any]]:
    """Yield every task of a task file or playbook, including those in blocks."""
    for entry in content or []:
        inner = [name for name in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks") if name in entry]
        for name in inner:
            yield from tasks_in(entry[name])
        for role in entry.get("roles", []):
            yield {"ansible.builtin.import_role": {"name": role["role"]}}
        if not inner and "hosts" not in entry:
            yield entry


def brought_in(path: Path, task: dict[str, Any]) -> list[Path]:
    """Return the files whose tasks a task runs; none for a module, or where the name is a template."""
    for name, what in IMPORTS.items():
        given = task.get(name)
        if given is None:
            continue
        if what != "role":
            file = given if isinstance(given, str) else given["file"]
            found = path.parent / file
        else:
            entry = given.get("tasks_from", "main").removesuffix(".yml")
            found = ROOT / "roles" / given["name"].rpartition(".")[2] / "tasks" / f"{entry}.yml"
        if "{{" in str(found):
            return sorted(ROOT.glob(re.sub(r"\{\{.*?\}\}", "*", str(found.relative_to(ROOT)))))
        return [found]
    return []


def levels(path: Path) -> int:
    """Return the length of the longest path from this file to a module, counting the file itself."""
    below = [
        levels(found)
        for task in tasks_in(yaml.safe_load(path.read_text(encoding="utf-8")))
        for found in brought_in(path, task)
        if found != path
    ]
    return 1 + max(below, default=0)


def main() -> None:
    """Print one line per figure, with its limit."""
    sources = tracked("plugins", "roles")
    files = {
        path: list(tasks_in(yaml.safe_load(path.read_text(encoding="utf-8"))))
        for path in tracked("roles", "playbooks")
        if path.suffix == ".yml" and ("tasks" in path.parts or path.parent.name in ("playbooks", "layers"))
    }
    within = [task for path, tasks in files.items() if "roles" in path.parts for task in tasks]
    tasks = [task for tasks in files.values() for task in tasks]
    internal = {
        name
        for path in tracked("roles")
        if path.suffix == ".yml"
        for name in re.findall(r"\b__[a-z][a-z0-9_]*", path.read_text(encoding="utf-8"))
        if not name.endswith("__")
    }
    lines = sum(path.read_bytes().count(b"\n") for path in sources)
    filters = [path for path in tracked("plugins/filter") if path.suffix == ".py"]
    deepest = {path.stem: levels(path) for path in sorted((ROOT / "playbooks").glob("*.yml"))}
    name, depth = max(deepest.items(), key=lambda item: item[1])
    print(f"lines of plugins and roles: {lines} (limit: 32000)")
    print(f"filters: {len(filters)} (limit: 10)")
    print(f"internal variables of roles: {len(internal)} (limit: 100)")
    for what, some in (("tasks", tasks), ("tasks of roles, without the playbooks' lists", within)):
        imports = sum(any(name in task for name in IMPORTS) for task in some)
        print(
            f"{what}, that import or include others: {imports} of {len(some)}, {imports / len(some):.0%} (limit: 15%)"
        )
    print(f"levels from a playbook to a module: {depth}, in {name} (limit: 3)")


if __name__ == "__main__":
    main()
