#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_set
short_description: The files that a layer has on a host, in one call
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Sees to files, folders and blocks of lines in files of others, all in one call, because the time that a playbook takes
    is its tasks times its hosts.
  - All entries are checked before the first is changed. Files are replaced in one step; where that is impossible, as with
    C(/etc/hosts) in a container, they are written in place.
  - Not for secrets, since contents are shown in diffs.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  files:
    description: What is to be there, in this order, each path once.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description:
          - The whole path. Links are followed in folders that only root can write to.
          - In a folder of another account, this is done as that account, wherever a link leads. In a folder of root's that
            others may write to, as C(/tmp), a link is refused.
        type: path
        required: true
      state:
        description:
          - V(file) has exactly O(files[].content), V(directory) is a folder, and V(block) is lines in a file that may
            hold more.
          - V(absent) removes a file or a folder with all that is in it; with O(files[].marker), only that block, and the
            file when nothing else was in it.
        type: str
        choices: [file, directory, block, absent]
        default: file
      content:
        description: Text of the file or block.
        type: str
      mode:
        description:
          - Permissions in octal. Without it, those of what is there stay; a new file gets V(0644), a new folder V(0755).
        type: str
      new_mode:
        description: Permissions in octal of one that was not there, where O(files[].mode) is not given.
        type: str
      owner:
        description: Account that owns it. Without it, the owner stays; a new one belongs to the account of the task, or
          to the one that owns the folder.
        type: str
      group:
        description: Group that owns it. Without it, the group of O(files[].owner).
        type: str
      marker:
        description: The line around a block. C({mark}) in it becomes BEGIN and END.
        type: str
      at_start:
        description: Whether a new block goes to the start of the file instead of its end.
        type: bool
        default: false
      hide:
        description:
          - Regular expression of whole lines outside the block that contradict it. They are made comments, and lines
            again when the block is removed with this option.
        type: str
"""

EXAMPLES = r"""
- name: Tell NCCL which interface to use
  gpumesh.cluster.file_set:
    files:
      - path: /etc/gpumesh
        state: directory
      - path: /etc/nccl.conf
        state: block
        marker: "# {mark} gpumesh cluster lab"
        content: NCCL_SOCKET_IFNAME==gpumesh0

- name: Take it back
  gpumesh.cluster.file_set:
    files:
      - path: /etc/nccl.conf
        state: absent
        marker: "# {mark} gpumesh cluster lab"
"""

RETURN = r"""
paths:
  description: What was changed, or would be in check mode, in the order of O(files).
  type: list
  elements: str
  returned: success
  sample: [/etc/nccl.conf]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with

_ENTRY = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["file", "directory", "block", "absent"], "default": "file"},
    "content": {"type": "str"},
    "mode": {"type": "str"},
    "new_mode": {"type": "str"},
    "owner": {"type": "str"},
    "group": {"type": "str"},
    "marker": {"type": "str"},
    "at_start": {"type": "bool", "default": False},
    "hide": {"type": "str"},
}


def work(module: AnsibleModule) -> Outcome:
    """Plan all entries, then apply them."""
    steps = host_files.see_to(module.params["files"], module.check_mode)
    return Outcome(bool(steps), {"paths": [step.path for step in steps]}, *host_files.as_diff(steps))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"files": {"type": "list", "elements": "dict", "options": _ENTRY, "required": True}},
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
