# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks in the files of the roles and playbooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PATHS = [*ROOT.glob("roles/*/tasks/*.yml"), *ROOT.glob("playbooks/*.yml"), *ROOT.glob("playbooks/layers/*.yml")]
_INNER = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")


def tasks_of(path: Path) -> list[dict[str, Any]]:
    """Every task, block and play in a file."""
    return _flat(yaml.safe_load(path.read_text(encoding="utf-8")) or [])


def _flat(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [task for entry in entries for task in [entry, *_flat([t for name in _INNER for t in entry.get(name, [])])]]
