# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All clusters in the records of the hosts of a play, for people and for programs. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import keys
from ansible_collections.gpumesh.cluster.plugins.module_utils.layers import NOT_SET_UP
from ansible_collections.gpumesh.cluster.plugins.module_utils.own_certificate import end_of
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import all_printable, printable
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.answers import Answer, read_answers
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.copies import Found, find, likeliest
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.report import volumes
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.tables import render


def overview(
    results: Mapping[str, Mapping[str, Any]],
    at: str,
    states: Mapping[str, Mapping[str, Any]] | None = None,
    verdict: Mapping[str, Any] | None = None,
    records: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[dict[str, Any]]:
    """The clusters by name, from each host's result of cluster_info at the time ``at``.

    ``records``: those that any host has sent whole, by digest. ``states``: what each layer found when it compared a
    machine with the record, by machine and layer. ``verdict``: that of the last check of one of the clusters.

    Each cluster: name, id, subnet, generation, manager, collection_version, manager_address, nodes, gpus, machines, mesh, volumes, changed_at,
    folded (null, or what the history has instead of its older entries), certificates (when those that the tracking server has
    made for itself expire), members and problems. Each member: machine, rank, manager, address, own_address, interface, site, gpus, layers, copy,
    last_seen, key_expiry (of its key in the tailnet; null for never, or if it is not known) and drift.
    """
    answers = read_answers(results, records)
    names = {record["name"] for answer in answers.values() for record in answer.records}
    clusters = [_cluster(name, answers, at, states or {}, verdict) for name in sorted(names)]
    # It contains text from copies and hosts, and is shown in terminals and job logs.
    shown: list[dict[str, Any]] = all_printable(clusters)
    return shown


def _cluster(
    name: str,
    answers: Mapping[str, Answer],
    at: str,
    states: Mapping[str, Mapping[str, Any]],
    verdict: Mapping[str, Any] | None,
) -> dict[str, Any]:
    problems: list[str] = []
    try:
        found = find(answers, name)
    except GpumeshError as contradiction:
        problems.append(str(contradiction))
        found = None
    found = found or likeliest(answers, name)
    record = found.record
    members = [_member(view, found, answers, at, states) for view in derive.member_views(record).values()]
    return {
        "name": name,
        "id": record["id"],
        "subnet": record["subnet"],
        "generation": record["generation"],
        "manager": record["manager"],
        "collection_version": record["collection_version"],
        "manager_address": derive.cluster_address(record, derive.member_of(record, record["manager"])),
        "nodes": len(members),
        "gpus": sum(member["gpus"] for member in members),
        "machines": [member["machine"] for member in members],
        "mesh": record["mesh"],
        "volumes": [_volume(volume, record, states, verdict) for volume in record["storage"]["volumes"]],
        "changed_at": record["history"][-1]["at"],
        "folded": record.get("folded"),
        "certificates": [expiry.shown(end) for end in _certificate_ends(record)],
        "members": members,
        "problems": [
            *problems,
            *found.remarks,
            *_strangers(record, answers),
            *_known_keys(record),
            *_expiring(record, members, at),
        ],
    }


def _volume(
    volume: Mapping[str, Any],
    record: Record,
    states: Mapping[str, Mapping[str, Any]],
    verdict: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """A volume in the record, as seen by its members, and as measured by the last check."""
    machines = {member["machine"] for member in record["members"]}
    looked = {
        machine: layers["volumes"][volume["name"]]
        for machine, layers in states.items()
        if machine in machines and volume["name"] in layers.get("volumes", {})
    }
    measured: dict[str, Any] = {"measured_at": None, "members": []}
    if verdict is not None and verdict.get("cluster", {}).get("id") == record["id"]:
        for known in verdict.get("volumes", []):
            if (known["name"], known["mount_point"]) == (volume["name"], volume["mount_point"]):
                measured = {"measured_at": verdict["generated_at"], "members": known["members"]}
    return {**volume, "state": {**volumes.state(looked), **measured}}


def _member(
    view: derive.MemberView,
    found: Found,
    answers: Mapping[str, Answer],
    at: str,
    states: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    machine = view["machine"]
    answer = answers.get(machine)
    own = derive.member_of(found.record, machine)
    return {
        "machine": machine,
        "rank": view["rank"],
        "manager": view["manager"],
        "address": view["address"],
        "own_address": own["address"],
        "interface": view["interface"],
        "site": view["site"],
        "gpus": view["gpus"],
        "layers": _layers(found.record, machine, states.get(machine, {}).get("host") or {}),
        "copy": _copy_state(machine, answer, found),
        "last_seen": at if answer is not None and answer.silence is None else None,
        "key_expiry": _key_expiry(states.get(machine, {}).get("mesh") or {}),
        "drift": drift.drift(found.record, machine, states),
    }


def _key_expiry(state: Mapping[str, Any]) -> str | None:
    """``state``: the result of the module tailscale, from a host that may return anything."""
    try:
        end = expiry.moment(str(state.get("key_expiry") or ""))
    except ValueError:
        return None
    return None if end is None else expiry.shown(end)


def _certificate_ends(record: Record) -> list[float]:
    tracking = record["tracking"]
    ends = []
    for certificate in tracking["certificates"] if tracking else []:
        # The record has the form of a certificate, and a member may have written anything in it.
        with contextlib.suppress(ValueError):
            ends.append(end_of(certificate))
    return ends


def _expiring(record: Record, members: Sequence[Mapping[str, Any]], at: str) -> list[str]:
    """Keys of the tailnet and the certificate of the tracking server that expire soon."""
    now = expiry.moment(at) or 0.0
    remarks = []
    by_day: dict[str, list[str]] = {}
    for member in members:
        end = expiry.moment(member["key_expiry"] or "")
        if end is not None and expiry.days_left(end, now) < expiry.NOTICE:
            by_day.setdefault(member["key_expiry"][:10], []).append(member["machine"])
    for day, machines in sorted(by_day.items()):
        remarks.append(f"The keys of {', '.join(machines)} in the tailnet end on {day}. {keys.REMEDY}")
    ends = _certificate_ends(record)
    if len(ends) == 1 and expiry.days_left(ends[0], now) < expiry.NOTICE:
        remarks.append(
            f"The certificate of the tracking server expires at {expiry.shown(ends[0])}: run the playbook tracking, which "
            "renews it."
        )
    return remarks


def _layers(record: Record, machine: str, host: Mapping[str, Any]) -> list[str]:
    """The layers of a member: those in the record, and those found on the member."""
    own = derive.member_of(record, machine)
    layers = []
    if own["mesh"] is not None and own["mesh"]["public_key"] is not None:
        layers.append(record["mesh"]["backend"])
    if own["ssh_host_keys"]:
        layers.append("ssh")
    if record["storage"]["volumes"]:
        layers.append("storage")
    tracking = record.get("tracking")
    if tracking and tracking["server"] == machine:
        layers.append("tracking")
    if host.get("munge_key"):
        layers.append("munge")
    if "drift" in host and host["drift"].get("slurm") != NOT_SET_UP:
        layers.append("slurm")
    return layers


def _copy_state(machine: str, answer: Answer | None, found: Found) -> str:
    if answer is None:
        return "not asked"
    if answer.silence is not None:
        return "no answer"
    if machine in found.standing:
        relation = found.standing[machine]
        return "current" if relation.kind == "same" else f"{relation.kind}: {relation.reason}"
    return "damaged" if any(_is_of(damage, found.record["name"]) for damage in answer.damaged) else "none"


def _is_of(damage: Mapping[str, Any], name: str) -> bool:
    return str(damage["path"]).endswith(f"/{name}.json")


def _strangers(record: Record, answers: Mapping[str, Answer]) -> list[str]:
    """Hosts that have a copy but are not members, such as after a removal that could not reach them."""
    machines = {member["machine"] for member in record["members"]}
    return [
        f"{machine} has a copy of the record but is not a member: run the playbook remove with "
        f"cluster_machine={machine} to clean it up."
        for machine, answer in answers.items()
        if machine not in machines and answer.copy_of(record["name"]) is not None
    ]


def _known_keys(record: Record) -> list[str]:
    """Untrusted machines whose keys are still in use, such as after an interrupted removal."""
    return [
        f"{removed['machine']} is not trusted, but the keys that it had are still in use: run the playbook remove with "
        f"cluster_machine={removed['machine']} and cluster_untrusted=true again."
        for removed in record["removed"]
        if removed["keys"] == "untrusted"
    ]


def page(clusters: Sequence[Mapping[str, Any]], silent: Mapping[str, str], width: int = 0, name: str = "") -> str:
    """The clusters as text: for each, one line of facts and a table; and then the problems.

    ``name``: the cluster whose members were compared with the record; all of them if it is empty.
    """
    if not clusters:
        text = "No host of this run has a cluster record."
    else:
        text = "\n\n".join(_section(cluster, width, name or cluster["name"]) for cluster in clusters)
    told = [f"! {machine} does not answer: {printable(reason)}" for machine, reason in silent.items()]
    return "\n".join([text, *told])


def _section(cluster: Mapping[str, Any], width: int, name: str) -> str:
    compared = cluster["name"] == name
    mesh = cluster["mesh"]
    tunnel = "no mesh" if mesh["backend"] == "none" else f"{mesh['backend']} mesh {mesh['subnet']}"
    head = (
        f"Cluster {cluster['name']}: subnet {cluster['subnet']}, {cluster['nodes']} "
        f"node{'s' if cluster['nodes'] != 1 else ''}, {cluster['gpus']} GPUs, manager {cluster['manager']} "
        f"({cluster['manager_address']}), {tunnel}, generation {cluster['generation']} of {cluster['changed_at']}, by "
        + (f"gpumesh.cluster {version}" if (version := cluster["collection_version"]) else "an earlier version")
    )
    members = cluster["members"]
    rows = [
        {
            **member,
            "machine": member["machine"] + (" *" if member["manager"] else ""),
            "copy": member["copy"].partition(":")[0],
            "drift": drift.in_words(member["drift"]),
        }
        for member in members
    ]
    # A column with the same value, or none, for all members only wastes space.
    columns: list[dict[str, str]] = [{"key": "machine"}, {"key": "address"}, {"key": "interface"}]
    if any(member["own_address"] != member["address"] for member in members):
        columns.append({"key": "own_address", "title": "own address"})
    if len({member["site"] for member in members}) > 1:
        columns.append({"key": "site"})
    columns.append({"key": "gpus", "title": "GPUs"})
    layers = {", ".join(member["layers"]) for member in members}
    if len(layers) > 1:
        columns.append({"key": "layers"})
    columns.append({"key": "copy", "title": "record"})
    if any(member["drift"] for member in members):
        columns.append({"key": "drift"})
    common = [f"Layers of every member: {layer}" for layer in layers if layer and len(layers) == 1]
    if (folded := cluster["folded"]) is not None:
        common.append(
            f"History: {folded['count']} of {cluster['generation']} changes are folded, from {folded['first']} to "
            f"{folded['last']}"
        )
    ends = sorted(member["key_expiry"] for member in members if member["key_expiry"])
    if ends:
        common.append(f"Keys in the tailnet: {len(ends)} of {len(members)} expire, the first at {ends[0]}")
    if cluster["certificates"]:
        common.append(f"Certificates of the tracking server: valid until {', '.join(cluster['certificates'])}")
    lines = [head, *common, render(rows, columns, width=width)]
    if cluster["volumes"]:
        unknown = {} if compared else {"mounted_on": None}
        shown = [{**volumes.described(volume), **volume["state"], **unknown} for volume in cluster["volumes"]]
        lines.append(volumes.table(shown, len(members), width))
        measured = sorted({volume["measured_at"] for volume in shown if volumes.has_speeds(volume)})
        lines += [f"Speeds are from the check of {measured[-1]}."] if measured else []
    if not compared:
        lines.append(
            f"! Its members were not compared with the record, since cluster_name is '{name}'. Set "
            f"cluster_name={cluster['name']} to see all of its layers, and where its volumes are mounted."
        )
    lines += [f"! {problem}" for problem in cluster["problems"]]
    return "\n".join(lines)
