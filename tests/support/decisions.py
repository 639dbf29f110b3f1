# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decisions about records, members and removals, with a refusal as text, so that tests can examine both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import (
    InventoryView,
    Overrides,
    find_record,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.registration import (
    InventoryHost,
    RegistrationRequest,
    decide_registration,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.removal import decide_removal
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import HostResponse, read_responses


def find_cluster(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    *,
    machines: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    manager: str = "",
    trusted: str = "",
    generation: int = 0,
    successor: str = "",
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Select the record of a cluster among these copies."""
    no_record = {"refusal": "", "record": None, "source": None, "standing": {}, "replaced": [], "remarks": []}
    inventory_view = InventoryView(machines, variables, manager or None)
    overrides = Overrides(trusted or None, generation or None, successor or None)
    try:
        selected = find_record(read_responses(results, records), name, inventory_view, overrides)
    except GpumeshError as refusal:
        return {**no_record, "refusal": printable(str(refusal))}
    if selected is None:
        return no_record
    return {
        "refusal": "",
        "record": selected.record,
        "source": selected.source_machine,
        "standing": {machine: relation._asdict() for machine, relation in selected.relations.items()},
        "replaced": list(selected.replaced_machines),
        "remarks": [printable(remark) for remark in selected.remarks],
    }


def plan_registration(
    facts: Mapping[str, Mapping[str, Any]],
    name: str,
    *,
    addresses: Mapping[str, str],
    default_manager: str,
    sites: Mapping[str, str] | None = None,
    endpoints: Mapping[str, str] | None = None,
    rdma: Mapping[str, bool] | None = None,
    record: Mapping[str, Any] | None = None,
    responses: Mapping[str, Mapping[str, Any]] | None = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    subnet: str | None = None,
    manager: str | None = None,
    machines: Sequence[str] | None = None,
    mesh: Mapping[str, Any] | None = None,
    join_only: bool = False,
    interfaces: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Decide how these hosts become members."""
    request = RegistrationRequest(
        name,
        subnet or None,
        manager or None,
        default_manager,
        machines or None,
        mesh or {},
        join_only,
        interfaces or {},
    )
    site_by_machine, endpoint_by_machine = sites or {}, endpoints or {}
    inventory_hosts = {
        machine: InventoryHost(
            address or machine,
            site_by_machine.get(machine) or None,
            endpoint_by_machine.get(machine) or None,
            (rdma or {}).get(machine, True),
        )
        for machine, address in addresses.items()
    }
    try:
        current_record = model.parse(record) if record else None
        decision, _coming = decide_registration(
            request, current_record, inventory_hosts, facts, read_responses(responses or {}, records)
        )
    except GpumeshError as refusal:
        return {"refusal": printable(str(refusal))}
    return {"refusal": "", **decision}


def plan_removal(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    leaving: Sequence[str],
    *,
    inventory_machines: Sequence[str],
    record: Mapping[str, Any] | None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    replaced: Sequence[str] = (),
    new_manager: str | None = None,
    manager_lost: bool = False,
    playing: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Decide how these machines leave. ``playing``: by default, all that respond."""
    responses = read_responses(results, records)
    reachable_machines = (
        [machine for machine in responses if responses[machine].unreachable_reason is None]
        if playing is None
        else playing
    )
    try:
        parsed_record = model.parse(record) if record else None
        if parsed_record is not None:
            responses.update({machine: HostResponse([parsed_record], [], None) for machine in replaced})
        decision = decide_removal(
            parsed_record,
            name,
            leaving,
            inventory_machines,
            responses,
            new_manager or None,
            manager_lost,
            reachable_machines,
        )
    except GpumeshError as refusal:
        return {"refusal": printable(str(refusal))}
    return {"refusal": "", **decision}
