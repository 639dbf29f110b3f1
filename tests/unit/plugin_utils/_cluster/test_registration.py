# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hosts become members, and what is refused before anything changes."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import enrolled_members
from ansible_collections.gpumesh.cluster.tests.support.decisions import plan_registration

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")


def host_facts(*addresses: str, gpus: int = 2, rdma: str = "none") -> dict[str, Any]:
    """The result of interface_info on a host with these ADDRESS/MASK, each on an interface of its own."""
    interfaces = []
    for number, text in enumerate(addresses):
        address, length = text.split("/")
        interfaces.append(
            {
                "name": f"eth{number}",
                "kind": "ethernet",
                "physical": True,
                "state": "up",
                "mtu": 1500,
                "mac": f"02:00:00:00:00:{number:02x}",
                "speed_mbps": None,
                "driver": None,
                "pci_address": None,
                "numa_node": None,
                "master": None,
                "members": [],
                "rdma": None,
                "addresses": [
                    {
                        "address": address,
                        "prefix_length": int(length),
                        "subnet": None,
                        "family": "inet",
                        "scope": "global",
                        "secondary": False,
                        "flags": [],
                    }
                ],
            }
        )
    return {"interfaces": interfaces, "host": {"gpus": {"count": gpus}, "default_routes": [], "rdma": rdma}}


LAN = {"n1": host_facts("10.0.0.1/24"), "n2": host_facts("10.0.0.2/24"), "n3": host_facts("10.0.0.3/24")}
RECORD = plan.commit(
    plan.create(
        "0" * 32,
        "lab",
        "10.0.0.0/24",
        "n1",
        {},
        [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)],
        STAMP,
    ),
    STAMP,
)


#: The defaults of a machine about which the inventory specifies nothing.
UNSPECIFIED = {
    "gpus": 2,
    "rdma": "none",
    "slurm_node": True,
    "interface": "eth0",
    "site": "default",
    "lan_address": "",
    "endpoint": "",
}

APART = {key: value for key, value in UNSPECIFIED.items() if key != "interface"}


