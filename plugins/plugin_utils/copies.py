# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the cluster record among the copies of several hosts, and describe the other copies. Pure.

Copies are not signed, and root on a member can change its own. So a copy needs confirmation: by its manager, who is
responsible for it; by the previous manager, if another one follows; or by a second member. Tasks are delegated to the
manager as root, so it also has to be a machine of the inventory, and not the one that runs Ansible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer, read_answers, to_read

#: How many members outside of the play are queried besides the manager. After a hand-over, all reachable members know
#: of it, so one that answers is enough; the second one is for the case that the first is down.
OUTSIDE_MEMBERS = 2

#: Names of Ansible's connections to the machine that runs it.
_LOCAL = ("local", "ansible.builtin.local")


class Known(NamedTuple):
    """What does not come from the members: the inventory's machines, their variables, and its manager."""

    machines: Collection[str]
    variables: Mapping[str, Mapping[str, Any]]
    manager: str | None = None


class Word(NamedTuple):
    """The user's decision if the copies are not sufficient.

    ``trusted``: the machine whose copy is used. ``generation``: its generation, if others have a newer one.
    ``successor``: the machine that follows a permanently lost manager.
    """

    trusted: str | None = None
    generation: int | None = None
    successor: str | None = None


NO_WORD = Word()


class Found(NamedTuple):
    """The record to use, whose copy it is, how the other copies relate to it, and remarks.

    ``replaced``: the members whose copies have to be replaced by a trusted one before anything else.
    """

    record: Record
    source: str
    standing: Mapping[str, derive.Relation]
    remarks: Sequence[str]
    replaced: Sequence[str] = ()


def outside_holders(answers: Mapping[str, Answer], name: str, candidate: str) -> list[str]:
    """The hosts outside the play to query: the manager, some members, and ``candidate``, which the inventory names.

    The candidate is always queried, because the others are named only by the copies themselves.
    """
    copies = sorted(
        (copy for answer in answers.values() if (copy := answer.copy_of(name))),
        key=lambda copy: copy["generation"],
        reverse=True,
    )
    managers = dict.fromkeys(copy["manager"] for copy in copies)
    members = dict.fromkeys(member["machine"] for copy in copies for member in copy["members"])
    others = [machine for machine in members if machine not in answers and machine not in managers]
    asked = dict.fromkeys([*managers, *others[:OUTSIDE_MEMBERS], candidate])
    return [machine for machine in asked if machine not in answers]


def to_ask(
    held: Mapping[str, Mapping[str, Any]],
    outside: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    requests: Sequence[Mapping[str, Any]],
    name: str,
    candidate: str,
    others: str,
) -> list[dict[str, Any]]:
    """The queries that are needed before the record of a cluster can be found. Empty when all have been made.

    ``held``: the answers of the play's hosts; ``outside``: those of other hosts, to earlier ``requests``. ``others``:
    whose other clusters are needed as well: of machines that may be ``joining``, of ``all`` or of ``none``. A query
    consists of machine, whole, digests and known, the last as in the module cluster_info.
    """
    results = {**held, **outside}
    if others == "all":
        ask = [{**request, "known": []} for request in to_read(results, records, None, None, requests)]
        return _fresh(ask, requests)
    answers = read_answers(results, records)
    wanted = to_read(results, records, [name], None, requests)
    if others == "joining":
        members = {one["machine"] for copy in _copies(answers, name).values() for one in copy["members"]}
        strangers = [machine for machine in held if machine not in members]
        wanted += to_read(held, records, None, strangers, requests)
    ask = [{**request, "known": []} for request in wanted]
    before = {request["machine"] for request in requests}
    ask += [
        {"machine": machine, "whole": [name], "digests": [], "known": list(records)}
        for machine in outside_holders(answers, name, candidate)
        if machine not in before
    ]
    return _fresh(ask, requests)


