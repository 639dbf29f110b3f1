#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: names
short_description: Manage the names of a cluster's members in /etc/hosts
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Maintains a block in C(/etc/hosts) with the cluster address and the names of each member.
  - The host's own name is added to its own line. Lines of Debian and of container engines that map it to another address
    are commented out.
  - Set O(record). The other options are derived from it on the controller.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
options:
  state:
    description: V(absent) removes the block and restores lines that were commented out.
    type: str
    choices: [present, absent]
    default: present
  cluster:
    description: The name of the cluster.
    type: str
  members:
    description: The members, in the order of their lines.
    type: list
    elements: dict
    default: []
    suboptions:
      address: {description: The cluster address., type: str, required: true}
      names: {description: "Its names, if any.", type: list, elements: str, required: true}
  address:
    description: The cluster address of this host.
    type: str
"""

EXAMPLES = r"""
- name: Add the members' names to /etc/hosts
  gpumesh.cluster.names:
    record: cluster_record

- name: Remove the members' names
  gpumesh.cluster.names:
    record: cluster_record
    state: absent
"""

RETURN = r"""
paths:
  description: The files that were changed, or would be changed in check mode.
  type: list
  elements: str
  returned: success
  sample: [/etc/hosts]
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files, names
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with

_MEMBER = {
    "address": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
}


def work(module: AnsibleModule) -> Outcome:
    """Plan the block, then write it."""
    steps = host_files.see_to(names.files(module.params, os.uname().nodename), module.check_mode)
    return Outcome(bool(steps), {"paths": [step.path for step in steps]}, *host_files.as_diff(steps))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "cluster": {"type": "str"},
            "members": {"type": "list", "elements": "dict", "options": _MEMBER, "default": []},
            "address": {"type": "str"},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
