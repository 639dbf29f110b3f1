# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The members and their networks, which the sessions of a host must know, derived from the record. Pure."""

from __future__ import annotations

import ipaddress
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership


def derive_parameters(record: membership.Record, _given_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of the module that follow from the members of the record."""
    return {"members": membership.cluster_addresses(record), "closed": closed_networks(record)}


def closed_networks(record: membership.Record) -> List[str]:
    """Return the networks and addresses of the cluster, which sessions must not reach or use."""
    mesh = record["mesh"]
    networks = [str(record["subnet"] or ""), str(mesh.get("subnet") or "") if mesh["backend"] != "none" else ""]
    for member in record["members"]:
        networks += [member["address"], _endpoint_address(member["endpoint"] or "")]
    return [network for network in networks if network]


def _endpoint_address(endpoint: str) -> str:
    """The IPv4 address of an endpoint, if it has one."""
    endpoint_host = endpoint.rpartition(":")[0]
    try:
        return str(ipaddress.IPv4Address(endpoint_host))
    except ValueError:
        return ""
