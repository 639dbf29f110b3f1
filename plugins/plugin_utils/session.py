# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a host needs to run sessions, from the record. Pure, except for the sources."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import network, plan, shapes
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.programs import Contents, digests
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.train import volumes

#: The options of the role, without its prefix.
OPTIONS = ("enabled", "subnets", "nat", "allow", "mounts_allowed", "storage_dir")
_SOURCE = Path(__file__).resolve().parents[2] / "roles" / "session" / "files" / "gpumesh_session.c"
#: Debian's packages for what is missing on a host. Other distributions have not been tested.
PACKAGES = {
    "podman": "podman",
    "crun": "crun",
    "newuidmap": "uidmap",
    "fuse-overlayfs": "fuse-overlayfs",
    "catatonit": "catatonit",
    "nft": "nftables",
    "ip": "iproute2",
    "sysctl": "procps",
    "gcc": "gcc",
    "sshd": "openssh-server",
    "yaml": "python3-yaml",
    "/usr/include/slurm/spank.h": "libslurm-dev",
    "/usr/include/stdio.h": "libc6-dev",
}


def desired(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module session on one machine. ``options``: those of OPTIONS. Raises InputError."""
    if not options["enabled"]:
        return {"state": "absent"}
    return {
        **settings(record, machine, options),
        "state": "present",
        "plugin": _SOURCE.read_text(encoding="utf-8"),
        "digests": digests(contents()),
    }


@cache
def contents() -> Contents:
    """The contents of the program that the module session installs, without the settings of a host."""
    return {shapes.NAME: package.bundle(shapes.ENTRY)}


def settings(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of gpumesh-session. Raises InputError."""
    member = derive.member_of(record, machine)
    members = {name: view["address"] for name, view in derive.member_views(record).items()}
    mesh = record["mesh"]
    refuse_overlap(record, options)
    return {
        "machine": machine,
        "manager": record["manager"],
        "interface": derive.cluster_interface(record, member),
        "members": members,
        "pools": list(options["subnets"]),
        "closed": _closed(record),
        "nat": options["nat"],
        "allow": list(options["allow"]),
        "volumes": volumes(record, machine),
        "mounts_allowed": list(options["mounts_allowed"]),
        "storage": options["storage_dir"],
        "mesh": mesh["interface"] if mesh["backend"] != "none" and member["mesh"] is not None else "",
    }


def refuse_overlap(record: model.Record, options: Mapping[str, Any]) -> None:
    """Refuse networks of sessions that the cluster uses itself, or that cannot be read. Raises InputError."""
    network.parse_allowed(options["allow"])
    for pool in plan.parse_pools(list(options["subnets"])):
        for taken in network.networks(_closed(record)):
            if pool.overlaps(ipaddress.ip_network(taken)):
                raise InputError(
                    f"session_subnets: {pool} overlaps with {taken}, which the cluster uses.", "Give another network."
                )


def _closed(record: model.Record) -> list[str]:
    """The networks and addresses of the cluster."""
    mesh = record["mesh"]
    closed = [str(record["subnet"] or ""), str(mesh.get("subnet") or "") if mesh["backend"] != "none" else ""]
    for one in record["members"]:
        closed += [one["address"], _address(one["endpoint"] or "")]
    return [text for text in closed if text]


def _address(endpoint: str) -> str:
    """The IPv4 address of an endpoint, if it has one."""
    host = endpoint.rpartition(":")[0]
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        return ""


def packages(missing: Sequence[str]) -> list[str]:
    """The packages for what is missing on a host."""
    return [PACKAGES.get(name, name) for name in missing]


def roles(value: Any) -> Any:
    """The roles of a session. The answer in a survey is a string. Raises InputError."""
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as failure:
        raise InputError(f"session_roles cannot be read: {failure}.", "Give a list of roles in YAML.") from failure
