# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import ipaddress
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import subnets
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_choice import choose_subnet
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import build_options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import find_shared
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._host.recorded import CASE_NAMES, FIXTURES

ACTIVE = {"device": "mlx5_0", "port": 1, "state": "active", "link_layer": "InfiniBand", "rate_gbps": 400.0, "gids": []}


def interface(name: str, *addresses: str, **values: Any) -> dict[str, Any]:
    """An interface in the form of interface_info, by default a physical one that is up."""
    parsed = [ipaddress.ip_interface(address) for address in addresses]
    return {
        "name": name,
        "kind": "ethernet",
        "link_kind": None,
        "physical": True,
        "state": "up",
        "mtu": 1500,
        "speed_mbps": 10_000,
        "members": [],
        "parent": None,
        "rdma": None,
        "addresses": [
            {
                "address": str(address.ip),
                "prefix_length": address.network.prefixlen,
                "subnet": str(address.network),
                "family": "inet" if address.version == 4 else "inet6",
                "scope": "global",
                "secondary": False,
                "flags": [],
            }
            for address in parsed
        ],
        **values,
    }


def virtual(name: str, *addresses: str, **values: Any) -> dict[str, Any]:
    return interface(name, *addresses, **{"kind": "veth", "physical": False, "speed_mbps": None, **values})


def bridge(name: str, *addresses: str, **values: Any) -> dict[str, Any]:
    return virtual(name, *addresses, **{"kind": "bridge", **values})


def hosts(*interfaces_of_each: list[dict[str, Any]]) -> dict[str, Any]:
    return {f"n{number}": {"interfaces": facts_by_host} for number, facts_by_host in enumerate(interfaces_of_each, 1)}


def ranked_subnets(facts: Mapping[str, Any], **options: Any) -> list[str]:
    return [candidate["subnet"] for candidate in find_shared(facts, build_options(**options)).candidates]


def rejection_of(facts: Mapping[str, Any], subnet: str, **options: Any) -> dict[str, Any]:
    (entry,) = [item for item in find_shared(facts, build_options(**options)).rejected if item["subnet"] == subnet]
    return entry


def test_candidate_describes_its_members() -> None:
    facts = hosts([interface("eno1", "10.0.0.1/24", rdma=ACTIVE)], [interface("eno1", "10.0.0.2/24", rdma=ACTIVE)])
    (candidate,) = find_shared(facts).candidates
    assert candidate["members"]["n2"] == {
        "interface": "eno1",
        "address": "10.0.0.2",
        "prefix_length": 24,
        "mtu": 1500,
        "speed_mbps": 10_000,
        "kind": "ethernet",
        "rdma": {"device": "mlx5_0", "port": 1, "state": "active", "link_layer": "InfiniBand", "rate_gbps": 400.0},
    }
    assert candidate["reasons"] == [
        "physical everywhere",
        "RDMA everywhere (InfiniBand, mlx5_0)",
        "10 Gbit/s",
        "MTU 1500",
        "private addresses",
        "eno1 on every host",
        "room for 254 hosts",
    ]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (interface("a", mtu=1280, speed_mbps=100), virtual("b", mtu=9000)),
        (virtual("a"), virtual("b", kind="wireguard", mtu=9000)),
        (interface("a", rdma=ACTIVE, speed_mbps=1000), interface("b", speed_mbps=800_000, mtu=9000)),
        (interface("a", speed_mbps=25_000), interface("b", speed_mbps=10_000, mtu=9000)),
        (interface("a", mtu=9000), interface("b", mtu=1500)),
        (interface("a", rdma=ACTIVE), interface("b", rdma={**ACTIVE, "state": "down"})),
    ],
    ids=["physical before MTU", "virtual before tunnel", "RDMA before speed", "speed before MTU", "MTU", "RDMA active"],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_criteria_are_strictly_ordered(better: dict[str, Any], worse: dict[str, Any], swapped: bool) -> None:
    # Which of the two has the lower number must not matter.
    first, second = ("10.9", "10.1") if swapped else ("10.1", "10.9")
    facts = hosts(
        *[
            [
                {**interface(better["name"], f"{first}.0.{host}/24"), **_without_addresses(better)},
                {**interface(worse["name"], f"{second}.0.{host}/24"), **_without_addresses(worse)},
            ]
            for host in (1, 2)
        ]
    )
    assert ranked_subnets(facts) == [f"{first}.0.0/24", f"{second}.0.0/24"]


