#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_info
short_description: Gather information about the nodes, partitions and jobs of a Slurm cluster
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Queries the controller, as JSON if its version supports that, otherwise as text, and returns both in the same
    format.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  nodes:
    description: Only return these nodes. Each entry can be an expression such as V(n[1-3]). By default, all nodes are
      returned.
    type: list
    elements: str
  gather:
    description: The information to gather.
    type: list
    elements: str
    choices: [nodes, partitions, jobs]
    default: [nodes]
"""

EXAMPLES = r"""
- name: Wait until n2 accepts jobs
  gpumesh.cluster.slurm_info:
    nodes: [n2]
  register: slurm
  until: slurm.nodes | selectattr('ready') | list | length == 1
  retries: 30
  delay: 2

- name: Show the jobs on n2
  gpumesh.cluster.slurm_info:
    gather: [jobs]
  register: slurm
"""

RETURN = r"""
version:
  description: The version of Slurm's commands.
  type: str
  returned: always
  sample: 24.11.5
nodes:
  description: The nodes, sorted by name.
  type: list
  elements: dict
  returned: with V(nodes) in O(gather)
  contains:
    name: {description: The name of the node., type: str}
    address: {description: The address at which the controller reaches the node., type: str}
    hostname: {description: The host name that the node reports., type: str}
    state: {description: "The state, such as V(idle), V(mixed), V(allocated) or V(down).", type: str}
    flags: {description: "Flags of the state, such as V(drain) and V(not_responding).", type: list, elements: str}
    ready: {description: Whether the node accepts jobs., type: bool}
    drained: {description: "Whether it was drained or put into maintenance, and accepts no jobs until resumed.", type: bool}
    reason: {description: The reason why it is out of service., type: str}
    reason_user: {description: The user who set the reason. Empty if Slurm does not report it., type: str}
    cpus: {description: The number of CPUs., type: int}
    cpus_allocated: {description: The number of CPUs that are allocated to jobs., type: int}
    memory: {description: The memory in MB., type: int}
    gres: {description: "The GRES, such as V(gpu:h100:8).", type: str}
    features: {description: The features of the node., type: list, elements: str}
    partitions: {description: The partitions to which the node belongs., type: list, elements: str}
    version: {description: The version of its slurmd., type: str}
    slurmd_started:
      description: When the slurmd that registered last was started, in seconds since 1970. Null if none has registered.
      type: int
readiness:
  description: Whether each of RV(nodes) accepts jobs, by name. A play that asks for its own host in it does not go
    through all nodes on each of them.
  type: dict
  returned: with V(nodes) in O(gather)
  sample: {n1: true, n2: false}
partitions:
  description: The partitions.
  type: list
  elements: dict
  returned: with V(partitions) in O(gather)
  contains:
    name: {description: The name of the partition., type: str}
    state: {description: "V(up), V(down), V(drain) or V(inactive).", type: str}
    default: {description: Whether it is the default partition., type: bool}
    nodes: {description: The nodes of the partition., type: list, elements: str}
    cpus: {description: The number of CPUs of all its nodes., type: int}
    max_time: {description: The maximum time limit of a job in minutes. Null means no limit., type: int}
jobs:
  description: The jobs that the controller still knows, by job ID.
  type: list
  elements: dict
  returned: with V(jobs) in O(gather)
  contains:
    id: {description: The job ID., type: int}
    name: {description: The name of the job., type: str}
    user: {description: The user of the job., type: str}
    state: {description: "The state, such as V(pending), V(running) or V(completed).", type: str}
    reason: {description: The reason why the job is pending or failed., type: str}
    partition: {description: The partition of the job., type: str}
    nodes: {description: The nodes allocated to the job., type: list, elements: str}
    node_count: {description: The number of allocated or requested nodes., type: int}
    submitted: {description: The time of submission in seconds since 1970., type: int}
    started: {description: The start time in seconds since 1970. Null if the job has not started., type: int}
    time_limit: {description: The time limit in minutes. Null means no limit., type: int}
    restarts: {description: The number of times the job was requeued., type: int}
    comment: {description: The comment of the job., type: str}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.hostlist import expand_hostlist


def work(module: AnsibleModule) -> ModuleResult:
    """Query the controller for the requested objects."""
    params = module.params
    slurm_version = show.client_version(run)
    values: Dict[str, Any] = {"version": release.format_version(slurm_version)}
    if "nodes" in params["gather"]:
        node_states = show.list_nodes(run, slurm_version)
        if params["nodes"] is not None:
            selected_names = {node_name for expression in params["nodes"] for node_name in expand_hostlist(expression)}
            node_states = [node for node in node_states if node["name"] in selected_names]
        values["nodes"] = node_states
        values["readiness"] = show.readiness(node_states)
    if "partitions" in params["gather"]:
        values["partitions"] = show.list_partitions(run)
    if "jobs" in params["gather"]:
        values["jobs"] = show.list_jobs(run, slurm_version)
    return ModuleResult(False, values)


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
