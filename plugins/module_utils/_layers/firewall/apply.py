# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules of the cluster's ports to this host."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.processes import runs_systemd
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.rules import (
    TABLE_NAME,
    parse_desired_firewall,
    parse_ephemeral_range,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.ssh import read_ssh_access
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.table import (
    FirewallHost,
    admit_addresses,
    ensure_absent,
    ensure_present,
)

_PORT_RANGE_PATH = "/proc/sys/net/ipv4/ip_local_port_range"


_STRINGS_OPTION = {"type": "list", "elements": "str", "default": []}
#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "cluster": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent", "admitted"], "default": "present"},
    "members": _STRINGS_OPTION,
    "seconds": {"type": "int", "default": 900},
    "mesh_members": _STRINGS_OPTION,
    "mesh_interface": {"type": "str"},
    "trusted": _STRINGS_OPTION,
    "tcp_ports": _STRINGS_OPTION,
    "udp_ports": _STRINGS_OPTION,
    "ephemeral": {"type": "bool", "default": True},
    "open_udp_ports": _STRINGS_OPTION,
    "ssh_port": {"type": "int", "default": 22},
    "ssh_from": _STRINGS_OPTION,
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Write or remove the rules of the cluster."""
    cluster = params["cluster"]
    firewall_host = FirewallHost(run, check_mode)
    if not runs_systemd():
        firewall_host = firewall_host._replace(unit_directory="")
    if params["state"] == "absent":
        result = ensure_absent(firewall_host, cluster)
    elif params["state"] == "admitted":
        result = admit_addresses(firewall_host, params["members"], params["seconds"])
    else:
        ephemeral_ports = [parse_ephemeral_range(read_text(_PORT_RANGE_PATH) or "")] if params["ephemeral"] else []
        ports_by_option = {
            option_name: [*params[option_name], *ephemeral_ports] for option_name in ("tcp_ports", "udp_ports")
        }
        desired_rules = parse_desired_firewall(
            cluster, {**params, **ports_by_option}, read_ssh_access("/proc", os.getpid())
        )
        result = ensure_present(firewall_host, cluster, desired_rules)
    values = {"tools": result.nft_installed, "table": TABLE_NAME}
    return ModuleResult(result.changed, values, result.before, result.after, f"{TABLE_NAME}: {cluster}")
