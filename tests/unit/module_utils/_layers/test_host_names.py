# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.membership import named_members
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.host_names import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.names import build_host_lines


def build_record(*machines: str, backend: str = "none") -> Any:
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
    derived = derive_parameters(cluster, {"machine": machine or cluster["members"][0]["machine"]})
    return "\n".join(build_host_lines(derived["members"], derived["address"], hostname))


def test_mesh_address_is_used_with_a_mesh() -> None:
    assert hosts_entries(build_record("n1", "n2", backend="wireguard")) == "10.99.0.1 n1\n10.99.0.2 n2"


def test_subnet_address_is_used_without_a_mesh() -> None:
    assert hosts_entries(build_record("n1", "n2")) == "10.77.0.1 n1\n10.77.0.2 n2"


def test_member_without_a_mesh_address_keeps_its_own() -> None:
    cluster = build_record("n1", "n2", backend="wireguard")
    cluster["members"][1]["mesh"] = None
    assert hosts_entries(cluster) == "10.99.0.1 n1\n10.77.0.2 n2"


def test_short_name_is_used_only_if_unique() -> None:
    assert hosts_entries(build_record("a.x.net", "b.x.net", "b.y.net")) == (
        "10.77.0.1 a.x.net a\n10.77.0.2 b.x.net\n10.77.0.3 b.y.net"
    )


def test_short_name_equal_to_another_full_name_is_omitted() -> None:
    assert hosts_entries(build_record("a", "a.x.net")) == "10.77.0.1 a\n10.77.0.2 a.x.net"


def test_own_host_name_is_only_on_its_own_line() -> None:
    assert hosts_entries(build_record("n1", "n2"), "n2", "ip-10-77-0-2") == "10.77.0.1 n1\n10.77.0.2 n2 ip-10-77-0-2"


@pytest.mark.parametrize("hostname", ["n1", "n2", "localhost", ""])
def test_host_name_of_another_member_is_not_redefined(hostname: str) -> None:
    assert hosts_entries(build_record("n1", "n2"), "n2", hostname) == "10.77.0.1 n1\n10.77.0.2 n2"


@pytest.mark.parametrize("machine", ["10.77.0.1", "fd00::1", "localhost"])
def test_addresses_and_localhost_are_never_names(machine: str) -> None:
    assert hosts_entries(build_record(machine, "n2")) == "10.77.0.2 n2"


def test_address_without_names_gets_the_own_host_name() -> None:
    assert hosts_entries(build_record("10.77.0.1", "n2"), "10.77.0.1", "gpu1") == "10.77.0.1 gpu1\n10.77.0.2 n2"


def test_cluster_address_of_a_member_comes_first() -> None:
    assert [member.addresses for member in named_members(build_record("n1", backend="wireguard"))] == [
        ("10.99.0.1", "10.77.0.1")
    ]
    assert named_members(build_record("n1"))[0].addresses == ("10.77.0.1",)