def _without_addresses(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "addresses"}


def test_slowest_host_determines_the_speed() -> None:
    facts = hosts(
        [interface("a", "10.1.0.1/24", speed_mbps=100_000), interface("b", "10.2.0.1/24", speed_mbps=25_000)],
        [interface("a", "10.1.0.2/24", speed_mbps=1000), interface("b", "10.2.0.2/24", speed_mbps=25_000)],
    )
    assert ranked_subnets(facts) == ["10.2.0.0/24", "10.1.0.0/24"]
    assert "1 Gbit/s to 100 Gbit/s" in find_shared(facts).candidates[1]["reasons"]


def test_private_addresses_then_one_name_then_the_smaller_subnet() -> None:
    facts = hosts(
        *[
            [
                interface("pub", f"8.8.8.{host}/24"),
                interface(f"odd{host}", f"10.1.0.{host}/24"),
                interface("big", f"10.16.0.{host}/12"),
                interface("small", f"10.2.0.{host}/24"),
            ]
            for host in (1, 2)
        ]
    )
    assert ranked_subnets(facts) == ["10.2.0.0/24", "10.16.0.0/12", "10.1.0.0/24", "8.8.8.0/24"]


def test_preferred_interfaces_come_first_and_excluded_ones_are_rejected() -> None:
    facts = hosts(*[[interface("eno1", f"10.1.0.{host}/24"), virtual("eth7", f"10.2.0.{host}/24")] for host in (1, 2)])
    assert ranked_subnets(facts) == ["10.1.0.0/24", "10.2.0.0/24"]
    assert ranked_subnets(facts, prefer=["eth*"]) == ["10.2.0.0/24", "10.1.0.0/24"]
    assert ranked_subnets(facts, exclude=["eno?"]) == ["10.2.0.0/24"]
    assert rejection_of(facts, "10.1.0.0/24", exclude=["eno?"])["reason"] == "eno1 is excluded by your pattern"


RUNTIME_NAMES = [
    *("docker0", "docker_gwbridge", "br-3f2a9c41d07e", "virbr0", "cni0", "cni-podman0", "flannel.1", "cali12ab"),
    *("lxcbr0", "lxdbr0", "podman1", "kube-ipvs0", "nerdctl0", "cilium_host", "vxlan.calico", "weave"),
]


@pytest.mark.parametrize("name", RUNTIME_NAMES)
def test_container_runtime_networks_are_rejected(name: str) -> None:
    facts = hosts(*[[bridge(name, f"10.1.0.{host}/24")] for host in (1, 2)])
    assert ranked_subnets(facts) == []
    assert rejection_of(facts, "10.1.0.0/24")["reasons"]["n2"] == f"{name} belongs to a container runtime or hypervisor"
    assert ranked_subnets(facts, include=[name]) == ["10.1.0.0/24"]


@pytest.mark.parametrize("name", ["br-lan", "docking1", "eth0", "enp3s0", "bond0", "br-cluster"])
def test_similar_interface_names_are_accepted(name: str) -> None:
    facts = hosts(*[[interface(name, f"10.1.0.{host}/24")] for host in (1, 2)])
    assert ranked_subnets(facts) == ["10.1.0.0/24"]


def test_private_networks_with_equal_ranges_are_never_chosen() -> None:
    """Even with an unknown name, on hardware, and with everything else in its favour."""
    facts = hosts(
        *[
            [virtual("eth0", f"192.168.1.{host}/24"), interface("fast0", "10.5.0.1/24", rdma=ACTIVE, mtu=9000)]
            for host in (1, 2, 3)
        ]
    )
    assert ranked_subnets(facts) == ["192.168.1.0/24"]
    assert rejection_of(facts, "10.5.0.0/24")["reason"] == (
        "not one network: 10.5.0.1 is on n1, n2 and n3, so each has a separate network with this range"
    )
    with pytest.raises(InputError, match=r"10\.5\.0\.0/24 is not one network: 10\.5\.0\.1 is on n1, n2 and n3"):
        choose_subnet(facts, build_options("10.5.0.1/24"))


