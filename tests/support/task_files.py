# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks in the files of the roles and playbooks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.gpumesh.cluster.plugins.lookup.layers import select_layers

ROOT = Path(__file__).resolve().parents[2]
TASK_FILES = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/layers/*.yml")]
_PREFIX = "gpumesh.cluster."
_LAYER_QUERY = re.compile(r"query\('gpumesh\.cluster\.layers', ((?:'\w+'(?:, )?)+)")
_TASK_LIST_KEYS = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")


def load_tasks(path: Path) -> list[dict[str, Any]]:
    """Return every task, block and play in a file."""
    return flatten_tasks(yaml.safe_load(path.read_text(encoding="utf-8")) or [])


def flatten_tasks(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return these plays, blocks and tasks, each followed by those within it."""
    return [
        task
        for entry in entries
        for task in [
            entry,
            *flatten_tasks([inner_task for name in _TASK_LIST_KEYS for inner_task in entry.get(name, [])]),
        ]
    ]


def layers_in(template: str) -> list[str]:
    """Return the names of the layers for which a template queries."""
    return [
        layer.name
        for selections in _LAYER_QUERY.findall(template)
        for selection in selections.rstrip(", ").split(",")
        for layer in select_layers(selection.strip().strip("'"))
    ]


def roles_of(task: dict[str, Any]) -> list[str]:
    """Return the roles that a task brings in: one, or those of the layers in its loop."""
    for action in ("ansible.builtin.include_role", "ansible.builtin.import_role"):
        if action in task:
            name: str = task[action]["name"].removeprefix(_PREFIX)
            return layers_in(task["loop"]) if "{{" in name else [name]
    return []
