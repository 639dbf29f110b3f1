#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: job_test
short_description: Launch a task on every node of Slurm
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs one job with a task on each of O(nodes), which prints the node's name. For a host that has Slurm's commands.
  - It waits for nobody's job. Nodes without room are left out, and RV(held) says which jobs hold them. Nodes that take no
    jobs are left out too, and are in RV(barred).
  - The module does not fail when the job does. Judge by RV(rc) and RV(stdout).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
attributes:
  check_mode:
    support: full
    details:
      - Nothing is run, and RV(launched) is empty.
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
    description: The nodes by name.
    type: list
    elements: str
    required: true
  user:
    description:
      - The account of the job, where the module runs as root. Every node has to have it with the same number, and Slurm an
        account for it where it enforces accounts.
    type: str
    default: nobody
  timeout:
    description: Seconds that Slurm may take to start the job on nodes that have room for it.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Launch on every node
  gpumesh.cluster.job_test:
    nodes: [n1, n2, n3]
  register: job

- name: Say where it was not tried
  ansible.builtin.debug:
    msg: "{{ job.held }}"
"""

RETURN = r"""
launched:
  description: The nodes that the job was launched on.
  type: list
  elements: str
  returned: always
held:
  description: The jobs, in words, by each node that they leave no room on.
  type: dict
  returned: always
  sample: {n2: ["17 of alice (train)"]}
barred:
  description: The state by each node that takes no jobs.
  type: dict
  returned: always
  sample: {n3: idle drain}
rc:
  description: The exit status of C(srun). 0 where nothing was launched.
  type: int
  returned: always
stdout:
  description: The name of each node that ran its task, one a line.
  type: str
  returned: always
stderr:
  description: What C(srun) said.
  type: str
  returned: always
cmd:
  description: The job as somebody would run it by hand.
  type: list
  elements: str
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import NOBODY
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import launch


def work(module: AnsibleModule) -> Outcome:
    """Look which nodes have room, and launch there."""
    given = module.params
    request = launch.Request(given["nodes"], given["user"], given["timeout"])
    values = {"launched": [], "held": {}, "barred": {}, "rc": 0, "stdout": "", "stderr": "", "cmd": []}
    if module.check_mode:
        return Outcome(False, values)
    found = launch.look(run, request)
    values.update(held=found.held, barred=found.barred, launched=found.nodes)
    if found.nodes:
        request = request._replace(nodes=found.nodes)
        done = launch.launch(run, request)
        values.update(rc=done.rc, stdout=done.stdout, stderr=done.stderr, cmd=launch.words(request))
    return Outcome(False, values)


def main() -> None:
    """The module's entry."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "user": {"type": "str", "default": NOBODY},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
