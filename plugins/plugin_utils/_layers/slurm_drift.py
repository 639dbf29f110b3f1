# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm as a layer of the cluster, and what layer_info compares of it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings as health_settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release, term
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import slurm
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
_MODULE_OPTIONS = (*slurm.HOST_OPTIONS, "slurm_qos", "slurm_accounts")
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


def module_parameters(record: model.Record, machine: str, options: Options) -> dict[str, dict[str, Any]]:
    """Return the parameters of the modules that set up a member, and the services of the manager.

    ``options``: those of _MODULE_OPTIONS. The names of GRES of other members are still missing.
    """
    # Members trust the certificates of the manager, which a host does not know by itself.
    has_none = machine == record["manager"] and not slurm.is_proxied(options)
    rest_certificates: list[str] | None = [] if has_none else None
    node = slurm.node_parameters(
        record, machine, options, reregister=False, keep_checks=False, rest_certificates=rest_certificates
    )
    parameters_by_module = {"slurm": {"state": "present", **node}}
    if machine != record["manager"]:
        return parameters_by_module
    if options["slurm_accounting"]:
        parameters_by_module["slurm_stored"] = {"state": "stored", "programs": list(slurm.DATABASE_PROGRAMS)}
    service_options = slurm.controller_parameters(record, options, restart=False)
    parameters_by_module["slurm_served"] = {"state": "served", **service_options}
    limits = {"qos": options["slurm_qos"], "accounts": options["slurm_accounts"]}
    if options["slurm_accounting"] and any(limits.values()):
        parameters_by_module["slurm_accounts"] = {"cluster": record["name"], **limits}
    return parameters_by_module


def compare_controller(record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe how the queue of the manager, or the definition of a node in its controller, differs.

    ``states_by_machine``: the states of all machines, of which the manager's has that of its controller.
    """
    controller = _read_controller(record, states_by_machine)
    # Of a member that has not answered, it is not known whether it is userspace-only, and so no node.
    if not controller or "drift" not in ((states_by_machine.get(machine) or {}).get("host") or {}):
        return ""
    if machine == record["manager"]:
        current_generation = derive.manager_terms(record)[-1].generation
        if not term.is_current(_parse_marker(controller.get("marker")), record["id"], current_generation):
            return "its queue is not the current one"
    node_version = states_by_machine[machine]["host"].get("slurm_version")
    try:
        release.refuse_incompatible(
            machine,
            "is",
            parse_version(str(node_version)) if node_version else None,
            record["manager"],
            str(controller.get("slurm_version") or ""),
        )
    except GpumeshError as failure:
        return failure.message.rstrip(".")
    readiness = controller.get("readiness")
    if readiness is None:
        return "its controller does not respond" if machine == record["manager"] else ""
    is_node = membership.is_slurm_node(membership.find_member(record, machine))
    if is_node == (machine in readiness):
        return ""
    return "the controller does not know this node" if is_node else "the controller still has this node"


def find_unready(record: model.Record, machine: str, states_by_machine: Mapping[str, Mapping[str, Any]]) -> str:
    """Return that a node accepts no jobs, which the role waits for or explains; empty if it does."""
    readiness = _read_controller(record, states_by_machine).get("readiness") or {}
    return "the node does not accept jobs" if readiness.get(machine) is False else ""


def _read_controller(record: model.Record, states_by_machine: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return what the manager has told of its controller; empty if it has not been asked."""
    manager_state = (states_by_machine.get(record["manager"]) or {}).get("host") or {}
    return manager_state.get("controller") or {}


def _parse_marker(document: object) -> term.StateMarker | None:
    try:
        return None if document is None else term.parse_marker(document)
    except ValueError:
        return None


def _repeats(record: model.Record, machines: Collection[str], _given_options: Sequence[Options]) -> bool:
    """Whether the state of the controller is unknown, since the manager is not in the run."""
    return record["manager"] not in machines


def _requests_certificate(_record: model.Record, options: Options) -> bool:
    """Whether the members need the certificate of the REST API, of which a host does not know the current one."""
    return slurm.is_proxied({**options, "slurm_rest": boolean(options["slurm_rest"], strict=False)})


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
    further_parameters=module_parameters,
    further_options=_MODULE_OPTIONS,
    compare_states=compare_controller,
    find_pending=find_unready,
    repeats=_repeats,
    requested=_requests_certificate,
    request_options=("slurm_rest", "slurm_rest_address"),
    connects=True,
    claim="slurm",
    ports=_daemon_ports,
    port_options=("slurm_rest_port",),
    title="Slurm",
    describe=_describe_controller,
)
