# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the cluster record among the copies of several hosts, and say what else they hold. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record

#: How many members outside of the play are asked beside the manager. After a hand-over every member that could be
#: reached knows of it, so one that answers is enough; a second one is for the case that the first is down.
WITNESSES = 2


class Answer(NamedTuple):
    """What one host said. ``silence``: why it said nothing, or None."""

    records: Sequence[Record]
    damaged: Sequence[Mapping[str, Any]]
    silence: str | None

    def copy_of(self, name: str) -> Record | None:
        """Its copy of the record of one cluster."""
        return next((record for record in self.records if record["name"] == name), None)


class Found(NamedTuple):
    """The record to go by, whose copy it is, how the other copies stand to it, and what is worth saying."""

    record: Record
    source: str
    standing: Mapping[str, derive.Relation]
    remarks: Sequence[str]


def read_answers(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
    """What each host answered, from the results of the module cluster_info."""
    return {machine: _answer(result) for machine, result in results.items()}


def _answer(result: Mapping[str, Any]) -> Answer:
    if "clusters" not in result:
        said = str(result.get("module_stderr") or result.get("msg") or "it was not asked")
        return Answer([], [], " ".join(said.split()).removeprefix("Task failed: "))
    return Answer([model.parse(held) for held in result["clusters"]], list(result["damaged"]), None)


def witnesses(answers: Mapping[str, Answer], name: str, candidate: str) -> list[str]:
    """Whom to ask besides the hosts of the play: the manager, and some members when all that know it are few."""
    copies = [copy for answer in answers.values() if (copy := answer.copy_of(name))]
    if not copies:
        return [] if candidate in answers else [candidate]
    newest = max(copies, key=lambda copy: copy["generation"])
    asked = [newest["manager"], *(member["machine"] for member in newest["members"])]
    outside = [machine for machine in dict.fromkeys(asked) if machine not in answers]
    managed_from_outside = newest["manager"] not in answers
    return outside[: WITNESSES + (1 if managed_from_outside else 0)]


def find(answers: Mapping[str, Answer], name: str, force: bool = False) -> Found | None:
    """The record of a cluster: the manager's, where it can be had. None where nobody has one.

    Raises RecordError where the copies cannot be brought into one line. ``force`` takes the manager's all the same.
    """
    copies = {machine: copy for machine, answer in answers.items() if (copy := answer.copy_of(name))}
    spoilt = {
        machine: damage
        for machine, answer in answers.items()
        for damage in answer.damaged
        if str(damage["path"]).endswith(f"/{name}.json")
    }
    if not copies:
        if spoilt:
            raise RecordError(_damage_words(spoilt), "Put a sound copy in its place, and look for what damaged it.")
        return None
    source, record = _reference(copies, answers, spoilt)
    standing = {machine: derive.relation(copy, record) for machine, copy in copies.items()}
    contrary = {machine: relation for machine, relation in standing.items() if relation.kind not in ("same", "behind")}
    if contrary and not force:
        told = " ".join(f"{machine}: {relation.reason}." for machine, relation in contrary.items())
        raise RecordError(
            f"The copies of cluster '{name}' contradict the one of {source} (generation {record['generation']}). {told}",
            f"Find out which one is right; with cluster_force=true the one of {source} replaces the others.",
            contrary={machine: relation.kind for machine, relation in contrary.items()},
        )
    return Found(record, source, standing, _remarks(record, source, standing, answers, spoilt))


def _reference(
    copies: Mapping[str, Record], answers: Mapping[str, Answer], spoilt: Mapping[str, Mapping[str, Any]]
) -> tuple[str, Record]:
    newest = max(copies, key=lambda machine: (copies[machine]["generation"], machine == copies[machine]["manager"]))
    manager = copies[newest]["manager"]
    if manager in copies:
        return manager, copies[manager]
    if manager in spoilt:
        raise RecordError(
            _damage_words({manager: spoilt[manager]}),
            f"Put a sound copy in its place, such as the one of {newest} (generation {copies[newest]['generation']}).",
            machine=manager,
        )
    answer = answers.get(manager)
    if answer is not None and answer.silence is None:
        raise RecordError(
            f"{manager} manages cluster '{copies[newest]['name']}' by the copy of {newest} (generation "
            f"{copies[newest]['generation']}), but has no record of it.",
            f"Copy the file from {newest}, or hand the cluster over: playbook remove with "
            f"cluster_machine={manager}, cluster_new_manager and cluster_manager_lost=true.",
            machine=manager,
        )
    return newest, copies[newest]


def _remarks(
    record: Record,
    source: str,
    standing: Mapping[str, derive.Relation],
    answers: Mapping[str, Answer],
    spoilt: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    remarks = []
    if source != record["manager"]:
        answer = answers.get(record["manager"])
        why = f" ({answer.silence})" if answer and answer.silence else ""
        remarks.append(
            f"The manager {record['manager']} cannot be asked{why}: going by generation {record['generation']} of "
            f"{source}."
        )
    for machine, relation in standing.items():
        copy = answers[machine].copy_of(record["name"])
        if relation.kind == "behind" and copy is not None:
            note = f"{machine} has an old copy of the record: {relation.reason}."
            if copy["manager"] == machine != record["manager"]:
                note += f" It is no longer the manager; that is {record['manager']}."
            remarks.append(note)
    remarks += [f"{_damage_words({machine: damage})}" for machine, damage in spoilt.items()]
    return remarks


def _damage_words(spoilt: Mapping[str, Mapping[str, Any]]) -> str:
    return " ".join(
        f"{machine}: the record {damage['path']} is refused: {damage['reason']} (last good copy: "
        f"{damage['last_good'] or 'none there'})."
        for machine, damage in spoilt.items()
    )
