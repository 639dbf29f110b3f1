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
    nothing = {"refusal": "", "record": None, "source": None, "standing": {}, "replaced": [], "remarks": []}
    known = InventoryView(machines, variables, manager or None)
    word = Overrides(trusted or None, generation or None, successor or None)
    try:
        found = find_record(read_responses(results, records), name, known, word)
    except GpumeshError as refused:
        return {**nothing, "refusal": printable(str(refused))}
    if found is None:
        return nothing
    return {
        "refusal": "",
        "record": found.record,
        "source": found.source_machine,
        "standing": {machine: relation._asdict() for machine, relation in found.relations.items()},
        "replaced": list(found.replaced_machines),
        "remarks": [printable(remark) for remark in found.remarks],
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
    held: Mapping[str, Mapping[str, Any]] | None = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    subnet: str | None = None,
    manager: str | None = None,
    machines: Sequence[str] | None = None,
    mesh: Mapping[str, Any] | None = None,
    join_only: bool = False,
    interfaces: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Any]:
    """Decide how these hosts become members."""
    wish = RegistrationRequest(
        name,
        subnet or None,
        manager or None,
        default_manager,
        machines or None,
        mesh or {},
        join_only,
        interfaces or {},
    )
    site_of, endpoint_of = sites or {}, endpoints or {}
    hosts = {
        machine: InventoryHost(
            address or machine,
            site_of.get(machine) or None,
            endpoint_of.get(machine) or None,
            (rdma or {}).get(machine, True),
        )
        for machine, address in addresses.items()
    }
    try:
        present = model.parse(record) if record else None
        decision, _coming = decide_registration(wish, present, hosts, facts, read_responses(held or {}, records))
    except GpumeshError as refused:
        return {"refusal": printable(str(refused))}
    return {"refusal": "", **decision}


def plan_removal(
    results: Mapping[str, Mapping[str, Any]],
    name: str,
    leaving: Sequence[str],
    *,
    known: Sequence[str],
    record: Mapping[str, Any] | None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
    replaced: Sequence[str] = (),
    new_manager: str | None = None,
    manager_lost: bool = False,
    playing: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Decide how these machines leave. ``playing``: by default, all that respond."""
    answers = read_responses(results, records)
    present = (
        [machine for machine in answers if answers[machine].unreachable_reason is None] if playing is None else playing
    )
    try:
        drawn = model.parse(record) if record else None
        if drawn is not None:
            answers.update({machine: HostResponse([drawn], [], None) for machine in replaced})
        decision = decide_removal(drawn, name, leaving, known, answers, new_manager or None, manager_lost, present)
    except GpumeshError as refused:
        return {"refusal": printable(str(refused))}
    return {"refusal": "", **decision}