def test_floating_address_does_not_reject_the_subnet() -> None:
    facts = hosts(*[[interface("eno1", "10.0.0.100/24", f"10.0.0.{host}/24")] for host in (1, 2)])
    (candidate,) = find_shared(facts).candidates
    assert [member["address"] for member in candidate["members"].values()] == ["10.0.0.1", "10.0.0.2"]


def test_bridges_are_judged_by_their_ports() -> None:
    facts = hosts(
        *[
            [
                bridge("br0", f"10.1.0.{host}/24", members=["eno1"]),
                interface("eno1"),
                bridge("br1", f"10.2.0.{host}/24", members=["veth1"]),
                virtual("veth1"),
                virtual("bond0", f"10.3.0.{host}/24", kind="bond", members=["eno2", "eno3"], speed_mbps=50_000),
                interface("eno2"),
                virtual("bond0.7", f"10.4.0.{host}/24", kind="vlan", parent="bond0", speed_mbps=50_000, mtu=1280),
            ]
            for host in (1, 2)
        ]
    )
    shared = find_shared(facts)
    assert [item["subnet"] for item in shared.candidates] == ["10.3.0.0/24", "10.4.0.0/24", "10.1.0.0/24"]
    assert all("physical everywhere" in item["reasons"] for item in shared.candidates)
    assert rejection_of(facts, "10.2.0.0/24")["reason"] == "br1 is a bridge without a physical port"


@pytest.mark.parametrize(
    "above",
    [
        bridge("vmbr0", members=["tap1", "ens1"]),
        bridge("vmbr0", members=["bond0"]),
        virtual("mac0", kind="other", link_kind="macvlan", parent="ens1"),
        virtual("bond9", kind="bond", members=["ens1", "eno1"]),
    ],
    ids=["bridge", "bridge over bond", "macvlan", "bond that does not say it"],
)
def test_stacked_interfaces_have_the_speed_of_their_port(above: dict[str, Any]) -> None:
    facts = hosts(
        *[
            [
                {**interface(above["name"], f"10.0.0.{host}/24"), **_without_addresses(above)},
                interface("eno1", f"192.168.1.{host}/24", speed_mbps=1000),
                interface("ens1", speed_mbps=100_000),
                virtual("tap1", kind="tun"),
                virtual("bond0", kind="bond", members=["ens1"], speed_mbps=100_000),
            ]
            for host in (1, 2)
        ]
    )
    assert ranked_subnets(facts) == ["10.0.0.0/24", "192.168.1.0/24"]
    (best, _other) = find_shared(facts).candidates
    assert best["members"]["n1"]["speed_mbps"] == 100_000
    assert "100 Gbit/s" in best["reasons"]


def test_a_tunnel_has_no_speed() -> None:
    tunnel = virtual("vx0", "10.0.0.1/24", kind="vxlan", parent="ens1")
    facts = hosts([tunnel, interface("ens1", speed_mbps=100_000)])
    assert find_shared(facts).candidates[0]["members"]["n1"]["speed_mbps"] is None


def test_preferred_interface_of_a_subnet_is_used() -> None:
    facts = hosts(
        *[
            [interface("ens1", f"10.0.0.{host}/24", speed_mbps=100_000), interface("ens2", f"10.0.0.1{host}/24")]
            for host in (1, 2)
        ]
    )
    assert choose_subnet(facts)["members"]["n1"]["interface"] == "ens1"
    chosen = choose_subnet(facts, build_options(prefer=["ens2"]))
    assert {member["interface"] for member in chosen["members"].values()} == {"ens2"}
    assert "preferred by you" in chosen["reasons"]


def test_string_is_one_pattern() -> None:
    facts = hosts(*[[interface("ib0", f"10.1.0.{host}/24"), interface("eno1", f"10.2.0.{host}/24")] for host in (1, 2)])
    assert ranked_subnets(facts, exclude="ib*") == ["10.2.0.0/24"]
    assert ranked_subnets(facts, prefer="ib*") == ["10.1.0.0/24", "10.2.0.0/24"]


