# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role refuses before it looks at a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

STAMP = plan.Stamp("2026-11-22T07:00:00Z", "tester@here")
TASKS = [{"ansible.builtin.include_role": {"name": "gpumesh.cluster.mesh", "tasks_from": "preflight"}}]


@pytest.mark.parametrize(("backend", "code"), [("none", 2), ("tailscale", 2), ("wireguard", 0)])
def test_keys_are_rotated_where_they_are_ours(tmp_path: Path, backend: str, code: int) -> None:
    member = {"machine": "n1", "address": "10.77.0.1", "interface": "eth0"}
    draft = plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {"backend": backend}, [member], STAMP)
    record = plan.commit(draft, STAMP)
    run = run_tasks(tmp_path, {"n1": {}}, {"cluster_record": record, "mesh_rotate_keys": True}, TASKS)
    assert run.code == code, run.output
    refusal = f"the mesh of cluster lab is '{backend}', and nothing has been changed."
    assert (f"mesh_rotate_keys has no keys to rotate: {refusal}" in run.words) == (code != 0)
