# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The requirements of a cluster record for a node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import plan_for, read_mesh
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record


def desired(record: Record, machine: str, silent: Collection[str], relays: Sequence[str]) -> dict[str, Any]:
    """The parameters of the module node_health that follow from the record.

    ``silent``: members that do not respond to anyone, which is a finding of its own. Raises InputError.
    """
    peers = [one["machine"] for one in record["members"] if one["machine"] not in (machine, *silent)]
    needs = {name: value for name, value in derive.node_needs(record, machine).items() if value is not None}
    parameters: dict[str, Any] = {"machine": machine, **needs, "ssh_peers": {peer: peer for peer in peers}}
    if derive.is_pod(record, machine):
        parameters["pod"] = True
    if record["mesh"]["backend"] == "tailscale":
        parameters["tailnet"] = True
    if record["mesh"]["backend"] == "wireguard":
        plan = plan_for(read_mesh(record, relays), machine)
        keys = {peer["machine"]: peer["public_key"] for peer in plan["peers"] if peer["machine"] in peers}
        parameters.update(mesh_interface=record["mesh"]["interface"], mesh_peers=keys)
    return parameters
