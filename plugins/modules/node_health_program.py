#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_health_program
short_description: Install the node checks as a program for Slurm
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Installs an executable that runs the checks of M(gpumesh.cluster.node_health) without Ansible, for Slurm's
    C(HealthCheckProgram) and C(Prolog).
  - A node that fails is drained with a reason that starts with C(gpumesh health). It is resumed when it passes again and
    still has that reason. A node that Slurm has drained for C(Kill task failed) or C(Duplicate jobid) is resumed when it
    passes and no process of a job is left on it. Nodes drained for anything else are left alone.
  - If more nodes than O(max_drained_percent) have the same fault, no further node is drained for it. Unless it is a
    fault of a GPU, it is considered a shared one, such as a file server that is down. Then drained nodes are also
    resumed, and the check playbook reports it once. A node with a faulty GPU stays drained, and fails as C(Prolog).
  - Unhealthy nodes announce the fault to each other in their C(Comment), unless that has another text, and keep the
    numbers of affected nodes in the C(Extra) of the manager's node, unless that has another text. Nodes that are down, do
    not respond or are powered down do not count.
  - With more than ten nodes, a fault that can be a shared one drains a node at the second check that finds it.
  - A shared volume whose server responds slowly does not drain nodes.
  - As C(Prolog), it drains an unhealthy node before a job starts there, and Slurm requeues the job. A GPU of the job on
    which an unkillable process or memory is left is such a fault.
  - What it has seen is recorded beside the directory of the records, since some faults only show in two snapshots.
  - Each time it runs, it reads the expected state of the node from the node's copy of the cluster record.
  - As C(HealthCheckProgram), it also keeps the logs of Slurm and of NFS Ganesha within 10 MiB each, also on hosts without
    logrotate. What they had before is in a second file of at most the same size, with the suffix C(.old).
  - As C(HealthCheckProgram), which slurmd also runs when it starts, it requeues jobs that Slurm calls running, although
    their batch script ended when this node lost power.
  - As C(HealthCheckProgram), it remembers in C(health/faults.json), beside O(folder), when which check of which GPU began to
    fail, for 30 days and 200 faults at most. The reason then says, for example, "third time in 7 days".
  - The jobs on a node that it drains receive the reason with C(scontrol notify).
  - With C(--watch), the program reads the kernel log as it is written, and starts itself as C(HealthCheckProgram) when that
    tells of a fault of a GPU or of its end, at most every 30 seconds. The daemon C(gpumesh-health) does that, see
    M(gpumesh.cluster.slurm).
  - With C(--show), the program only prints its results and does not change anything in Slurm.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the program, and what it has recorded.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: The path of the program.
    type: path
    default: /usr/local/sbin/gpumesh-node-health
  cluster:
    description: The name of the cluster. Required if O(state=present).
    type: str
  machine:
    description: The name of the member in the record, which is also its name in Slurm. Required if O(state=present).
    type: str
  folder:
    description: The directory with the copy of the record.
    type: path
    default: /var/lib/gpumesh/clusters
  drain_on:
    description:
      - Ids of the checks to run. Each of them drains the node if it fails.
      - By default, these are all checks with that action in the guide about health checks.
    type: list
    elements: str
  max_disk_percent:
    description: The maximum usage of a file system, and of its inodes, in percent.
    type: float
    default: 95
  rdma_rate_gbps:
    description:
      - The rate in Gbit/s that active RDMA ports of the fastest kind must have. Ports of the same link layer and model
        of card are of one kind.
      - Otherwise, each port must be as fast as the fastest one of its kind.
    type: float
  mount_timeout:
    description:
      - The time in seconds in which a shared volume must respond. There are two attempts, and Slurm kills the program after
        a minute, so the maximum is V(20).
    type: float
    default: 10
  max_drained_percent:
    description: The maximum percentage of the nodes that are drained for the same fault. One node is always allowed.
    type: float
    default: 25
"""

EXAMPLES = r"""
- name: Let Slurm check the node
  gpumesh.cluster.node_health_program:
    cluster: default
    machine: "{{ inventory_hostname }}"
"""

RETURN = r"""
path:
  description: The path of the program.
  type: str
  returned: always
  sample: /usr/local/sbin/gpumesh-node-health
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [gpumesh-node-health]
"""

import os
import shutil

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import (
    LayerChange,
    ModuleResult,
    apply_changes,
    exit_with,
)


def work(module: AnsibleModule) -> ModuleResult:
    """Write or remove the program, with its memory; change nothing while its sources are missing."""
    params = module.params
    program_settings = {field_name: params[field_name] for field_name in settings.HealthSettings._fields}
    program_changes = (
        [push.program_change(params, settings.PROGRAM_NAME, params["path"], settings.ENTRY_MODULE, program_settings)]
        if params["state"] == "present"
        else [program_archive.zipapp_change(params["path"], None), _memory_removal(params["folder"])]
    )
    outdated_contents = push.missing_contents(program_changes)
    values = {"path": params["path"], "outdated": outdated_contents}
    if outdated_contents and not module.check_mode:
        return ModuleResult(False, values)
    return apply_changes(program_changes, values, module.check_mode)


def _memory_removal(records_folder: str) -> LayerChange:
    """Return the removal of what the program remembers."""
    state_folder = settings.find_state_folder(records_folder)
    folder_exists = os.path.isdir(state_folder)
    before = f"{state_folder}/\n" if folder_exists else ""
    return LayerChange(folder_exists, before, "", lambda: shutil.rmtree(state_folder) if folder_exists else None)


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path", "default": settings.PROGRAM_PATH},
            "cluster": {"type": "str"},
            "machine": {"type": "str"},
            "folder": {"type": "path", "default": DEFAULT_DIRECTORY},
            "drain_on": {"type": "list", "elements": "str"},
            "max_disk_percent": {"type": "float", "default": 95},
            "rdma_rate_gbps": {"type": "float"},
            "mount_timeout": {"type": "float", "default": 10},
            "max_drained_percent": {"type": "float", "default": 25},
            **push.PUSH_OPTIONS,
        },
        required_if=[("state", "present", ("cluster", "machine"))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
