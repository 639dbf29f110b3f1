# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Only modules that accept the record by name receive it in this way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]


def tasks_in(content: Any) -> Iterator[dict[str, Any]]:
    for entry in content or []:
        for name in ("block", "tasks", "pre_tasks", "post_tasks"):
            yield from tasks_in(entry.get(name) if isinstance(entry, dict) else None)
        if isinstance(entry, dict):
            yield entry


def test_a_record_by_name_is_for_modules_that_look_it_up() -> None:
    given = set()
    for path in [
        *ROOT.glob("roles/*/tasks/*.yml"),
        *ROOT.glob("playbooks/*.yml"),
        *ROOT.glob("playbooks/layers/*.yml"),
    ]:
        for task in tasks_in(yaml.safe_load(path.read_text(encoding="utf-8"))):
            for module, arguments in task.items():
                record = arguments.get("record") if isinstance(arguments, dict) else None
                if module.startswith("gpumesh.cluster.") and isinstance(record, str) and "{{" not in record:
                    given.add(module.rpartition(".")[2])
    assert "slurm" in given
    for module in sorted(given):
        action = (ROOT / f"plugins/action/{module}.py").read_text(encoding="utf-8")
        assert "self.record()" in action or "self.named(" in action, module
