# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one node has to know to set the environment of the jobs on it, from the record and its interfaces."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Below are the privileged ports.
_LOWEST_PORT = 1024


def settings(
    record: model.Record,
    machine: str,
    interfaces: Sequence[Mapping[str, Any]],
    port_range: Sequence[int],
    dialects: Sequence[str] = (),
    variables: Mapping[str, Any] | None = None,
    rdma: bool = True,
) -> dict[str, Any]:
    """The content of job_environment.json: what roles/job_environment/files/task_prolog.py reads.

    ``interfaces`` as interface_info returns them. RDMA devices count only among the members of one site, since no
    fabric goes beyond it. Raises InputError.
    """
    low, high = _ports(port_range)
    me = derive.member_of(record, machine)
    devices = rdma_devices(interfaces) if rdma else []
    return {
        "cluster": record["name"],
        "members": {name: seat["address"] for name, seat in derive.seats(record).items()},
        "interface": derive.cluster_interface(record, me),
        "port_range": [low, high],
        "reserved_ports": [record["mesh"]["port"]],
        "dialects": list(dialects),
        "rdma": {
            "devices": devices,
            "peers": [member["machine"] for member in record["members"] if devices and member["site"] == me["site"]],
        },
        "variables": _checked_variables(variables or {}),
    }


def rdma_devices(interfaces: Sequence[Mapping[str, Any]]) -> list[str]:
    """The active RDMA ports of a node as NCCL and UCX name them: DEVICE:PORT, each once.

    A bond and the interfaces in it share a device.
    """
    ports = [interface.get("rdma") for interface in interfaces]
    active = [port for port in ports if port and port["state"] == "active"]
    return list(dict.fromkeys(f"{port['device']}:{port['port']}" for port in active))


def nccl_conf(document: Mapping[str, Any]) -> str:
    """Lines for /etc/nccl.conf, which holds outside jobs too: only what is true towards every member."""
    lines = [f"NCCL_SOCKET_IFNAME=={document['interface']}"]
    rdma = document["rdma"]
    if rdma["devices"]:
        everywhere = set(document["members"]) <= set(rdma["peers"])
        lines.append(f"NCCL_IB_HCA=={','.join(rdma['devices'])}" if everywhere else "NCCL_IB_DISABLE=1")
    return "\n".join(lines)


def _ports(port_range: Sequence[int]) -> tuple[int, int]:
    if len(port_range) == 2 and _LOWEST_PORT <= port_range[0] < port_range[1] <= 65535:
        return port_range[0], port_range[1]
    raise InputError(
        f"job_environment_port_range {list(port_range)} is no range of ports.",
        f"Give the first and the last port, from {_LOWEST_PORT} to 65535, such as [15000, 24999].",
    )


def _checked_variables(variables: Mapping[str, Any]) -> dict[str, str]:
    checked = {}
    for name, value in variables.items():
        text = str(value)
        if not _VARIABLE.fullmatch(name):
            raise InputError(f"job_environment_variables: '{name}' is no name of an environment variable.")
        if "\n" in text:
            raise InputError(
                f"job_environment_variables: the value of {name} has several lines.",
                "Slurm sets values of one line only.",
            )
        checked[name] = text
    return checked
