# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a machine that leaves is released from, and when. The order of the layers is tested in test_new_layer.py."""

from __future__ import annotations

import yaml

from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT

ROLE = ROOT / "roles" / "cluster"


def test_claims_are_released_after_the_layers_are_removed() -> None:
    """A run that was interrupted before has to find out again whose munge it is."""
    tasks = yaml.safe_load((ROLE / "tasks" / "clean_up.yml").read_text(encoding="utf-8"))
    names = [task["name"] for task in tasks]
    asked, released = (number for number, task in enumerate(tasks) if "gpumesh.cluster.host_owner" in task)
    assert tasks[asked]["check_mode"] and "check_mode" not in tasks[released]
    assert asked < names.index("Remove the layers") < released < names.index("Delete the copy of the record")


def test_a_machine_that_never_joined_keeps_no_rules_in_its_own_firewall() -> None:
    tasks = yaml.safe_load((ROLE / "tasks" / "clean_up.yml").read_text(encoding="utf-8"))
    (removal,) = (number for number, task in enumerate(tasks) if "gpumesh.cluster.firewall_host" in task)
    assert tasks[removal]["gpumesh.cluster.firewall_host"]["state"] == "absent"
    (end,) = (number for number, task in enumerate(tasks) if task["name"] == "Skip a machine that never joined")
    assert removal < end and tasks[removal]["when"] == tasks[end]["when"]
