# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that the layers derive from a record."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, plan

STAMP = plan.Stamp("2026-11-20T20:31:00Z", "tester@here")


def made(name: str = "lab", identity: str = "0" * 32, subnet: str = "10.77.0.0/24", **mesh: Any) -> model.Record:
    if "subnet_of_mesh" in mesh:
        mesh["subnet"] = mesh.pop("subnet_of_mesh")
    prefix = subnet.rsplit(".", 1)[0]
    members = [
        {"machine": f"n{number}", "address": f"{prefix}.{number}", "interface": f"eth{number}", "gpus": number}
        for number in (1, 2)
    ]
    return plan.commit(plan.create(identity, name, subnet, "n2", mesh, members, STAMP), STAMP)


def renamed(record: model.Record, name: str) -> model.Record:
    return {**record, "name": name}


def joined(record: model.Record, number: int, by: str = "tester@here") -> model.Record:
    prefix = record["subnet"].rsplit(".", 1)[0]
    member = {"machine": f"n{number}", "address": f"{prefix}.{number}", "interface": "eth0"}
    stamp = plan.Stamp(STAMP.at, by)
    return plan.commit(plan.join(record, [member], stamp), stamp)


def test_with_a_mesh_members_meet_in_the_mesh() -> None:
    views = derive.member_views(made())
    assert [(s["rank"], s["address"], s["interface"], s["gpus"], s["manager"]) for s in views.values()] == [
        (0, "10.99.0.1", "gpumesh0", 1, False),
        (1, "10.99.0.2", "gpumesh0", 2, True),
    ]


def test_without_a_mesh_they_meet_on_their_lan() -> None:
    views = derive.member_views(made(backend="none"))
    assert [(s["address"], s["interface"]) for s in views.values()] == [("10.77.0.1", "eth1"), ("10.77.0.2", "eth2")]


def test_who_is_no_member_is_told_who_is() -> None:
    assert derive.member_of(made(), "n2")["address"] == "10.77.0.2"
    with pytest.raises(InputError, match="Its members are n1, n2.") as refused:
        derive.member_of(made(), "n9")
    assert refused.value.details == {"machine": "n9"}


def test_copies_are_compared_by_their_history() -> None:
    old = made()
    new = joined(old, 3)
    assert derive.relation(old, copy.deepcopy(old)).kind == "same"
    assert derive.relation(old, new) == ("behind", "generation 1 of 2")
    assert derive.relation(new, old).kind == "ahead"
    assert derive.relation(made(identity="1" * 32), old).kind == "other_cluster"


def test_two_managers_that_went_on_alone_have_diverged_even_at_different_generations() -> None:
    old = made()
    one, other = joined(old, 3, "alice@n1"), joined(joined(old, 4, "bob@n2"), 5, "bob@n2")
    standing = derive.relation(one, other)
    assert standing.kind == "diverged"
    assert "'machine n3 joined' by alice@n1" in standing.reason
    assert "'machine n4 joined' by bob@n2" in standing.reason


def test_an_edited_copy_has_diverged() -> None:
    edited = copy.deepcopy(made())
    edited["members"][0]["gpus"] = 8
    assert derive.relation(edited, made()).kind == "diverged"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (made("two"), ["n1 is in cluster 'two' on the same subnet 10.77.0.0/24."]),
        (
            made("two", subnet="10.78.0.0/24"),
            [
                "n1 is in cluster 'two', whose mesh has the same interface gpumesh0.",
                "n1 is in cluster 'two', whose mesh has the same port 51820.",
                "n1 is in cluster 'two', whose mesh has the overlapping subnet 10.99.0.0/16.",
            ],
        ),
        (
            made("two", subnet="10.78.0.0/24", subnet_of_mesh="10.99.7.0/24", port=1, interface="wg1"),
            ["n1 is in cluster 'two', whose mesh has the overlapping subnet 10.99.7.0/24."],
        ),
        (made("two", subnet="10.78.0.0/24", backend="none"), []),
        (made("lab"), []),
    ],
)
def test_a_host_in_two_clusters(other: model.Record, said: list[str]) -> None:
    assert derive.conflicts([other], "n1", made()) == said


def test_names_that_are_one_group_of_an_inventory_are_a_conflict() -> None:
    wanted = renamed(made(backend="none"), "a-b")
    other = made("a_b", subnet="10.78.0.0/24", backend="none")
    said = "n1 is in cluster 'a_b', which would be the same inventory group a_b."
    assert derive.conflicts([other], "n1", wanted) == [said]


def test_a_host_is_in_one_tailnet() -> None:
    other = made("two", subnet="10.78.0.0/24", backend="tailscale", subnet_of_mesh="100.64.0.0/10")
    wanted = made(backend="tailscale", interface="ts1", port=1, subnet_of_mesh="100.64.0.0/10")
    assert derive.conflicts([other], "n1", wanted) == ["n1 is in cluster 'two', and a host can be in only one tailnet."]


def test_a_mount_point_is_of_one_cluster_unless_others_look_after_it() -> None:
    def with_volume(record: model.Record, **volume: str) -> model.Record:
        volumes = [{"name": "data", "mount_point": "/data", **volume}]
        return plan.commit(plan.set_storage(record, volumes), STAMP)

    other = made("two", subnet="10.78.0.0/24", backend="none")
    served, external = {"server": "n1", "path": "/srv/data"}, {"filesystem": "lustre"}
    said = ["n2 is in cluster 'two', which also has a volume at /data."]
    wanted = with_volume(made(), **served)
    assert derive.conflicts([with_volume(other, **served)], "n2", wanted) == said
    assert derive.conflicts([with_volume(other, **external)], "n2", wanted) == said
    # The server mounts it as well.
    said_of_server = [reason.replace("n2", "n1") for reason in said]
    assert derive.conflicts([with_volume(other, **served)], "n1", wanted) == said_of_server
    elsewhere = with_volume(other, server="n2", path="/srv/b")
    assert derive.conflicts([elsewhere], "n1", wanted) == said_of_server
    assert derive.conflicts([with_volume(other, **external)], "n1", with_volume(made(), **external)) == []
    assert derive.conflicts([with_volume(other, **external)], "n2", with_volume(made(), **external)) == []


def test_only_what_is_new_is_refused() -> None:
    other, wanted = made("two", subnet="10.78.0.0/24", port=1), made()
    derive.refuse_conflicts([other], "n1", made(mtu=1400), wanted)
    with pytest.raises(InputError, match=r"has the same port 51820\. Remove the machine from one of them"):
        derive.refuse_conflicts([made("two", subnet="10.78.0.0/24")], "n1", made(port=1), wanted)


def test_a_record_that_a_host_merely_keeps_is_no_conflict() -> None:
    assert derive.conflicts([made("two")], "n7", made()) == []
