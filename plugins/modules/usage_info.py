#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: usage_info
short_description: Find the users of a cluster's volumes and network on a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Finds processes whose working directory, program, open files or mapped files, such as libraries, are on a mounted
    volume, and SSH logins from an address of the cluster. Containers may have the volume at another path.
  - Never accesses the volumes themselves, so a volume whose server is down does not hang the module.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.internal
options:
  mount_points:
    description: The mount points of the volumes. Paths that are not mount points are ignored.
    type: list
    elements: path
    default: []
  addresses:
    description: The addresses of the cluster's members. Logins from other addresses are ignored.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Find the users of the cluster
  gpumesh.cluster.usage_info:
    mount_points: [/mnt/shared]
    addresses: [10.99.0.1, 10.99.0.2]
  register: cluster_usage
"""

RETURN = r"""
descriptions:
  description: A short description of each use.
  type: list
  elements: str
  returned: always
  sample: ["python3 of alice (process 4711) uses /mnt/shared", "alice is logged in from 10.99.0.2 (pts/0)"]
volume_users:
  description: Processes that use a volume.
  type: list
  elements: dict
  returned: always
  contains:
    mount_point: {description: The mount point of the volume., type: str}
    pid: {description: The process ID., type: int}
    user: {description: The user of the process., type: str}
    command: {description: The name of the process., type: str}
logins:
  description: SSH logins over the cluster's network.
  type: list
  elements: dict
  returned: always
  contains:
    pid: {description: The process ID of the session., type: int}
    user: {description: The user who is logged in., type: str}
    terminal: {description: "The terminal; V(notty) for a command.", type: str}
    address: {description: The address of the client., type: str}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import volume_users
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with

_PROC_ROOT = "/proc"


def work(params: Dict[str, Any]) -> ModuleResult:
    """Find the processes that use the volumes, and the logins from the given addresses."""
    with open(f"{_PROC_ROOT}/self/mounts", encoding="utf-8", errors="replace") as stream:
        mount_points = volume_users.select_mounted(stream.read(), params["mount_points"])
    users = volume_users.find_volume_users(_PROC_ROOT, mount_points)
    login_sessions = volume_users.find_logins(_PROC_ROOT, params["addresses"])
    descriptions = [f"{user.command} of {user.user} (process {user.pid}) uses {user.mount_point}" for user in users]
    descriptions += [f"{login.user} is logged in from {login.address} ({login.terminal})" for login in login_sessions]
    return ModuleResult(
        False,
        {
            "descriptions": descriptions,
            "volume_users": [user._asdict() for user in users],
            "logins": [login._asdict() for login in login_sessions],
        },
    )


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "mount_points": {"type": "list", "elements": "path", "default": []},
            "addresses": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params))


if __name__ == "__main__":
    main()
