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
      - Seconds to wait until a drained node has no more jobs, whoever has drained it, or an idle one accepts jobs. V(0)
        does not wait.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Let the jobs of n3 end, for an hour at most
  gpumesh.cluster.slurm_node:
    name: n3
    state: drained
    reason: leaves the cluster
    wait: 3600
  delegate_to: n1

- name: Bring back what this collection has drained
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

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import find, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import nodes, show
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand


def _lines(present: Dict[str, show.Node]) -> str:
    return "".join(
        f"{name} {'+'.join([node['state'], *node['flags']])} {node['reason']}\n" for name, node in present.items()
    )


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    names = [name for expression in given["name"] for name in expand(expression)]
    if module.check_mode and (find("scontrol") is None or not show.controller_up(run)):
        # A fresh host: there is no controller yet that could know a node.
        return Outcome(False, {"nodes": [], "left_alone": {}})
    release = show.version(run)

    def read() -> Dict[str, show.Node]:
        return {node["name"]: node for node in show.nodes(run, release) if node["name"] in names}

    before = read()
    planned = nodes.plan(before, names, given["state"], given["reason"] or "")
    after = before
    if not module.check_mode:
        nodes.carry_out(run, planned)
        # Jobs end on a drained node, whoever has drained it; what others have drained does not become idle.
        waited = [name for name in names if given["state"] == "drained" or name not in planned.left_alone]
        if given["wait"]:
            nodes.wait(read, waited, given["state"], given["wait"])
        if planned.commands or given["wait"]:
            after = read()
    return Outcome(
        bool(planned.commands),
        {"nodes": list(after.values()), "left_alone": planned.left_alone},
        _lines(before),
        _lines(after),
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
