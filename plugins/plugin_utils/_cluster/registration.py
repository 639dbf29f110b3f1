# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide how the hosts of a play become members, and refuse invalid requests before anything changes. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, plan, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import DEFAULT_SITE, Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.topology import list_relayed_pairs, read_mesh
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.duplicate_machines import (
    find_member_by_address,
    group_same_machines,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import HostResponse
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_choice import choose_subnet
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import build_options
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import find_shared
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh import find_tailnet_address

#: The stamp of a record that is drafted only for comparison, and to find early what the module would refuse.
_COMPARISON_STAMP = plan.ChangeStamp("1970-01-01T00:00:00Z", "")


class InventoryHost(NamedTuple):
    """The inventory's data of a host.

    ``connection_address``: the address and port that Ansible uses; ``rdma``: whether its jobs may use RDMA;
    ``slurm_node``: whether it runs jobs.
    """

    connection_address: str
    site: str | None
    endpoint: str | None
    rdma: bool = True
    slurm_node: bool = True


class RegistrationRequest(NamedTuple):
    """The user's request. None, or empty, if not specified.

    ``machines``: the requested members; None for all hosts of the play. ``mesh`` as in the module cluster.
    ``interfaces``: patterns of names, by ``prefer``, ``exclude`` and ``include``, as for discover.
    """

    name: str
    subnet: str | None
    manager: str | None
    default_manager: str
    machines: Sequence[str] | None
    mesh: Mapping[str, Any]
    join_only: bool
    interfaces: Mapping[str, Sequence[str]]


def decide_registration(
    request: RegistrationRequest,
    record: Record | None,
    hosts: Mapping[str, InventoryHost],
    facts: Mapping[str, Mapping[str, Any]],
    responses: Mapping[str, HostResponse],
) -> tuple[dict[str, Any], plan.Draft]:
    """Decide how to fulfil the request. Returns the parameters of the module cluster, and the record as it would be.

    ``record``: the current one. ``facts``: the result of interface_info on each host. Returns ``exists``, ``manager``,
    ``subnet``, ``mesh`` (empty if the cluster exists), ``members`` and ``joining``; ``left_out``, removed machines that
    only a join adds again; ``withdrawn``, members that run no jobs any more; and ``enrolling``, the machines that have to
    be in the tailnet of ``enrol_settings`` before they have an address for the record. Raises InputError.
    """
    _refuse_missing_cluster(request, record)
    member_machines = [member["machine"] for member in record["members"]] if record else []
    requested_machines = list(hosts) if request.machines is None else list(request.machines)
    removed_machines = (
        []
        if record is None or request.join_only
        else [removed_machines["machine"] for removed_machines in record["removed"]]
    )
    left_out = [machine for machine in requested_machines if machine in removed_machines]
    requested_machines = [machine for machine in requested_machines if machine not in removed_machines]
    absent_machines = [machine for machine in requested_machines if machine not in hosts]
    if absent_machines:
        raise InputError(
            f"{', '.join(absent_machines)} {'is' if len(absent_machines) == 1 else 'are'} not among the hosts of this run "
            f"({', '.join(hosts)}).",
            "Add the machine to the inventory's group 'cluster', and run without a --limit that excludes it.",
            machines=absent_machines,
        )
    joining_machines = [machine for machine in requested_machines if machine not in member_machines]
    participants = [machine for machine in hosts if machine in member_machines or machine in joining_machines]
    _refuse_unreachable({machine: hosts[machine] for machine in participants}, facts)
    _refuse_duplicates({machine: hosts[machine] for machine in participants}, facts)
    if record is not None:
        _refuse_renamed_members(record, {machine: hosts[machine] for machine in joining_machines}, facts, responses)
    manager = _choose_manager(request, record, participants)
    mesh = (
        {**plan.base_mesh(plan.DEFAULT_MESH, request.mesh.get("backend")), **request.mesh}
        if not record
        else record["mesh"]
    )
    subnet = record["subnet"] if record else request.subnet
    if record is not None:
        plan.check_subnet(record, request.subnet)
    network = _choose_network(request, subnet, mesh, record, {machine: facts[machine] for machine in participants})
    lan_addresses = _lan_addresses(
        request, network.subnet, mesh, record, {machine: hosts[machine].site for machine in participants}, facts
    )
    members = [
        {
            **_build_member(machine, hosts[machine], facts[machine], network.addresses_by_machine.get(machine), mesh),
            **lan_addresses.get(machine, {}),
        }
        for machine in participants
    ]
    _keep_lost_devices(request, record, members, {machine for machine, host in hosts.items() if host.rdma})
    decision = {
        "exists": record is not None,
        "manager": manager,
        "subnet": network.subnet,
        "mesh": {} if record else dict(request.mesh),
        "members": members,
        "joining": joining_machines,
        "left_out": left_out,
        "enrolling": joining_machines if _shares_only_tailnet(network.subnet, mesh) else [],
        "enrol_settings": mesh,
    }
    draft = _draft_record(decision, record, request.name)
    remaining_nodes = membership.slurm_nodes(draft.record)
    decision["withdrawn"] = [
        machine for machine in (membership.slurm_nodes(record) if record else []) if machine not in remaining_nodes
    ]
    _refuse_conflicts(request, decision, draft.record, responses)
    return decision, draft


class _NetworkChoice(NamedTuple):
    """The subnet, and each machine's address and interface in it; none if they share only the mesh."""

    subnet: str
    addresses_by_machine: Mapping[str, Mapping[str, Any]]


def _choose_network(
    request: RegistrationRequest,
    subnet: str | None,
    mesh: Mapping[str, Any],
    record: Record | None,
    facts: Mapping[str, Mapping[str, Any]],
) -> _NetworkChoice:
    if subnet is not None and mesh["backend"] != "none" and _same_network(subnet, mesh["subnet"]):
        return _NetworkChoice(values.subnet(subnet), {})
    subnet_choice = choose_subnet(facts, build_options(subnet, min_hosts=len(facts), **request.interfaces))
    addresses_by_machine = dict(subnet_choice["members"])
    for member in record["members"] if record else []:
        current_interface = _find_interface(member["address"], facts.get(member["machine"], {}))
        # A member with two addresses in the subnet keeps the one that all others know.
        if current_interface is not None and member["machine"] in addresses_by_machine:
            addresses_by_machine[member["machine"]] = {"address": member["address"], "interface": current_interface}
    return _NetworkChoice(str(subnet_choice["subnet"]), addresses_by_machine)


def _lan_addresses(
    request: RegistrationRequest,
    subnet: str,
    mesh: Mapping[str, Any],
    record: Record | None,
    site_by_machine: Mapping[str, str | None],
    facts: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, str]]:
    """Return the ``lan_address`` of each machine, to which its site connects, if only a WireGuard mesh is shared.

    Only sites that the user has named have one: addresses in the same private network do not mean that two machines are
    in the same place. The text is empty if all members of a site are here, and share no network.
    """
    if mesh["backend"] != "wireguard" or not _same_network(subnet, mesh["subnet"]):
        return {}
    mesh_network = ipaddress.ip_network(values.subnet(mesh["subnet"]))
    lan_addresses = {}
    for site in {site for site in site_by_machine.values() if site is not None}:
        local_facts = {
            machine: facts[machine] for machine, machine_site in site_by_machine.items() if machine_site == site
        }
        absent_members = [
            member
            for member in (record or {"members": []})["members"]
            if member["site"] == site and member["machine"] not in site_by_machine
        ]
        if len(local_facts) + len(absent_members) < 2:
            continue
        recorded_addresses = [member["lan_address"] for member in absent_members]
        for candidate in find_shared(
            local_facts, build_options(None, min_hosts=len(local_facts), **request.interfaces)
        ).candidates:
            candidate_network = ipaddress.ip_network(candidate["subnet"])
            overlaps_mesh = candidate_network.version == mesh_network.version and candidate_network.overlaps(
                mesh_network
            )
            if not overlaps_mesh and all(
                address is not None and ipaddress.ip_address(address) in candidate_network
                for address in recorded_addresses
            ):
                lan_addresses.update(
                    {machine: {"lan_address": candidate["members"][machine]["address"]} for machine in local_facts}
                )
                break
        else:
            if not absent_members:
                lan_addresses.update({machine: {"lan_address": ""} for machine in local_facts})
    return lan_addresses


