# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manager's record is deleted when all members are cleaned up, and not before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")
ENTRIES = [{"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
RECORD = plan.commit(plan.create("0" * 32, "no-such-cluster", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
MEMBERS = "{{ hostvars['localhost'].cluster_play_members }}"


def run_role(entry: str) -> dict[str, Any]:
    return {"ansible.builtin.include_role": {"name": "gpumesh.cluster.cluster", "tasks_from": entry}}


def test_the_record_is_kept_while_a_member_could_not_be_cleaned_up(tmp_path: Path) -> None:
    plays = [
        {"hosts": "all", "tasks": [run_role("members_only")]},
        {"hosts": MEMBERS, "tasks": [{"ansible.builtin.fail": {"msg": "no"}, "when": "inventory_hostname == 'n3'"}]},
        {"hosts": MEMBERS, "tasks": [run_role("forget_last"), {"ansible.builtin.debug": {"msg": "it is gone"}}]},
    ]
    run = run_plays(tmp_path, {name: {"cluster_record": RECORD} for name in ("n1", "n2", "n3")}, plays)
    assert run.exit_status != 0, run.output
    assert "n3 could not be cleaned up" in run.flat_output and "kept on n1" in run.flat_output
    assert "it is gone" not in run.output
