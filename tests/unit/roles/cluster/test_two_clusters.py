# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Later additions to a cluster are compared with the other clusters of each member before anything changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
MESH = {"interface": "wg9", "subnet": "10.98.0.0/16"}
VOLUME = {"name": "data", "server": "n3", "path": "/srv/data", "mount_point": "/data"}


def other() -> model.Record:
    made = record("two", 78, ("n2", "n3"), **MESH)
    return plan.commit(plan.set_storage(made, [VOLUME]), STAMP)


def change(folder: Path, role: str, *before: dict[str, Any], **settings: Any) -> Run:
    """Change settings of a role on n1, which is in one cluster, and n2, which is in both."""
    enter = {"ansible.builtin.include_role": {"name": f"gpumesh.cluster.{role}", "tasks_from": "settings"}}
    play = {
        "hosts": "all",
        "vars": {"cluster_record": LAB, **settings},
        "module_defaults": {"gpumesh.cluster.cluster": {"path": f"{folder}/{{{{ inventory_hostname }}}}"}},
        "tasks": [*before, enter],
    }
    return run_plays(folder, {"n1": {}, "n2": {}}, [play])


def held(folder: Path) -> list[model.Record | None]:
    return [Store(str(folder / machine), "lab").read() for machine in ("n1", "n2")]


@pytest.fixture(autouse=True)
def _copies(tmp_path: Path) -> None:
    for machine, records in (("n1", [LAB]), ("n2", [LAB, other()])):
        for one in records:
            store = Store(str(tmp_path / machine), one["name"])
            with store.locked("tester"):
                store.write(one)


def test_the_port_of_a_mesh(tmp_path: Path) -> None:
    chosen = {"record": LAB, "backend": "wireguard"}
    settings = {"gpumesh.cluster.mesh_settings": chosen, "register": "__mesh_settings"}
    refused = change(tmp_path, "mesh", settings)
    assert refused.code != 0
    assert "n2 is in cluster 'two', whose mesh has the same port 51820." in refused.words
    assert held(tmp_path) == [LAB, LAB], "nothing has changed"
    chosen["port"] = 51821
    taken = change(tmp_path, "mesh", settings)
    assert taken.code == 0, taken.output
    assert [one["mesh"]["port"] for one in held(tmp_path) if one] == [51821, 51821]


def test_the_mount_point_of_a_volume(tmp_path: Path) -> None:
    wanted = {**VOLUME, "server": "n1"}
    refused = change(tmp_path, "storage", storage_volumes=[wanted])
    assert refused.code != 0
    assert "n2 is in cluster 'two', which also has a volume at /data." in refused.words
    assert held(tmp_path) == [LAB, LAB], "nothing has changed"
    taken = change(tmp_path, "storage", storage_volumes=[{**wanted, "mount_point": "/more"}])
    assert taken.code == 0, taken.output
    assert [one["storage"]["volumes"][0]["mount_point"] for one in held(tmp_path) if one] == ["/more", "/more"]
