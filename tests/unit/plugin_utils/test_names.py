# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.names import lines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.names import desired, named_members


def record(*machines: str, backend: str = "none") -> Any:
    """The part of a record from which names are derived."""
    return {
        "name": "lab",
        "mesh": {"backend": backend},
        "members": [
            {
                "machine": machine,
                "address": f"10.77.0.{number}",
                "mesh": {"address": f"10.99.0.{number}", "public_key": "k"},
            }
            for number, machine in enumerate(machines, 1)
        ],
    }


def hosts_entries(cluster: Any, machine: str = "", hostname: str = "") -> str:
    """The resulting lines on a machine whose own name is ``hostname``; without one, on any machine."""
    derived = desired(cluster, machine or cluster["members"][0]["machine"])
    return "\n".join(lines(derived["members"], derived["address"], hostname))


def test_the_mesh_address_counts_where_there_is_a_mesh() -> None:
    assert hosts_entries(record("n1", "n2", backend="wireguard")) == "10.99.0.1 n1\n10.99.0.2 n2"


def test_the_subnet_address_counts_where_there_is_none() -> None:
    assert hosts_entries(record("n1", "n2")) == "10.77.0.1 n1\n10.77.0.2 n2"


def test_a_member_that_the_mesh_layer_has_not_reached_keeps_its_address() -> None:
    cluster = record("n1", "n2", backend="wireguard")
    cluster["members"][1]["mesh"] = None
    assert hosts_entries(cluster) == "10.99.0.1 n1\n10.77.0.2 n2"


def test_a_short_name_is_given_only_where_it_is_nobody_elses() -> None:
    assert hosts_entries(record("a.x.net", "b.x.net", "b.y.net")) == (
        "10.77.0.1 a.x.net a\n10.77.0.2 b.x.net\n10.77.0.3 b.y.net"
    )


def test_a_short_name_that_is_another_members_whole_name_is_not_given_twice() -> None:
    assert hosts_entries(record("a", "a.x.net")) == "10.77.0.1 a\n10.77.0.2 a.x.net"


def test_the_machines_own_host_name_stands_on_its_own_line_alone() -> None:
    assert hosts_entries(record("n1", "n2"), "n2", "ip-10-77-0-2") == "10.77.0.1 n1\n10.77.0.2 n2 ip-10-77-0-2"


@pytest.mark.parametrize("hostname", ["n1", "n2", "localhost", ""])
def test_a_host_name_that_is_taken_is_not_redefined(hostname: str) -> None:
    assert hosts_entries(record("n1", "n2"), "n2", hostname) == "10.77.0.1 n1\n10.77.0.2 n2"


@pytest.mark.parametrize("machine", ["10.77.0.1", "fd00::1", "localhost"])
def test_addresses_and_localhost_are_never_names(machine: str) -> None:
    assert hosts_entries(record(machine, "n2")) == "10.77.0.2 n2"


def test_an_address_that_is_no_name_gets_the_machines_own() -> None:
    assert hosts_entries(record("10.77.0.1", "n2"), "10.77.0.1", "gpu1") == "10.77.0.1 gpu1\n10.77.0.2 n2"


def test_who_leaves_needs_the_name_of_the_cluster_alone() -> None:
    assert desired(record("n1"), "n9", "absent") == {"cluster": "lab", "state": "absent"}


def test_both_addresses_of_a_member_are_known_with_the_cluster_address_first() -> None:
    assert [member.addresses for member in named_members(record("n1", backend="wireguard"))] == [
        ("10.99.0.1", "10.77.0.1")
    ]
    assert named_members(record("n1"))[0].addresses == ("10.77.0.1",)