def _build_member(
    machine: str,
    host: InventoryHost,
    facts: Mapping[str, Any],
    member_address: Mapping[str, Any] | None,
    mesh: Mapping[str, Any],
) -> dict[str, Any]:
    # Values that are no longer in the inventory are removed: a machine may have moved or lost its endpoint.
    member: dict[str, Any] = {
        "machine": machine,
        "gpus": facts["host"]["gpus"]["count"],
        "rdma": facts["host"]["rdma"] if host.rdma else "none",
        "slurm_node": host.slurm_node,
        "site": host.site or DEFAULT_SITE,
        "endpoint": host.endpoint or "",
    }
    if member_address is not None:
        member.update(address=member_address["address"], interface=member_address["interface"])
    if host.site is None:
        member["lan_address"] = ""
    if (
        host.endpoint is None
        and member_address is None
        and _is_public(host.connection_address)
        and _find_interface(host.connection_address, facts) is not None
    ):
        # The machine's own interface has a public address: there is no NAT, so others can connect to its tunnels there.
        endpoint_host = f"[{host.connection_address}]" if ":" in host.connection_address else host.connection_address
        member["endpoint"] = f"{endpoint_host}:{mesh['port']}"
    return member


def _keep_lost_devices(
    request: RegistrationRequest,
    record: Record | None,
    members: Sequence[dict[str, Any]],
    rdma_machines: Collection[str],
) -> None:
    """Keep GPUs and RDMA of which some are lost: this is a fault that the node's health checks keep reporting.

    If the user names the machine to the playbook join again, the loss is accepted. ``rdma_machines``: the hosts that
    may use RDMA.
    """
    recorded_members = {member["machine"]: member for member in record["members"]} if record else {}
    for member_entry in members:
        machine = member_entry["machine"]
        if machine not in recorded_members or (request.join_only and machine in (request.machines or ())):
            continue
        member_entry["gpus"] = max(member_entry["gpus"], recorded_members[machine]["gpus"])
        if member_entry["rdma"] == "none" and machine in rdma_machines:
            member_entry["rdma"] = recorded_members[machine]["rdma"] or "none"


