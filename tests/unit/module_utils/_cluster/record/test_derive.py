# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that the layers derive from a record."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "tester@here")


def build_record(
    name: str = "lab", identity: str = "0" * 32, subnet: str = "10.77.0.0/24", **mesh: Any
) -> model.Record:
    if "subnet_of_mesh" in mesh:
        mesh["subnet"] = mesh.pop("subnet_of_mesh")
    prefix = subnet.rsplit(".", 1)[0]
    members = [
        {"machine": f"n{number}", "address": f"{prefix}.{number}", "interface": f"eth{number}", "gpus": number}
        for number in (1, 2)
    ]
    return plan.commit(plan.create(identity, name, subnet, "n2", mesh, members, STAMP), STAMP)


def rename_cluster(record: model.Record, name: str) -> model.Record:
    return {**record, "name": name}


def join_member(record: model.Record, number: int, by: str = "tester@here") -> model.Record:
    prefix = record["subnet"].rsplit(".", 1)[0]
    member = {"machine": f"n{number}", "address": f"{prefix}.{number}", "interface": "eth0"}
    stamp = plan.ChangeStamp(STAMP.changed_at, by)
    return plan.commit(plan.join(record, [member], stamp), stamp)


def test_members_use_mesh_addresses_if_there_is_a_mesh() -> None:
    views = derive.member_views(build_record())
    assert [(s["rank"], s["address"], s["interface"], s["gpus"], s["manager"]) for s in views.values()] == [
        (0, "10.99.0.1", "gpumesh0", 1, False),
        (1, "10.99.0.2", "gpumesh0", 2, True),
    ]


def test_members_use_lan_addresses_without_a_mesh() -> None:
    views = derive.member_views(build_record(backend="none"))
    assert [(s["address"], s["interface"]) for s in views.values()] == [("10.77.0.1", "eth1"), ("10.77.0.2", "eth2")]


def test_unknown_machine_error_lists_the_members() -> None:
    assert membership.find_member(build_record(), "n2")["address"] == "10.77.0.2"
    with pytest.raises(InputError, match="Its members are n1, n2.") as refused:
        membership.find_member(build_record(), "n9")
    assert refused.value.details == {"machine": "n9"}


def test_copies_are_compared_by_history() -> None:
    old = build_record()
    new = join_member(old, 3)
    assert derive.compare_copies(old, copy.deepcopy(old)).kind == "same"
    assert derive.compare_copies(old, new) == ("behind", "generation 1 of 2")
    assert derive.compare_copies(new, old).kind == "ahead"
    assert derive.compare_copies(build_record(identity="1" * 32), old).kind == "other_cluster"


def test_independent_changes_of_two_managers_diverge_at_any_generation() -> None:
    old = build_record()
    one, other = join_member(old, 3, "alice@n1"), join_member(join_member(old, 4, "bob@n2"), 5, "bob@n2")
    standing = derive.compare_copies(one, other)
    assert standing.kind == "diverged"
    assert "'machine n3 joined' by alice@n1" in standing.reason
    assert "'machine n4 joined' by bob@n2" in standing.reason


def test_edited_copy_has_diverged() -> None:
    edited = copy.deepcopy(build_record())
    edited["members"][0]["gpus"] = 8
    assert derive.compare_copies(edited, build_record()).kind == "diverged"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (build_record("two"), ["n1 is in cluster 'two' on the same subnet 10.77.0.0/24."]),
        (
            build_record("two", subnet="10.78.0.0/24"),
            [
                "n1 is in cluster 'two', whose mesh has the same interface gpumesh0.",
                "n1 is in cluster 'two', whose mesh has the same port 51820.",
                "n1 is in cluster 'two', whose mesh has the overlapping subnet 10.99.0.0/16.",
            ],
        ),
        (
            build_record("two", subnet="10.78.0.0/24", subnet_of_mesh="10.99.7.0/24", port=1, interface="wg1"),
            ["n1 is in cluster 'two', whose mesh has the overlapping subnet 10.99.7.0/24."],
        ),
        (build_record("two", subnet="10.78.0.0/24", backend="none"), []),
        (build_record("lab"), []),
    ],
)
def test_conflicts_of_a_host_in_two_clusters(other: model.Record, said: list[str]) -> None:
    assert derive.find_conflicts([other], "n1", build_record()) == said


def test_names_with_the_same_inventory_group_conflict() -> None:
    wanted = rename_cluster(build_record(backend="none"), "a-b")
    other = build_record("a_b", subnet="10.78.0.0/24", backend="none")
    said = "n1 is in cluster 'a_b', which would be the same inventory group a_b."
    assert derive.find_conflicts([other], "n1", wanted) == [said]


def test_two_tailnets_on_one_host_conflict() -> None:
    other = build_record("two", subnet="10.78.0.0/24", backend="tailscale", subnet_of_mesh="100.64.0.0/10")
    wanted = build_record(backend="tailscale", interface="ts1", port=1, subnet_of_mesh="100.64.0.0/10")
    assert derive.find_conflicts([other], "n1", wanted) == [
        "n1 is in cluster 'two', and a host can be in only one tailnet."
    ]


def test_shared_mount_point_conflicts_unless_both_volumes_are_external() -> None:
    def with_volume(record: model.Record, **volume: str) -> model.Record:
        volumes = [{"name": "data", "mount_point": "/data", **volume}]
        return plan.commit(plan.set_storage(record, volumes), STAMP)

    other = build_record("two", subnet="10.78.0.0/24", backend="none")
    served, external = {"server": "n1", "path": "/srv/data"}, {"filesystem": "lustre"}
    said = ["n2 is in cluster 'two', which also has a volume at /data."]
    wanted = with_volume(build_record(), **served)
    assert derive.find_conflicts([with_volume(other, **served)], "n2", wanted) == said
    assert derive.find_conflicts([with_volume(other, **external)], "n2", wanted) == said
    # The server mounts it as well.
    said_of_server = [reason.replace("n2", "n1") for reason in said]
    assert derive.find_conflicts([with_volume(other, **served)], "n1", wanted) == said_of_server
    elsewhere = with_volume(other, server="n2", path="/srv/b")
    assert derive.find_conflicts([elsewhere], "n1", wanted) == said_of_server
    assert derive.find_conflicts([with_volume(other, **external)], "n1", with_volume(build_record(), **external)) == []
    assert derive.find_conflicts([with_volume(other, **external)], "n2", with_volume(build_record(), **external)) == []


def test_only_new_conflicts_are_refused() -> None:
    other, wanted = build_record("two", subnet="10.78.0.0/24", port=1), build_record()
    derive.refuse_conflicts([other], "n1", build_record(mtu=1400), wanted)
    with pytest.raises(InputError, match=r"has the same port 51820\. Remove the machine from one of them"):
        derive.refuse_conflicts([build_record("two", subnet="10.78.0.0/24")], "n1", build_record(port=1), wanted)


def test_record_without_the_host_does_not_conflict() -> None:
    assert derive.find_conflicts([build_record("two")], "n7", build_record()) == []
