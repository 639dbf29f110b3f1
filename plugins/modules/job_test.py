#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_test
short_description: List the Slurm nodes, and run a job with a task on each of them
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns what C(sinfo) prints about the nodes of the cluster. If the controller does not respond, this is all.
  - Runs one job with a task on each of O(nodes), which prints the name of the node. The host needs Slurm's commands.
  - If no partition has all of the nodes, it runs one job in each of several partitions, the default one first.
  - Does not wait for other jobs. Nodes without free resources are skipped, and RV(occupied) lists the jobs that occupy them.
    Nodes that do not accept jobs are skipped too, and are listed in RV(unavailable).
  - If the job fails because a node was down without the controller having noticed it, for example after a power cut, it
    is run a second time when the nodes accept jobs again, and RV(away) lists these nodes. No other failure is retried.
  - The module does not fail if the job fails. Evaluate RV(rc) and RV(stdout) instead.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - No job is run, and RV(launched) is empty. The nodes are listed.
  diff_mode:
    support: N/A
    details:
      - It changes nothing.
  idempotent:
    support: full
    details:
      - It changes nothing.
options:
  nodes:
    description: The names of the nodes.
    type: list
    elements: str
    required: true
  unreachable:
    description: The nodes among O(nodes) that are known not to answer. They are skipped, and listed in RV(unavailable).
    type: list
    elements: str
    default: []
  user:
    description:
      - The user that runs the job if the module runs as root. It must exist with the same UID on every node and, if Slurm
        enforces accounts, must have one there.
    type: str
    default: nobody
  timeout:
    description: The time in seconds in which Slurm must start the job on nodes with free resources. It is also the
      maximum wait for nodes on which an earlier job is still ending, and for nodes that were down when the job was
      placed.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Run a job on every node
  gpumesh.cluster.job_test:
    nodes: [n1, n2, n3]
  register: job

- name: Show the nodes that are occupied
  ansible.builtin.debug:
    msg: "{{ job.occupied }}"
"""

RETURN = r"""
sinfo:
  description: The result of C(sinfo). If the module fails later, it is in RV(ignore:error).
  type: dict
  returned: always
  contains:
    rc:
      description: The exit status. V(124) after 20 s without an answer, and V(127) if Slurm is not installed.
      type: int
    stdout:
      description: A line per node and partition with name, state, address and reason, separated by C(|).
      type: str
    stderr:
      description: The error output.
      type: str
launched:
  description: The nodes on which the job was started.
  type: list
  elements: str
  returned: always
occupied:
  description: Descriptions of the jobs that occupy a node completely, by node.
  type: dict
  returned: always
  sample: {n2: ["17 of alice (train)"]}
unavailable:
  description: The state of each node that does not accept jobs, or is not in a partition that starts jobs, by node.
  type: dict
  returned: always
  sample: {n3: idle drain}
away:
  description: The nodes that were down when the controller placed the first job, which failed. They have registered
    again since, or Slurm found that they do not respond.
  type: list
  elements: str
  returned: always
attempts:
  description: How often the job was started, at most V(2). The other values are those of the last attempt.
  type: int
  returned: always
rc:
  description: The exit status of C(srun), or of the first one that failed. 0 if no job was started.
  type: int
  returned: always
stdout:
  description: The name of each node that ran its task, one per line.
  type: str
  returned: always
stderr:
  description: The error output of C(srun), of both attempts if there were two.
  type: str
  returned: always
cmd:
  description: The command that runs the same job manually. Those of several jobs are separated by C(&&).
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import NOBODY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import launch


def work(module: AnsibleModule) -> ModuleResult:
    """Launch a task on each node with free resources."""
    params = module.params
    launch_request = launch.LaunchRequest(
        params["nodes"], params["user"], params["timeout"], unreachable_nodes=params["unreachable"]
    )
    sinfo_result = run(launch.SINFO_COMMAND, check=False)
    sinfo = sinfo_result._asdict()
    values = {"sinfo": sinfo, "launched": [], "occupied": {}, "unavailable": {}, "away": [], "attempts": 0}
    values.update(rc=0, stdout="", stderr="", cmd=[])
    # Nothing can be launched without a controller.
    if module.check_mode or sinfo_result.rc:
        return ModuleResult(False, values)
    try:
        node_placement, completed, lost_nodes, attempt_count = launch.prove_launch(run, launch_request)
    except GpumeshError as failure:
        failure.details["sinfo"] = sinfo
        raise
    values.update(
        occupied=node_placement.blocking_jobs,
        unavailable=node_placement.unavailable_nodes,
        launched=node_placement.nodes,
        away=lost_nodes,
        attempts=attempt_count,
    )
    if attempt_count:
        launched_jobs = launch.split_by_partition(
            launch_request, node_placement.nodes, node_placement.partition_by_node
        )
        values.update(
            rc=completed.rc,
            stdout=completed.stdout,
            stderr=completed.stderr,
            cmd=launch.chained_arguments(launched_jobs),
        )
    return ModuleResult(False, values)


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "unreachable": {"type": "list", "elements": "str", "default": []},
            "user": {"type": "str", "default": NOBODY},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