def _refuse_unreachable(hosts: Mapping[str, InventoryHost], facts: Mapping[str, Mapping[str, Any]]) -> None:
    unreachable_results = {
        machine: facts.get(machine, {}) for machine in hosts if "interfaces" not in facts.get(machine, {})
    }
    if unreachable_results:
        explanations = " ".join(
            f"{machine} ({hosts[machine].connection_address}) does not answer: {_failure_reason(result)}."
            for machine, result in unreachable_results.items()
        )
        unexplained = any("error" not in result for result in unreachable_results.values())
        exclusion = (
            f"--limit '{':'.join(f'!{machine}' for machine in unreachable_results)}', in AWX with "
            f"cluster_without={','.join(unreachable_results)}."
        )
        raise InputError(
            f"Nothing has been changed. {explanations}",
            "Check with 'ansible -m ping' whether the machine is up, and whether ansible_host, ansible_port, "
            f"ansible_user and its key are correct; or exclude it with {exclusion}"
            if unexplained
            else f"To continue without it, exclude it with {exclusion}",
            machines=list(unreachable_results),
        )


def _refuse_duplicates(hosts: Mapping[str, InventoryHost], facts: Mapping[str, Mapping[str, Any]]) -> None:
    for same_machine in group_same_machines({machine: facts[machine] for machine in hosts}):
        host_names = join_names([f"{machine} ({hosts[machine].connection_address})" for machine in same_machine])
        raise InputError(
            f"Nothing has been changed. {host_names} are the same machine.",
            "Correct ansible_host of the wrong one, or keep only one of the names in the inventory.",
            machines=same_machine,
        )


