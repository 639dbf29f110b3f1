# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules cluster, cluster_member and cluster_info as Ansible runs them: arguments in, JSON out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from module_runs import read_result, start_module


def run(module: str, **arguments: Any) -> dict[str, Any]:
    return read_result(start_module(module, arguments))


def entry(number: int) -> dict[str, Any]:
    return {"machine": f"n{number}", "address": f"10.77.0.{number + 10}", "interface": "eth0"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "clusters")


@pytest.fixture
def lab(folder: str) -> dict[str, Any]:
    """Cluster lab with n1 as its manager and only member."""
    return run("cluster", name="lab", path=folder, subnet="10.77.0.11/24", manager="n1", members=[entry(1)])


def test_the_life_of_a_cluster(folder: str, lab: dict[str, Any]) -> None:
    assert (lab["changed"], lab["generation"], lab["previous_generation"]) == (True, 1, None)
    again = run("cluster", name="lab", path=folder, subnet="10.77.0.0/24", manager="n1", members=[entry(1)])
    assert (again["changed"], again["record"]) == (False, lab["record"])

    joined = run("cluster_member", cluster="lab", path=folder, members=[entry(2), entry(3)], actor="alice@desk")
    assert (joined["generation"], joined["record"]["history"][-1]["by"]) == (2, "alice@desk")
    assert joined["changes"] == [{"kind": "join", "detail": "machines n2, n3 joined", "machines": ["n2", "n3"]}]

    refused = run("cluster_member", cluster="lab", path=folder, machine="n1", state="absent")
    assert refused["failed"]
    assert refused["error"]["candidates"] == ["n2", "n3"]
    left = run("cluster_member", cluster="lab", path=folder, machine="n1", new_manager="n2", state="absent")
    assert (left["record"]["manager"], left["generation"]) == ("n2", 3)

    assert run("cluster_info", path=folder)["clusters"] == [left["record"]]
    assert run("cluster", name="lab", path=folder, state="absent")["changed"]
    assert run("cluster_info", path=folder) == {**run("cluster_info", path=folder), "clusters": [], "damaged": []}


def test_mesh_storage_and_members_in_one_change(folder: str, lab: dict[str, Any]) -> None:
    volume = {"name": "data", "server": "n2", "path": "/srv/data", "mount_point": "/mnt/data", "quota": "5G"}
    changed = run(
        "cluster",
        name="lab",
        path=folder,
        mesh={"mtu": 1380},
        members=[entry(2)],
        storage={"volumes": [volume]},
    )
    assert changed["generation"] == 2
    assert [change["kind"] for change in changed["changes"]] == ["mesh", "join", "storage"]
    assert changed["record"]["storage"]["volumes"] == [volume]


def test_check_mode_and_diff(folder: str, lab: dict[str, Any]) -> None:
    would_be = run(
        "cluster_member", cluster="lab", path=folder, members=[entry(2)], _ansible_check_mode=True, _ansible_diff=True
    )
    assert (would_be["changed"], would_be["generation"]) == (True, 2)
    assert json.loads(would_be["diff"]["before"]) == lab["record"]
    assert json.loads(would_be["diff"]["after"]) == would_be["record"]
    assert run("cluster_info", path=folder)["clusters"] == [lab["record"]]


def test_a_replica_is_written_and_a_newer_one_is_kept(folder: str, lab: dict[str, Any], tmp_path: Path) -> None:
    member = str(tmp_path / "member")
    assert run("cluster", name="lab", path=member, state="replica", record=lab["record"])["changed"]
    assert not run("cluster", name="lab", path=member, state="replica", record=lab["record"])["changed"]
    ahead = run("cluster_member", cluster="lab", path=member, members=[entry(2)])
    refused = run("cluster", name="lab", path=member, state="replica", record=lab["record"])
    assert (refused["failed"], refused["error"]["kind"]) == (True, "replica_refused")
    assert run("cluster_info", path=member)["clusters"] == [ahead["record"]]


def test_a_record_that_uses_resources_of_another_cluster_is_refused(folder: str, lab: dict[str, Any]) -> None:
    other = {
        "name": "two",
        "subnet": "10.78.0.0/24",
        "manager": "n1",
        "members": [{**entry(1), "address": "10.78.0.1"}],
    }
    refused = run("cluster", path=folder, **other)
    assert "n1 is in cluster 'lab', whose mesh has the same interface gpumesh0." in refused["msg"]
    mesh = {"interface": "wg1", "port": 1, "subnet": "10.98.0.0/16"}
    assert run("cluster", path=folder, **other, mesh=mesh)["changed"]
    newer = run("cluster", path=folder, name="two", mesh={"port": 51820}, _ansible_check_mode=True)
    assert "whose mesh has the same port 51820." in newer["msg"]
    document = {**run("cluster", path=folder, name="two")["record"]}
    document["mesh"] = {**document["mesh"], "port": 51820}
    copied = {"name": "two", "path": folder, "state": "replica", "record": document, "force": True}
    assert "whose mesh has the same port 51820." in run("cluster", **copied, machine="n1")["msg"]
    assert run("cluster", **copied, machine="n7")["changed"], "n7 is not in the other one"


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("cluster_member", {"cluster": "none", "members": [entry(2)]}, "There is no cluster 'none' on this host"),
        ("cluster", {"name": "none", "members": [entry(2)]}, "There is no cluster 'none' on this host"),
        ("cluster", {"name": "lab", "subnet": "10.78.0.0/24"}, "is on 10.77.0.0/24, not on 10.78.0.0/24"),
        ("cluster", {"name": "lab", "manager": "n2"}, "has the manager n1, not n2"),
        ("cluster", {"name": "../lab"}, "'../lab' is not a valid cluster name"),
        ("cluster", {"name": "lab", "state": "replica"}, "record"),
    ],
)
def test_invalid_requests_are_refused(
    folder: str, lab: dict[str, Any], module: str, arguments: dict[str, Any], message: str
) -> None:
    refused = run(module, path=folder, **arguments)
    assert refused["failed"]
    assert message in refused["msg"]
    assert run("cluster_info", path=folder)["clusters"] == [lab["record"]]


def test_twenty_machines_join_at_once(folder: str, lab: dict[str, Any]) -> None:
    """Twenty processes: all machines are in, each is one generation, and the history mentions each once."""
    numbers = range(2, 22)
    processes = [
        start_module("cluster_member", {"cluster": "lab", "path": folder, "members": [entry(n)], "lock_timeout": 60})
        for n in numbers
    ]
    results = [read_result(process) for process in processes]
    assert all(result["changed"] for result in results), results
    record = run("cluster_info", path=folder)["clusters"][0]
    assert {member["machine"] for member in record["members"]} == {f"n{number}" for number in range(1, 22)}
    assert record["generation"] == 21
    assert sorted(result["generation"] for result in results) == list(range(2, 22))
    assert [line["generation"] for line in record["history"]] == list(range(1, 22))
    assert {line["detail"] for line in record["history"][1:]} == {f"machine n{number} joined" for number in numbers}
    addresses = [member["mesh"]["address"] for member in record["members"]]
    assert addresses == [f"10.99.0.{number}" for number in range(1, 22)]
