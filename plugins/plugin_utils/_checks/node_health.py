# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requirements of a cluster record for a node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.topology import plan_tunnel, read_mesh


def desired_parameters(
    record: Record, machine: str, unresponsive_members: Collection[str], relays: Sequence[str]
) -> dict[str, Any]:
    """The parameters of the module node_health that follow from the record.

    ``unresponsive_members``: members that do not respond to anyone, which is a finding of its own. Raises InputError.
    """
    peers = [
        member["machine"] for member in record["members"] if member["machine"] not in (machine, *unresponsive_members)
    ]
    node_requirements = {
        name: value for name, value in derive.node_requirements(record, machine).items() if value is not None
    }
    parameters: dict[str, Any] = {"machine": machine, **node_requirements, "ssh_peers": {peer: peer for peer in peers}}
    if derive.is_pod(record, machine):
        parameters["pod"] = True
    if not membership.is_slurm_node(membership.find_member(record, machine)):
        parameters["slurm_node"] = False
    if record["mesh"]["backend"] == "tailscale":
        parameters["tailnet"] = True
    if record["mesh"]["backend"] == "wireguard":
        member_plan = plan_tunnel(read_mesh(record, relays), machine)
        peer_keys = {peer["machine"]: peer["public_key"] for peer in member_plan["peers"] if peer["machine"] in peers}
        parameters.update(mesh_interface=record["mesh"]["interface"], mesh_peers=peer_keys)
    return parameters