def _refuse_renamed_members(
    record: Record,
    joining_hosts: Mapping[str, InventoryHost],
    facts: Mapping[str, Mapping[str, Any]],
    responses: Mapping[str, HostResponse],
) -> None:
    """Refuse machines that are members under another name, which need not be in this run.

    Only members get a copy of the record, and each is named in its own.
    """
    member_machines = [member["machine"] for member in record["members"]]
    for machine, host in joining_hosts.items():
        local_copy = responses[machine].find_copy(record["name"]) if machine in responses else None
        if (
            local_copy is None
            or local_copy["id"] != record["id"]
            or machine in [copied_member["machine"] for copied_member in local_copy["members"]]
        ):
            continue
        introduction = f"Nothing has been changed. {machine} ({host.connection_address}) has"
        matching_member = find_member_by_address(local_copy, facts[machine])
        if matching_member is not None and matching_member[0] in member_machines:
            member_name, address = matching_member
            raise InputError(
                f"{introduction} the address {address} of {member_name} in cluster '{record['name']}', and a copy of its record.",
                f"If they are the same machine, keep only the name {member_name} in the inventory; to rename it, remove it first "
                f"(playbook remove with cluster_machine={member_name}). If {machine} is a clone of {member_name}, install it again.",
                machines=[machine, member_name],
            )
        current_members = [
            copied_member["machine"]
            for copied_member in local_copy["members"]
            if copied_member["machine"] in member_machines
        ]
        # A machine that leaves may get the record without itself before it is cleaned up.
        was_removed = machine in [copied_member["machine"] for copied_member in local_copy["removed"]]
        if matching_member is None and current_members and not was_removed:
            raise InputError(
                f"{introduction} a copy of the record of cluster '{record['name']}', but is not in it.",
                f"If it is one of its members ({join_names(current_members)}) under another name, keep only that name in the inventory; "
                "to rename it, remove it first (playbook remove). If it is a clone of one, install it again.",
                machines=[machine, *current_members],
            )


def _failure_reason(result: Mapping[str, Any]) -> str:
    failure_text = result.get("module_stderr") or result.get("msg") or "no message"
    return " ".join(str(failure_text).split()).removeprefix("Task failed: ").rstrip(".")


def _refuse_missing_cluster(request: RegistrationRequest, record: Record | None) -> None:
    if request.join_only and record is None:
        raise InputError(
            f"There is no cluster '{request.name}' to join: no host of this run has its record.",
            "Set cluster_name to an existing cluster, or create it (playbook create).",
            cluster=request.name,
        )


def _choose_manager(request: RegistrationRequest, record: Record | None, participants: Sequence[str]) -> str:
    if record is not None:
        if request.manager is not None and request.manager != record["manager"]:
            raise InputError(
                f"Cluster '{record['name']}' is managed by {record['manager']}, not by {request.manager}.",
                f"Omit cluster_manager or set it to {record['manager']}. To change the manager, use the playbook "
                "remove with cluster_new_manager.",
                manager=record["manager"],
            )
        return record["manager"]
    manager = request.manager or request.default_manager
    if manager not in participants:
        raise InputError(
            f"The manager '{manager}' is not among the machines of the new cluster '{request.name}' "
            f"({', '.join(participants) or 'none'}).",
            f"Set cluster_manager to one of them, or add {manager} to the machines.",
            manager=manager,
        )
    return manager


def _draft_record(decision: Mapping[str, Any], record: Record | None, cluster_name: str) -> plan.Draft:
    """Draft the record as it would be."""
    members = _draft_members(decision, record)
    if record is not None:
        return plan.chain_steps(record, lambda draft: plan.join(draft, members, _COMPARISON_STAMP), plan.note_version)
    return plan.create(
        "0" * 32, cluster_name, decision["subnet"], decision["manager"], decision["mesh"], members, _COMPARISON_STAMP
    )


