#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: holder_info
short_description: Who uses the volumes and the network of a cluster on a host
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Finds processes with their folder, program or an open file on a mounted volume, and logins by SSH that came from an
    address of the cluster.
  - Never touches the volumes themselves, so that one whose server is dead does not hang the question.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
options:
  mount_points:
    description: Where the volumes are mounted. What is no mount point now is passed over.
    type: list
    elements: path
    default: []
  addresses:
    description: The addresses of the cluster's members. Logins from elsewhere do not end with the cluster.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: See who would notice that the cluster ends
  gpumesh.cluster.holder_info:
    mount_points: [/mnt/shared]
    addresses: [10.99.0.1, 10.99.0.2]
  register: holders
"""

RETURN = r"""
holders:
  description: Each of them in a few words.
  type: list
  elements: str
  returned: always
  sample: ["python3 of alice (process 4711) uses /mnt/shared", "alice is logged in from 10.99.0.2 (pts/0)"]
volume_users:
  description: Processes that keep a volume mounted.
  type: list
  elements: dict
  returned: always
  contains:
    mount_point: {description: The volume., type: str}
    pid: {description: Number of the process., type: int}
    user: {description: Whose it is., type: str}
    command: {description: Its name., type: str}
logins:
  description: Logins over the cluster's network.
  type: list
  elements: dict
  returned: always
  contains:
    pid: {description: Number of its process., type: int}
    user: {description: Who has logged in., type: str}
    terminal: {description: "The terminal; V(notty) for a command.", type: str}
    address: {description: Where from., type: str}
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import holders
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with

_PROC = "/proc"


def work(params: Dict[str, Any]) -> Outcome:
    """Look."""
    with open(f"{_PROC}/self/mounts", encoding="utf-8", errors="replace") as stream:
        points = holders.mounted(stream.read(), params["mount_points"])
    users = holders.volume_users(_PROC, points)
    logins = holders.logins(_PROC, params["addresses"])
    words = [f"{user.command} of {user.user} (process {user.pid}) uses {user.mount_point}" for user in users]
    words += [f"{login.user} is logged in from {login.address} ({login.terminal})" for login in logins]
    return Outcome(
        False,
        {
            "holders": words,
            "volume_users": [user._asdict() for user in users],
            "logins": [login._asdict() for login in logins],
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
