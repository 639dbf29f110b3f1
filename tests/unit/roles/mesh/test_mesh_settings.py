# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of a mesh that is not in use yet change, unless a member has them for another cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import Run
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.Stamp("2026-11-22T07:00:00Z", "tester@here")


def record(name: str, network: int, machines: tuple[str, ...], **mesh: Any) -> model.Record:
    members = [
        {"machine": machine, "address": f"10.{network}.0.{number}", "interface": "eth0"}
        for number, machine in enumerate(machines, start=1)
    ]
    draft = plan.create("0" * 32, name, f"10.{network}.0.0/24", machines[0], mesh, members, STAMP)
    return plan.commit(draft, STAMP)


LAB = record("lab", 77, ("n1", "n2"), backend="none")
OTHER = record("two", 78, ("n2", "n3"), interface="wg9", subnet="10.98.0.0/16")


def change(folder: Path, **settings: Any) -> Run:
    """The role's preflight on n1, which is in one cluster, and n2, which is in both."""
    play = {
        "hosts": "all",
        "vars": {"cluster_record": LAB, **settings},
        "module_defaults": {"gpumesh.cluster.cluster": {"path": f"{folder}/{{{{ inventory_hostname }}}}"}},
        "tasks": [{"ansible.builtin.include_role": {"name": "gpumesh.cluster.mesh", "tasks_from": "preflight"}}],
    }
    return run_plays(folder, {"n1": {}, "n2": {}}, [play])


def test_they_are_compared_with_what_each_member_has(tmp_path: Path) -> None:
    for machine, held in (("n1", [LAB]), ("n2", [LAB, OTHER])):
        for one in held:
            store = Store(str(tmp_path / machine), one["name"])
            with store.locked("tester"):
                store.write(one)
    refused = change(tmp_path, mesh_backend="wireguard")
    assert refused.code != 0
    assert "n2 is in cluster 'two', whose mesh has the same port 51820." in refused.words
    assert [Store(str(tmp_path / name), "lab").read() for name in ("n1", "n2")] == [LAB, LAB], "nothing has changed"
    taken = change(tmp_path, mesh_backend="wireguard", mesh_port=51821)
    assert taken.code == 0, taken.output
    found = [Store(str(tmp_path / name), "lab").read() for name in ("n1", "n2")]
    assert [one["mesh"]["port"] for one in found if one] == [51821, 51821]
