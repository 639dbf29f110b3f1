# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A mesh in which two members have no way to each other is refused by the record as it would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

STAMP = plan.Stamp("2026-11-22T07:00:00Z", "tester@here")
REFUSE = [{"ansible.builtin.include_role": {"name": "gpumesh.cluster.cluster", "tasks_from": "refuse_mesh"}}]
#: The manager n1 relays between n2 and n3, which are behind NAT at two sites.
MEMBERS = [
    {"machine": f"n{n}", "address": f"10.77.0.{n}", "interface": "eth0", "site": f"s{n}", "endpoint": endpoint}
    for n, endpoint in ((1, "192.0.2.1:51820"), (2, ""), (3, ""), (4, ""))
]


@pytest.mark.parametrize(
    ("backend", "relays", "said"),
    [
        ("wireguard", [], "have no way to each other"),
        ("wireguard", ["n9"], "mesh_relays names n9"),
        ("none", [], ""),
    ],
)
def test_a_new_manager_that_cannot_relay(tmp_path: Path, backend: str, relays: list[str], said: str) -> None:
    before = plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {"backend": backend}, MEMBERS, STAMP).record
    after = plan.remove(before, ["n1"], STAMP, "n2").record
    for record, refused in ((before, bool(relays)), (after, bool(said))):
        variables = {"__cluster_coming": {"record": record}, "mesh_relays": relays}
        run = run_tasks(tmp_path, {"n2": {}}, variables, REFUSE)
        assert (run.code != 0) == refused, run.output
        assert not refused or said in run.words