def test_cyclic_interfaces_terminate() -> None:
    facts = hosts([virtual("a", "10.1.0.1/24", parent="b"), virtual("b", parent="a")])
    assert ranked_subnets(facts) == ["10.1.0.0/24"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"state": "down"}, "eno1 is down"),
        ({"state": "lowerlayerdown"}, "eno1 is lowerlayerdown"),
        ({"kind": "loopback"}, "it is the loopback interface"),
        ({"name": "gpumesh0"}, "gpumesh0 is the cluster's own tunnel"),
    ],
)
def test_rejected_interfaces(values: dict[str, Any], words: str) -> None:
    facts = hosts(*[[{**interface("eno1", f"10.0.0.{host}/24"), **values}] for host in (1, 2)])
    assert rejection_of(facts, "10.0.0.0/24")["reason"] == words


@pytest.mark.parametrize(
    ("address", "values", "words"),
    [
        ("169.254.3.{}/16", {}, "link-local"),
        ("fe80::{}/64", {}, "link-local"),
        ("10.0.0.{}/24", {"scope": "link"}, "scope link"),
        ("10.0.0.{}/24", {"flags": ["dadfailed"]}, "another machine has as well"),
        ("fd00::{}/64", {"flags": ["deprecated"]}, "deprecated"),
        ("100.64.0.{}/32", {}, "a single address without other hosts"),
    ],
)
def test_rejected_addresses(address: str, values: dict[str, Any], words: str) -> None:
    facts = hosts(*[[interface("eno1", address.format(host))] for host in (1, 2)])
    for host in facts.values():
        host["interfaces"][0]["addresses"][0].update(values)
    shared = find_shared(facts)
    assert shared.candidates == []
    assert all(words in " ".join(entry["reasons"].values()) for entry in shared.rejected)


def test_ipv6_subnets_rank_after_ipv4() -> None:
    facts = hosts(*[[interface("eno1", f"fd00:1::{host}/64", f"10.0.0.{host}/24")] for host in (1, 2)])
    assert ranked_subnets(facts) == ["10.0.0.0/24", "fd00:1::/64"]
    assert choose_subnet(facts, build_options("FD00:1:0::9/64"))["members"]["n2"]["address"] == "fd00:1::2"


def test_two_interfaces_in_one_subnet_give_a_warning() -> None:
    facts = hosts(
        [interface("eno1", "10.0.0.1/24"), interface("eno2", "10.0.0.11/24", speed_mbps=25_000)],
        [interface("eno1", "10.0.0.2/24")],
    )
    (candidate,) = find_shared(facts).candidates
    assert candidate["members"]["n1"]["interface"] == "eno2"
    assert candidate["warnings"] == ["n1 has 2 interfaces in it (eno1, eno2): it may answer from the wrong one."]


def test_min_hosts_accepts_fewer_hosts() -> None:
    facts = hosts(
        [interface("eno1", "10.0.0.1/24"), interface("eno2", "10.7.0.1/24")],
        [interface("eno1", "10.0.0.2/24"), interface("eno2", "10.7.0.2/24")],
        [interface("eno1", "10.9.0.3/24"), interface("eno2", "10.7.0.3/24")],
    )
    assert ranked_subnets(facts, min_hosts=2) == ["10.7.0.0/24", "10.0.0.0/24"]
    entry = rejection_of(facts, "10.0.0.0/24")
    assert entry["reason"] == "on 2 of 3 hosts only: n1 and n2"
    assert entry["reasons"] == {
        "n1": "eno1 has 10.0.0.1/24",
        "n2": "eno1 has 10.0.0.2/24",
        "n3": "no address in it",
    }


def test_different_mask_is_reported() -> None:
    facts = hosts([interface("eno1", "10.0.0.1/24")], [interface("eno1", "10.0.0.2/16")])
    assert rejection_of(facts, "10.0.0.0/24")["reasons"]["n2"] == ("eno1 has 10.0.0.2/16: inside, but the mask differs")