def _fresh(ask: Sequence[dict[str, Any]], requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The requests that have not been made before, each once."""
    return [one for number, one in enumerate(ask) if one not in requests and one not in ask[:number]]


def find(answers: Mapping[str, Answer], name: str, known: Known | None = None, word: Word = NO_WORD) -> Found | None:
    """The record of a cluster: the manager's, if available. None if no host has one.

    Raises RecordError if the copies contradict each other, or if the manager is not confirmed. Without ``known``, the
    manager is not compared with the inventory, which is only suitable for displaying the record.
    """
    copies = _copies(answers, name)
    spoilt = _spoilt(answers, name)
    if word.trusted is not None:
        found = _trusted(copies, answers, spoilt, name, word.trusted, word.generation)
    elif copies:
        source, record = _reference(copies, answers, spoilt, word.successor)
        standing = {machine: derive.relation(copy, record) for machine, copy in copies.items()}
        _refuse_contrary(record, source, standing)
        _refuse_unconfirmed(record, source, copies, word.successor)
        # Tasks that are delegated to a new manager read its own copy.
        late = [record["manager"]] if source != record["manager"] and record["manager"] in copies else []
        found = Found(record, source, standing, _remarks(record, source, standing, answers, spoilt), late)
    elif spoilt:
        raise RecordError(_damage_words(spoilt), "Replace it with an undamaged copy, and find out what damaged it.")
    else:
        return None
    if known is not None:
        refuse_manager(found.record, known)
    return found


def reach(found: Found, answering: Collection[str], hosts: Collection[str]) -> dict[str, Any]:
    """Which members can be worked on. ``hosts``: those of the play; ``answering``: those of them that answered.

    ``machines``: all members; ``comparable``: those that answered; ``out_of_reach``: the others; ``silent``: those of
    the others that are in the play; ``authority``: the machine that knows the jobs, the manager if it answered, even if
    the copy of another member is used.
    """
    machines = [member["machine"] for member in found.record["members"]]
    manager = found.record["manager"]
    out_of_reach = [machine for machine in machines if machine not in answering]
    return {
        "authority": manager if manager in answering else found.source,
        "machines": machines,
        "comparable": [machine for machine in machines if machine in answering],
        "out_of_reach": out_of_reach,
        "silent": [machine for machine in out_of_reach if machine in hosts],
    }


def left_alone(found: Found, answers: Mapping[str, Answer], outside: Collection[str]) -> list[str]:
    """Remarks about the members outside of the play that were asked and do not answer. The manager has its own."""
    members = {member["machine"] for member in found.record["members"]} - {found.record["manager"]}
    return [
        f"{machine} is not in this run and keeps what it has. It does not answer: {answers[machine].silence}"
        for machine in outside
        if machine in members and answers[machine].silence is not None
    ]


def likeliest(answers: Mapping[str, Answer], name: str) -> Found:
    """The record to show if ``find`` refuses to choose one. At least one host must have one."""
    copies = _copies(answers, name)
    newest = _newest(copies)
    source = copies[newest]["manager"] if copies[newest]["manager"] in copies else newest
    record = copies[source]
    standing = {machine: derive.relation(copy, record) for machine, copy in copies.items()}
    return Found(record, source, standing, _remarks(record, source, standing, answers, _spoilt(answers, name)))


def refuse_manager(record: Record, known: Known) -> None:
    """Refuse a manager that is not a machine of the inventory, or that is the machine that runs Ansible.

    Tasks are delegated to the manager as root, and it receives secrets. A manager that the user has named is accepted.
    Raises RecordError.
    """
    manager = record["manager"]
    if manager not in known.machines:
        raise RecordError(
            f"The manager of cluster '{record['name']}' is {manager} according to its record, but no host of the "
            "inventory has that name.",
            f"Add {manager} to the inventory; or, if that is not the manager, find out who changed the record "
            "(playbook show), and set cluster_trusted_copy to a machine with the right copy.",
            manager=manager,
        )
    if manager == known.manager:
        return
    variables = known.variables[manager]
    reached = str(variables.get("ansible_host") or manager)
    if variables.get("ansible_connection") in _LOCAL or values.means_self(reached):
        raise RecordError(
            f"The manager of cluster '{record['name']}' is {manager} according to its record, but in the inventory "
            "that is the machine that runs Ansible.",
            f"If that is intended, set cluster_manager: {manager} in the inventory.",
            manager=manager,
        )


def refuse_other(record: Record, name: str, manager: str) -> None:
    """Refuse a record of another cluster or manager that the manager has returned after a change.

    All later tasks rely on it, and are delegated to the manager that it names. Raises RecordError.
    """
    if (record["name"], record["manager"]) != (name, manager):
        raise RecordError(
            f"The returned record is that of cluster '{record['name']}' with the manager {record['manager']}, but that "
            f"of '{name}' with {manager} was expected.",
            "Find out who else changes the record (playbook show), and run this again.",
        )


def _copies(answers: Mapping[str, Answer], name: str) -> dict[str, Record]:
    return {machine: copy for machine, answer in answers.items() if (copy := answer.copy_of(name))}


def _spoilt(answers: Mapping[str, Answer], name: str) -> dict[str, Mapping[str, Any]]:
    return {
        machine: damage
        for machine, answer in answers.items()
        for damage in answer.damaged
        if str(damage["path"]).endswith(f"/{name}.json")
    }


def _newest(copies: Mapping[str, Record]) -> str:
    return max(copies, key=lambda machine: (copies[machine]["generation"], machine == copies[machine]["manager"]))


def _follows(record: Record, copy: Record) -> bool:
    """Whether the record continues the history of a copy."""
    return derive.relation(copy, record).kind == "behind"


def _reference(
    copies: Mapping[str, Record],
    answers: Mapping[str, Answer],
    spoilt: Mapping[str, Mapping[str, Any]],
    successor: str | None,
) -> tuple[str, Record]:
    newest = _newest(copies)
    record = copies[newest]
    manager = record["manager"]
    if manager in copies:
        former = copies[manager]["manager"]
        # A hand-over that was cut off before the new manager had the record: the former one confirms it.
        if former != manager and copies.get(former) == record and _follows(record, copies[manager]):
            return former, record
        return manager, copies[manager]
    if manager in spoilt:
        raise RecordError(
            _damage_words({manager: spoilt[manager]}),
            f"Replace it with an undamaged copy; cluster_trusted_copy={newest} uses that of {newest} (generation "
            f"{record['generation']}).",
            machine=manager,
        )
    answer = answers.get(manager)
    if answer is not None and answer.silence is None:
        raise RecordError(
            f"{manager} manages cluster '{record['name']}' according to the copy of {newest} (generation "
            f"{record['generation']}), but has no record of it.",
            f"With cluster_trusted_copy={newest} it gets the copy of {newest}; or choose another manager: playbook "
            f"remove with cluster_machine={manager}, cluster_new_manager and cluster_manager_lost=true.",
            machine=manager,
        )
    alike = [machine for machine, copy in copies.items() if copy == record]
    if len(alike) < 2 and successor is None:
        why = f" ({answer.silence})" if answer and answer.silence else ""
        raise RecordError(
            f"The manager {manager} of cluster '{record['name']}' does not answer{why}, and only {newest} has "
            f"generation {record['generation']} of the record: no other member confirms it.",
            f"Bring {manager} back, or include another member with that generation in the run; "
            f"cluster_trusted_copy={newest} uses the copy of {newest} without confirmation.",
            manager=manager,
        )
    return newest, record


def _refuse_contrary(record: Record, source: str, standing: Mapping[str, derive.Relation]) -> None:
    contrary = {machine: relation for machine, relation in standing.items() if relation.kind not in ("same", "behind")}
    if not contrary:
        return
    told = " ".join(f"{machine}: {relation.reason}." for machine, relation in contrary.items())
    raise RecordError(
        f"Copies of the record of cluster '{record['name']}' contradict that of {source} (generation "
        f"{record['generation']}). {told}",
        "Find out which one is right (playbook show), and set cluster_trusted_copy to a machine that has it: its copy "
        "replaces the others.",
        contrary={machine: relation.kind for machine, relation in contrary.items()},
    )


def _refuse_unconfirmed(record: Record, source: str, copies: Mapping[str, Record], successor: str | None) -> None:
    """Each manager named in a copy must itself confirm its successor, since any host can extend a history."""
    manager = record["manager"]
    if successor == manager:
        return
    for machine, copy in copies.items():
        former = copy["manager"]
        if former == manager or (former in copies and copies[former]["manager"] != former):
            continue
        raise RecordError(
            f"Cluster '{record['name']}' is managed by {manager} according to the copy of {source} (generation "
            f"{record['generation']}), but by {former} according to that of {machine} (generation "
            f"{copy['generation']}), and {former} does not confirm that {manager} follows it.",
            f"If you know that it does, for example because {former} was lost or removed, set "
            f"cluster_trusted_copy={source}. Otherwise find out who changed the record there.",
            manager=manager,
            former=former,
        )


def _trusted(
    copies: Mapping[str, Record],
    answers: Mapping[str, Answer],
    spoilt: Mapping[str, Mapping[str, Any]],
    name: str,
    trusted: str,
    generation: int | None,
) -> Found:
    if trusted not in copies:
        answer = answers.get(trusted)
        why = "it is not in this run" if answer is None else answer.silence or "it has no usable copy"
        raise RecordError(
            f"The copy of {trusted} cannot be used for cluster '{name}': {why}.",
            f"Set cluster_trusted_copy to one of {', '.join(copies) or 'the machines that have a copy'}.",
            machine=trusted,
        )
    record = copies[trusted]
    newer = {
        machine: copy["generation"]
        for machine, copy in copies.items()
        if copy["id"] == record["id"] and copy["generation"] > record["generation"]
    }
    standing = {machine: derive.relation(copy, record) for machine, copy in copies.items()}
    replaced = [
        machine
        for machine in (member["machine"] for member in record["members"])
        if (standing[machine].kind != "same" if machine in standing else machine in spoilt)
        or (
            machine == record["manager"]
            and machine not in copies
            and machine in answers
            and not answers[machine].silence
        )
    ]
    if generation != record["generation"]:
        # First, since the same option accepts both losses, and this is the greater one.
        held = {machine: copies[machine] for machine in replaced if machine in copies}
        _refuse_to_replace_another(record, trusted, held, answers, spoilt)
    if newer and generation != record["generation"]:
        listed = ", ".join(f"{machine} has {number}" for machine, number in newer.items())
        raise RecordError(
            f"The copy of {trusted} is generation {record['generation']} of cluster '{name}', but there are newer "
            f"ones: {listed}. Their later changes would be lost.",
            f"If that is intended, also set cluster_trusted_generation={record['generation']}.",
            newer=newer,
        )
    remarks = [
        f"The copy of {machine} is replaced with that of {trusted}"
        + (f": {standing[machine].reason}." if machine in standing else ".")
        for machine in replaced
    ]
    return Found(record, trusted, standing, remarks, replaced)


def _refuse_to_replace_another(
    record: Record,
    trusted: str,
    replaced: Mapping[str, Record],
    answers: Mapping[str, Answer],
    spoilt: Collection[str],
) -> None:
    """Refuse to replace copies of another cluster with the same name, unless it is gone: its manager has none.

    A machine that was unreachable while its cluster was deleted still has the record, which names machines that may be
    in a new cluster by now. Raises RecordError.
    """
    for other in replaced.values():
        manager = other["manager"]
        answer = answers.get(manager)
        unknown = answer is None or answer.silence is not None or manager in spoilt
        held = answer.copy_of(record["name"]) if answer else None
        if other["id"] == record["id"] or not (unknown or (held is not None and held["id"] == other["id"])):
            continue
        machines = [machine for machine, copy in replaced.items() if copy["id"] == other["id"]]
        raise RecordError(
            f"The copy of {trusted} is that of a cluster '{record['name']}' created {record['history'][0]['at']}, but "
            f"{', '.join(machines)} {'is' if len(machines) == 1 else 'are'} in another cluster with that name, created "
            f"{other['history'][0]['at']}, whose record would be lost.",
            f"If {trusted} has what is left of a deleted cluster, add it to the other one (playbook join with "
            f"cluster_machines={trusted} and cluster_trusted_copy={manager}), and then remove it (playbook remove). If "
            f"the other one is to be given up, also set cluster_trusted_generation={record['generation']}.",
            machines=machines,
        )


def _remarks(
    record: Record,
    source: str,
    standing: Mapping[str, derive.Relation],
    answers: Mapping[str, Answer],
    spoilt: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    remarks = []
    if source != record["manager"] and record["manager"] not in standing:
        answer = answers.get(record["manager"])
        why = f" ({answer.silence})" if answer and answer.silence else ""
        remarks.append(
            f"The manager {record['manager']} does not answer{why}: using generation {record['generation']} of "
            f"{source}."
        )
    for machine, relation in standing.items():
        copy = answers[machine].copy_of(record["name"])
        if relation.kind == "behind" and copy is not None:
            note = f"{machine} has an outdated copy of the record: {relation.reason}."
            if copy["manager"] == machine != record["manager"]:
                note += f" It is no longer the manager; that is {record['manager']}."
            remarks.append(note)
    if derive.is_noted_newer(record):
        remarks.append(
            f"Cluster '{record['name']}' was last changed by gpumesh.cluster {record['collection_version']}, which is newer "
            f"than this version, {VERSION}: this one does not know all of it."
        )
    remarks += [f"{_damage_words({machine: damage})}" for machine, damage in spoilt.items()]
    return remarks


def _damage_words(spoilt: Mapping[str, Mapping[str, Any]]) -> str:
    return " ".join(
        f"{machine}: the record {damage['path']} is invalid: {damage['reason']} (last good copy: "
        f"{damage['last_good'] or 'none'})."
        for machine, damage in spoilt.items()
    )
