# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plays that only compare generations run no module on a host whose record is no newer."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.playbook.task import Task

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import format_record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core import plugin_preload
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.ssh.examined import ExaminedModule

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": "n1", "address": "10.0.0.1", "interface": "eth0"}]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
MODULE = {"changed": False, "by": "the module"}


@pytest.fixture(name="ask")
def _ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the action on a host with this file as the record of lab; whether it ran the module."""
    # Only Ansible's own loader can load them.
    monkeypatch.setattr(plugin_preload, "load_plugins", lambda: None)
    action = importlib.import_module("ansible_collections.gpumesh.cluster.plugins.action.cluster_info").ActionModule
    monkeypatch.setattr(ExaminedModule, "run_module", lambda *_: MODULE)

    def ask(content: str | None, **arguments: Any) -> bool:
        if content is not None:
            (tmp_path / "lab.json").write_text(content, encoding="utf-8")
        task = Task()
        task.args = {"path": str(tmp_path), **arguments}
        made = action(task, SimpleNamespace(), None, None, None, None)

        def execute(command: str) -> dict[str, Any]:
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=240, check=False)
            return {"rc": done.returncode, "stdout": done.stdout}

        made._low_level_execute_command = execute
        return bool(made.run_module(None, {}) == MODULE)

    return ask


@pytest.mark.parametrize("generation", [1, 2, "1"])
def test_a_record_that_is_no_newer_needs_no_module(ask: Any, generation: int | str) -> None:
    assert not ask(format_record(RECORD), cluster="lab", generation=generation)


def test_the_module_refuses_a_newer_record(ask: Any) -> None:
    assert ask(format_record({**RECORD, "generation": 2}), cluster="lab", generation=1)


@pytest.mark.parametrize(
    "content", [None, "", "{}", '{"members": [{"generation": 1,}]}', '{\n  "name": "lab",\n  "gen']
)
def test_a_file_without_a_generation_is_left_to_the_module(ask: Any, content: str | None) -> None:
    assert ask(content, cluster="lab", generation=1)


@pytest.mark.parametrize("arguments", [{}, {"cluster": "lab"}, {"complete": []}])
def test_other_options_always_run_the_module(ask: Any, arguments: dict[str, Any]) -> None:
    assert ask(format_record(RECORD), **arguments)


def test_the_longest_record_begins_with_its_generation(ask: Any) -> None:
    longest = {**RECORD, "name": "c" + "9" * 39, "generation": 10**9}
    assert not ask(format_record(longest), cluster="lab", generation=10**9)