def test_requested_subnet_accepts_single_addresses() -> None:
    """Google assigns machines /32 addresses of a subnet that only the user knows."""
    facts = hosts([interface("ens4", "10.128.0.9/32")], [interface("ens4", "10.128.1.7/32")])
    assert ranked_subnets(facts) == []
    choice = choose_subnet(facts, build_options("10.128.0.0/20"))
    assert (choice["subnet"], choice["members"]["n2"]["address"]) == ("10.128.0.0/20", "10.128.1.7")


def test_hosts_outside_the_requested_subnet_are_reported() -> None:
    facts = hosts(
        *[[interface("eno2", f"192.168.1.{host}/24"), interface("eno1", f"10.0.0.{host}/24")] for host in (5, 6)],
        [interface("eno1", "10.0.0.7/24")],
    )
    with pytest.raises(InputError) as caught:
        choose_subnet(facts, build_options("192.168.1.9/24"))
    assert str(caught.value) == (
        "n3: 10.0.0.7 is not in 192.168.1.0/24 (eno1 has 10.0.0.7/24). "
        "Give cluster_subnet=10.0.0.0/24, or put n3 on the cluster network."
    )
    assert caught.value.details == {"subnet": "192.168.1.0/24", "hosts": ["n3"]}


def test_requested_private_network_is_refused_with_the_reason() -> None:
    facts = hosts(*[[bridge("docker0", f"172.17.0.{host}/16")] for host in (1, 2)])
    with pytest.raises(InputError) as caught:
        choose_subnet(facts, build_options("172.17.0.0/16"))
    assert str(caught.value).startswith(
        "n1: its address 172.17.0.1 in 172.17.0.0/16 cannot be used: docker0 belongs to a container runtime"
    )


def test_many_hosts_outside_are_counted() -> None:
    facts = {f"n{number}": {"interfaces": [interface("eno1", f"10.0.{number}.1/24")]} for number in range(1, 9)}
    with pytest.raises(InputError, match=r"3 more hosts are not in it") as caught:
        choose_subnet(facts, build_options("192.168.1.0/24"))
    assert "put n1, n2, n3, n4, n5 and 3 more on the cluster network" in caught.value.remedy.lower()


def test_host_without_addresses_is_reported() -> None:
    facts = hosts([interface("eno1", "10.0.0.1/24")], [interface("eno1")])
    with pytest.raises(InputError, match="n2: it has no usable address"):
        choose_subnet(facts, build_options("10.0.0.0/24"))


def test_missing_shared_subnet_reports_hosts_and_closest_subnet() -> None:
    facts = hosts(
        [interface("eno1", "10.0.0.1/24")], [interface("eno1", "10.0.0.2/24")], [interface("eno1", "10.9.0.3/24")]
    )
    with pytest.raises(InputError) as caught:
        choose_subnet(facts)
    assert caught.value.message == (
        "No subnet is shared by 3 of the 3 hosts: n1 has 10.0.0.1/24 (eno1); n2 has 10.0.0.2/24 (eno1); "
        "n3 has 10.9.0.3/24 (eno1). The closest is 10.0.0.0/24: on 2 of 3 hosts only: n1 and n2."
    )
    assert "mesh_backend=wireguard" in caught.value.remedy


def test_single_cloud_addresses_are_reported_with_the_remedy() -> None:
    facts = hosts([interface("ens4", "10.128.0.9/32")], [interface("ens4", "10.128.1.7/32"), bridge("docker0")])
    with pytest.raises(InputError, match=r"n1 has 10\.128\.0\.9/32 \(ens4\)") as caught:
        choose_subnet(facts)
    assert caught.value.remedy.startswith("Give cluster_subnet where your cloud")


def loopback(*addresses: str) -> dict[str, Any]:
    return virtual("lo", "127.0.0.1/8", *addresses, kind="loopback", mtu=65536)


#: Where a machine has the address that it announces by BGP: https://github.com/NVIDIA/nccl/issues/1053 for lo.
INTERNAL_INTERFACES = {
    "lo": {"kind": "loopback"},
    "dummy0": {"kind": "other", "link_kind": "dummy", "state": "unknown"},
    "vrf-blue": {"kind": "other", "link_kind": "vrf"},
}


