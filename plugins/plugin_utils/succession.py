# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which queue and accounting the manager's controller continues with, and what happens to older ones. Pure.

In the record, the period of each manager is a tenure, which began with a generation. The markers on the hosts show in
which tenures a state was written. The manager continues with a state of its own tenure, or takes over the one of the
previous tenure. It never starts with an empty queue while another machine may have one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import tenure

#: What the manager does before its controller starts, and what a machine does with an obsolete state.
GO_ON, MARK, TAKE = "go_on", "mark", "take"
KEEP, DELETE = "keep", "delete"


class Look(NamedTuple):
    """The state of a controller on a machine. ``node``: whether it is set up as a Slurm node."""

    used: bool
    marker: tenure.Marker | None
    node: bool


class Succession(NamedTuple):
    """What the manager does.

    ``former``: the machine to query first, or empty. ``tenures``: those of its state from then on.

    ``retire``: what happens to its current state; empty if it continues with that.
    """

    action: str = GO_ON
    refusal: str = ""
    former: str = ""
    tenures: Collection[int] = ()
    retire: str = ""


def read_look(result: object) -> Look | None:
    """The validated result of the module slurm_state. None if it was not queried or did not answer."""
    if not isinstance(result, Mapping) or not isinstance(result.get("used"), bool):
        return None
    document = result.get("marker")
    try:
        marker = None if document is None else tenure.parse(document)
    except ValueError:
        return None
    return Look(result["used"], marker, result.get("node") is True)


def decide(
    record: Record, own: Look, former: Look | None = None, handing: str = "", lost: bool = False, silence: str = ""
) -> Succession:
    """Decide on the state to use. ``own``: the manager's state. ``former``: that of the previous manager.

    ``silence``: why ``former`` is missing. ``handing``: the previous manager, if it has just stopped its controller for
    the hand-over. ``lost``: it is permanently lost.
    """
    *before, present = derive.tenures(record)
    if _counts(record, own.marker):
        return Succession()
    stale = own.marker is not None
    alone = Succession(MARK, tenures=[present.generation], retire=KEEP if stale else "")
    if not before or lost:
        return alone
    asked = handing or before[-1].machine
    if former is None and not silence:
        return Succession(former=asked)
    theirs = former if former is not None and _has(record, asked, former) else None
    if theirs and handing:
        return _take(record, own, theirs, asked)
    # A state of an earlier version of this collection has no marker.
    unmarked = own.used and not stale
    if unmarked and not (theirs and theirs.marker):
        return alone
    if theirs:
        return Succession(refusal=_cut_off(record, present, asked))
    if not own.used and not stale and (not (former.used or former.marker) if former else not own.node):
        return alone
    return Succession(refusal=_missing(record, present, asked, silence))


def read_own(record: Record, result: object) -> Look:
    """The result of the module slurm_state on the manager. Raises HostStateError."""
    look = read_look(result)
    if look is None:
        raise HostStateError(f"{record['manager']} did not return the state of its controller.", "Run this again.")
    return look


def decide_first(
    record: Record, own: Look, known: Collection[str], handing: str = "", lost: bool = False
) -> Succession:
    """``decide`` before any other machine is queried. ``known``: the machines that can be queried."""
    decided = decide(record, own, None, handing, lost)
    if decided.former and decided.former not in known:
        return decide(record, own, None, handing, lost, "it is not in the inventory")
    return decided


def _take(record: Record, own: Look, former: Look, machine: str) -> Succession:
    *before, present = derive.tenures(record)
    known = {one.generation for one in before}
    theirs = former.marker.tenures if former.marker else (_last(record, machine),)
    # The former manager can claim anything, except tenures that are not in the record.
    tenures = [*(one for one in theirs if one in known), present.generation]
    there = own.used or own.marker is not None
    return Succession(TAKE, tenures=tenures, retire=_end(record, own, present.machine, tenures) if there else "")


def leftover(record: Record, machine: str, own: Look, manager: Look | None) -> str:
    """What happens to the state of a machine that is not the manager, by whether the manager's is derived from it.

    Empty if the manager's state is not known to be current; then nothing may happen to it.
    """
    if manager is None:
        return ""
    if manager.marker is None:
        # An earlier version of this collection has handed it over.
        return DELETE if manager.used and own.marker is None else ""
    if not _counts(record, manager.marker):
        return ""
    return _end(record, own, machine, manager.marker.tenures)


def _counts(record: Record, marker: tenure.Marker | None) -> bool:
    """Whether the manager's state belongs to its current tenure."""
    present = derive.tenures(record)[-1].generation
    return marker is not None and marker.cluster == record["id"] and present in marker.tenures


def _end(record: Record, own: Look, machine: str, tenures: Collection[int]) -> str:
    if own.marker is not None and own.marker.cluster != record["id"]:
        return KEEP
    return DELETE if (own.marker.generation if own.marker else _last(record, machine)) in tenures else KEEP


def _last(record: Record, machine: str) -> int:
    """The last completed tenure of this machine; 0 if there was none."""
    return max((one.generation for one in derive.tenures(record)[:-1] if one.machine == machine), default=0)


def _has(record: Record, machine: str, look: Look) -> bool:
    """Whether the machine has the state of its last tenure."""
    if look.marker is None:
        return look.used
    return (look.marker.cluster, look.marker.generation) == (record["id"], _last(record, machine))


def _again(present: derive.Tenure) -> str:
    return f"Run the playbook remove again with the variables of the hand-over (cluster_new_manager={present.machine})"


def _cut_off(record: Record, present: derive.Tenure, former: str) -> str:
    return (
        f"{present.machine} has managed cluster '{record['name']}' since generation {present.generation} of its "
        f"record, but the queue and the accounting are still on {former}: the hand-over was interrupted. The "
        f"controller was not started with an empty queue. {_again(present)} to transfer them."
    )


def _missing(record: Record, present: derive.Tenure, former: str, silence: str) -> str:
    why = f" ({silence})" if silence else ", and which does not have them either"
    return (
        f"{present.machine} has managed cluster '{record['name']}' since generation {present.generation} of its "
        f"record, but does not have the queue and the accounting, which {former} had before{why}. The controller "
        f"was not started with an empty queue. Bring {former} back. {_again(present)}; if they are lost, add "
        "cluster_manager_lost=true to start with empty ones."
    )
