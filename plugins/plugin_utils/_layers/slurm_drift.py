# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm as a layer of the cluster, and what layer_info compares of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings as health_settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    SCHEDULER,
    Layer,
    LayerState,
    Options,
    Ports,
)

#: The files that each daemon reads at its start. The role restarts a daemon that is older than these.
_SLURMD_FILES = ("slurmd.env", "slurm.conf", "cgroup.conf", "gres.conf")
_FILES_BY_DAEMON = {
    "slurmd": [f"/etc/slurm/node/{name}" for name in _SLURMD_FILES],
    "slurmctld": [
        "/etc/slurm/slurm.conf",
        "/etc/slurm/cgroup.conf",
        "/etc/slurm/gres.conf",
        "/etc/slurm/node/slurm.conf",
    ],
    "slurmdbd": ["/etc/slurm/slurmdbd.conf"],
}
#: slurmctld, slurmd and slurmdbd.
_DAEMON_PORTS = "6817-6819"


def expected_state(record: model.Record, machine: str, options: Options) -> LayerState:
    """Return the files and units of a node, and those of the controller on the manager.

    A member that runs no jobs has the configuration of Slurm's commands instead of the node's. ``options``:
    slurm_accounting and slurm_health_check.
    """
    is_manager = machine == record["manager"]
    is_node = membership.is_slurm_node(membership.find_member(record, machine))
    controller_address = membership.cluster_address(record, membership.find_member(record, record["manager"]))
    expected_options = {"contains": f"--conf-server {controller_address}"} if is_node else {"state": "absent"}
    node_files = [{"path": "/etc/slurm/node/slurmd.env", **expected_options}]
    command_files = [{"path": "/etc/slurm/slurm.conf", "contains": f"({controller_address})"}]
    daemon_names = [
        *(["slurmd"] if is_node else []),
        *(["slurmctld"] if is_manager else []),
        *(["slurmdbd"] if is_manager and options["slurm_accounting"] else []),
    ]
    watch_units = _watch_units(options["slurm_health_check"]) if options["slurm_health_check"] and is_node else []
    return LayerState(
        node_files + (command_files if is_manager or not is_node else []),
        [*({"unit": f"{name}.service", "reads": _FILES_BY_DAEMON[name]} for name in daemon_names), *watch_units],
    )


def _watch_units(program_path: str) -> list[dict[str, Any]]:
    """The unit of the watcher of the kernel log, which a container cannot read in most cases."""
    unit_name = f"{health_settings.WATCH_DAEMON}.service"
    return [{"unit": unit_name, "reads": [program_path], "watches": health_settings.WATCHED_LOG}]


def _daemon_ports(_record: model.Record, options: Options) -> Ports:
    return Ports(tcp=[_DAEMON_PORTS, str(options["slurm_rest_port"])])


def _describe_controller(record: Mapping[str, Any]) -> str:
    return f"controller on {record.get('manager')}"


LAYER = Layer(
    "slurm",
    SCHEDULER,
    options=("slurm_accounting", "slurm_health_check"),
    expected_state=expected_state,
    connects=True,
    claim="slurm",
    ports=_daemon_ports,
    port_options=("slurm_rest_port",),
    title="Slurm",
    describe=_describe_controller,
)
