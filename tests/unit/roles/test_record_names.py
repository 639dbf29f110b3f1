# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Only modules that accept the record by name receive it in this way."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES, load_tasks


def test_only_modules_with_an_action_receive_a_record_by_name() -> None:
    given = set()
    for path in TASK_FILES:
        for task in load_tasks(path):
            for module, arguments in task.items():
                record = arguments.get("record") if isinstance(arguments, dict) else None
                if module.startswith("gpumesh.cluster.") and isinstance(record, str) and "{{" not in record:
                    given.add(module.rpartition(".")[2])
    assert "slurm" in given
    for module in sorted(given):
        action = (ROOT / f"plugins/action/{module}.py").read_text(encoding="utf-8")
        assert "self.record()" in action or "self.resolve_record(" in action, module