@pytest.mark.parametrize("name", INTERNAL_INTERFACES)
@pytest.mark.parametrize("subnet", [None, "10.20.30.0/24"])
def test_addresses_that_are_announced_by_bgp_are_reported_as_unsupported(subnet: str | None, name: str) -> None:
    facts = hosts(
        *[
            [
                virtual(name, f"10.20.30.{host}/32", **INTERNAL_INTERFACES[name]),
                interface("lan0", f"fe80::ac0:ebff:fedd:ee0{host}/64", mtu=9000),
                interface("lan1", f"fe80::ac0:ebff:feaa:bb0{host}/64", mtu=9000),
            ]
            for host in (1, 2, 3)
        ]
    )
    with pytest.raises(InputError) as caught:
        choose_subnet(facts, build_options(subnet))
    assert "10.20.30.1" in caught.value.message and (f"({name})" in caught.value.message) == (subnet is None)
    assert "as with BGP to the host, is not supported" in caught.value.remedy
    assert "mesh_backend=wireguard" in caught.value.remedy and "cluster_subnet" not in caught.value.remedy


def test_loopback_addresses_beside_a_shared_subnet_are_ignored() -> None:
    facts = hosts(*[[loopback(f"10.20.30.{host}/32"), interface("eno1", f"10.0.0.{host}/24")] for host in (1, 2)])
    assert choose_subnet(facts)["subnet"] == "10.0.0.0/24"
    with pytest.raises(InputError) as caught:
        choose_subnet(facts, build_options("10.20.30.0/24"))
    assert caught.value.remedy.startswith("Give cluster_subnet=10.0.0.0/24")


@pytest.mark.parametrize("shared", ["10.255.255.254/32", "172.16.100.22/32"], ids=["WSL", "virtual server"])
def test_address_that_every_loopback_interface_has_is_not_an_address_of_the_machine(shared: str) -> None:
    facts = hosts(*[[loopback(shared), interface("eth0", f"172.{host}.0.5/20")] for host in (18, 30)])
    with pytest.raises(InputError) as caught:
        choose_subnet(facts)
    assert shared not in caught.value.message and "loopback" not in caught.value.remedy
    assert caught.value.remedy.startswith("Put the hosts on one network")


