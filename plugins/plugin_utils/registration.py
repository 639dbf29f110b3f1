# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide how the hosts of a play become members, and refuse invalid requests before anything changes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import read_mesh, relayed_pairs
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import DEFAULT_SITE, Record
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.mesh import address_in
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.same_machine import member_at, same_machines
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets import find_shared, listed
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_choice import choose
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import options_from

#: The stamp of a record that is drafted only for comparison, and to find early what the module would refuse.
_NO_STAMP = plan.Stamp("1970-01-01T00:00:00Z", "")


class Host(NamedTuple):
    """The inventory's data of a host.

    ``dialled``: the address and port that Ansible uses; ``rdma``: whether its jobs may use RDMA.
    """

    dialled: str
    site: str | None
    endpoint: str | None
    rdma: bool = True


class Wish(NamedTuple):
    """The user's request. None, or empty, if not specified.

    ``machines``: the wanted members; None for all hosts of the play. ``mesh`` as in the module cluster. ``interfaces``:
    patterns of names, by ``prefer``, ``exclude`` and ``include``, as for discover.
    """

    name: str
    subnet: str | None
    manager: str | None
    default_manager: str
    machines: Sequence[str] | None
    mesh: Mapping[str, Any]
    join_only: bool
    interfaces: Mapping[str, Sequence[str]]


def decide(
    wish: Wish,
    record: Record | None,
    hosts: Mapping[str, Host],
    facts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Answer],
) -> tuple[dict[str, Any], plan.Draft]:
    """Decide how to fulfil the request. Returns the parameters of the module cluster, and the record as it would be.

    ``record``: the current one. ``facts``: the result of interface_info on each host. Returns ``exists``, ``manager``,
    ``subnet``, ``mesh`` (empty if the cluster exists), ``members`` and ``joining``; ``left_out``, removed machines that
    only a join adds again; and ``enrolling``, the machines that have to be in the tailnet of ``enrol_settings`` before
    they have an address for the record. Raises InputError.
    """
    _refuse_purpose(wish, record)
    present = [member["machine"] for member in record["members"]] if record else []
    asked = list(hosts) if wish.machines is None else list(wish.machines)
    removed = [] if record is None or wish.join_only else [removed["machine"] for removed in record["removed"]]
    left_out = [machine for machine in asked if machine in removed]
    asked = [machine for machine in asked if machine not in removed]
    absent = [machine for machine in asked if machine not in hosts]
    if absent:
        raise InputError(
            f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not among the hosts of this run "
            f"({', '.join(hosts)}).",
            "Add the machine to the inventory's group 'cluster', and run without a --limit that excludes it.",
            machines=absent,
        )
    joining = [machine for machine in asked if machine not in present]
    taking_part = [machine for machine in hosts if machine in present or machine in joining]
    _refuse_silent({machine: hosts[machine] for machine in taking_part}, facts)
    _refuse_same({machine: hosts[machine] for machine in taking_part}, facts)
    if record is not None:
        _refuse_other_names(record, {machine: hosts[machine] for machine in joining}, facts, answers)
    manager = _manager(wish, record, taking_part)
    mesh = (
        {**plan.mesh_base(plan.DEFAULT_MESH, wish.mesh.get("backend")), **wish.mesh} if not record else record["mesh"]
    )
    subnet = record["subnet"] if record else wish.subnet
    if record is not None:
        plan.check_subnet(record, wish.subnet)
    places = _places(wish, subnet, mesh, record, {machine: facts[machine] for machine in taking_part})
    lans = _lan_addresses(
        wish, places.subnet, mesh, record, {machine: hosts[machine].site for machine in taking_part}, facts
    )
    members = [
        {**_entry(machine, hosts[machine], facts[machine], places.of.get(machine), mesh), **lans.get(machine, {})}
        for machine in taking_part
    ]
    _keep_lost_devices(wish, record, members, {machine for machine, host in hosts.items() if host.rdma})
    decision = {
        "exists": record is not None,
        "manager": manager,
        "subnet": places.subnet,
        "mesh": {} if record else dict(wish.mesh),
        "members": members,
        "joining": joining,
        "left_out": left_out,
        "enrolling": joining if _shares_only_a_tailnet(places.subnet, mesh) else [],
        "enrol_settings": mesh,
    }
    draft = _draft(decision, record, wish.name)
    _refuse_conflicts(wish, decision, draft.record, answers)
    return decision, draft


