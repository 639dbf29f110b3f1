# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A member that is down and excluded with --limit: the others find the record, and the reason is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "alice@desk")
MACHINES = ("n1", "n2", "n3")
ENTRIES = [{"machine": name, "address": f"10.77.0.{n}", "interface": "eth0"} for n, name in enumerate(MACHINES, 1)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
#: All hosts are this machine, so each has a folder of its own.
FOLDER = "{{ playbook_dir }}/{{ item.machine | default(inventory_hostname) }}"
#: Nothing listens there.
UNREACHABLE_HOST = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def run_limited(folder: Path, down: str, entry: str, purpose: str) -> AnsibleRun:
    """Read the record on the members that are up, as a play with --limit does."""
    for name in MACHINES:
        (folder / name).mkdir(mode=0o700)
        Store(str(folder / name), "lab").write(RECORD)
    role = {"name": "gpumesh.cluster.cluster", "tasks_from": entry}
    tasks: list[dict[str, Any]] = [
        {"ansible.builtin.include_role": role, "vars": {"__cluster_purpose": purpose}},
        {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} has {{ __cluster_copies.record.generation }}."}},
        {
            "ansible.builtin.debug": {"msg": "Silent: {{ __cluster_copies.unreachable_members | join(' ') }}."},
            "run_once": True,
        },
    ]
    play = {
        "hosts": "all",
        "vars": {"cluster_name": "lab", "cluster_manager": "n1"},
        "module_defaults": {"gpumesh.cluster.cluster_info": {"path": FOLDER}},
        "tasks": tasks,
    }
    hosts: dict[str, dict[str, Any]] = {name: {} for name in MACHINES}
    hosts[down] = UNREACHABLE_HOST
    return run_plays(folder, hosts, [play], {"cluster": MACHINES}, "--limit", f"all:!{down}")


@pytest.mark.parametrize(
    ("down", "entry", "purpose"),
    [
        *((name, "find", "register") for name in MACHINES),
        ("n1", "load", "load"),
        ("n2", "load", "read"),
        ("n3", "find", "remove"),
    ],
)
def test_the_other_hosts_continue_and_the_reason_is_named(tmp_path: Path, down: str, entry: str, purpose: str) -> None:
    run = run_limited(tmp_path, down, entry, purpose)
    assert run.exit_status == 0, run.output
    assert [name for name in MACHINES if f"{name} has 1." in run.output] == [name for name in MACHINES if name != down]
    said = (
        "The manager n1 does not answer (" if down == "n1" else f"{down} is not in this run and keeps what it has. It"
    )
    said += "" if down == "n1" else " does not answer: "
    assert f"Silent: {down}." in run.output
    assert f"{said}127.0.0.1 answers, but nothing listens on port 1." in run.flat_output, run.output
