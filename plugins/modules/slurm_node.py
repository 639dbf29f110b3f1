#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_node
short_description: Drain, resume or delete Slurm nodes
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs on a host with Slurm's commands, such as the manager.
  - A reason is stored with the prefix C(gpumesh:). V(idle) resumes only nodes with such a reason or none; nodes that were
    drained for other reasons stay drained and are returned in RV(left_alone).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  name:
    description: The nodes. Each may be an expression such as V(n[1-3]).
    type: list
    elements: str
    required: true
  state:
    description:
      - V(idle) resumes the nodes. V(drained) lets running jobs end and starts no others. V(down) kills them; they are
        requeued if they allow it. V(absent) deletes the nodes, which must not have jobs.
    type: str
    choices: [idle, drained, down, absent]
    required: true
  reason:
    description: The reason. Required for V(drained) and V(down).
    type: str
  wait:
    description:
      - The time in seconds to wait until a drained node, whoever has drained it, has no more jobs, or until an idle
        node accepts jobs. V(0) does not wait.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Drain n3, and wait up to an hour for its jobs
  gpumesh.cluster.slurm_node:
    name: n3
    state: drained
    reason: leaves the cluster
    wait: 3600
  delegate_to: n1

- name: Resume the nodes that this collection has drained
  gpumesh.cluster.slurm_node:
    name: n[1-3]
    state: idle
  delegate_to: n1
"""

RETURN = r"""
nodes:
  description: The nodes afterwards or, in check mode, as they are, in the form of
    RV(gpumesh.cluster.slurm_info#module:nodes).
  type: list
  elements: dict
  returned: always
left_alone:
  description: Nodes that were left unchanged because somebody else had drained them, with the reason.
  type: dict
  returned: always
  sample: {n2: replacing the fan}
"""

from typing import Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import find_program, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import nodes, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist


def _format_nodes(nodes_by_name: Dict[str, show.SlurmNode]) -> str:
    return "".join(
        f"{name} {'+'.join([node['state'], *node['flags']])} {node['reason']}\n" for name, node in nodes_by_name.items()
    )


def work(module: AnsibleModule) -> ModuleResult:
    """Bring the nodes into the desired state."""
    params = module.params
    node_names = [name for expression in params["name"] for name in expand_hostlist(expression)]
    if module.check_mode and (find_program("scontrol") is None or not show.is_controller_up(run)):
        # On a new host, there is no controller yet that could have nodes.
        return ModuleResult(False, {"nodes": [], "left_alone": {}})
    slurm_version = show.client_version(run)

    def read_nodes() -> Dict[str, show.SlurmNode]:
        return {node["name"]: node for node in show.list_nodes(run, slurm_version) if node["name"] in node_names}

    nodes_before = read_nodes()
    node_plan = nodes.plan_commands(nodes_before, node_names, params["state"], params["reason"] or "")
    nodes_after = nodes_before
    if not module.check_mode:
        nodes.run_commands(run, node_plan)
        # Jobs on a drained node end, whoever drained it, but a node that others drained does not become idle.
        awaited_nodes = [
            name for name in node_names if params["state"] == "drained" or name not in node_plan.foreign_reasons
        ]
        if params["wait"]:
            nodes.wait_for_state(read_nodes, awaited_nodes, params["state"], params["wait"])
        if node_plan.commands or params["wait"]:
            nodes_after = read_nodes()
    return ModuleResult(
        bool(node_plan.commands),
        {"nodes": list(nodes_after.values()), "left_alone": node_plan.foreign_reasons},
        _format_nodes(nodes_before),
        _format_nodes(nodes_after),
        "nodes",
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "state": {"type": "str", "choices": ["idle", "drained", "down", "absent"], "required": True},
            "reason": {"type": "str"},
            "wait": {"type": "int", "default": 0},
        },
        required_if=[("state", "drained", ("reason",)), ("state", "down", ("reason",))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
