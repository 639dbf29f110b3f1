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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.version import VERSION
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import runs_ansible
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import (
    HostResponse,
    plan_record_requests,
    read_responses,
)

#: The number of members outside of the play that are queried besides the manager. After a hand-over, all reachable
#: members know of it, so one that answers is enough; the second one is for the case that the first is down.
OUTSIDE_MEMBERS = 2


class InventoryView(NamedTuple):
    """Data that does not come from the members: the inventory's machines, their variables, and its manager."""

    machines: Collection[str]
    variables: Mapping[str, Mapping[str, Any]]
    confirmed_manager: str | None = None


class Overrides(NamedTuple):
    """The user's overrides if the copies are not sufficient.

    ``trusted_machine``: the machine whose copy is used. ``trusted_generation``: its generation, if others have a newer
    one. ``successor``: the machine that follows a permanently lost manager.
    """

    trusted_machine: str | None = None
    trusted_generation: int | None = None
    successor: str | None = None


NO_OVERRIDES = Overrides()


class SelectedRecord(NamedTuple):
    """The record to use, the machine whose copy it is, the relations of the other copies to it, and remarks.

    ``replaced_machines``: the members whose copies have to be replaced by a trusted one before anything else.
    """

    record: Record
    source_machine: str
    relations: Mapping[str, derive.Relation]
    remarks: Sequence[str]
    replaced_machines: Sequence[str] = ()


def select_outside_hosts(responses: Mapping[str, HostResponse], cluster_name: str, candidate_manager: str) -> list[str]:
    """Select the hosts outside the play to query: the manager, some members, and ``candidate_manager``.

    The inventory names the candidate, which is always queried, because the others are named only by the copies
    themselves.
    """
    newest_first = sorted(
        (copy for response in responses.values() if (copy := response.find_copy(cluster_name))),
        key=lambda copy: copy["generation"],
        reverse=True,
    )
    manager_names = dict.fromkeys(copy["manager"] for copy in newest_first)
    member_machines = dict.fromkeys(member["machine"] for copy in newest_first for member in copy["members"])
    other_members = [
        machine for machine in member_machines if machine not in responses and machine not in manager_names
    ]
    queried_machines = dict.fromkeys([*manager_names, *other_members[:OUTSIDE_MEMBERS], candidate_manager])
    return [machine for machine in queried_machines if machine not in responses]


def plan_queries(
    play_results: Mapping[str, Mapping[str, Any]],
    outside_results: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Mapping[str, Any]],
    earlier_queries: Sequence[Mapping[str, Any]],
    cluster_name: str,
    candidate_manager: str,
    other_clusters: str,
) -> list[dict[str, Any]]:
    """Plan the queries that are needed before the record of a cluster can be found. Empty when all have been made.

    ``play_results``: the results of the play's hosts; ``outside_results``: those of other hosts, for
    ``earlier_queries``. ``other_clusters``: the machines whose other clusters are needed as well: those that may be
    ``joining``, ``all`` or ``none``. A query consists of machine, complete, digests and known_digests, the last as in the module
    cluster_info.
    """
    results = {**play_results, **outside_results}
    if other_clusters == "all":
        queries = [
            {**request, "known_digests": []}
            for request in plan_record_requests(results, records, None, None, earlier_queries)
        ]
        return _new_queries(queries, earlier_queries)
    responses = read_responses(results, records)
    needed_queries = plan_record_requests(results, records, [cluster_name], None, earlier_queries)
    if other_clusters == "joining":
        member_machines = {
            member["machine"]
            for copy in _copies_by_machine(responses, cluster_name).values()
            for member in copy["members"]
        }
        unknown_machines = [machine for machine in play_results if machine not in member_machines]
        needed_queries += plan_record_requests(play_results, records, None, unknown_machines, earlier_queries)
    queries = [{**request, "known_digests": []} for request in needed_queries]
    queried_machines = {request["machine"] for request in earlier_queries}
    queries += [
        {"machine": machine, "complete": [cluster_name], "digests": [], "known_digests": list(records)}
        for machine in select_outside_hosts(responses, cluster_name, candidate_manager)
        if machine not in queried_machines
    ]
    return _new_queries(queries, earlier_queries)


