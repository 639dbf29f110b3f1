# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which machines lose the rules that let the probes through the hosts' own firewalls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

ADDED = {
    "firewall_host": "auto",
    "__cluster_host_firewall": {"changed": True},
    "reachability_result": {"status": "fail"},
}
#: The variables of each machine besides these, and whether its rules are removed.
MACHINES: dict[str, tuple[dict[str, Any], bool]] = {
    "added": ({}, True),
    "earlier": ({"__cluster_host_firewall": {"changed": False}}, True),
    "failed": ({"__cluster_host_firewall": {"changed": False, "failed": True}}, True),
    "unproved": ({"reachability_result": {}}, True),
    "report": ({"firewall_host": "report"}, False),
    "unprobed": ({"__cluster_host_firewall": {"changed": False, "skipped": True}}, False),
    "passed": ({"reachability_result": {"status": "pass"}}, False),
    "untested": ({"reachability_result": {"status": "skipped"}}, False),
    "member": ({}, False),
}


def test_a_machine_that_does_not_join_keeps_no_rules_whoever_added_them(tmp_path: Path) -> None:
    tasks = yaml.safe_load((ROOT / "roles" / "cluster" / "tasks" / "admit.yml").read_text(encoding="utf-8"))
    (removal,) = (task for block in tasks for task in block.get("always", []))
    assert removal["gpumesh.cluster.firewall_host"]["state"] == "absent"
    said = {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} loses its rules."}, "when": removal["when"]}
    hosts = {name: {**ADDED, **variables} for name, (variables, _removed) in MACHINES.items()}
    hosts["default"] = {name: value for name, value in ADDED.items() if name != "firewall_host"}
    hosts["early"] = {name: value for name, value in ADDED.items() if name != "__cluster_host_firewall"}
    joining = [name for name in hosts if name != "member"]
    run = run_tasks(tmp_path, hosts, {"__cluster_registration": {"joining": joining}}, [said])
    assert run.exit_status == 0, run.output
    losing = [name for name in hosts if f"{name} loses its rules." in run.output]
    assert losing == [name for name, (_variables, removed) in MACHINES.items() if removed]
