#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_info
short_description: Nodes, partitions and jobs of the Slurm cluster that a host belongs to
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Asks the controller, by JSON where the version has it, else by text, and gives both in one shape.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  nodes:
    description: Only these nodes. Each may be an expression such as V(n[1-3]). Without it, all.
    type: list
    elements: str
  gather:
    description: What to ask for.
    type: list
    elements: str
    choices: [nodes, partitions, jobs]
    default: [nodes]
"""

EXAMPLES = r"""
- name: Wait until n2 takes jobs
  gpumesh.cluster.slurm_info:
    nodes: [n2]
  register: slurm
  until: slurm.nodes | selectattr('ready') | list | length == 1
  retries: 30
  delay: 2

- name: Which jobs are on n2?
  gpumesh.cluster.slurm_info:
    gather: [jobs]
  register: slurm
"""

RETURN = r"""
version:
  description: Version of Slurm's commands.
  type: str
  returned: always
  sample: 24.11.5
nodes:
  description: The nodes, sorted by name.
  type: list
  elements: dict
  returned: with V(nodes) in O(gather)
  contains:
    name: {description: Its name., type: str}
    address: {description: Where the controller reaches it., type: str}
    hostname: {description: The name that it gives itself., type: str}
    state: {description: "Such as V(idle), V(mixed), V(allocated), V(down).", type: str}
    flags: {description: "Said beside the state, such as V(drain) and V(not_responding).", type: list, elements: str}
    ready: {description: Whether it takes jobs., type: bool}
    held: {description: "Whether it was drained or put into maintenance, and takes none until it is resumed.", type: bool}
    reason: {description: Why it is out of service., type: str}
    reason_user: {description: Who has said so. Empty where the version does not tell., type: str}
    cpus: {description: Number of CPUs., type: int}
    cpus_allocated: {description: How many of them jobs have., type: int}
    memory: {description: MB of memory., type: int}
    gres: {description: "Its devices, such as V(gpu:h100:8).", type: str}
    features: {description: Its features., type: list, elements: str}
    partitions: {description: The partitions that it is in., type: list, elements: str}
    version: {description: Version of its slurmd., type: str}
partitions:
  description: The partitions.
  type: list
  elements: dict
  returned: with V(partitions) in O(gather)
  contains:
    name: {description: Its name., type: str}
    state: {description: "V(up), V(down), V(drain) or V(inactive).", type: str}
    default: {description: Whether jobs go there by default., type: bool}
    nodes: {description: Its nodes., type: list, elements: str}
    cpus: {description: All their CPUs., type: int}
    max_time: {description: Longest time of a job in minutes. Null for no limit., type: int}
jobs:
  description: The jobs that the controller remembers, by number.
  type: list
  elements: dict
  returned: with V(jobs) in O(gather)
  contains:
    id: {description: Its number., type: int}
    name: {description: Its name., type: str}
    user: {description: Whose it is., type: str}
    state: {description: "Such as V(pending), V(running), V(completed).", type: str}
    reason: {description: Why it waits or has failed., type: str}
    partition: {description: Its partition., type: str}
    nodes: {description: The nodes that it has., type: list, elements: str}
    node_count: {description: How many it has or wants., type: int}
    submitted: {description: Seconds since 1970., type: int}
    started: {description: Seconds since 1970. Null where it has not., type: int}
    time_limit: {description: Minutes. Null for no limit., type: int}
    restarts: {description: How often it was queued again., type: int}
    comment: {description: Its comment., type: str}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import show
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm.hostlist import expand


def work(module: AnsibleModule) -> Outcome:
    """Ask for what the parameters say."""
    given = module.params
    release = show.version(run)
    values: Dict[str, Any] = {"version": "{:d}.{:02d}.{:d}".format(*release)}
    if "nodes" in given["gather"]:
        found = show.nodes(run, release)
        if given["nodes"] is not None:
            names = {name for expression in given["nodes"] for name in expand(expression)}
            found = [node for node in found if node["name"] in names]
        values["nodes"] = found
    if "partitions" in given["gather"]:
        values["partitions"] = show.partitions(run)
    if "jobs" in given["gather"]:
        values["jobs"] = show.jobs(run, release)
    return Outcome(False, values)


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str"},
            "gather": {
                "type": "list",
                "elements": "str",
                "choices": ["nodes", "partitions", "jobs"],
                "default": ["nodes"],
            },
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
