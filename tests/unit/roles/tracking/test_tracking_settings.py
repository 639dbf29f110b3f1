# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The server does not move to a member whose PostgreSQL cannot load its database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

TASKS = ROOT / "roles" / "tracking" / "tasks" / "settings.yml"
SKIPPED = {"skipped": True}


@pytest.mark.parametrize(
    ("former", "preview", "refused"),
    [
        ("n1", {"n1": {"postgresql": "17"}, "n2": {"postgresql": "15"}}, True),
        ("n1", {"n1": {"postgresql": "9.6"}, "n2": {"postgresql": "15"}}, False),
        ("n1", {"n1": {"postgresql": "15"}, "n2": {"postgresql": "15"}}, False),
        # It is unknown.
        ("n1", {"n1": {"postgresql": "17"}, "n2": {"postgresql": ""}}, False),
        ("n1", {"n1": {"postgresql": ""}, "n2": {"postgresql": "15"}}, False),
        # The former one is lost, and there was none before.
        ("n1", {"n2": {"postgresql": "15"}}, False),
        ("", {"n1": {"postgresql": ""}, "n2": {"postgresql": "15"}}, False),
        # It is switched off.
        ("n1", {"n1": SKIPPED, "n2": SKIPPED}, False),
    ],
)
def test_an_older_postgresql_is_refused(
    tmp_path: Path, former: str, preview: dict[str, dict[str, Any]], refused: bool
) -> None:
    tasks = yaml.safe_load(TASKS.read_text(encoding="utf-8"))
    (check,) = (one for one in tasks if one["name"] == "Check that the new server's PostgreSQL can load the database")
    off = SKIPPED in preview.values()
    facts = {
        "__tracking_asked": {"former": former},
        "__tracking_changed": {"record": {"tracking": None if off else {"server": "n2"}}},
    }
    hosts = {name: {"__tracking_preview": result} for name, result in preview.items()}
    run = run_tasks(tmp_path, hosts, facts, [check])
    assert bool(run.code) == refused, run.output
    words = "n2 has PostgreSQL 15, which cannot load the database of n1, since that has PostgreSQL 17."
    assert (words in " ".join(run.output.split())) == refused