def decide_with(arguments_of_request: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    arguments_of_request = LAN if arguments_of_request is None else arguments_of_request
    arguments: dict[str, Any] = {
        "addresses": dict.fromkeys(arguments_of_request, ""),
        "default_manager": next(iter(arguments_of_request)),
        **more,
    }
    return plan_registration(arguments_of_request, "lab", **arguments)


def test_new_cluster_has_all_hosts() -> None:
    decided = decide_with(mesh={"port": 7}, sites={"n2": "b"}, endpoints={"n3": "192.0.2.3"})
    assert decided == {
        "refusal": "",
        "exists": False,
        "manager": "n1",
        "subnet": "10.0.0.0/24",
        "mesh": {"port": 7},
        "members": [
            {**UNSPECIFIED, "machine": "n1", "address": "10.0.0.1"},
            {
                "machine": "n2",
                "gpus": 2,
                "rdma": "none",
                "slurm_node": True,
                "address": "10.0.0.2",
                "interface": "eth0",
                "site": "b",
                "endpoint": "",
            },
            {**UNSPECIFIED, "machine": "n3", "address": "10.0.0.3", "endpoint": "192.0.2.3"},
        ],
        "joining": ["n1", "n2", "n3"],
        "left_out": [],
        "withdrawn": [],
        "enrolling": [],
        "enrol_settings": {**plan.DEFAULT_MESH, "port": 7},
    }


def test_settings_removed_from_the_inventory_are_cleared() -> None:
    said = {"sites": {"n2": "b"}, "endpoints": {"n2": "192.0.2.3"}}
    with_both = plan.join(RECORD, decide_with(record=RECORD, machines=["n2"], **said)["members"], STAMP).record
    assert (with_both["members"][1]["site"], with_both["members"][1]["endpoint"]) == ("b", "192.0.2.3:51820")
    without = plan.join(with_both, decide_with(record=with_both, machines=["n2"])["members"], STAMP)
    assert (without.record["members"][1]["site"], without.record["members"][1]["endpoint"]) == ("default", None)
    again = decide_with(record=without.record, machines=["n2"])
    assert plan.join(without.record, again["members"], STAMP).changes == []


def test_removed_machine_returns_only_by_join() -> None:
    left = plan.remove(RECORD, ["n2"], STAMP).record
    for machines in (None, ["n1", "n2"]):
        decided = decide_with(record=left, machines=machines)
        assert decided["left_out"] == ["n2"]
        assert "n2" not in [*decided["joining"], *(member["machine"] for member in decided["members"])]
    back = decide_with(record=left, machines=["n2"], join_only=True)
    assert (back["joining"], back["left_out"]) == (["n2"], [])


def test_removed_machine_need_not_respond() -> None:
    left = plan.remove(RECORD, ["n2"], STAMP).record
    silent = {**LAN, "n2": {"unreachable": True, "msg": "no route"}}
    assert decide_with(silent, record=left)["refusal"] == ""
    assert "n2 (n2) does not answer" in decide_with(silent, record=left, join_only=True)["refusal"]


def test_interfaces_are_chosen_as_discover_does() -> None:
    two = {machine: host_facts(f"10.0.0.{n}/24", f"10.0.1.{n}/24") for n, machine in enumerate(("n1", "n2"), start=1)}
    assert decide_with(two)["subnet"] == "10.0.0.0/24"
    for patterns in ({"prefer": ["eth1"]}, {"exclude": ["eth0"]}):
        decided = decide_with(two, interfaces=patterns)
        assert (decided["subnet"], decided["members"][0]["interface"]) == ("10.0.1.0/24", "eth1")


def test_existing_cluster_adds_machines_and_keeps_its_mesh() -> None:
    decided = decide_with(record=RECORD, mesh={"port": 7})
    assert (decided["exists"], decided["joining"], decided["mesh"]) == (True, ["n3"], {})


def test_lost_gpu_stays_in_the_record() -> None:
    eight = plan.commit(plan.join(RECORD, [{"machine": "n2", "gpus": 8}], STAMP), STAMP)
    lost = {**LAN, "n2": host_facts("10.0.0.2/24", gpus=7)}

    def entry_of(**more: Any) -> int:
        (gpus,) = (
            entry["gpus"] for entry in decide_with(lost, record=eight, **more)["members"] if entry["machine"] == "n2"
        )
        return int(gpus)

    assert entry_of() == 8
    assert entry_of(machines=["n2"]) == 8
    assert entry_of(machines=["n3"], join_only=True) == 8
    # Naming it in a join confirms the lower number.
    assert entry_of(machines=["n2"], join_only=True) == 7
    assert entry_of(machines=["n2"], join_only=True, manager="n1") == 7
    lost["n2"] = host_facts("10.0.0.2/24", gpus=9)
    assert entry_of() == 9


@pytest.mark.parametrize(
    ("known", "found", "kept"),
    [
        (None, "none", "none"),
        (None, "roce", "roce"),
        ("none", "roce", "roce"),
        ("infiniband", "roce", "roce"),
        ("infiniband", "none", "infiniband"),
    ],
)
def test_lost_rdma_link_stays_in_the_record(known: str | None, found: str, kept: str) -> None:
    before = plan.commit(plan.join(RECORD, [{"machine": "n2", "rdma": known}], STAMP), STAMP)
    now = {**LAN, "n2": host_facts("10.0.0.2/24", rdma=found)}

    def of_n2(**more: Any) -> Any:
        return {one["machine"]: one["rdma"] for one in decide_with(now, record=before, **more)["members"]}["n2"]

    assert of_n2() == kept
    assert of_n2(machines=["n2"], join_only=True) == found
    # The inventory says that its jobs do without.
    assert of_n2(rdma={"n2": False}) == "none"


def test_only_the_named_machines_join() -> None:
    decided = decide_with(record=RECORD, machines=["n2"])
    assert decided["joining"] == []
    assert [member["machine"] for member in decided["members"]] == ["n1", "n2"]


def test_run_limited_to_the_new_machine() -> None:
    decided = decide_with({"n3": host_facts("192.168.7.7/24", "10.0.0.3/24")}, record=RECORD, default_manager="n1")
    assert (decided["manager"], decided["subnet"], decided["joining"]) == ("n1", "10.0.0.0/24", ["n3"])
    assert decided["members"][0]["interface"] == "eth1"


def test_member_with_two_addresses_keeps_the_recorded_one() -> None:
    two = {"n1": host_facts("10.0.0.200/24", "10.0.0.1/24"), "n2": LAN["n2"]}
    decided = decide_with(two, record=RECORD)
    assert (decided["members"][0]["address"], decided["members"][0]["interface"]) == ("10.0.0.1", "eth1")


def test_members_that_share_only_the_mesh() -> None:
    apart = {"a": host_facts("8.8.4.4/24"), "b": host_facts("192.168.0.5/24"), "c": host_facts("192.168.0.5/24")}
    decided = decide_with(
        apart,
        subnet="10.99.0.1/16",
        addresses={"a": "8.8.4.4", "b": "8.8.8.8", "c": "8.8.8.8"},
        endpoints={"c": "8.8.8.8:40123"},
    )
    assert decided["subnet"] == "10.99.0.0/16"
    assert decided["members"] == [
        # One has its public address on its own interface; b is behind NAT, and c has a forwarded port.
        {**APART, "machine": "a", "endpoint": "8.8.4.4:51820"},
        {**APART, "machine": "b"},
        {**APART, "machine": "c", "endpoint": "8.8.8.8:40123"},
    ]


#: Two sites that use the same private network, and a machine whose site is not given.
SITES = {
    "a": host_facts("8.8.4.4/24", "192.168.0.1/24"),
    "b": host_facts("192.168.0.2/24"),
    "c": host_facts("192.168.0.1/24"),
    "d": host_facts("192.168.0.3/24"),
    "e": host_facts("192.168.0.9/24"),
}
SITE_OF = {"a": "x", "b": "x", "c": "y", "d": "y"}


def lan_addresses(decided: dict[str, Any]) -> dict[str, str | None]:
    return {member["machine"]: member.get("lan_address") for member in decided["members"]}


def test_members_of_a_site_use_their_shared_network() -> None:
    decided = decide_with(SITES, subnet="10.99.0.0/16", sites=SITE_OF)
    assert lan_addresses(decided) == {
        "a": "192.168.0.1",
        "b": "192.168.0.2",
        "c": "192.168.0.1",
        "d": "192.168.0.3",
        "e": "",
    }
    # If they share the cluster's network, it is used.
    assert set(lan_addresses(decide_with(sites={"n1": "x", "n2": "x"})).values()) == {None, ""}
    # A tailnet finds the path inside a site by itself.
    assert set(lan_addresses(decide_with(SITES, subnet="100.64.0.0/10", mesh=TAILNET, sites=SITE_OF)).values()) == {
        None,
        "",
    }


def test_joining_machine_uses_the_network_of_its_site() -> None:
    first = decide_with({name: SITES[name] for name in "ab"}, subnet="10.99.0.0/16", sites=SITE_OF)
    record = plan.commit(plan.create("a" * 32, "lab", "10.99.0.0/16", "a", {}, first["members"], STAMP), STAMP)
    assert [member["lan_address"] for member in record["members"]] == ["192.168.0.1", "192.168.0.2"]
    later = decide_with({"f": host_facts("10.5.0.6/24", "192.168.0.6/24")}, record=record, sites={"f": "x"})
    assert lan_addresses(later) == {"f": "192.168.0.6"}
    stranger = decide_with({"f": host_facts("192.168.7.6/24")}, record=record, sites={"f": "x"})
    assert lan_addresses(stranger) == {"f": None}
    # The site's machines are moved apart.
    moved = decide_with({"a": SITES["a"], "b": host_facts("192.168.7.2/24")}, record=record, sites=SITE_OF)
    assert lan_addresses(moved) == {"a": "", "b": ""}
    assert [one["lan_address"] for one in plan.join(record, moved["members"], STAMP).record["members"]] == [None, None]


def test_mesh_is_not_the_network_of_a_site() -> None:
    inside = {name: host_facts(f"10.99.0.{number}/16") for number, name in enumerate("ab", start=1)}
    assert lan_addresses(decide_with(inside, subnet="10.99.0.0/16", sites=SITE_OF)) == {"a": "", "b": ""}


@pytest.mark.parametrize(
    ("given", "more", "said"),
    [
        (
            {**LAN, "n2": {"unreachable": True, "msg": "Task failed: no route\nto host"}},
            {"addresses": {"n1": "", "n2": "192.0.2.2", "n3": ""}},
            "Nothing has been changed. n2 (192.0.2.2) does not answer: no route to host. Check with",
        ),
        (
            {**LAN, "n2": {"unreachable": True, "msg": "Port 22 is closed. Open it.", "error": {}}},
            {},
            "Open it. To continue without it, exclude it with --limit '!n2', in AWX with cluster_without=n2.",
        ),
        (LAN, {"manager": "n9"}, "The manager 'n9' is not among the machines of the new cluster 'lab' (n1, n2, n3)"),
        (LAN, {"machines": ["n2"]}, "The manager 'n1' is not among the machines of the new cluster 'lab' (n2)"),
        (LAN, {"machines": ["n1", "n8"]}, "n8 is not among the hosts of this run (n1, n2, n3)"),
        (LAN, {"join_only": True}, "There is no cluster 'lab' to join"),
        (LAN, {"subnet": "10.1.0.0/24"}, "10.0.0.1 is not in 10.1.0.0/24"),
        (LAN, {"subnet": "10.0.0.1"}, "10.0.0.1"),
        (
            {"n1": host_facts("10.0.0.1/24"), "n2": host_facts("10.1.0.2/24")},
            {},
            "No subnet is shared by 2 of the 2 hosts",
        ),
        (LAN, {"record": RECORD, "manager": "n2"}, "is managed by n1, not by n2"),
        (LAN, {"record": RECORD, "subnet": "10.1.0.0/24"}, "is on 10.0.0.0/24, not on 10.1.0.0/24"),
        (LAN, {"mesh": {"subnet": "10.0.0.0/16"}}, "10.0.0.0/16 overlaps the subnet 10.0.0.0/24"),
        (LAN, {"endpoints": {"n1": "h:1", "n2": "h:1"}}, "n1 and n2 have the same endpoint h:1"),
        (
            LAN,
            {"responses": {"n2": {"clusters": [{**RECORD, "name": "other"}], "damaged": []}}},
            "n2 is in cluster 'other' on the same subnet 10.0.0.0/24. If you mean the other cluster, set cluster_name to",
        ),
    ],
)
def test_invalid_requests_are_refused(given: dict[str, Any], more: dict[str, Any], said: str) -> None:
    decided = decide_with(given, **more)
    assert said in decided["refusal"]
    assert list(decided) == ["refusal"]


def facts_of_booted_host(
    found: dict[str, Any], boot_id: str | None, name: str, physical: bool = True
) -> dict[str, Any]:
    """These facts of a host with the name, on a kernel that has been started with this ID."""
    interfaces = [{**interface, "physical": physical} for interface in found["interfaces"]]
    return {"interfaces": interfaces, "host": {**found["host"], "boot_id": boot_id, "hostname": {"name": name}}}


@pytest.mark.parametrize("more", [{}, {"subnet": "10.99.0.0/16"}, {"record": RECORD}])
@pytest.mark.parametrize("physical", [True, False])
def test_two_names_of_one_machine_are_refused(more: dict[str, Any], physical: bool) -> None:
    one = facts_of_booted_host(host_facts("10.0.0.2/24"), "b-2", "gpu2", physical)
    given = {"n1": facts_of_booted_host(host_facts("10.0.0.1/24"), "b-1", "gpu1"), "n2": one, "n3": one}
    addresses = {"n1": "10.0.0.1", "n2": "10.0.0.2", "n3": "10.0.0.2"}
    decided = decide_with(given, addresses=addresses, **more)
    assert "n2 (10.0.0.2) and n3 (10.0.0.2) are the same machine" in decided["refusal"]
    assert "ansible_host" in decided["refusal"]
    # Without a network that all of them share, only the machines that take part matter.
    assert decide_with(given, addresses=addresses, machines=["n1", "n2"], **{**more, "record": None})["refusal"] == ""


def facts_with_macs(found: dict[str, Any], *macs: str) -> dict[str, Any]:
    return {**found, "interfaces": [{**one, "mac": mac} for one, mac in zip(found["interfaces"], macs)]}


def test_clones_and_containers_are_separate_machines() -> None:
    clone = host_facts("192.168.0.5/24")
    apart = {
        # Virtual machines behind the NAT of their hosts, from one image, and with it the same MAC address and name.
        "a": facts_of_booted_host(clone, "b-1", "vm"),
        "b": facts_of_booted_host(clone, "b-2", "vm"),
        # Containers on one kernel.
        "c": facts_of_booted_host(facts_with_macs(clone, "02:42:ac:11:00:02"), "b-3", "image", physical=False),
        "d": facts_of_booted_host(facts_with_macs(clone, "02:42:ac:11:00:03"), "b-3", "image", physical=False),
        # The same, in networks that are both the first of their engine.
        "e": facts_of_booted_host(facts_with_macs(clone, "02:42:ac:11:00:02"), "b-3", "e", physical=False),
        # A kernel that does not say it, and a container with tunnels alone.
        "f": facts_of_booted_host(clone, None, "vm"),
        "g": facts_of_booted_host(clone, None, "vm"),
        "h": facts_of_booted_host({**clone, "interfaces": []}, "b-4", "vm"),
        "i": facts_of_booted_host({**clone, "interfaces": []}, "b-4", "vm"),
    }
    assert decide_with(apart, subnet="10.99.0.0/16", addresses=dict.fromkeys(apart, "8.8.8.8"))["refusal"] == ""


APART_RECORD = plan.commit(
    plan.create("b" * 32, "lab", "10.99.0.0/16", "n1", {}, [{"machine": name} for name in ("n1", "n2")], STAMP), STAMP
)


def decide_with_renamed_machine(
    own_facts: dict[str, Any], record: dict[str, Any], copy: dict[str, Any], name: str = "x", **more: Any
) -> str:
    """The refusal in a run that is limited to this name of a machine, which has a copy of the record."""
    copy_response = {name: {"clusters": [copy], "damaged": []}}
    requested_hosts = {"addresses": {name: "192.0.2.7"}, "default_manager": "n1", **more}
    return str(decide_with({name: own_facts}, record=record, responses=copy_response, **requested_hosts)["refusal"])


@pytest.mark.parametrize(
    ("own", "record", "address"),
    [
        (host_facts("192.168.0.5/24", "10.99.0.2/16"), APART_RECORD, "10.99.0.2"),
        (host_facts("10.0.0.200/24", "10.0.0.2/24"), RECORD, "10.0.0.2"),
    ],
)
@pytest.mark.parametrize("join_only", [False, True])
def test_new_name_of_a_member_outside_the_run_is_refused(
    own: dict[str, Any], record: dict[str, Any], address: str, join_only: bool
) -> None:
    refusal = decide_with_renamed_machine(own, record, record, machines=["x"], join_only=join_only)
    assert f"x (192.0.2.7) has the address {address} of n2" in refusal
    assert "cluster_machine=n2" in refusal
    # Its copy may be outdated, and name it as what it was before.
    later = plan.commit(
        plan.join(record, [{"machine": "n3", "address": "10.0.0.3", "interface": "eth0"}], STAMP), STAMP
    )
    assert f"has the address {address} of n2" in decide_with_renamed_machine(own, later, record)


def test_new_name_of_a_member_without_its_addresses_is_refused() -> None:
    refusal = decide_with_renamed_machine(host_facts("192.168.0.5/24"), APART_RECORD, APART_RECORD)
    assert "x (192.0.2.7) has a copy of the record of cluster 'lab', but is not in it" in refusal
    assert "n1 and n2" in refusal


def test_copies_that_do_not_mean_a_renamed_member() -> None:
    own = host_facts("192.168.0.5/24", "10.99.0.2/16")
    # It was removed under that name, and could not be cleaned up.
    left = plan.remove(APART_RECORD, ["n2"], STAMP).record
    assert decide_with_renamed_machine(own, left, APART_RECORD) == ""
    # It was removed under its own name, whether it knows that or not.
    for copy in (left, APART_RECORD):
        assert (
            decide_with_renamed_machine(host_facts("192.168.0.5/24"), left, copy, "n2", join_only=True, machines=["n2"])
            == ""
        )
    # It has the copy of another cluster.
    assert "10.99.0.2" not in decide_with_renamed_machine(
        host_facts("10.0.0.9/24"), RECORD, {**RECORD, "name": "lab2", "id": "c" * 32}
    )


TAILNET = {"backend": "tailscale"}


def test_machines_sharing_only_a_tailnet_are_enrolled_first() -> None:
    decided = decide_with(subnet="100.64.0.0/10", mesh=TAILNET)
    assert decided["refusal"] == ""
    assert decided["enrolling"] == ["n1", "n2", "n3"]
    assert decided["enrol_settings"] == plan.DEFAULT_TAILNET
    addresses = {"n1": ["fd7a:115c:a1e0::1", "100.64.0.9"], "n2": ["100.64.0.1"], "n3": []}
    members = enrolled_members(decided, None, addresses)
    # In check mode, a machine may not be in the tailnet yet.
    assert [member["mesh"]["address"] for member in members] == ["100.64.0.9", "100.64.0.1", "100.64.0.2"]


def test_machines_with_a_shared_network_are_not_enrolled() -> None:
    decided = decide_with(mesh=TAILNET)
    assert (decided["enrolling"], decided["subnet"]) == ([], "10.0.0.0/24")
    assert enrolled_members(decided, None, {}) == decided["members"]


def test_only_joining_machines_are_enrolled() -> None:
    decided = decide_with(subnet="100.64.0.0/10", mesh=TAILNET)
    members = enrolled_members(decided, None, {f"n{n}": [f"100.64.0.{n}"] for n in (1, 2, 3)})[:2]
    record = plan.commit(plan.create("a" * 32, "lab", "100.64.0.0/10", "n1", TAILNET, members, STAMP), STAMP)
    later = decide_with(record=record)
    assert later["enrolling"] == ["n3"]
    joining = enrolled_members(later, record, {"n3": ["100.64.0.3"]})
    assert [member.get("mesh") for member in joining] == [None, None, {"address": "100.64.0.3"}]


def test_address_outside_the_subnet_is_refused() -> None:
    decided = decide_with(subnet="100.64.0.0/10", mesh=TAILNET)
    with pytest.raises(InputError, match=r"n1 has 10\.9\.0\.1"):
        enrolled_members(decided, None, {"n1": ["10.9.0.1"]})
