# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Later additions to a cluster are compared with the other clusters of each member before anything changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "tester@here")


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
SERVED_VOLUME = {**VOLUME, "server": "n1"}
SECOND_VOLUME = {**SERVED_VOLUME, "mount_point": "/more"}


def other_cluster() -> model.Record:
    made = record("two", 78, ("n2", "n3"), **MESH)
    return plan.commit(plan.set_storage(made, [VOLUME]), STAMP)


def run_change(folder: Path, **changes: Any) -> AnsibleRun:
    """Change the record of n1, which is in one cluster, and n2, which is in both."""
    enter = {"ansible.builtin.include_role": {"name": "gpumesh.cluster.cluster", "tasks_from": "change"}}
    play = {
        "hosts": "all",
        "vars": {"cluster_record": LAB, "cluster_changes": changes},
        "module_defaults": {"gpumesh.cluster.cluster": {"path": f"{folder}/{{{{ inventory_hostname }}}}"}},
        "tasks": [enter],
    }
    return run_plays(folder, {"n1": {}, "n2": {}}, [play])


def read_records(folder: Path) -> list[model.Record | None]:
    return [Store(str(folder / machine), "lab").read() for machine in ("n1", "n2")]


@pytest.fixture(autouse=True)
def _copies(tmp_path: Path) -> None:
    for machine, records in (("n1", [LAB]), ("n2", [LAB, other_cluster()])):
        for one in records:
            store = Store(str(tmp_path / machine), one["name"])
            with store.locked("tester"):
                store.write(one)


@pytest.mark.parametrize(
    ("part", "theirs", "other_one", "reason"),
    [
        (
            "mesh",
            {"backend": "wireguard"},
            {"port": 51821},
            "n2 is in cluster 'two', whose mesh has the same port 51820.",
        ),
        (
            "storage",
            {"volumes": [SERVED_VOLUME]},
            {"volumes": [SECOND_VOLUME]},
            "n2 is in cluster 'two', which also has a volume at /data.",
        ),
    ],
)
def test_resources_of_another_cluster_are_refused_before_anything_changes(
    tmp_path: Path, part: str, theirs: dict[str, Any], other_one: dict[str, Any], reason: str
) -> None:
    refused = run_change(tmp_path, **{part: theirs})
    assert refused.exit_status != 0
    assert reason in refused.flat_output
    assert read_records(tmp_path) == [LAB, LAB], "nothing has changed"
    taken = run_change(tmp_path, **{part: {**theirs, **other_one}})
    assert taken.exit_status == 0, taken.output
    first, second = read_records(tmp_path)
    assert first == second
    assert first is not None and first["generation"] == LAB["generation"] + 1
