# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All clusters in the records of the hosts of a play, for people and for programs. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import keys
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import expiry_time
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.drift import NOT_SET_UP
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import volumes
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.copies import (
    SelectedRecord,
    find_record,
    guess_record,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.responses import HostResponse, read_responses
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import display_width, render_table, wrap_text
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry


def build_overview(
    results: Mapping[str, Mapping[str, Any]],
    queried_at: str,
    states_by_machine: Mapping[str, Mapping[str, Any]] | None = None,
    last_verdict: Mapping[str, Any] | None = None,
    records_by_digest: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """Describe the clusters, sorted by name, from each host's result of cluster_info at the time ``queried_at``.

    ``records_by_digest``: those that any host has sent whole. ``states_by_machine``: what each layer found when it
    compared a machine with the record, by machine and layer. ``last_verdict``: that of the last check of one of the
    clusters.

    Each cluster: name, id, subnet, generation, manager, collection_version, manager_address, nodes, gpus, machines,
    mesh, volumes, changed_at, folded (null, or what the history has instead of its older entries), certificates (when
    those that the tracking server has made for itself expire), members and problems. Each member: machine, rank,
    manager, slurm_node, address, own_address, interface, site, gpus, layers, copy, last_seen, key_expiry (of its key in
    the tailnet; null for never, or if it is not known) and drift.
    """
    responses = read_responses(results, records_by_digest)
    cluster_names = {record["name"] for response in responses.values() for record in response.records}
    clusters = [
        _describe_cluster(name, responses, queried_at, states_by_machine or {}, last_verdict)
        for name in sorted(cluster_names)
    ]
    # The clusters contain text from copies and hosts, and are shown in terminals and job logs.
    printable_clusters: list[dict[str, Any]] = all_printable(clusters)
    return printable_clusters


def _describe_cluster(
    cluster_name: str,
    responses: Mapping[str, HostResponse],
    queried_at: str,
    states_by_machine: Mapping[str, Mapping[str, Any]],
    last_verdict: Mapping[str, Any] | None,
) -> dict[str, Any]:
    problems: list[str] = []
    try:
        selected = find_record(responses, cluster_name)
    except GpumeshError as contradiction:
        problems.append(str(contradiction))
        selected = None
    selected = selected or guess_record(responses, cluster_name)
    record = selected.record
    members = [
        _describe_member(member_view, selected, responses, queried_at, states_by_machine)
        for member_view in derive.member_views(record).values()
    ]
    return {
        "name": cluster_name,
        "id": record["id"],
        "subnet": record["subnet"],
        "generation": record["generation"],
        "manager": record["manager"],
        "collection_version": record["collection_version"],
        "manager_address": membership.cluster_address(record, membership.find_member(record, record["manager"])),
        "nodes": len(membership.slurm_nodes(record)),
        "gpus": sum(member["gpus"] for member in members if membership.is_slurm_node(member)),
        "machines": [member["machine"] for member in members],
        "mesh": record["mesh"],
        "volumes": [
            _describe_volume(volume, record, states_by_machine, last_verdict) for volume in record["storage"]["volumes"]
        ],
        "changed_at": record["history"][-1]["at"],
        "folded": record.get("folded"),
        "certificates": [expiry.format_time(expiry_time) for expiry_time in _certificate_expiry_times(record)],
        "members": members,
        "problems": [
            *problems,
            *selected.remarks,
            *_former_member_warnings(record, responses),
            *_untrusted_key_warnings(record),
            *_expiry_warnings(record, members, queried_at),
        ],
    }


def _describe_volume(
    volume: Mapping[str, Any],
    record: Record,
    states_by_machine: Mapping[str, Mapping[str, Any]],
    last_verdict: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Describe a volume in the record, as seen by its members, and as measured by the last check."""
    member_machines = {member["machine"] for member in record["members"]}
    state_by_machine = {
        machine: layer_states["volumes"][volume["name"]]
        for machine, layer_states in states_by_machine.items()
        if machine in member_machines and volume["name"] in layer_states.get("volumes", {})
    }
    measurements: dict[str, Any] = {"measured_at": None, "members": []}
    if last_verdict is not None and last_verdict.get("cluster", {}).get("id") == record["id"]:
        for measured_volume in last_verdict.get("volumes", []):
            if (measured_volume["name"], measured_volume["mount_point"]) == (volume["name"], volume["mount_point"]):
                measurements = {"measured_at": last_verdict["generated_at"], "members": measured_volume["members"]}
    return {**volume, "state": {**volumes.merge_states(state_by_machine), **measurements}}


def _describe_member(
    member_view: derive.MemberView,
    selected: SelectedRecord,
    responses: Mapping[str, HostResponse],
    queried_at: str,
    states_by_machine: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    machine = member_view["machine"]
    response = responses.get(machine)
    recorded_member = membership.find_member(selected.record, machine)
    layer_states = states_by_machine.get(machine, {})
    drift_by_layer = drift.compare_member(selected.record, machine, states_by_machine)
    return {
        "machine": machine,
        "rank": member_view["rank"],
        "manager": member_view["manager"],
        "slurm_node": member_view["slurm_node"],
        "address": member_view["address"],
        "own_address": recorded_member["address"],
        "interface": member_view["interface"],
        "site": member_view["site"],
        "gpus": member_view["gpus"],
        "layers": _list_layers(layer_states.get("host") or {}, drift_by_layer),
        "copy": _describe_copy(machine, response, selected),
        "last_seen": queried_at if response is not None and response.unreachable_reason is None else None,
        "key_expiry": _format_key_expiry(layer_states.get("mesh") or {}),
        "drift": drift_by_layer,
    }


def _format_key_expiry(mesh_state: Mapping[str, Any]) -> str | None:
    """Format when a member's key in the tailnet expires.

    ``mesh_state``: the result of the module tailscale, from a host that may return anything.
    """
    try:
        expiry_time = expiry.parse_time(str(mesh_state.get("key_expiry") or ""))
    except ValueError:
        return None
    return None if expiry_time is None else expiry.format_time(expiry_time)


def _certificate_expiry_times(record: Record) -> list[float]:
    tracking = record["tracking"]
    expiry_times = []
    for certificate in tracking["certificates"] if tracking else []:
        # The record has the form of a certificate, and a member may have written anything in it.
        with contextlib.suppress(ValueError):
            expiry_times.append(expiry_time(certificate))
    return expiry_times


def _expiry_warnings(record: Record, members: Sequence[Mapping[str, Any]], queried_at: str) -> list[str]:
    """Return warnings about keys of the tailnet and a certificate of the tracking server that expire soon."""
    current_time = expiry.parse_time(queried_at) or 0.0
    warnings = []
    machines_by_day: dict[str, list[str]] = {}
    for member in members:
        expiry_time = expiry.parse_time(member["key_expiry"] or "")
        if expiry_time is not None and expiry.days_left(expiry_time, current_time) < expiry.NOTICE_DAYS:
            machines_by_day.setdefault(member["key_expiry"][:10], []).append(member["machine"])
    for day, machines in sorted(machines_by_day.items()):
        warnings.append(f"The keys of {', '.join(machines)} in the tailnet expire on {day}. {keys.KEY_REMEDY}")
    expiry_times = _certificate_expiry_times(record)
    if len(expiry_times) == 1 and expiry.days_left(expiry_times[0], current_time) < expiry.NOTICE_DAYS:
        warnings.append(
            f"The certificate of the tracking server expires at {expiry.format_time(expiry_times[0])}: run the playbook tracking, which "
            "renews it."
        )
    return warnings


def _list_layers(host_state: Mapping[str, Any], drift_by_layer: Mapping[str, str]) -> list[str]:
    """Return the layers of a member that was compared: those that it should have, without those that are not set up."""
    layers = [layer for layer in registry.LAYERS if layer.name in host_state.get("layers", [])]
    return [
        layer.name
        for layer in layers
        if drift_by_layer.get(layer.name) != NOT_SET_UP and not (layer.connects and host_state.get("userspace_only"))
    ]


def _describe_copy(machine: str, response: HostResponse | None, selected: SelectedRecord) -> str:
    if response is None:
        return "not asked"
    if response.unreachable_reason is not None:
        return "no answer"
    if machine in selected.relations:
        relation = selected.relations[machine]
        return "current" if relation.kind == "same" else f"{relation.kind}: {relation.reason}"
    return (
        "damaged"
        if any(_is_damage_of(damage, selected.record["name"]) for damage in response.damage_reports)
        else "none"
    )


def _is_damage_of(damage: Mapping[str, Any], cluster_name: str) -> bool:
    return str(damage["path"]).endswith(f"/{cluster_name}.json")


def _former_member_warnings(record: Record, responses: Mapping[str, HostResponse]) -> list[str]:
    """Return warnings about hosts that have a copy but are not members.

    This happens after a removal that could not reach them.
    """
    member_machines = {member["machine"] for member in record["members"]}
    return [
        f"{machine} has a copy of the record but is not a member: run the playbook remove with "
        f"cluster_machine={machine} to clean it up."
        for machine, response in responses.items()
        if machine not in member_machines and response.find_copy(record["name"]) is not None
    ]


def _untrusted_key_warnings(record: Record) -> list[str]:
    """Return warnings about untrusted machines whose keys are still in use, such as after an interrupted removal."""
    return [
        f"{removed_member['machine']} is not trusted, but the keys that it had are still in use: run the playbook remove with "
        f"cluster_machine={removed_member['machine']} and cluster_untrusted=true again."
        for removed_member in record["removed"]
        if removed_member["keys"] == "untrusted"
    ]


def render_overview(
    clusters: Sequence[Mapping[str, Any]],
    unreachable_hosts: Mapping[str, str],
    width: int = 0,
    compared_cluster: str = "",
) -> str:
    """Render the clusters: for each, one line of facts and a table; and then the problems.

    ``compared_cluster``: the cluster whose members were compared with the record; all of them if it is empty.
    """
    if not clusters:
        cluster_text = "No host of this run has a cluster record."
    else:
        cluster_text = "\n\n".join(
            _render_cluster(cluster, width, compared_cluster or cluster["name"]) for cluster in clusters
        )
    unreachable_lines = [
        _wrap_line(f"! {machine} does not answer: {printable(reason)}", width)
        for machine, reason in unreachable_hosts.items()
    ]
    return "\n".join([cluster_text, *unreachable_lines])


def _wrap_line(text: str, width: int) -> str:
    """Wrap a line like the tables: to ``width`` columns, 0 for no limit."""
    return "\n  ".join(wrap_text(text, width - 2)) if 0 < width < display_width(text) else text


def _render_members(members: Sequence[Mapping[str, Any]], width: int) -> tuple[str, list[str]]:
    """Return the table of the members, and lines of what all of them share: it would only waste space in the table."""
    common_layers = [layer for layer in members[0]["layers"] if all(layer in member["layers"] for member in members)]
    rows = [
        {
            **member,
            "other_layers": [layer for layer in member["layers"] if layer not in common_layers],
            "machine": member["machine"] + (" *" if member["manager"] else ""),
            "jobs": "yes" if member["slurm_node"] else "no",
            "copy": member["copy"].partition(":")[0],
            "drift": drift.format_drift(member["drift"]),
        }
        for member in members
    ]
    interfaces = sorted({member["interface"] for member in members})
    columns: list[dict[str, str]] = [{"key": "machine"}, {"key": "address"}]
    if len(interfaces) > 1:
        columns.append({"key": "interface"})
    if any(member["own_address"] != member["address"] for member in members):
        columns.append({"key": "own_address", "title": "own address"})
    if len({member["site"] for member in members}) > 1:
        columns.append({"key": "site"})
    columns.append({"key": "gpus", "title": "GPUs"})
    if not all(member["slurm_node"] for member in members):
        columns.append({"key": "jobs"})
    if any(row["other_layers"] for row in rows):
        columns.append({"key": "other_layers", "title": "other layers" if common_layers else "layers"})
    columns.append({"key": "copy", "title": "record"})
    if any(member["drift"] for member in members):
        columns.append({"key": "drift"})
    common_lines = [f"Interface of every member: {interfaces[0]}"] if len(interfaces) == 1 else []
    if common_layers:
        common_lines.append(f"Layers of every member: {', '.join(common_layers)}")
    return render_table(rows, columns, width=width), common_lines


def _render_cluster(cluster: Mapping[str, Any], width: int, compared_cluster: str) -> str:
    is_compared = cluster["name"] == compared_cluster
    mesh = cluster["mesh"]
    version = cluster["collection_version"]
    mesh_description = "no mesh" if mesh["backend"] == "none" else f"{mesh['backend']} mesh {mesh['subnet']}"
    headline = (
        f"Cluster {cluster['name']}: subnet {cluster['subnet']}, {cluster['nodes']} "
        f"node{'s' if cluster['nodes'] != 1 else ''}, {cluster['gpus']} GPUs, manager {cluster['manager']} "
        f"({cluster['manager_address']}), {mesh_description}, generation {cluster['generation']} of {cluster['changed_at']}, by "
        + (f"gpumesh.cluster {version}" if version else "an earlier version")
    )
    members = cluster["members"]
    member_table, common_lines = _render_members(members, width)
    if (folded := cluster["folded"]) is not None:
        common_lines.append(
            f"History: {folded['count']} of {cluster['generation']} changes are summarized, from {folded['first']} to "
            f"{folded['last']}"
        )
    expiry_dates = sorted(member["key_expiry"] for member in members if member["key_expiry"])
    if expiry_dates:
        common_lines.append(
            f"Keys in the tailnet: {len(expiry_dates)} of {len(members)} expire, the first at {expiry_dates[0]}"
        )
    if cluster["certificates"]:
        common_lines.append(f"Certificates of the tracking server: valid until {', '.join(cluster['certificates'])}")
    lines = [*(_wrap_line(line, width) for line in (headline, *common_lines)), member_table]
    if cluster["volumes"]:
        hidden_fields = {} if is_compared else {"mounted_on": None}
        volume_rows = [
            {**volumes.describe_volume(volume), **volume["state"], **hidden_fields} for volume in cluster["volumes"]
        ]
        lines.append(volumes.format_table(volume_rows, len(members), width))
        measurement_times = sorted({volume["measured_at"] for volume in volume_rows if volumes.has_speeds(volume)})
        lines += [f"Speeds are from the check of {measurement_times[-1]}."] if measurement_times else []
    if not is_compared:
        uncompared_note = (
            f"! Its members were not compared with the record, since cluster_name is '{compared_cluster}'. Set "
            f"cluster_name={cluster['name']} to see all of its layers, and where its volumes are mounted."
        )
        lines.append(_wrap_line(uncompared_note, width))
    lines += [_wrap_line(f"! {problem}", width) for problem in cluster["problems"]]
    return "\n".join(lines)
