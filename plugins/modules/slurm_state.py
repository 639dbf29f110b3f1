#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_state
short_description: Carry the queue of a Slurm controller from one manager to another
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Packs the state of a stopped controller, returns it part by part, and puts it in place before the next one starts.
  - The state holds the scripts and the environments of jobs, and so whatever secrets users have put there. Use it only in
    tasks with C(no_log).
  - Works with the rights of O(user), and takes nothing but plain files below O(folder) from the other manager.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
attributes:
  diff_mode:
    support: none
    details:
      - The state is binary and may hold secrets of users.
options:
  state:
    description:
      - V(packed) makes an archive of the state, in O(folder).
      - V(exported) returns a part of the archive.
      - V(imported) takes a part, and after the last one puts the state in place, unless this host has a state already.
    type: str
    choices: [packed, exported, imported]
    required: true
  part:
    description: Which part, from 0 on.
    type: int
    default: 0
  parts:
    description: How many there are, as V(packed) has returned it. Required for V(imported).
    type: int
  checksum:
    description: The checksum of the archive, as V(packed) has returned it. Required for V(imported).
    type: str
  content:
    description: What V(exported) has returned as RV(content). Required for V(imported).
    type: str
  folder:
    description: The controller's C(StateSaveLocation).
    type: path
    default: /var/lib/slurm/slurmctld
  user:
    description: The account that the controller runs as.
    type: str
    default: slurm
"""

EXAMPLES = r"""
- name: Pack the queue on the former manager
  gpumesh.cluster.slurm_state:
    state: packed
  register: queue
  delegate_to: n1
  no_log: true

# For each part, from 0 to queue.parts - 1:
- name: Read the first part
  gpumesh.cluster.slurm_state:
    state: exported
    part: 0
  register: first
  delegate_to: n1
  no_log: true

- name: Put it in place
  gpumesh.cluster.slurm_state:
    state: imported
    part: 0
    parts: "{{ queue.parts }}"
    checksum: "{{ queue.checksum }}"
    content: "{{ first.content }}"
  no_log: true
"""

RETURN = r"""
parts:
  description: How many parts the archive has.
  type: int
  returned: O(state=packed)
checksum:
  description: The SHA-256 of the archive.
  type: str
  returned: O(state=packed)
content:
  description: The part, in base64.
  type: str
  returned: O(state=exported)
files:
  description: The files that were put in place. Empty where a controller has run here before, and before the last part.
  type: list
  elements: str
  returned: O(state=imported)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import state


def work(module: AnsibleModule) -> Outcome:
    """Do what the parameters say."""
    given = module.params
    folder, part, user = given["folder"], given["part"], given["user"]
    if given["state"] == "packed":
        packed = state.Packed(0, "") if module.check_mode else state.pack(folder, user)
        return Outcome(True, {"parts": packed.parts, "checksum": packed.checksum})
    if given["state"] == "exported":
        return Outcome(False, {"content": state.read_part(folder, part, user)})
    if state.in_use(folder):
        return Outcome(False, {"files": []})
    files = []
    if not module.check_mode:
        state.write_part(folder, part, given["content"], user)
        if part == given["parts"] - 1:
            files = state.unpack(folder, given["checksum"], user)
    return Outcome(True, {"files": files})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["packed", "exported", "imported"], "required": True},
            "part": {"type": "int", "default": 0},
            "parts": {"type": "int"},
            "checksum": {"type": "str"},
            "content": {"type": "str", "no_log": True},
            "folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "user": {"type": "str", "default": "slurm"},
        },
        required_if=[("state", "imported", ("parts", "checksum", "content"))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
