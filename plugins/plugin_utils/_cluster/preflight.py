# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The checks of a record that is not written yet: what the layers would refuse, and what they need on a host. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import desired
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import (
    session,
    slurm,
    storage,
    tracking,
)

#: The options of the roles that ``refuse_impossible`` and ``host_requirements`` read.
READ_OPTIONS = (
    "ssh_trust_users",
    "storage_backend",
    "slurm_accounting",
    "slurm_rest",
    "slurm_rest_address",
    *session.ROLE_OPTIONS,
)


def refuse_impossible(
    record: model.Record,
    requested_volumes: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> model.Record:
    """Refuse what the layers could not do with the record as it would be. Returns it with the volumes.

    ``requested_volumes``: as they were given, since validation makes strings of numbers; None to keep those of the
    record. ``options``: those of READ_OPTIONS, and SETTING_OPTIONS of tracking. Raises InputError.
    """
    drafted_record = record if requested_volumes is None else plan.set_storage(record, requested_volumes).record
    storage.refuse_backend(drafted_record, options["storage_backend"])
    desired.refuse_invalid_users(options["ssh_trust_users"])
    tracking.refuse_server(options["tracking_server"], drafted_record)
    tracking_request = tracking.changed_settings(drafted_record, options)
    if tracking_request is not None:
        plan.set_tracking(drafted_record, tracking_request)
    if options["session_enabled"]:
        session.refuse_overlap(drafted_record, options)
    return drafted_record


def host_requirements(
    cluster_name: str,
    machine: str,
    manager: str,
    volumes: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    is_pod: bool,
) -> dict[str, Any]:
    """Return the parameters of the module preflight on one machine.

    ``options``: those of READ_OPTIONS, and cluster_unsupported_release.
    ``is_pod``: whether it has neither volumes nor Slurm's daemons.
    """
    served_volumes = [] if is_pod or options["storage_backend"] != "nfs" else volumes
    external_volumes = [] if is_pod or options["storage_backend"] == "none" else volumes
    return {
        "cluster": cluster_name,
        "users": list(options["ssh_trust_users"]),
        "external": [dict(storage.external_volume(volume)) for volume in external_volumes if "server" not in volume],
        "quotas": [
            {key: volume[key] for key in ("name", "path", "quota")}
            for volume in served_volumes
            if volume.get("server") == machine and volume.get("quota")
        ],
        "slurm": not is_pod,
        "unsupported_release": options["cluster_unsupported_release"],
        "programs": {} if is_pod else _packages_by_program(machine == manager, options),
    }


def _packages_by_program(is_controller: bool, options: Mapping[str, Any]) -> dict[str, list[str]]:
    slurm_programs = slurm.required_programs(options, is_controller)
    packages_by_program = {
        slurm.program_path(program): slurm.packages_for_programs([program], "apt") for program in slurm_programs
    }
    if options["session_enabled"]:
        packages_by_program.update(
            {program: session.missing_packages([program]) for program in session.PACKAGE_BY_PROGRAM}
        )
    return packages_by_program
