# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports that the firewall of a member restricts, those of all layers, and what the host's own must let through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership, model
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Member
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import HostRule
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import forward, spec
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.network import NAME_PREFIX
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import (
    BASE,
    Layer,
    Options,
    Ports,
    never_repeated,
)

#: The options of the role that the module firewall has as well, by its own names.
_MODULE_OPTIONS = {
    "firewall_trusted": "trusted",
    "firewall_tcp_ports": "tcp_ports",
    "firewall_udp_ports": "udp_ports",
    "firewall_ephemeral": "ephemeral",
    "firewall_open_udp_ports": "open_udp_ports",
    "firewall_ssh_from": "ssh_from",
    "firewall_ssh_port": "ssh_port",
}
#: The options that decide what the host's own firewall must let through.
HOST_OPTIONS = ("session_enabled", "session_nat", "session_ports", "session_subnets")
_DEFAULT_FIELDS = HostRule()._asdict()


def complete_parameters(options: Mapping[str, Any], layer_ports: Sequence[Ports]) -> dict[str, Any]:
    """Return the parameters of the module firewall that the members of the record do not decide.

    ``options``: those of the task. ``layer_ports``: the ports of each layer.
    """
    return {
        **options,
        "tcp_ports": [*(options.get("tcp_ports") or []), *(port for ports in layer_ports for port in ports.tcp)],
        "udp_ports": [*(options.get("udp_ports") or []), *(port for ports in layer_ports for port in ports.udp)],
        "open_udp_ports": [
            *(options.get("open_udp_ports") or []),
            *(port for ports in layer_ports for port in ports.open_udp),
        ],
    }


def host_rules(network: Mapping[str, Any], member: Member, options: Mapping[str, Any]) -> list[HostRule]:
    """Return what the firewall that the administrator of a member has set up must accept.

    ``network``: the subnet, the mesh and the manager of the cluster. ``options``: those in HOST_OPTIONS.
    """
    mesh, interface = network["mesh"], member.get("interface") or ""
    has_mesh = mesh["backend"] != "none"
    rules = []
    # Machines that share only the mesh have the subnet of the mesh.
    if interface and not (has_mesh and network["subnet"] == mesh["subnet"]):
        rules.append(HostRule(interface, network["subnet"]))
    if has_mesh:
        rules.append(HostRule(port=int(mesh["port"]), protocol="udp"))
        # Other machines of the tailnet use that of Tailscale, and the administrator may have put it into a zone.
        is_own = mesh["backend"] == "wireguard"
        rules.append(HostRule(mesh["interface"], mesh["subnet"], mesh=is_own))
        if is_own:
            # A relay forwards between members that cannot connect to each other.
            rules.append(HostRule(mesh["interface"], out_interface=mesh["interface"], forward=True, mesh=True))
    if options["session_enabled"]:
        # Containers run only where jobs do, but the manager publishes their ports in any case.
        if options["session_nat"] and membership.is_slurm_node(member):
            rules += [HostRule(f"{NAME_PREFIX}+", pool, forward=True) for pool in options["session_subnets"]]
        if member["machine"] == network["manager"]:
            rules += [
                HostRule(port=manager_port, protocol="tcp")
                for manager_port, _container_port in forward.parse_ports(spec.parse_ports(options["session_ports"]))
            ]
    return rules


def given_parameters(record: model.Record, _machine: str, options: Options) -> dict[str, Any]:
    """Return the parameters of the module firewall that do not follow from the record.

    ``options``: those of the layer, and ``layer_ports``, the ports of all layers.
    """
    if not options["firewall_enabled"]:
        return {"cluster": record["name"], "state": "absent"}
    module_options = {name: options[option_name] for option_name, name in _MODULE_OPTIONS.items()}
    return {"cluster": record["name"], **complete_parameters(module_options, options["layer_ports"])}


def host_parameters(network: Mapping[str, Any], machine: str, options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parameters of the module firewall_host by its name; empty if the host's own firewall needs nothing.

    ``network``: the record, or the parts of one that is not written yet. ``options``: those in HOST_OPTIONS.
    """
    member = next((member for member in network["members"] if member["machine"] == machine), None)
    rules = [] if member is None else host_rules(network, member, options)
    rule_fields = [
        {name: value for name, value in rule._asdict().items() if value != _DEFAULT_FIELDS[name]} for rule in rules
    ]
    return {"firewall_host": {"cluster": network["name"], "state": "present", "rules": rule_fields}} if rules else {}


LAYER = Layer(
    "firewall",
    BASE,
    options=("firewall_enabled", *_MODULE_OPTIONS),
    given_parameters=given_parameters,
    further_parameters=host_parameters,
    further_options=HOST_OPTIONS,
    restricts_ports=True,
    lists_members=True,
    repeats=never_repeated,
)
