#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_health
short_description: Check whether a host is healthy enough for training
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Runs all checks in parallel, each with a time limit. The default set takes less than five seconds on a healthy host.
  - A check that does not apply is skipped with a reason. A check that could not be performed is an error, not a pass.
  - On a member with M(gpumesh.cluster.node_health_program), the reason of a failed check says how often that has
    happened in the last week, if more than once.
  - The module does not fail if a check fails. Evaluate RV(status) and RV(checks) instead.
  - If O(record) is given, the other options that follow from it are derived on the controller. Members that have dropped out
    of the play are left out of O(ssh_peers) and O(mesh_peers).
  - "Reads these options of roles: C(mesh_relays), C(ssh_trust_users)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
options:
  only:
    description:
      - Run only these checks. Use ids such as V(health.disk), or a part of an id, such as V(disk) or V(health).
      - By default, all checks are run.
    type: list
    elements: str
    default: []
  machine:
    description: The name of the host in the results. Defaults to its own host name.
    type: str
  gpus:
    description: The number of GPUs that the host must have. If not set, the GPUs are not counted.
    type: int
  rdma:
    description: The fabric of RDMA that the host must have. With V(none), or if not set, it need not have one.
    type: str
    choices: [infiniband, roce, none]
  rdma_rate_gbps:
    description:
      - The rate in Gbit/s that active RDMA ports of the fastest kind must have. Ports of the same link layer and model
        of card are of one kind.
      - Otherwise, each port must be as fast as the fastest one of its kind.
    type: float
  mounts:
    description: Mount points that must be mounted and writable.
    type: list
    elements: path
    default: []
  external_mounts:
    description: Directories on file systems that are managed elsewhere. They must also be writable.
    type: list
    elements: path
    default: []
  read_only_mounts:
    description: Entries of O(mounts) and O(external_mounts) that only have to be readable.
    type: list
    elements: path
    default: []
  cluster_address:
    description: The address to which the host's own name must resolve.
    type: str
  mesh_interface:
    description: The name of the WireGuard interface.
    type: str
  mesh_peers:
    description: Public keys by machine. Each peer must have a recent handshake.
    type: dict
    default: {}
  tailnet:
    description: Whether the host is in a tailnet, whose key must be valid for another 30 days.
    type: bool
    default: false
  pod:
    description: Whether the programs of the host see its tailnet through a library. See M(gpumesh.cluster.mesh_preload).
    type: bool
    default: false
  slurm_node:
    description: Whether the host runs jobs of Slurm, whose limits are then checked.
    type: bool
    default: true
  ssh_peers:
    description: Names or addresses by machine. SSH logins to each must work without a prompt and with a known host key.
    type: dict
    default: {}
  ssh_user:
    description: The account for these SSH logins.
    type: str
    default: root
  max_disk_percent:
    description: The maximum usage of a file system, and of its inodes, in percent.
    type: float
    default: 95
  max_swap_mib:
    description: The maximum amount of used swap in MiB.
    type: float
    default: 1024
  mount_timeout:
    description:
      - The maximum time in seconds for writing a small file to a volume. A volume that does not respond at all by then
        is considered dead; one that has only reported its free space is considered slow. At most V(120).
    type: float
    default: 10
  dcgm_level:
    description:
      - Run NVIDIA's C(dcgmi diag) at this level if it is installed. V(0) disables it.
      - Level 1 takes seconds, level 2 minutes, level 3 up to an hour. Higher levels use the GPUs fully.
    type: int
    choices: [0, 1, 2, 3, 4]
    default: 0
"""

EXAMPLES = r"""
- name: Check the node
  gpumesh.cluster.node_health:
    gpus: 8
  register: health

- name: Show failed checks
  ansible.builtin.debug:
    msg: "{{ health.checks | selectattr('status', 'in', ['fail', 'error']) }}"
  when: health.status != 'pass'
"""

RETURN = r"""
status:
  description:
    - V(fail) if a check failed, V(error) if none failed but one could not be performed, otherwise V(pass).
  type: str
  returned: always
checks:
  description: The results, in a fixed order.
  type: list
  elements: dict
  returned: always
  contains:
    id:
      description: The layer and the name of the check.
      type: str
      sample: health.disk
    purpose:
      description: A short description of what the check is for.
      type: str
    host:
      description: The name of the machine.
      type: str
    actual:
      description: The value that was found; a string, a number or a boolean.
      type: raw
    required:
      description: The value that is required.
      type: raw
    unit:
      description: The unit of both values.
      type: str
    status:
      description: V(pass), V(fail), V(error) or V(skipped).
      type: str
    reason:
      description: Why the check did not pass.
      type: str
    remedy:
      description: What to do about it.
      type: str
versions:
  description:
    - The models of the GPUs, and the versions of the driver, the VBIOS, the kernel and the NCCL libraries of the
      system. Keys for what the host does not have are missing.
  type: dict
  returned: always
  sample: {driver: 550.90.07, kernel: 6.1.0-28-amd64, models: [NVIDIA H100 80GB HBM3], nccl: [2.23.4], vbios: [96.00.89.00.01]}
seconds:
  description: The duration of the checks in seconds.
  type: float
  returned: always
"""

import socket
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import fault_history
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.run import (
    CheckContext,
    run_selected_checks,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import find_state_folder
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.versions import read_versions
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import DEFAULT_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree


def work(module: AnsibleModule) -> ModuleResult:
    """Perform the checks, and summarize their statuses."""
    params = module.params
    expected_state = ExpectedState(
        **{field_name: params[field_name] for field_name in ExpectedState._fields if field_name in params}
    )
    started_at = time.monotonic()
    check_results = run_selected_checks(
        CheckContext(expected_state, Tree(), run),
        params["machine"] or socket.gethostname(),
        params["only"],
        fault_history.read_faults(find_state_folder(DEFAULT_DIRECTORY)),
    )
    statuses = {result["status"] for result in check_results}
    status = "fail" if "fail" in statuses else "error" if "error" in statuses else "pass"
    return ModuleResult(
        False,
        {
            "status": status,
            "checks": check_results,
            "versions": read_versions(Tree()),
            "seconds": round(time.monotonic() - started_at, 3),
        },
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "only": {"type": "list", "elements": "str", "default": []},
            "machine": {"type": "str"},
            "gpus": {"type": "int"},
            "rdma": {"type": "str", "choices": ["infiniband", "roce", "none"]},
            "rdma_rate_gbps": {"type": "float"},
            "mounts": {"type": "list", "elements": "path", "default": []},
            "external_mounts": {"type": "list", "elements": "path", "default": []},
            "read_only_mounts": {"type": "list", "elements": "path", "default": []},
            "cluster_address": {"type": "str"},
            "mesh_interface": {"type": "str"},
            "mesh_peers": {"type": "dict", "default": {}},
            "tailnet": {"type": "bool", "default": False},
            "pod": {"type": "bool", "default": False},
            "slurm_node": {"type": "bool", "default": True},
            "ssh_peers": {"type": "dict", "default": {}},
            "ssh_user": {"type": "str", "default": "root"},
            "max_disk_percent": {"type": "float", "default": 95},
            "max_swap_mib": {"type": "float", "default": 1024},
            "mount_timeout": {"type": "float", "default": 10},
            "dcgm_level": {"type": "int", "choices": [0, 1, 2, 3, 4], "default": 0},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), host_name=module.params["machine"])


if __name__ == "__main__":
    main()