def _new_queries(
    queries: Sequence[dict[str, Any]], earlier_queries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the queries that have not been made before, each once."""
    return [
        query
        for position, query in enumerate(queries)
        if query not in earlier_queries and query not in queries[:position]
    ]


def find_record(
    responses: Mapping[str, HostResponse],
    cluster_name: str,
    inventory: InventoryView | None = None,
    overrides: Overrides = NO_OVERRIDES,
) -> SelectedRecord | None:
    """Find the record of a cluster: the manager's, if available. None if no host has one.

    Raises RecordError if the copies contradict each other, or if the manager is not confirmed. Without ``inventory``,
    the manager is not compared with the inventory, which is only suitable for displaying the record.
    """
    copies_by_machine = _copies_by_machine(responses, cluster_name)
    damage_by_machine = _damage_by_machine(responses, cluster_name)
    if overrides.trusted_machine is not None:
        selected = _use_trusted_copy(
            copies_by_machine,
            responses,
            damage_by_machine,
            cluster_name,
            overrides.trusted_machine,
            overrides.trusted_generation,
        )
    elif copies_by_machine:
        source_machine, record = _choose_reference(copies_by_machine, responses, damage_by_machine, overrides.successor)
        relations = {machine: derive.compare_copies(copy, record) for machine, copy in copies_by_machine.items()}
        _refuse_contradictions(record, source_machine, relations)
        _refuse_unconfirmed(record, source_machine, copies_by_machine, overrides.successor)
        # Tasks that are delegated to a new manager read its own copy.
        outdated_managers = (
            [record["manager"]]
            if source_machine != record["manager"] and record["manager"] in copies_by_machine
            else []
        )
        selected = SelectedRecord(
            record,
            source_machine,
            relations,
            _remarks(record, source_machine, relations, responses, damage_by_machine),
            outdated_managers,
        )
    elif damage_by_machine:
        raise RecordError(
            _describe_damage(damage_by_machine), "Replace it with an undamaged copy, and find out what damaged it."
        )
    else:
        return None
    if inventory is not None:
        refuse_untrusted_manager(selected.record, inventory)
    return selected


def classify_members(
    selected: SelectedRecord, reachable_machines: Collection[str], play_hosts: Collection[str]
) -> dict[str, Any]:
    """Classify the members by whether they can be reached.

    ``play_hosts``: the hosts of the play; ``reachable_machines``: those of them that answered. Returns ``machines``:
    all members; ``comparable``: those that answered; ``out_of_reach``: the others; ``unreachable_machines``: those of the others that
    are in the play; ``authority``: the machine that knows the jobs, the manager if it answered, even if the copy of
    another member is used.
    """
    member_machines = [member["machine"] for member in selected.record["members"]]
    manager = selected.record["manager"]
    unreachable_machines = [machine for machine in member_machines if machine not in reachable_machines]
    return {
        "authority": manager if manager in reachable_machines else selected.source_machine,
        "machines": member_machines,
        "comparable": [machine for machine in member_machines if machine in reachable_machines],
        "out_of_reach": unreachable_machines,
        "unreachable_machines": [machine for machine in unreachable_machines if machine in play_hosts],
    }


def describe_unreachable_members(
    selected: SelectedRecord, responses: Mapping[str, HostResponse], outside_machines: Collection[str]
) -> list[str]:
    """Describe the members outside of the play that were queried and do not answer, except the manager."""
    member_machines = {member["machine"] for member in selected.record["members"]} - {selected.record["manager"]}
    return [
        f"{machine} is not in this run and keeps what it has. It does not answer: {responses[machine].unreachable_reason}"
        for machine in outside_machines
        if machine in member_machines and responses[machine].unreachable_reason is not None
    ]


def guess_record(responses: Mapping[str, HostResponse], cluster_name: str) -> SelectedRecord:
    """Return the record to show if ``find_record`` refuses to choose one. At least one host must have one."""
    copies_by_machine = _copies_by_machine(responses, cluster_name)
    newest_holder = _newest_copy_holder(copies_by_machine)
    source_machine = (
        copies_by_machine[newest_holder]["manager"]
        if copies_by_machine[newest_holder]["manager"] in copies_by_machine
        else newest_holder
    )
    record = copies_by_machine[source_machine]
    relations = {machine: derive.compare_copies(copy, record) for machine, copy in copies_by_machine.items()}
    return SelectedRecord(
        record,
        source_machine,
        relations,
        _remarks(record, source_machine, relations, responses, _damage_by_machine(responses, cluster_name)),
    )


def refuse_untrusted_manager(record: Record, inventory: InventoryView) -> None:
    """Refuse a manager that is not a machine of the inventory, or that is the machine that runs Ansible.

    Tasks are delegated to the manager as root, and it receives secrets. A manager that the user has named is accepted.
    Raises RecordError.
    """
    manager = record["manager"]
    if manager not in inventory.machines:
        raise RecordError(
            f"The manager of cluster '{record['name']}' is {manager} according to its record, but no host of the "
            "inventory has that name.",
            f"Add {manager} to the inventory; or, if that is not the manager, find out who changed the record "
            "(playbook show), and set cluster_trusted_copy to a machine with the right copy.",
            manager=manager,
        )
    if manager == inventory.confirmed_manager:
        return
    if runs_ansible(manager, inventory.variables[manager]):
        raise RecordError(
            f"The manager of cluster '{record['name']}' is {manager} according to its record, but in the inventory "
            "that is the machine that runs Ansible.",
            f"If that is intended, set cluster_manager: {manager} in the inventory.",
            manager=manager,
        )


def refuse_unexpected_record(record: Record, cluster_name: str, expected_manager: str) -> None:
    """Refuse a record of another cluster or manager that the manager has returned after a change.

    All later tasks rely on it, and are delegated to the manager that it names. Raises RecordError.
    """
    if (record["name"], record["manager"]) != (cluster_name, expected_manager):
        raise RecordError(
            f"The returned record is that of cluster '{record['name']}' with the manager {record['manager']}, but that "
            f"of '{cluster_name}' with {expected_manager} was expected.",
            "Find out who else changes the record (playbook show), and run this again.",
        )


def _copies_by_machine(responses: Mapping[str, HostResponse], cluster_name: str) -> dict[str, Record]:
    return {machine: copy for machine, response in responses.items() if (copy := response.find_copy(cluster_name))}


def _damage_by_machine(responses: Mapping[str, HostResponse], cluster_name: str) -> dict[str, Mapping[str, Any]]:
    return {
        machine: damage
        for machine, response in responses.items()
        for damage in response.damage_reports
        if str(damage["path"]).endswith(f"/{cluster_name}.json")
    }


def _newest_copy_holder(copies_by_machine: Mapping[str, Record]) -> str:
    return max(
        copies_by_machine,
        key=lambda machine: (
            copies_by_machine[machine]["generation"],
            machine == copies_by_machine[machine]["manager"],
        ),
    )


def _continues_history(record: Record, earlier_copy: Record) -> bool:
    """Whether the record continues the history of a copy."""
    return derive.compare_copies(earlier_copy, record).kind == "behind"


def _choose_reference(
    copies_by_machine: Mapping[str, Record],
    responses: Mapping[str, HostResponse],
    damage_by_machine: Mapping[str, Mapping[str, Any]],
    successor: str | None,
) -> tuple[str, Record]:
    newest_holder = _newest_copy_holder(copies_by_machine)
    record = copies_by_machine[newest_holder]
    manager = record["manager"]
    if manager in copies_by_machine:
        former_manager = copies_by_machine[manager]["manager"]
        # The hand-over was interrupted before the new manager had the record: the former one confirms it.
        if (
            former_manager != manager
            and copies_by_machine.get(former_manager) == record
            and _continues_history(record, copies_by_machine[manager])
        ):
            return former_manager, record
        return manager, copies_by_machine[manager]
    if manager in damage_by_machine:
        raise RecordError(
            _describe_damage({manager: damage_by_machine[manager]}),
            f"Replace it with an undamaged copy; cluster_trusted_copy={newest_holder} uses that of {newest_holder} (generation "
            f"{record['generation']}).",
            machine=manager,
        )
    manager_response = responses.get(manager)
    if manager_response is not None and manager_response.unreachable_reason is None:
        raise RecordError(
            f"{manager} manages cluster '{record['name']}' according to the copy of {newest_holder} (generation "
            f"{record['generation']}), but has no record of it.",
            f"With cluster_trusted_copy={newest_holder} it gets the copy of {newest_holder}; or choose another manager: playbook "
            f"remove with cluster_machine={manager}, cluster_new_manager and cluster_manager_lost=true.",
            machine=manager,
        )
    equal_copies = [machine for machine, copy in copies_by_machine.items() if copy == record]
    if len(equal_copies) < 2 and successor is None:
        reason_clause = (
            f" ({manager_response.unreachable_reason})"
            if manager_response and manager_response.unreachable_reason
            else ""
        )
        raise RecordError(
            f"The manager {manager} of cluster '{record['name']}' does not answer{reason_clause}, and only {newest_holder} has "
            f"generation {record['generation']} of the record: no other member confirms it.",
            f"Bring {manager} back, or include another member with that generation in the run; "
            f"cluster_trusted_copy={newest_holder} uses the copy of {newest_holder} without confirmation.",
            manager=manager,
        )
    return newest_holder, record


def _refuse_contradictions(record: Record, source_machine: str, relations: Mapping[str, derive.Relation]) -> None:
    contradicting = {
        machine: relation for machine, relation in relations.items() if relation.kind not in ("same", "behind")
    }
    if not contradicting:
        return
    explanations = " ".join(f"{machine}: {relation.reason}." for machine, relation in contradicting.items())
    raise RecordError(
        f"Copies of the record of cluster '{record['name']}' contradict that of {source_machine} (generation "
        f"{record['generation']}). {explanations}",
        "Find out which one is right (playbook show), and set cluster_trusted_copy to a machine that has it: its copy "
        "replaces the others.",
        contrary={machine: relation.kind for machine, relation in contradicting.items()},
    )


def _refuse_unconfirmed(
    record: Record, source_machine: str, copies_by_machine: Mapping[str, Record], successor: str | None
) -> None:
    """Refuse a manager whose predecessor does not confirm it, since any host can extend a history."""
    manager = record["manager"]
    if successor == manager:
        return
    for machine, copy in copies_by_machine.items():
        former_manager = copy["manager"]
        if former_manager == manager or (
            former_manager in copies_by_machine and copies_by_machine[former_manager]["manager"] != former_manager
        ):
            continue
        raise RecordError(
            f"Cluster '{record['name']}' is managed by {manager} according to the copy of {source_machine} (generation "
            f"{record['generation']}), but by {former_manager} according to that of {machine} (generation "
            f"{copy['generation']}), and {former_manager} does not confirm that {manager} follows it.",
            f"If you know that it does, for example because {former_manager} was lost or removed, set "
            f"cluster_trusted_copy={source_machine}. Otherwise find out who changed the record there.",
            manager=manager,
            former=former_manager,
        )


def _use_trusted_copy(
    copies_by_machine: Mapping[str, Record],
    responses: Mapping[str, HostResponse],
    damage_by_machine: Mapping[str, Mapping[str, Any]],
    cluster_name: str,
    trusted_machine: str,
    trusted_generation: int | None,
) -> SelectedRecord:
    if trusted_machine not in copies_by_machine:
        response = responses.get(trusted_machine)
        refusal_reason = (
            "it is not in this run" if response is None else response.unreachable_reason or "it has no usable copy"
        )
        raise RecordError(
            f"The copy of {trusted_machine} cannot be used for cluster '{cluster_name}': {refusal_reason}.",
            f"Set cluster_trusted_copy to one of {', '.join(copies_by_machine) or 'the machines that have a copy'}.",
            machine=trusted_machine,
        )
    record = copies_by_machine[trusted_machine]
    newer_generations = {
        machine: copy["generation"]
        for machine, copy in copies_by_machine.items()
        if copy["id"] == record["id"] and copy["generation"] > record["generation"]
    }
    relations = {machine: derive.compare_copies(copy, record) for machine, copy in copies_by_machine.items()}
    replaced_machines = [
        machine
        for machine in (member["machine"] for member in record["members"])
        if (relations[machine].kind != "same" if machine in relations else machine in damage_by_machine)
        or (
            machine == record["manager"]
            and machine not in copies_by_machine
            and machine in responses
            and not responses[machine].unreachable_reason
        )
    ]
    if trusted_generation != record["generation"]:
        # This loss is refused first, since the same option accepts both, and it is the greater one.
        replaced_copies = {
            machine: copies_by_machine[machine] for machine in replaced_machines if machine in copies_by_machine
        }
        _refuse_to_replace_another(record, trusted_machine, replaced_copies, responses, damage_by_machine)
    if newer_generations and trusted_generation != record["generation"]:
        newer_descriptions = ", ".join(
            f"{machine} has {newer_generation}" for machine, newer_generation in newer_generations.items()
        )
        raise RecordError(
            f"The copy of {trusted_machine} is generation {record['generation']} of cluster '{cluster_name}', but there are newer "
            f"ones: {newer_descriptions}. Their later changes would be lost.",
            f"If that is intended, also set cluster_trusted_generation={record['generation']}.",
            newer=newer_generations,
        )
    remarks = [
        f"The copy of {machine} is replaced with that of {trusted_machine}"
        + (f": {relations[machine].reason}." if machine in relations else ".")
        for machine in replaced_machines
    ]
    return SelectedRecord(record, trusted_machine, relations, remarks, replaced_machines)


def _refuse_to_replace_another(
    record: Record,
    trusted_machine: str,
    replaced_copies: Mapping[str, Record],
    responses: Mapping[str, HostResponse],
    damaged_machines: Collection[str],
) -> None:
    """Refuse to replace copies of another cluster with the same name, unless it is gone: its manager has none.

    A machine that was unreachable while its cluster was deleted still has the record, which names machines that may be
    in a new cluster by now. Raises RecordError.
    """
    for replaced_copy in replaced_copies.values():
        manager = replaced_copy["manager"]
        manager_response = responses.get(manager)
        is_unknown = (
            manager_response is None or manager_response.unreachable_reason is not None or manager in damaged_machines
        )
        manager_copy = manager_response.find_copy(record["name"]) if manager_response else None
        if replaced_copy["id"] == record["id"] or not (
            is_unknown or (manager_copy is not None and manager_copy["id"] == replaced_copy["id"])
        ):
            continue
        conflicting_machines = [
            machine for machine, copy in replaced_copies.items() if copy["id"] == replaced_copy["id"]
        ]
        raise RecordError(
            f"The copy of {trusted_machine} is that of a cluster '{record['name']}' created {record['history'][0]['at']}, but "
            f"{', '.join(conflicting_machines)} {'is' if len(conflicting_machines) == 1 else 'are'} in another cluster with that name, created "
            f"{replaced_copy['history'][0]['at']}, whose record would be lost.",
            f"If {trusted_machine} has what is left of a deleted cluster, add it to the other one (playbook join with "
            f"cluster_machines={trusted_machine} and cluster_trusted_copy={manager}), and then remove it (playbook remove). If "
            f"the other one is to be given up, also set cluster_trusted_generation={record['generation']}.",
            machines=conflicting_machines,
        )


def _remarks(
    record: Record,
    source_machine: str,
    relations: Mapping[str, derive.Relation],
    responses: Mapping[str, HostResponse],
    damage_by_machine: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    remarks = []
    if source_machine != record["manager"] and record["manager"] not in relations:
        manager_response = responses.get(record["manager"])
        reason_clause = (
            f" ({manager_response.unreachable_reason})"
            if manager_response and manager_response.unreachable_reason
            else ""
        )
        remarks.append(
            f"The manager {record['manager']} does not answer{reason_clause}: using generation {record['generation']} of "
            f"{source_machine}."
        )
    for machine, relation in relations.items():
        copy = responses[machine].find_copy(record["name"])
        if relation.kind == "behind" and copy is not None:
            remark = f"{machine} has an outdated copy of the record: {relation.reason}."
            if copy["manager"] == machine != record["manager"]:
                remark += f" It is no longer the manager; that is {record['manager']}."
            remarks.append(remark)
    if derive.is_applied_by_newer(record):
        remarks.append(
            f"Cluster '{record['name']}' was last changed by gpumesh.cluster {record['collection_version']}, which is newer "
            f"than this version, {VERSION}: this one does not know all of it."
        )
    remarks += [f"{_describe_damage({machine: damage})}" for machine, damage in damage_by_machine.items()]
    return remarks


def _describe_damage(damage_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    return " ".join(
        f"{machine}: the record {damage['path']} is invalid: {damage['reason']} (last good copy: "
        f"{damage['last_good'] or 'none'})."
        for machine, damage in damage_by_machine.items()
    )
