# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A worker of Ansible is a copy of the process that forked it, so it need not load what that has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FILTERS = {path.stem for path in (ROOT / "plugins" / "filter").glob("*.py")}

#: What a strategy does before it forks: it looks up the action of a task, which need not be one of ours.
QUEUE = """
import sys
from ansible.plugins.loader import action_loader, init_plugin_loader
init_plugin_loader([])
action_loader.get(sys.argv[1], class_only=True)
prefix = "ansible_collections.gpumesh.cluster.plugins.filter."
print(*(name[len(prefix):] for name in sys.modules if name.startswith(prefix)))
"""


def filters_loaded_after(action: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", QUEUE, action], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("action", ["gpumesh.cluster.cluster_info", "gpumesh.cluster.interface_info"])
def test_first_task_of_a_run_loads_all_filters(action: str) -> None:
    assert filters_loaded_after(action) == FILTERS


def test_other_tasks_load_no_filters() -> None:
    assert filters_loaded_after("ansible.builtin.copy") == set()
