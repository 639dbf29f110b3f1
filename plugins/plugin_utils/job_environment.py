# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The data that a node needs to set the environment of its jobs, from the record."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import tracking

#: The options of the role, without its prefix.
OPTIONS = ("port_range", "dialects", "variables", "rdma", "logins")

_PROGRAMS = Path(__file__).resolve().parents[2] / "roles" / "job_environment" / "files"
_LOGIN = "gpumesh_job.sh"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Ports below this one are privileged.
_LOWEST_PORT = 1024


def desired(record: model.Record, machine: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of the module job_environment on one machine. ``options``: those of OPTIONS. Raises InputError."""
    return {
        "cluster": record["name"],
        "machine": machine,
        "settings": settings(record, machine, options["port_range"], options["dialects"], options["variables"]),
        "programs": {
            path.name: path.read_text(encoding="utf-8")
            for path in sorted(_PROGRAMS.iterdir())
            if options["logins"] or path.name != _LOGIN
        },
        "rdma": options["rdma"],
    }


def settings(
    record: model.Record,
    machine: str,
    port_range: Sequence[int],
    dialects: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of job_environment.json: what roles/job_environment/files/task_prolog.py reads.

    The host adds its RDMA devices. They apply only between members of the same site with the same fabric.
    """
    low, high = _ports(port_range)
    me = derive.member_of(record, machine)
    return {
        "cluster": record["name"],
        "members": {name: view["address"] for name, view in derive.member_views(record).items()},
        "interface": derive.cluster_interface(record, me),
        "port_range": [low, high],
        "reserved_ports": [record["mesh"]["port"]],
        "dialects": list(dialects),
        "rdma": {
            "devices": [],
            "peers": [member["machine"] for member in record["members"] if _share_a_fabric(me, member)],
        },
        "tracking": tracking.variables(record),
        "variables": _checked_variables(variables or {}),
    }


def _share_a_fabric(one: model.Member, other: model.Member) -> bool:
    """Whether RDMA connects two members: fabrics do not extend beyond a site. An unknown one is taken for the same."""
    fabrics = {one["rdma"], other["rdma"]} - {None}
    return one["site"] == other["site"] and len(fabrics) <= 1 and "none" not in fabrics


def _ports(port_range: Sequence[int]) -> tuple[int, int]:
    if len(port_range) == 2 and _LOWEST_PORT <= port_range[0] < port_range[1] <= 65535:
        return port_range[0], port_range[1]
    raise InputError(
        f"job_environment_port_range {list(port_range)} is not a range of ports.",
        f"Give the first and the last port, from {_LOWEST_PORT} to 65535, such as [15000, 24999].",
    )


def _checked_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    checked = {}
    for name, value in variables.items():
        text = str(value)
        if not _VARIABLE.fullmatch(name):
            raise InputError(f"job_environment_variables: '{name}' is not a valid name of an environment variable.")
        if "\n" in text:
            raise InputError(
                f"job_environment_variables: the value of {name} has several lines.",
                "Slurm sets values of one line only.",
            )
        checked[name] = text
    return checked
