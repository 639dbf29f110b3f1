# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tunnel of a member, derived from the record. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.topology import plan_tunnel, read_mesh


def derive_parameters(record: Mapping[str, Any], given_params: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of the module wireguard that give a member the state in the record.

    ``given_params``: machine and relays; with preshared=False, absent_members. Raises InputError.
    """
    member_plan = plan_tunnel(read_mesh(record, given_params["relays"]), given_params["machine"])
    peers = [peer["machine"] for peer in member_plan["peers"]]
    is_unshared = given_params.get("preshared") is False
    kept_members = set(given_params.get("absent_members") or ())
    return {
        **({"preshared_without": [peer for peer in peers if peer not in kept_members]} if is_unshared else {}),
        "interface": record["mesh"]["interface"],
        "listen_port": record["mesh"]["port"],
        "address": member_plan["address"],
        "peers": member_plan["peers"],
        "public_key": member_plan["public_key"],
        "forward": member_plan["relay"],
        "mtu": member_plan["mtu"],
        "probe_mtu": record["mesh"]["mtu"] is None,
    }
