# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a host needs to run sessions, from the record. Pure, except for the sources."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import desired, models, network, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import SCHEDULER, Layer, never_repeated
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    bundle_program,
    read_role_file,
    source_digests,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.train import writable_volumes

#: The options of the role that all members need.
ROLE_OPTIONS = (
    "session_enabled",
    "session_subnets",
    "session_nat",
    "session_allow",
    "session_mounts_allowed",
    "session_storage_dir",
)
#: Debian's packages for what is missing on a host. Other distributions have not been tested.
PACKAGE_BY_PROGRAM = {
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
    "/etc/ssl/certs/ca-certificates.crt": "ca-certificates",
}


def given_parameters(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the module session on one machine that do not follow from the members.

    ``options``: those of ROLE_OPTIONS. Raises InputError.
    """
    if not options["session_enabled"]:
        return {"state": "absent"}
    return {
        **_given_settings(record, machine, options),
        "state": "present",
        "digests": source_digests(program_sources()),
    }


@cache
def program_sources() -> ProgramSources:
    """The sources of the program and of the plugin for Slurm, without the settings of a host."""
    return {
        models.PROGRAM_NAME: bundle_program(models.ENTRY_MODULE),
        models.PLUGIN_SOURCE_NAME: read_role_file("session", models.PLUGIN_SOURCE_NAME),
    }


def session_settings(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of gpumesh-session. Raises InputError."""
    given_settings = _given_settings(record, machine, options)
    return {**given_settings, **desired.derive_parameters(record, given_settings)}


def _given_settings(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    member = membership.find_member(record, machine)
    mesh = record["mesh"]
    refuse_overlap(record, options)
    return {
        "machine": machine,
        "manager": record["manager"],
        "interface": membership.cluster_interface(record, member),
        "pools": list(options["session_subnets"]),
        "nat": options["session_nat"],
        "allow": list(options["session_allow"]),
        "volumes": writable_volumes(record, machine),
        "mounts_allowed": list(options["session_mounts_allowed"]),
        "storage": options["session_storage_dir"],
        "mesh": mesh["interface"] if mesh["backend"] != "none" and member["mesh"] is not None else "",
    }


def refuse_overlap(record: model.Record, options: Mapping[str, Any]) -> None:
    """Refuse networks of sessions that the cluster uses itself, or that cannot be read. Raises InputError."""
    network.parse_allowed_endpoints(options["session_allow"])
    for session_network in plan.parse_pools(list(options["session_subnets"])):
        for closed_network in network.collapse_networks(desired.closed_networks(record)):
            if session_network.overlaps(ipaddress.ip_network(closed_network)):
                raise InputError(
                    f"session_subnets: {session_network} overlaps with {closed_network}, which the cluster uses.",
                    "Give another network.",
                )


def missing_packages(missing_programs: Sequence[str]) -> list[str]:
    """The packages for what is missing on a host."""
    return [PACKAGE_BY_PROGRAM.get(name, name) for name in missing_programs]


def parse_roles(value: Any) -> Any:
    """The roles of a session. The answer in a survey is a string. Raises InputError."""
    if not isinstance(value, str):
        return value
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError as failure:
        raise InputError(f"session_roles cannot be read: {failure}.", "Give a list of roles in YAML.") from failure


LAYER = Layer(
    "session",
    SCHEDULER,
    options=ROLE_OPTIONS,
    given_parameters=given_parameters,
    connects=True,
    # It goes with the cluster that has Slurm on the host, and before Slurm, which loads its plugin.
    claim="slurm",
    leaves_before="slurm",
    repeats=never_repeated,
)
