# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines that others dial, and that dial nobody, are named, and the play ends for them alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

#: n2 and n4 are told to do without an interface, and n4 is no member. Whether n1 can have one is up to this machine.
HOSTS: dict[str, dict[str, Any]] = {"n1": {}, "n2": {"mesh_userspace": "always"}, "n4": {"mesh_userspace": "always"}}
RECORD = {"name": "lab", "members": [{"machine": name} for name in ("n1", "n2", "n3")]}
TASKS = [
    {"ansible.builtin.include_role": {"name": "gpumesh.cluster.cluster", "tasks_from": "dialling_only"}},
    {"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} goes on"}},
    {"ansible.builtin.debug": {"msg": "remembered {{ groups['gpumesh_only_dialled'] | sort | join(' ') }}."}},
]


def test_a_member_without_an_interface_of_the_tailnet_is_named_and_left_out(tmp_path: Path) -> None:
    run = run_tasks(tmp_path, HOSTS, {"cluster_record": RECORD}, TASKS)
    assert run.code == 0, run.output
    named = re.search(r"([n0-9, ]+): in the mesh of cluster 'lab', and left out here", run.words)
    assert named, run.output
    left_out = ["n2"] if os.path.exists("/dev/net/tun") else ["n1", "n2"]
    assert named[1].strip().split(", ") == left_out
    assert f"remembered {' '.join(left_out)}." in run.output
    # n4 is no member: that is not for this to judge.
    assert set(re.findall(r"(n\d) goes on", run.output)) == {"n1", "n2", "n4"} - set(left_out)
