# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a record that is not written yet: what the layers would refuse, and what they need on a host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import (
    session,
    slurm,
    ssh_trust,
    storage,
    tracking,
)

#: The options of the roles, without their prefixes, that ``refuse_impossible`` and ``host_requirements`` read.
READ_OPTIONS = {
    "ssh_trust": ("users",),
    "storage": ("backend",),
    "slurm": ("accounting", "rest", "rest_address"),
    "session": session.ROLE_OPTIONS,
}


def read_role_options(read_options: Callable[..., dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the options of READ_OPTIONS by role. ``read_options``: the method of an action. Raises InputError."""
    return {role: read_options(role, *names) for role, names in READ_OPTIONS.items()}


def refuse_impossible(
    record: model.Record,
    requested_volumes: Sequence[Mapping[str, Any]] | None,
    options_by_role: Mapping[str, Mapping[str, Any]],
    tracking_options: Mapping[str, Any],
) -> model.Record:
    """Refuse what the layers could not do with the record as it would be. Returns it with the volumes.

    ``requested_volumes``: as they were given, since validation makes strings of numbers; None to keep those of the
    record. ``options_by_role``: those of READ_OPTIONS. ``tracking_options``: the parameters of
    ``tracking.changed_settings``. Raises InputError.
    """
    drafted_record = record if requested_volumes is None else plan.set_storage(record, requested_volumes).record
    storage.refuse_backend(drafted_record, options_by_role["storage"]["backend"])
    ssh_trust.refuse_invalid_users(options_by_role["ssh_trust"]["users"])
    tracking.refuse_server(tracking_options["server"], drafted_record)
    tracking_request = tracking.changed_settings(drafted_record, tracking_options)
    if tracking_request is not None:
        plan.set_tracking(drafted_record, tracking_request)
    if options_by_role["session"]["enabled"]:
        session.refuse_overlap(drafted_record, options_by_role["session"])
    return drafted_record


def host_requirements(
    cluster_name: str,
    machine: str,
    manager: str,
    volumes: Sequence[Mapping[str, Any]],
    options_by_role: Mapping[str, Mapping[str, Any]],
    is_pod: bool,
) -> dict[str, Any]:
    """Return the parameters of the module preflight on one machine.

    ``is_pod``: whether it has neither volumes nor Slurm's daemons.
    """
    served_volumes = [] if is_pod or options_by_role["storage"]["backend"] != "nfs" else volumes
    external_volumes = [] if is_pod or options_by_role["storage"]["backend"] == "none" else volumes
    return {
        "cluster": cluster_name,
        "users": list(options_by_role["ssh_trust"]["users"]),
        "external": [dict(storage.external_volume(volume)) for volume in external_volumes if "server" not in volume],
        "quotas": [
            {key: volume[key] for key in ("name", "path", "quota")}
            for volume in served_volumes
            if volume.get("server") == machine and volume.get("quota")
        ],
        "programs": {} if is_pod else _packages_by_program(machine == manager, options_by_role),
    }


def _packages_by_program(is_controller: bool, options_by_role: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    slurm_programs = slurm.required_programs(options_by_role["slurm"], is_controller)
    packages_by_program = {
        slurm.program_path(program): slurm.packages_for_programs([program], "apt") for program in slurm_programs
    }
    if options_by_role["session"]["enabled"]:
        packages_by_program.update(
            {program: session.missing_packages([program]) for program in session.PACKAGE_BY_PROGRAM}
        )
    return packages_by_program
