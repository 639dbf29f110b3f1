# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a node needs to set the environment of its jobs, from the record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment.files import PROGRAM_FILES
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import tracking
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import SCHEDULER, Layer, Options, Ports
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.programs import (
    ProgramSources,
    read_role_file,
    source_digests,
)

ROLE_OPTIONS = (
    "job_environment_port_range",
    "job_environment_dialects",
    "job_environment_variables",
    "job_environment_rdma",
    "job_environment_logins",
)

#: Isolated and without site-packages: it runs before each task, and nothing of the user's may change what it does.
_INTERPRETER_LINES = {"task_prolog.py": b"#!/usr/bin/python3 -IS\n"}
_LOGIN_SCRIPT = "gpumesh_job.sh"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Ports below this one are privileged.
_MIN_PORT = 1024


def desired_parameters(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module job_environment on one machine.

    ``options``: those of ROLE_OPTIONS. Raises InputError.
    """
    return {
        "cluster": record["name"],
        "machine": machine,
        "settings": environment_settings(
            record,
            machine,
            options["job_environment_port_range"],
            options["job_environment_dialects"],
            options["job_environment_variables"],
        ),
        "digests": source_digests(
            {
                name: source
                for name, source in program_sources().items()
                if options["job_environment_logins"] or name != _LOGIN_SCRIPT
            }
        ),
        "rdma": options["job_environment_rdma"],
    }


@cache
def program_sources() -> ProgramSources:
    """The contents of the files that the module job_environment installs, by their names in the role."""
    return {name: _INTERPRETER_LINES.get(name, b"") + read_role_file("job_environment", name) for name in PROGRAM_FILES}


def environment_settings(
    record: model.Record,
    machine: str,
    port_range: Sequence[int],
    dialects: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of job_environment.json: what roles/job_environment/files/task_prolog.py reads.

    The host adds its RDMA devices. They apply only between members of the same site with the same fabric. A network
    plugin for the fabric of a cloud applies between the members of the site that have none of the recorded fabrics.
    """
    first_port, last_port = _check_port_range(port_range)
    own_member = derive.find_member(record, machine)
    return {
        "cluster": record["name"],
        "members": {name: view["address"] for name, view in derive.member_views(record).items()},
        "interface": derive.cluster_interface(record, own_member),
        "port_range": [first_port, last_port],
        "reserved_ports": [record["mesh"]["port"]],
        "dialects": list(dialects),
        "rdma": {
            "devices": [],
            "peers": [member["machine"] for member in record["members"] if _share_fabric(own_member, member)],
            "plugin_peers": [
                member["machine"]
                for member in record["members"]
                if member["site"] == own_member["site"] and member["rdma"] in (None, "none")
            ],
        },
        "tracking": tracking.job_variables(record),
        "variables": _check_variables(variables or {}),
    }


def _share_fabric(first_member: model.Member, second_member: model.Member) -> bool:
    """Whether RDMA connects two members: fabrics do not extend beyond a site.

    An unknown fabric is taken for the same.
    """
    fabrics = {first_member["rdma"], second_member["rdma"]} - {None}
    return first_member["site"] == second_member["site"] and len(fabrics) <= 1 and "none" not in fabrics


def _check_port_range(port_range: Sequence[int]) -> tuple[int, int]:
    if len(port_range) == 2 and _MIN_PORT <= port_range[0] < port_range[1] <= 65535:
        return port_range[0], port_range[1]
    raise InputError(
        f"job_environment_port_range {list(port_range)} is not a range of ports.",
        f"Give the first and the last port, from {_MIN_PORT} to 65535, such as [15000, 24999].",
    )


def _check_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    checked_variables = {}
    for name, value in variables.items():
        variable_text = str(value)
        if not _VARIABLE_NAME.fullmatch(name):
            raise InputError(f"job_environment_variables: '{name}' is not a valid name of an environment variable.")
        if "\n" in variable_text:
            raise InputError(
                f"job_environment_variables: the value of {name} has several lines.",
                "Slurm sets values of one line only.",
            )
        checked_variables[name] = variable_text
    return checked_variables


def _job_ports(_record: model.Record, options: Options) -> Ports:
    first_port, last_port = _check_port_range(options["job_environment_port_range"])
    return Ports(tcp=[f"{first_port}-{last_port}"])


LAYER = Layer(
    "job_environment",
    SCHEDULER,
    options=ROLE_OPTIONS,
    desired_parameters=desired_parameters,
    connects=True,
    claim="job_environment",
    lists_members=True,
    ports=_job_ports,
    port_options=("job_environment_port_range",),
)
