# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the layers would refuse of a record that is not written yet, and what they would need on a host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import session, slurm, ssh_trust, storage, tracking

#: The options of the roles, without their prefixes, that ``refuse`` and ``needs`` read.
OPTIONS = {
    "ssh_trust": ("users",),
    "storage": ("backend",),
    "slurm": ("accounting", "rest", "rest_address"),
    "session": session.OPTIONS,
}


def read_options(options: Callable[..., dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The options of OPTIONS by role. ``options``: the method of an action. Raises InputError."""
    return {role: options(role, *names) for role, names in OPTIONS.items()}


def refuse(
    record: model.Record,
    volumes: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Mapping[str, Any]],
    tracked: Mapping[str, Any],
) -> model.Record:
    """Refuse what the layers could not do with the record as it would be. Returns it with the volumes.

    ``volumes``: as they were given, since validation makes strings of numbers; None to keep those of the record.
    ``options``: those of OPTIONS. ``tracked``: the parameters of ``tracking.asked``. Raises InputError.
    """
    coming = record if volumes is None else plan.set_storage(record, volumes).record
    storage.refuse_backend(coming, options["storage"]["backend"])
    ssh_trust.refuse_names(options["ssh_trust"]["users"])
    tracking.refuse_server(tracked["server"], coming)
    asked = tracking.asked(coming, tracked)
    if asked is not None:
        plan.set_tracking(coming, asked)
    if options["session"]["enabled"]:
        session.refuse_overlap(coming, options["session"])
    return coming


def needs(
    cluster: str,
    machine: str,
    manager: str,
    volumes: Sequence[Mapping[str, Any]],
    options: Mapping[str, Mapping[str, Any]],
    pod: bool,
) -> dict[str, Any]:
    """The parameters of the module preflight on one machine. ``pod``: whether it has neither volumes nor Slurm's daemons."""
    served = [] if pod or options["storage"]["backend"] != "nfs" else volumes
    external = [] if pod or options["storage"]["backend"] == "none" else volumes
    return {
        "cluster": cluster,
        "users": list(options["ssh_trust"]["users"]),
        "external": [dict(storage.external_volume(volume)) for volume in external if "server" not in volume],
        "quotas": [
            {key: volume[key] for key in ("name", "path", "quota")}
            for volume in served
            if volume.get("server") == machine and volume.get("quota")
        ],
        "programs": {} if pod else _programs(machine == manager, options),
    }


def _programs(serve: bool, options: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    programs = slurm.programs(options["slurm"], serve)
    needed = {slurm.program_path(one): slurm.packages([one], "apt") for one in programs}
    if options["session"]["enabled"]:
        needed.update({program: session.packages([program]) for program in session.PACKAGES})
    return needed
