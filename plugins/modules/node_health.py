#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_health
short_description: Check whether a host is fit to train on
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Makes all checks at once, each within its time. The default set takes less than five seconds on a healthy host.
  - A check that does not apply is skipped and says why. A check that could not be made is an error, not a pass.
  - The module does not fail when a check fails. Judge by RV(status) and RV(checks).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  only:
    description:
      - Make only these checks. Ids, such as V(health.disk), or a part of one, such as V(disk) or V(health).
      - By default all are made.
    type: list
    elements: str
    default: []
  machine:
    description: The host's name in the results. By default its own name.
    type: str
  gpus:
    description: How many GPUs the host has to have. Without it they are not counted.
    type: int
  rdma_rate_gbps:
    description: The rate in Gbit/s that each active RDMA port has to have. By default that of the fastest one.
    type: float
  mounts:
    description: Mount points that have to be mounted and to take a file.
    type: list
    elements: path
    default: []
  external_mounts:
    description: Folders on file systems that others have mounted. They have to take a file, too.
    type: list
    elements: path
    default: []
  read_only_mounts:
    description: Those of O(mounts) and O(external_mounts) that have to be readable only.
    type: list
    elements: path
    default: []
  cluster_address:
    description: The address that the host's own name has to stand for.
    type: str
  mesh_interface:
    description: The WireGuard interface.
    type: str
  mesh_peers:
    description: Public keys by machine. Each has to have shaken hands lately.
    type: dict
    default: {}
  ssh_peers:
    description: Names or addresses by machine. A login to each has to work without a prompt, with a known host key.
    type: dict
    default: {}
  ssh_user:
    description: The account for these logins.
    type: str
    default: root
  max_disk_percent:
    description: The part of a file system, and of its inodes, that may be in use.
    type: float
    default: 95
  max_swap_mib:
    description: MiB of swap that may be in use.
    type: float
    default: 1024
  mount_timeout:
    description:
      - Seconds in which a volume has to take a small file. What says nothing at all by then is dead, and what has said
        what room it has is slow. At most V(120).
    type: float
    default: 10
  dcgm_level:
    description:
      - Run NVIDIA's C(dcgmi diag) at this level, where it is installed. V(0) does not run it.
      - Level 1 takes seconds, 2 minutes, 3 up to an hour. Higher ones use the GPUs fully.
    type: int
    choices: [0, 1, 2, 3, 4]
    default: 0
"""

EXAMPLES = r"""
- name: Look at the node
  gpumesh.cluster.node_health:
    gpus: 8
  register: health

- name: Name what is wrong with it
  ansible.builtin.debug:
    msg: "{{ health.checks | selectattr('status', 'in', ['fail', 'error']) }}"
  when: health.status != 'pass'
"""

RETURN = r"""
status:
  description:
    - V(fail) when a check failed, V(error) when none failed and one could not be made, else V(pass).
  type: str
  returned: always
checks:
  description: The results, in a fixed order.
  type: list
  elements: dict
  returned: always
  contains:
    id:
      description: Layer and check.
      type: str
      sample: health.disk
    purpose:
      description: What it is for, in a few words.
      type: str
    host:
      description: The machine.
      type: str
    actual:
      description: What was found. A text, a number or a truth value.
      type: raw
    required:
      description: What is required.
      type: raw
    unit:
      description: The unit of both.
      type: str
    status:
      description: V(pass), V(fail), V(error) or V(skipped).
      type: str
    reason:
      description: Why it is not a pass.
      type: str
    remedy:
      description: What to do about it.
      type: str
seconds:
  description: How long the checks took.
  type: float
  returned: always
"""

import socket
import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.run import (
    Context,
    make_checks,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.health.shapes import (
    Expected,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import (
    Outcome,
    exit_with,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

_EXPECTED = (
    "machine",
    "gpus",
    "rdma_rate_gbps",
    "mounts",
    "external_mounts",
    "read_only_mounts",
    "cluster_address",
    "mesh_interface",
    "mesh_peers",
    "ssh_peers",
    "ssh_user",
    "max_disk_percent",
    "max_swap_mib",
    "dcgm_level",
    "mount_timeout",
)


def work(module: AnsibleModule) -> Outcome:
    """Make the checks and count what they say."""
    given = module.params
    expected = Expected(**{key: given[key] for key in _EXPECTED})
    began = time.monotonic()
    results = make_checks(Context(expected, Tree(), run), given["machine"] or socket.gethostname(), given["only"])
    statuses = {result["status"] for result in results}
    status = "fail" if "fail" in statuses else "error" if "error" in statuses else "pass"
    return Outcome(False, {"status": status, "checks": results, "seconds": round(time.monotonic() - began, 3)})


def main() -> None:
    """The module's entry."""
    module = AnsibleModule(
        argument_spec={
            "only": {"type": "list", "elements": "str", "default": []},
            "machine": {"type": "str"},
            "gpus": {"type": "int"},
            "rdma_rate_gbps": {"type": "float"},
            "mounts": {"type": "list", "elements": "path", "default": []},
            "external_mounts": {"type": "list", "elements": "path", "default": []},
            "read_only_mounts": {"type": "list", "elements": "path", "default": []},
            "cluster_address": {"type": "str"},
            "mesh_interface": {"type": "str"},
            "mesh_peers": {"type": "dict", "default": {}},
            "ssh_peers": {"type": "dict", "default": {}},
            "ssh_user": {"type": "str", "default": "root"},
            "max_disk_percent": {"type": "float", "default": 95},
            "max_swap_mib": {"type": "float", "default": 1024},
            "mount_timeout": {"type": "float", "default": 10},
            "dcgm_level": {"type": "int", "choices": [0, 1, 2, 3, 4], "default": 0},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module), host=module.params["machine"])


if __name__ == "__main__":
    main()