class _Places(NamedTuple):
    """The subnet, and each machine's address and interface in it; none if they share only the mesh."""

    subnet: str
    of: Mapping[str, Mapping[str, Any]]


def _places(
    wish: Wish,
    subnet: str | None,
    mesh: Mapping[str, Any],
    record: Record | None,
    facts: Mapping[str, Mapping[str, Any]],
) -> _Places:
    if subnet is not None and mesh["backend"] != "none" and _same_network(subnet, mesh["subnet"]):
        return _Places(values.subnet(subnet), {})
    choice = choose(facts, options_from(subnet, min_hosts=len(facts), **wish.interfaces))
    places = dict(choice["members"])
    for member in record["members"] if record else []:
        held = _interface_with(member["address"], facts.get(member["machine"], {}))
        # A member with two addresses in the subnet keeps the one that all others know.
        if held is not None and member["machine"] in places:
            places[member["machine"]] = {"address": member["address"], "interface": held}
    return _Places(str(choice["subnet"]), places)


def _lan_addresses(
    wish: Wish,
    subnet: str,
    mesh: Mapping[str, Any],
    record: Record | None,
    site_of: Mapping[str, str | None],
    facts: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """The ``lan_address`` of each machine, to which its site connects, if the members share only a WireGuard mesh.

    Only for sites that the user has named: addresses in the same private network do not mean that two machines are in
    the same place. An empty text if all members of a site are here, and share no network.
    """
    if mesh["backend"] != "wireguard" or not _same_network(subnet, mesh["subnet"]):
        return {}
    tunnels = ipaddress.ip_network(values.subnet(mesh["subnet"]))
    found = {}
    for site in {site for site in site_of.values() if site is not None}:
        here = {machine: facts[machine] for machine, where in site_of.items() if where == site}
        away = [
            one
            for one in (record or {"members": []})["members"]
            if one["site"] == site and one["machine"] not in site_of
        ]
        if len(here) + len(away) < 2:
            continue
        known = [one["lan_address"] for one in away]
        for candidate in find_shared(here, options_from(None, min_hosts=len(here), **wish.interfaces)).candidates:
            network = ipaddress.ip_network(candidate["subnet"])
            mixed = network.version == tunnels.version and network.overlaps(tunnels)
            if not mixed and all(text is not None and ipaddress.ip_address(text) in network for text in known):
                found.update({name: {"lan_address": candidate["members"][name]["address"]} for name in here})
                break
        else:
            if not away:
                found.update({name: {"lan_address": ""} for name in here})
    return found


def _entry(
    machine: str,
    host: Host,
    facts: Mapping[str, Any],
    place: Mapping[str, Any] | None,
    mesh: Mapping[str, Any],
) -> dict[str, Any]:
    # Values that are no longer in the inventory are removed: a machine may have moved or lost its endpoint.
    entry: dict[str, Any] = {
        "machine": machine,
        "gpus": facts["host"]["gpus"]["count"],
        "rdma": facts["host"]["rdma"] if host.rdma else "none",
        "site": host.site or DEFAULT_SITE,
        "endpoint": host.endpoint or "",
    }
    if place is not None:
        entry.update(address=place["address"], interface=place["interface"])
    if host.site is None:
        entry["lan_address"] = ""
    if (
        host.endpoint is None
        and place is None
        and _is_public(host.dialled)
        and _interface_with(host.dialled, facts) is not None
    ):
        # A public address on the machine's own interface: there is no NAT, so others can connect to its tunnels there.
        bracketed = f"[{host.dialled}]" if ":" in host.dialled else host.dialled
        entry["endpoint"] = f"{bracketed}:{mesh['port']}"
    return entry


def _keep_lost_devices(
    wish: Wish, record: Record | None, members: Sequence[dict[str, Any]], rdma: Collection[str]
) -> None:
    """Keep GPUs and RDMA of which some are lost: this is a fault that the node's health checks keep reporting.

    If the user names the machine to the playbook join again, it is accepted. ``rdma``: the hosts that may use RDMA.
    """
    known = {member["machine"]: member for member in record["members"]} if record else {}
    for entry in members:
        machine = entry["machine"]
        if machine not in known or (wish.join_only and machine in (wish.machines or ())):
            continue
        entry["gpus"] = max(entry["gpus"], known[machine]["gpus"])
        if entry["rdma"] == "none" and machine in rdma:
            entry["rdma"] = known[machine]["rdma"] or "none"


def _refuse_silent(hosts: Mapping[str, Host], facts: Mapping[str, Mapping[str, Any]]) -> None:
    silent = {machine: facts.get(machine, {}) for machine in hosts if "interfaces" not in facts.get(machine, {})}
    if silent:
        told = " ".join(
            f"{machine} ({hosts[machine].dialled}) does not answer: {_reason(result)}."
            for machine, result in silent.items()
        )
        unexplained = any("error" not in result for result in silent.values())
        raise InputError(
            f"Nothing has been changed. {told}",
            "Check with 'ansible -m ping' whether the machine is up, and whether ansible_host, ansible_port, "
            "ansible_user and its key are correct; or exclude it with --limit, in AWX with cluster_without."
            if unexplained
            else "To continue without it, exclude it with --limit, in AWX with cluster_without.",
            machines=list(silent),
        )


def _refuse_same(hosts: Mapping[str, Host], facts: Mapping[str, Mapping[str, Any]]) -> None:
    for names in same_machines({machine: facts[machine] for machine in hosts}):
        told = listed([f"{machine} ({hosts[machine].dialled})" for machine in names])
        raise InputError(
            f"Nothing has been changed. {told} are the same machine.",
            "Correct ansible_host of the wrong one, or keep only one of the names in the inventory.",
            machines=names,
        )


def _refuse_other_names(
    record: Record,
    joining: Mapping[str, Host],
    facts: Mapping[str, Mapping[str, Any]],
    answers: Mapping[str, Answer],
) -> None:
    """Refuse machines that are members under another name, which need not be in this run.

    Only members get a copy of the record, and each is named in its own.
    """
    present = [member["machine"] for member in record["members"]]
    for machine, host in joining.items():
        copy = answers[machine].copy_of(record["name"]) if machine in answers else None
        if copy is None or copy["id"] != record["id"] or machine in [one["machine"] for one in copy["members"]]:
            continue
        told = f"Nothing has been changed. {machine} ({host.dialled}) has"
        found = member_at(copy, facts[machine])
        if found is not None and found[0] in present:
            name, address = found
            raise InputError(
                f"{told} the address {address} of {name} in cluster '{record['name']}', and a copy of its record.",
                f"If they are the same machine, keep only the name {name} in the inventory; to rename it, remove it first "
                f"(playbook remove with cluster_machine={name}). If {machine} is a clone of {name}, install it again.",
                machines=[machine, name],
            )
        known = [one["machine"] for one in copy["members"] if one["machine"] in present]
        # A machine that leaves may get the record without itself before it is cleaned up.
        left = machine in [one["machine"] for one in copy["removed"]]
        if found is None and known and not left:
            raise InputError(
                f"{told} a copy of the record of cluster '{record['name']}', but is not in it.",
                f"If it is one of its members ({listed(known)}) under another name, keep only that name in the inventory; "
                "to rename it, remove it first (playbook remove). If it is a clone of one, install it again.",
                machines=[machine, *known],
            )


def _reason(result: Mapping[str, Any]) -> str:
    said = result.get("module_stderr") or result.get("msg") or "no message"
    return " ".join(str(said).split()).removeprefix("Task failed: ").rstrip(".")


def _refuse_purpose(wish: Wish, record: Record | None) -> None:
    if wish.join_only and record is None:
        raise InputError(
            f"There is no cluster '{wish.name}' to join: no host of this run has its record.",
            "Set cluster_name to an existing cluster, or create it (playbook create).",
            cluster=wish.name,
        )


def _manager(wish: Wish, record: Record | None, taking_part: Sequence[str]) -> str:
    if record is not None:
        if wish.manager is not None and wish.manager != record["manager"]:
            raise InputError(
                f"Cluster '{record['name']}' is managed by {record['manager']}, not by {wish.manager}.",
                f"Omit cluster_manager or set it to {record['manager']}. To change the manager, use the playbook "
                "remove with cluster_new_manager.",
                manager=record["manager"],
            )
        return record["manager"]
    manager = wish.manager or wish.default_manager
    if manager not in taking_part:
        raise InputError(
            f"The manager '{manager}' is not among the machines of the new cluster '{wish.name}' "
            f"({', '.join(taking_part) or 'none'}).",
            f"Set cluster_manager to one of them, or add {manager} to the machines.",
            manager=manager,
        )
    return manager


def _draft(decision: Mapping[str, Any], record: Record | None, name: str) -> plan.Draft:
    """The record as it would be."""
    members = _drafted(decision, record)
    if record is not None:
        return plan.chain(record, lambda draft: plan.join(draft, members, _NO_STAMP), plan.note_version)
    return plan.create("0" * 32, name, decision["subnet"], decision["manager"], decision["mesh"], members, _NO_STAMP)


def refuse_mesh(record: Record, relays: Sequence[str]) -> None:
    """Refuse a WireGuard mesh in which two members cannot communicate. Raises InputError.

    ``record`` as it would be: the role mesh, which refuses the same, runs only after the record has been changed.
    """
    if record["mesh"]["backend"] == "wireguard":
        relayed_pairs(read_mesh(record, relays))


def _refuse_conflicts(wish: Wish, decision: Mapping[str, Any], wanted: Record, answers: Mapping[str, Answer]) -> None:
    reasons = [
        reason
        for machine in decision["joining"]
        if machine in answers
        for reason in derive.conflicts(answers[machine].records, machine, wanted)
    ]
    if reasons:
        raise InputError(
            f"Cluster '{wish.name}' cannot have these machines: {' '.join(reasons)}",
            "If you mean the other cluster, set cluster_name to its name. Otherwise remove them from it first (playbook "
            "remove), or choose another subnet, and another mesh_interface, mesh_port and mesh_subnet.",
        )


def enrolled(
    decision: Mapping[str, Any], record: Record | None, addresses: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """The members of a decision, with the addresses that their tailnet assigned to newly enrolled ones.

    Members that match the record have only a name, since this is sent to the manager in each run. ``addresses``: by
    machine; empty for one that is not logged in, as in check mode, which gets any free address. Raises InputError for
    an address outside of the subnet.
    """
    subnet = str(decision["enrol_settings"]["subnet"])
    given = {}
    for machine in decision["enrolling"]:
        if addresses.get(machine):
            address = address_in(addresses[machine], subnet)
            if address is None:
                raise InputError(
                    f"{machine} has {', '.join(addresses[machine])} in its tailnet, but none in {subnet}.",
                    "Set cluster_subnet and mesh_subnet to the range of the control server.",
                    machine=machine,
                )
            given[machine] = address
    members = _drafted(decision, record, given)
    if record is None:
        return members
    draft = plan.join(record, members, _NO_STAMP)
    changed = {machine for change in draft.changes for machine in change.machines}
    return [member if member["machine"] in changed else {"machine": member["machine"]} for member in members]


def _drafted(
    decision: Mapping[str, Any], record: Record | None, given: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """The members. Those to be enrolled have the assigned address, or else any free one."""
    given = given or {}
    taken = {
        *given.values(),
        *(member["mesh"]["address"] for member in (record or {"members": []})["members"] if member["mesh"]),
    }
    free = (str(one) for one in ipaddress.ip_network(decision["subnet"]).hosts() if str(one) not in taken)
    return [
        {**member, "mesh": {"address": given.get(member["machine"]) or next(free)}}
        if member["machine"] in decision["enrolling"]
        else member
        for member in decision["members"]
    ]


def _shares_only_a_tailnet(subnet: str, mesh: Mapping[str, Any]) -> bool:
    return bool(mesh["backend"] == "tailscale" and _same_network(subnet, mesh["subnet"]))


def _interface_with(address: str, facts: Mapping[str, Any]) -> str | None:
    for interface in facts.get("interfaces", []):
        if any(held["address"] == address for held in interface["addresses"]):
            return str(interface["name"])
    return None


def _is_public(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_global
    except ValueError:
        return False


def _same_network(one: str, other: str) -> bool:
    try:
        return values.subnet(one) == values.subnet(other)
    except ValueError as failure:
        raise InputError(f"{failure}.", "Write cluster_subnet and mesh_subnet as ADDRESS/MASK.") from failure
