# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide where a removal is written, and refuse invalid requests before anything changes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer


def decide_removal(
    record: Record | None,
    name: str,
    leaving: Sequence[str],
    known: Collection[str],
    answers: Mapping[str, Answer],
    new_manager: str | None,
    manager_lost: bool,
    playing: Collection[str],
) -> dict[str, Any]:
    """Decide on a removal.

    Returns ``authority``, the host on which the record is changed: the manager, or its successor if it is lost; and
    ``former_manager``, who hands over the cluster, empty for none, which in a run that completes another is determined
    from the history.

    ``known``: all machines of the inventory. ``playing``: those in this run that answer.

    A former member is accepted, so that an interrupted removal can be completed, and so is a lost manager if its
    successor has the record. A machine that never was a member is not cleaned up: what it has is its own, or another
    cluster's. Raises InputError.
    """
    if record is None:
        raise InputError(
            f"There is no cluster '{name}': no host of this run has its record.",
            "Set cluster_name to an existing cluster (playbook show).",
        )
    if not leaving:
        raise InputError("No machine to remove was given.", "Set cluster_machine=NAME.")
    machines = [member["machine"] for member in record["members"]]
    strangers = [
        machine for machine in leaving if machine not in machines and not _was_member(machine, record, known, answers)
    ]
    if strangers:
        raise InputError(
            f"{', '.join(strangers)} is not among the members of cluster '{name}', and was not removed from it.",
            f"Its members are {', '.join(machines)}.",
            machines=strangers,
        )
    # The rules of the record itself, except for the volumes, for which the module has a better message.
    coming(record, leaving, new_manager)
    manager = record["manager"]
    answers_still = manager in answers and answers[manager].silence is None
    followed = manager == new_manager and not set(leaving).intersection(machines)
    if manager_lost and not followed:
        authority = _successor(record, manager, leaving, new_manager, answers, answers_still)
        return {"authority": authority, "former_manager": ""}
    if not answers_still:
        silence = answers[manager].silence if manager in answers else "it was not asked"
        raise InputError(
            f"The manager {manager} of cluster '{name}' does not answer: {silence}.",
            f"Wait for it; or, if it is permanently lost, set cluster_machine={manager} cluster_new_manager=NAME "
            "cluster_manager_lost=true.",
            manager=manager,
        )
    if new_manager not in (None, manager):
        _refuse_absent(manager, str(new_manager), playing)
    # A lost manager cannot hand over anything.
    handing = None
    if new_manager is not None and not manager_lost:
        former = derive.tenures(record)[:-1]
        handing = manager if manager != new_manager else former[-1].machine if former else None
    return {"authority": manager, "former_manager": handing if handing in known else ""}


def _refuse_absent(manager: str, new_manager: str, playing: Collection[str]) -> None:
    """The controller and its queue move from one to the other: without both, the cluster would have no scheduler, or
    two of them."""
    for machine, part in ((manager, "hands over the cluster"), (new_manager, "takes over the cluster")):
        if machine not in playing:
            raise InputError(
                f"{machine} {part}, but is not in this run, or does not answer. Nothing has been changed.",
                "Run this without --limit when both are up.",
                machine=machine,
            )


def _was_member(machine: str, record: Record, known: Collection[str], answers: Mapping[str, Answer]) -> bool:
    if machine in [removed["machine"] for removed in record["removed"]]:
        return True
    # Before schema 3, the record did not contain removed machines; then the machine's own copy is used.
    copy = answers[machine].copy_of(record["name"]) if machine in answers else None
    return machine in known and copy is not None and copy["id"] == record["id"]


def _successor(
    record: Record,
    manager: str,
    leaving: Sequence[str],
    new_manager: str | None,
    answers: Mapping[str, Answer],
    answers_still: bool,
) -> str:
    if answers_still:
        raise InputError(
            f"{manager} answers, so it is not lost: two managers would change the record independently.",
            "Omit cluster_manager_lost for a regular change of the manager.",
            manager=manager,
        )
    if new_manager is None or manager not in leaving:
        raise InputError(
            f"The manager {manager} is lost, but no new manager was given.",
            f"Set cluster_machine={manager} and cluster_new_manager=NAME.",
            manager=manager,
        )
    answer = answers.get(new_manager)
    copy = answer.copy_of(record["name"]) if answer else None
    if copy is None:
        raise InputError(
            f"{new_manager} has no copy of the record, so it cannot replace the lost manager {manager}.",
            "Choose a member that answers and has a copy (playbook show).",
            manager=new_manager,
        )
    if copy != record:
        raise InputError(
            f"{new_manager} has generation {copy['generation']} of the record, but another member has the newer "
            f"generation {record['generation']}.",
            "Choose a member with the newest copy (see playbook show).",
            manager=new_manager,
        )
    return new_manager


def coming(record: Record, leaving: Sequence[str], new_manager: str | None) -> Record:
    """The record as it would be."""
    return plan.remove(record, leaving, plan.Stamp(values.now(), ""), new_manager, force=True).record
