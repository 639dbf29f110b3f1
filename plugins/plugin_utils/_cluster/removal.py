# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The decision where a removal is written. Refuses invalid requests before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import HostResponse


def decide_removal(
    record: Record | None,
    cluster_name: str,
    leaving_machines: Sequence[str],
    inventory_machines: Collection[str],
    responses: Mapping[str, HostResponse],
    new_manager: str | None,
    manager_lost: bool,
    active_machines: Collection[str],
) -> dict[str, Any]:
    """Decide on a removal.

    Returns ``authority``, the host on which the record is changed: the manager, or its successor if it is lost; and
    ``former_manager``, who hands over the cluster, empty for none, which in a run that completes another is determined
    from the history.

    ``inventory_machines``: all machines of the inventory. ``active_machines``: those in this run that answer.

    A former member is accepted, so that an interrupted removal can be completed, and so is a lost manager if its
    successor has the record. A machine that never was a member is not cleaned up: what it has is its own, or another
    cluster's. Raises InputError.
    """
    if record is None:
        raise InputError(
            f"There is no cluster '{cluster_name}': no host of this run has its record.",
            "Set cluster_name to an existing cluster (playbook show).",
        )
    if not leaving_machines:
        raise InputError("No machine to remove was given.", "Set cluster_machine=NAME.")
    member_machines = [member["machine"] for member in record["members"]]
    unknown_machines = [
        machine
        for machine in leaving_machines
        if machine not in member_machines and not _is_former_member(machine, record, inventory_machines, responses)
    ]
    if unknown_machines:
        raise InputError(
            f"{', '.join(unknown_machines)} is not among the members of cluster '{cluster_name}', and was not removed from it.",
            f"Its members are {', '.join(member_machines)}.",
            machines=unknown_machines,
        )
    # The rules of the record itself apply, except for volumes, for which the module has a better message.
    draft_removal(record, leaving_machines, new_manager)
    manager = record["manager"]
    manager_responds = manager in responses and responses[manager].unreachable_reason is None
    has_taken_over = manager == new_manager and not set(leaving_machines).intersection(member_machines)
    if manager_lost and not has_taken_over:
        changing_host = _choose_successor(record, manager, leaving_machines, new_manager, responses, manager_responds)
        return {"authority": changing_host, "former_manager": ""}
    if not manager_responds:
        unreachable_reason = responses[manager].unreachable_reason if manager in responses else "it was not queried"
        raise InputError(
            f"The manager {manager} of cluster '{cluster_name}' does not answer: {unreachable_reason}.",
            f"Wait for it; or, if it is permanently lost, set cluster_machine={manager} cluster_new_manager=NAME "
            "cluster_manager_lost=true.",
            manager=manager,
        )
    if new_manager not in (None, manager):
        _refuse_absent_managers(manager, str(new_manager), active_machines)
    # A lost manager cannot hand over anything.
    outgoing_manager = None
    if new_manager is not None and not manager_lost:
        former_terms = derive.manager_terms(record)[:-1]
        outgoing_manager = manager if manager != new_manager else former_terms[-1].machine if former_terms else None
    return {"authority": manager, "former_manager": outgoing_manager if outgoing_manager in inventory_machines else ""}


def _refuse_absent_managers(manager: str, new_manager: str, active_machines: Collection[str]) -> None:
    """Refuse a hand-over if one of the two managers is absent.

    The controller and its queue move from one to the other: without both, the cluster would have no scheduler, or two
    of them.
    """
    for machine, role_description in ((manager, "hands over the cluster"), (new_manager, "takes over the cluster")):
        if machine not in active_machines:
            raise InputError(
                f"{machine} {role_description}, but is not in this run, or does not answer. Nothing has been changed.",
                "Run this without --limit when both are up.",
                machine=machine,
            )


def _is_former_member(
    machine: str, record: Record, inventory_machines: Collection[str], responses: Mapping[str, HostResponse]
) -> bool:
    if machine in [removed_member["machine"] for removed_member in record["removed"]]:
        return True
    # Before schema 3, the record did not contain removed machines; then the machine's own copy is used.
    local_copy = responses[machine].find_copy(record["name"]) if machine in responses else None
    return machine in inventory_machines and local_copy is not None and local_copy["id"] == record["id"]


def _choose_successor(
    record: Record,
    manager: str,
    leaving_machines: Sequence[str],
    new_manager: str | None,
    responses: Mapping[str, HostResponse],
    manager_responds: bool,
) -> str:
    if manager_responds:
        raise InputError(
            f"{manager} answers, so it is not lost: two managers would change the record independently.",
            "Omit cluster_manager_lost for a regular change of the manager.",
            manager=manager,
        )
    if new_manager is None or manager not in leaving_machines:
        raise InputError(
            f"The manager {manager} is lost, but no new manager was given.",
            f"Set cluster_machine={manager} and cluster_new_manager=NAME.",
            manager=manager,
        )
    successor_response = responses.get(new_manager)
    successor_copy = successor_response.find_copy(record["name"]) if successor_response else None
    if successor_copy is None:
        raise InputError(
            f"{new_manager} has no copy of the record, so it cannot replace the lost manager {manager}.",
            "Choose a member that answers and has a copy (playbook show).",
            manager=new_manager,
        )
    if successor_copy != record:
        raise InputError(
            f"{new_manager} has generation {successor_copy['generation']} of the record, but another member has the newer "
            f"generation {record['generation']}.",
            "Choose a member with the newest copy (see playbook show).",
            manager=new_manager,
        )
    return new_manager


def draft_removal(record: Record, leaving_machines: Sequence[str], new_manager: str | None) -> Record:
    """Draft the record as it would be."""
    return plan.remove(
        record, leaving_machines, plan.ChangeStamp(values.current_time(), ""), new_manager, force=True
    ).record
