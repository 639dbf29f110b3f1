#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: file_set
short_description: Manage a set of files in one call
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Manages files, directories and blocks of lines in other files in one call, because the duration of a playbook is
    proportional to its number of tasks times hosts.
  - All entries are validated before the first change. Files are replaced atomically; if that is impossible, as with
    C(/etc/hosts) in a container, they are written in place.
  - Not suitable for secrets, since contents are shown in diffs.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
options:
  files:
    description: The entries to manage, in this order. Each path may occur only once.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description:
          - The absolute path. Symbolic links are followed in directories that only root can write to.
          - In a directory of another user, the module acts as that user, wherever a link leads. In a directory of root that
            others can write to, such as C(/tmp), links are refused.
        type: path
        required: true
      state:
        description:
          - V(file) is a file with exactly O(files[].content), V(directory) is a directory, and V(block) is a block of lines in
            a file that can contain other lines.
          - V(absent) removes a file, or a directory with all its contents. With O(files[].marker), it only removes that
            block, and the file if nothing else is left in it.
        type: str
        choices: [file, directory, block, absent]
        default: file
      content:
        description: The text of the file or block.
        type: str
      mode:
        description:
          - The octal permissions. If not set, existing permissions are kept; a new file gets V(0644), a new directory V(0755).
          - Quote them, since YAML reads numbers that start with 0 as octal ones; a number is refused.
        type: raw
      new_mode:
        description: The octal permissions of a new file or directory if O(files[].mode) is not set.
        type: raw
      owner:
        description: The name or ID of the owner. If not set, the owner is kept; a new file belongs to the user of the task, or
          to the owner of the directory.
        type: str
      group:
        description: The name or ID of the group. Defaults to the group of O(files[].owner).
        type: str
      marker:
        description:
          - The line before and after a block. C({mark}) is replaced with BEGIN and END.
          - A file in which one of the two lines is missing is refused, as it is unclear which lines are the block.
        type: str
      at_start:
        description: Whether to insert a new block at the start of the file instead of at its end.
        type: bool
        default: false
      hide:
        description:
          - A regular expression that matches complete lines outside the block that conflict with it. They are commented out,
            and restored when the block is removed with this option.
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

- name: Remove the setting
  gpumesh.cluster.file_set:
    files:
      - path: /etc/nccl.conf
        state: absent
        marker: "# {mark} gpumesh cluster lab"
"""

RETURN = r"""
paths:
  description: The paths that were changed, or would be changed in check mode, in the order of O(files).
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
    "mode": {"type": "raw"},
    "new_mode": {"type": "raw"},
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
