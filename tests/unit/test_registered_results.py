# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What roles and playbooks read of registered results is what the modules document. Jinja would fail only when it runs."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from ansible_collections.gpumesh.cluster.tests.support.documentation import read_documentation
from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES, load_tasks

PREFIX = "gpumesh.cluster."
#: What Ansible itself adds to results.
COMMON = {"changed", "diff", "error", "failed", "msg", "results", "skipped", "unreachable"}


def documented_results(module: str) -> frozenset[str]:
    documentation = read_documentation(ROOT / "plugins" / "modules" / f"{module}.py")
    return frozenset(documentation.get("RETURN") or {})


def modules_by_variable() -> dict[str, list[str]]:
    """The modules of ours whose results are registered, by variable; without those that run any module."""
    modules: dict[str, set[str]] = defaultdict(set)
    for path in TASK_FILES:
        for task in load_tasks(path):
            for action in task:
                if "register" in task and action.startswith(PREFIX):
                    modules[task["register"]].add(action.removeprefix(PREFIX))
    return {variable: sorted(names) for variable, names in modules.items() if "host_module" not in names}


@pytest.mark.parametrize(("variable", "modules"), sorted(modules_by_variable().items()), ids=str)
def test_a_result_that_is_read_is_documented(variable: str, modules: list[str]) -> None:
    documented = COMMON.union(*(documented_results(module) for module in modules))
    texts = [*TASK_FILES, *ROOT.glob("roles/*/vars/*.yml"), *ROOT.glob("roles/*/defaults/*.yml")]
    read = {
        (str(path.relative_to(ROOT)), key)
        for path in texts
        for key in re.findall(rf"(?<![\w.]){variable}\.(\w+)", path.read_text(encoding="utf-8"))
    }
    assert {(path, key) for path, key in read if key not in documented} == set()
