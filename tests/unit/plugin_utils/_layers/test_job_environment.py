# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.desired import derive_parameters
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.job_environment import given_parameters

RANGE = [15000, 24999]


def parameters(record: Any, machine: str, **options: Any) -> dict[str, Any]:
    """All parameters of the module on one machine."""
    role_options = {
        "job_environment_port_range": RANGE,
        "job_environment_dialects": [],
        "job_environment_variables": {},
        "job_environment_rdma": True,
        "job_environment_logins": True,
        **{f"job_environment_{name}": value for name, value in options.items()},
    }
    given = given_parameters(record, machine, role_options)
    return {**given, **derive_parameters(record, given)}


def environment_settings(record: Any, machine: str, port_range: Sequence[int], **options: Any) -> Any:
    """The content of job_environment.json."""
    return parameters(record, machine, port_range=port_range, **options)["settings"]


def build_record(*sites: str, backend: str = "wireguard", rdma: Sequence[str | None] = ()) -> Any:
    """``rdma``: that of each member, unknown by default."""
    return {
        "name": "lab",
        "manager": "n1",
        "mesh": {"backend": backend, "interface": "gpumesh0", "port": 51820},
        "members": [
            {
                "machine": f"n{number}",
                "address": f"10.77.0.{number}",
                "interface": "eno1",
                "site": site,
                "endpoint": None,
                "gpus": 0,
                "rdma": fabric,
                "mesh": {"address": f"10.99.0.{number}", "public_key": None},
            }
            for number, (site, fabric) in enumerate(zip_longest(sites, rdma), 1)
        ],
    }


def test_addresses_and_interface_of_the_mesh_are_used() -> None:
    document = environment_settings(build_record("a", "a"), "n2", RANGE)
    assert document["members"] == {"n1": "10.99.0.1", "n2": "10.99.0.2"}
    assert document["interface"] == "gpumesh0"


def test_addresses_and_interface_of_the_subnet_are_used_without_a_mesh() -> None:
    document = environment_settings(build_record("a", backend="none"), "n1", RANGE)
    assert (document["members"], document["interface"]) == ({"n1": "10.77.0.1"}, "eno1")


def test_rdma_peers_share_the_site() -> None:
    document = environment_settings(build_record("a", "b", "a"), "n1", RANGE)
    assert document["rdma"] == {"devices": [], "peers": ["n1", "n3"], "plugin_peers": ["n1", "n3"]}


def test_network_plugin_connects_members_of_the_site_without_a_recorded_fabric() -> None:
    record = build_record("a", "a", "b", "a", rdma=["none", None, "none", "infiniband"])
    assert environment_settings(record, "n1", RANGE)["rdma"]["plugin_peers"] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("rdma", "peers"),
    [
        (["infiniband", "infiniband", "infiniband"], ["n1", "n2", "n3"]),
        (["infiniband", "none", "infiniband"], ["n1", "n3"]),
        (["infiniband", "roce", "infiniband"], ["n1", "n3"]),
        # A member that joined with an earlier version counts as before.
        (["roce", None, "none"], ["n1", "n2"]),
        ([None, "roce", "none"], ["n1", "n2"]),
        (["none", "roce", None], []),
    ],
)
def test_rdma_peers_share_the_fabric(rdma: list[str | None], peers: list[str]) -> None:
    assert environment_settings(build_record("a", "a", "a", rdma=rdma), "n1", RANGE)["rdma"]["peers"] == peers


@pytest.mark.parametrize("logins", [True, False])
def test_programs_are_included(logins: bool) -> None:
    sent = parameters(build_record("a"), "n1", dialects=["torchrun"], rdma=False, logins=logins)
    assert (sent["cluster"], sent["machine"], sent["rdma"]) == ("lab", "n1", False)
    assert sent["settings"] == environment_settings(build_record("a"), "n1", RANGE, dialects=["torchrun"])
    programs = {"job_environment.bash", "job_epilog.sh", "task_prolog.py"}
    assert set(sent["digests"]) == programs | ({"gpumesh_job.sh"} if logins else set())


@pytest.mark.parametrize("ports", [[], [15000], [24999, 15000], [80, 90], [60000, 70000], [15000, 15000]])
def test_invalid_port_range_is_refused(ports: list[int]) -> None:
    with pytest.raises(InputError, match="job_environment_port_range"):
        environment_settings(build_record("a"), "n1", ports)


@pytest.mark.parametrize("variables", [{"A B": "1"}, {"A": "1\n2"}, {"1A": "x"}, {"A=": "x"}])
def test_invalid_variable_is_refused(variables: dict[str, str]) -> None:
    with pytest.raises(InputError, match="job_environment_variables"):
        environment_settings(build_record("a"), "n1", RANGE, variables=variables)


def test_values_of_variables_are_strings() -> None:
    assert environment_settings(build_record("a"), "n1", RANGE, variables={"A": 1})["variables"] == {"A": "1"}


def test_unknown_machine_is_refused() -> None:
    with pytest.raises(InputError, match="n9"):
        environment_settings(build_record("a"), "n9", RANGE)