@pytest.mark.parametrize(
    ("facts", "options", "words"),
    [
        ({}, {}, "There are no hosts"),
        ({"n1": {"msg": "unreachable"}}, {}, "n1: its list of interfaces is missing"),
        ({"n1": None}, {}, "n1: its list of interfaces is missing"),
        ({"n1": {"interfaces": []}}, {"min_hosts": 2}, "min_hosts is 2, but there are only 1 hosts"),
        ({"n1": {"interfaces": []}}, {"subnet": "10.0.0.1"}, "prefix length"),
    ],
)
def test_invalid_arguments_are_refused(facts: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_shared(facts, build_options(**options))


def test_empty_subnet_requests_none() -> None:
    assert choose_subnet(hosts([interface("eno1", "10.0.0.1/24")]), build_options(""))["subnet"] == "10.0.0.0/24"


@pytest.mark.parametrize("case", CASE_NAMES)
def test_recorded_hosts_have_the_expected_candidates(case: str) -> None:
    facts = {"gpu7": json.loads((FIXTURES / case / "expected.json").read_text(encoding="utf-8"))}
    assert (
        ranked_subnets(facts)
        == {
            "bond_mellanox": ["10.20.0.0/24", "10.93.0.0/24"],
            "cloud_aws_efa": ["172.31.0.0/20"],
            "cloud_azure": ["10.0.0.0/24"],
            "cloud_google_tcpx": [],
            "cloud_virtio_amd": ["10.7.0.0/24", "2001:db8:7::/64"],
            "docker_kubernetes": ["192.168.40.0/24"],
            "infiniband_ipoib": ["10.50.0.0/16", "10.51.0.0/16", "192.168.1.0/24"],
            "ipv6_only": ["2001:db8:40::/64", "fd12:3456:789a:1::/64"],
            "macvlan_tun_peer": ["192.168.40.0/24"],
            "plain_ethernet": ["192.168.1.0/24"],
            "two_nics_one_subnet": ["192.168.1.0/24"],
            "vlans_and_bridge": ["10.200.0.0/24", "10.100.0.0/24", "192.168.1.0/24", "172.20.0.0/16"],
            "wireguard_tailscale": ["203.0.113.0/24", "10.110.0.0/24"],
        }[case]
    )


def many_hosts(count: int) -> dict[str, Any]:
    """Hosts with one shared network, ten ranges of their own and a decoy: 12 addresses each."""
    return {
        f"n{host}": {
            "interfaces": [
                interface("eno1", f"10.0.{host // 250}.{host % 250 + 1}/16"),
                bridge("docker0", "172.17.0.1/16"),
                *[interface(f"eth{net}", f"11.{host // 250}.{host % 250}.{16 * net + 1}/28") for net in range(10)],
            ]
        }
        for host in range(count)
    }


def test_addresses_are_parsed_once_and_details_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    parse = ipaddress.ip_interface
    missing = subnets._absence_reason
    monkeypatch.setattr(ipaddress, "ip_interface", lambda text: calls.update(["parsed"]) or parse(text))
    monkeypatch.setattr(subnets, "_absence_reason", lambda *args: calls.update(["missing"]) or missing(*args))
    facts = many_hosts(120)
    calls.clear()
    shared = find_shared(facts)
    assert calls["parsed"] == 120 * 12
    assert calls["missing"] <= subnets.MAX_ABSENCE_REASONS < 120 * 1200
    assert [item["subnet"] for item in shared.candidates] == ["10.0.0.0/16"]
    assert len(shared.rejected) == 1201
    assert shared.rejected[0]["subnet"] == "172.17.0.0/16" and len(shared.rejected[0]["reasons"]) == 120
    assert shared.rejected[-1]["reason"].startswith("on 1 of 120 hosts only: n")


class CountedName(str):
    """A host name that counts how often it is looked up."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()

    def itself(self) -> str:
        return self

    __str__ = itself


def test_work_grows_linearly_with_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts lookups, not seconds. One pass over all hosts for each subnet would multiply them by sixteen."""
    monkeypatch.setattr(subnets, "MAX_ABSENCE_REASONS", 0)
    lookups = []
    for count in (40, 160):
        facts = {CountedName(host): found for host, found in many_hosts(count).items()}
        CountedName.lookups = 0
        find_shared(facts)
        lookups.append(CountedName.lookups)
    assert lookups[0] > 40 * 12
    assert lookups[1] / lookups[0] < 4.5


ADDRESSES = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)), st.tuples(st.ip_addresses(v=6), st.integers(0, 128))
).map(lambda pair: f"{pair[0]}/{pair[1]}")
#: Few values, so that hosts do share some.
LIKELY = st.sampled_from(["10.0.0.1/24", "10.0.0.2/24", "10.0.0.3/16", "172.17.0.1/16", "fe80::1/64", "fd00::1/64"])


@given(
    found=st.lists(
        st.lists(
            st.builds(
                interface,
                st.sampled_from(["eno1", "docker0", "br0", "gpumesh0", "eth0"]),
                ADDRESSES | LIKELY,
                LIKELY,
                physical=st.booleans(),
                kind=st.sampled_from(["ethernet", "bridge", "veth", "tun"]),
                state=st.sampled_from(["up", "down"]),
            ),
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    )
)
def test_candidates_contain_every_host_once(found: list[list[dict[str, Any]]]) -> None:
    facts = hosts(*found)
    shared = find_shared(facts)
    for candidate in shared.candidates:
        network = ipaddress.ip_network(candidate["subnet"])
        addresses = [member["address"] for member in candidate["members"].values()]
        assert set(candidate["members"]) == set(facts)
        assert len(set(addresses)) == len(addresses)
        assert all(ipaddress.ip_address(address) in network for address in addresses)
        assert not {member["interface"] for member in candidate["members"].values()} & {"docker0", "gpumesh0"}
    seen = [item["subnet"] for item in [*shared.candidates, *shared.rejected]]
    assert len(set(seen)) == len(seen)
    # The order of the hosts does not matter.
    turned = find_shared(dict(reversed(facts.items())))
    assert turned.candidates == shared.candidates
