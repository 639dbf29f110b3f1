# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The handover of a controller: which queue and accounting the manager continues with, and what happens to older ones.

Pure. In the record, the period of each manager is a term, which began with a generation. The markers on the hosts show
in which terms a state was written. The manager continues with a state of its own term, or takes over the one of the
previous term. It never starts with an empty queue while another machine may have one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import term

#: Actions of the manager before its controller starts, and of a machine with an obsolete state.
CONTINUE_STATE, MARK_STATE, TAKE_STATE = "continue", "mark", "take_over"
KEEP_STATE, DELETE_STATE = "keep", "delete"


class ControllerStatus(NamedTuple):
    """The state of a controller on a machine. ``is_node``: whether it is set up as a Slurm node."""

    has_state: bool
    marker: term.StateMarker | None
    is_node: bool


class HandoverDecision(NamedTuple):
    """The decision for the manager.

    ``query``: the machine to query first, or empty. ``tenures``: the terms of its state from then on. ``retire``: what
    happens to its current state; empty if it continues with that.
    """

    action: str = CONTINUE_STATE
    refusal: str = ""
    query: str = ""
    tenures: Collection[int] = ()
    retire: str = ""


def parse_status(result: object) -> ControllerStatus | None:
    """Parse the result of the module slurm_state_info. None if it was not queried or did not answer."""
    if not isinstance(result, Mapping) or not isinstance(result.get("in_use"), bool):
        return None
    marker_document = result.get("marker")
    try:
        marker = None if marker_document is None else term.parse_marker(marker_document)
    except ValueError:
        return None
    return ControllerStatus(result["in_use"], marker, result.get("is_node") is True)


def decide_handover(
    record: Record,
    manager_status: ControllerStatus,
    former_status: ControllerStatus | None = None,
    outgoing_manager: str = "",
    is_lost: bool = False,
    unreachable_reason: str = "",
) -> HandoverDecision:
    """Decide on the state to use.

    ``manager_status``: that of the manager. ``former_status``: that of the previous manager. ``unreachable_reason``:
    why ``former_status`` is missing. ``outgoing_manager``: the previous manager, if it has just stopped its controller
    for the hand-over. ``is_lost``: it is permanently lost.
    """
    *earlier_terms, current_term = derive.manager_terms(record)
    if _is_current(record, manager_status.marker):
        return HandoverDecision()
    has_stale_marker = manager_status.marker is not None
    own_state_decision = HandoverDecision(
        MARK_STATE, tenures=[current_term.generation], retire=KEEP_STATE if has_stale_marker else ""
    )
    if not earlier_terms or is_lost:
        return own_state_decision
    queried_machine = outgoing_manager or earlier_terms[-1].machine
    if former_status is None and not unreachable_reason:
        return HandoverDecision(query=queried_machine)
    usable_status = (
        former_status if former_status is not None and _has_last_state(record, queried_machine, former_status) else None
    )
    if usable_status and outgoing_manager:
        return _take_over(record, manager_status, usable_status, queried_machine)
    # A state of an earlier version of this collection has no marker.
    is_unmarked = manager_status.has_state and not has_stale_marker
    if is_unmarked and not (usable_status and usable_status.marker):
        return own_state_decision
    if usable_status:
        return HandoverDecision(refusal=_describe_interruption(record, current_term, queried_machine))
    if (
        not manager_status.has_state
        and not has_stale_marker
        and (not (former_status.has_state or former_status.marker) if former_status else not manager_status.is_node)
    ):
        return own_state_decision
    return HandoverDecision(refusal=_describe_missing_state(record, current_term, queried_machine, unreachable_reason))


def require_status(record: Record, result: object) -> ControllerStatus:
    """Return the status of the manager from the result of slurm_state_info. Raises HostStateError."""
    manager_status = parse_status(result)
    if manager_status is None:
        raise HostStateError(f"{record['manager']} did not return the state of its controller.", "Run this again.")
    return manager_status