def refuse_mesh(record: Record, relays: Sequence[str]) -> None:
    """Refuse a WireGuard mesh in which two members cannot communicate. Raises InputError.

    ``record``: as it would be. The role mesh, which refuses the same, runs only after the record has been changed.
    """
    if record["mesh"]["backend"] == "wireguard":
        list_relayed_pairs(read_mesh(record, relays))


def _refuse_conflicts(
    request: RegistrationRequest, decision: Mapping[str, Any], new_record: Record, responses: Mapping[str, HostResponse]
) -> None:
    conflict_reasons = [
        reason
        for machine in decision["joining"]
        if machine in responses
        for reason in derive.find_conflicts(responses[machine].records, machine, new_record)
    ]
    if conflict_reasons:
        raise InputError(
            f"These machines cannot join cluster '{request.name}': {' '.join(conflict_reasons)}",
            "If you mean the other cluster, set cluster_name to its name. Otherwise remove them from it first (playbook "
            "remove), or choose another subnet, and another mesh_interface, mesh_port and mesh_subnet.",
        )


def enrolled_members(
    decision: Mapping[str, Any], record: Record | None, tailnet_addresses: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return the members of a decision, with the addresses that their tailnet assigned to newly enrolled ones.

    Members that match the record have only a name, since this is sent to the manager in each run.
    ``tailnet_addresses``: by machine; empty for one that is not logged in, as in check mode, which gets any free
    address. Raises InputError for an address outside of the subnet.
    """
    subnet = str(decision["enrol_settings"]["subnet"])
    assigned_addresses = {}
    for machine in decision["enrolling"]:
        if tailnet_addresses.get(machine):
            address = find_tailnet_address(tailnet_addresses[machine], subnet)
            if address is None:
                raise InputError(
                    f"{machine} has {', '.join(tailnet_addresses[machine])} in its tailnet, but none in {subnet}.",
                    "Set cluster_subnet and mesh_subnet to the range of the control server.",
                    machine=machine,
                )
            assigned_addresses[machine] = address
    members = _draft_members(decision, record, assigned_addresses)
    if record is None:
        return members
    draft = plan.join(record, members, _COMPARISON_STAMP)
    changed_machines = {machine for change in draft.changes for machine in change.machines}
    return [member if member["machine"] in changed_machines else {"machine": member["machine"]} for member in members]


def _draft_members(
    decision: Mapping[str, Any], record: Record | None, assigned_addresses: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the members. Those to be enrolled have the assigned address, or else any free one."""
    assigned_addresses = assigned_addresses or {}
    used_addresses = {
        *assigned_addresses.values(),
        *(member["mesh"]["address"] for member in (record or {"members": []})["members"] if member["mesh"]),
    }
    free_addresses = (
        str(host_address)
        for host_address in ipaddress.ip_network(decision["subnet"]).hosts()
        if str(host_address) not in used_addresses
    )
    return [
        {**member, "mesh": {"address": assigned_addresses.get(member["machine"]) or next(free_addresses)}}
        if member["machine"] in decision["enrolling"]
        else member
        for member in decision["members"]
    ]


def _shares_only_tailnet(subnet: str, mesh: Mapping[str, Any]) -> bool:
    return bool(mesh["backend"] == "tailscale" and _same_network(subnet, mesh["subnet"]))


def _find_interface(address: str, facts: Mapping[str, Any]) -> str | None:
    for interface in facts.get("interfaces", []):
        if any(interface_address["address"] == address for interface_address in interface["addresses"]):
            return str(interface["name"])
    return None


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _same_network(first_subnet: str, second_subnet: str) -> bool:
    try:
        return values.subnet(first_subnet) == values.subnet(second_subnet)
    except ValueError as failure:
        raise InputError(f"{failure}.", "Write cluster_subnet and mesh_subnet as ADDRESS/MASK.") from failure
