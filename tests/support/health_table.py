# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tables of docs/guides/health.md, from the catalogue of the checks.

``python -m ansible_collections.gpumesh.cluster.tests.support.health_table`` writes them.
"""

from __future__ import annotations

import re
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import (
    CATALOGUE,
    LEVELS,
    CatalogueEntry,
)

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/health.md"
HEAD = "| check | passes if | reads | on | threshold | action | remedy |"
TABLE = re.compile(r"^\| check \|.*\n(?:\|.*\n)+", re.MULTILINE)


def format_action(entry: CatalogueEntry) -> str:
    """The action, and whether gpumesh-train leaves the node out of a run."""
    return f"{entry.action}, exclude" if entry.excludes_node else entry.action


def format_row(entry: CatalogueEntry) -> str:
    threshold = f"{entry.threshold} ({entry.source})" if entry.source else entry.threshold
    cells = [
        f"`{entry.check_id}`",
        entry.purpose,
        entry.reads,
        entry.hardware,
        threshold,
        format_action(entry),
        entry.remedy,
    ]
    return f"| {' | '.join(cells)} |\n"


def format_tables() -> dict[str, str]:
    """The table of each level that has checks."""
    rows = {level: [format_row(entry) for entry in CATALOGUE if entry.level == level] for level in LEVELS}
    rule = "|---|---|---|---|---|---|---|\n"
    return {level: f"{HEAD}\n{rule}{''.join(level_rows)}" for level, level_rows in rows.items() if level_rows}


def write_tables() -> None:
    """Replace the tables of the page, which are in the order of the levels."""
    tables = iter(format_tables().values())
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _match: next(tables), text), encoding="utf-8")


if __name__ == "__main__":
    write_tables()