def decide_before_query(
    record: Record,
    manager_status: ControllerStatus,
    reachable_machines: Collection[str],
    outgoing_manager: str = "",
    is_lost: bool = False,
) -> HandoverDecision:
    """Decide before any other machine is queried. ``reachable_machines``: the machines that can be queried."""
    first_decision = decide_handover(record, manager_status, None, outgoing_manager, is_lost)
    if first_decision.query and first_decision.query not in reachable_machines:
        return decide_handover(record, manager_status, None, outgoing_manager, is_lost, "it is not in the inventory")
    return first_decision


def _take_over(
    record: Record, manager_status: ControllerStatus, former_status: ControllerStatus, machine: str
) -> HandoverDecision:
    *earlier_terms, current_term = derive.manager_terms(record)
    known_generations = {term.generation for term in earlier_terms}
    former_generations = former_status.marker.tenures if former_status.marker else (_last_term(record, machine),)
    # The former manager can claim anything, except terms that are not in the record.
    kept_generations = [*(term for term in former_generations if term in known_generations), current_term.generation]
    has_state = manager_status.has_state or manager_status.marker is not None
    return HandoverDecision(
        TAKE_STATE,
        tenures=kept_generations,
        retire=_decide_retirement(record, manager_status, current_term.machine, kept_generations) if has_state else "",
    )


def decide_leftover(
    record: Record, machine: str, machine_status: ControllerStatus, manager_status: ControllerStatus | None
) -> str:
    """Decide what happens to the state of a machine that is not the manager.

    The state is obsolete if the manager's is derived from it. Empty if the manager's state is not known to be current;
    then nothing may happen to it.
    """
    if manager_status is None:
        return ""
    if manager_status.marker is None:
        # An earlier version of this collection has handed it over.
        return DELETE_STATE if manager_status.has_state and machine_status.marker is None else ""
    if not _is_current(record, manager_status.marker):
        return ""
    return _decide_retirement(record, machine_status, machine, manager_status.marker.tenures)


def _is_current(record: Record, marker: term.StateMarker | None) -> bool:
    """Whether the manager's state belongs to its current term."""
    return term.is_current(marker, record["id"], derive.manager_terms(record)[-1].generation)


def _decide_retirement(
    record: Record, machine_status: ControllerStatus, machine: str, kept_generations: Collection[int]
) -> str:
    if machine_status.marker is not None and machine_status.marker.cluster != record["id"]:
        return KEEP_STATE
    return (
        DELETE_STATE
        if (machine_status.marker.generation if machine_status.marker else _last_term(record, machine))
        in kept_generations
        else KEEP_STATE
    )


def _last_term(record: Record, machine: str) -> int:
    """Return the last completed term of this machine; 0 if there was none."""
    return max((term.generation for term in derive.manager_terms(record)[:-1] if term.machine == machine), default=0)


def _has_last_state(record: Record, machine: str, machine_status: ControllerStatus) -> bool:
    """Whether the machine has the state of its last term."""
    if machine_status.marker is None:
        return machine_status.has_state
    return (machine_status.marker.cluster, machine_status.marker.generation) == (
        record["id"],
        _last_term(record, machine),
    )


def _repeat_instruction(current_term: derive.ManagerTerm) -> str:
    return f"Run the playbook remove again with the variables of the hand-over (cluster_new_manager={current_term.machine})"


def _describe_interruption(record: Record, current_term: derive.ManagerTerm, former_manager: str) -> str:
    return (
        f"{current_term.machine} has managed cluster '{record['name']}' since generation {current_term.generation} of its "
        f"record, but the queue and the accounting are still on {former_manager}: the hand-over was interrupted. The "
        f"controller was not started with an empty queue. {_repeat_instruction(current_term)} to transfer them."
    )


def _describe_missing_state(
    record: Record, current_term: derive.ManagerTerm, former_manager: str, unreachable_reason: str
) -> str:
    reason_clause = f" ({unreachable_reason})" if unreachable_reason else ", and which does not have them either"
    return (
        f"{current_term.machine} has managed cluster '{record['name']}' since generation {current_term.generation} of its "
        f"record, but does not have the queue and the accounting, which {former_manager} had before{reason_clause}. The controller "
        f"was not started with an empty queue. Bring {former_manager} back. {_repeat_instruction(current_term)}; if they are lost, add "
        "cluster_manager_lost=true to start with empty ones."
    )
