# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the rules that the administrator's firewall on this host needs, or compare it with them."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall import host
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.firewall.host_rules import parse_rule

#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "cluster": {"type": "str"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "apply": {"type": "bool", "default": False},
    "rules": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "interface": {"type": "str"},
            "source": {"type": "str"},
            "port": {"type": "int"},
            "protocol": {"type": "str", "choices": ["tcp", "udp"]},
            "forward": {"type": "bool"},
            "out_interface": {"type": "str"},
            "mesh": {"type": "bool"},
        },
    },
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Compare the firewalls, and change firewalld with ``apply``."""
    tree, cluster = Tree(), params["cluster"]
    rules = [parse_rule(fields) for fields in params["rules"]] if params["state"] == "present" else []
    comparison = host.compare_host(run, tree, cluster, rules)
    if params["apply"] and not check_mode:
        host.apply_firewalld(run, tree, cluster, comparison)
    commands = comparison.commands()
    return ModuleResult(bool(commands), comparison.to_result(), after="".join(f"{command}\n" for command in commands))
