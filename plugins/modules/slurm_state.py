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
  - Returns the state of a stopped controller, or puts it in place before the next one starts.
  - The state holds the scripts and the environments of jobs, and so whatever secrets users have put there. Use it only in
    tasks with C(no_log).
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
    description: V(exported) returns the state. V(imported) writes O(content), unless this host has a state already.
    type: str
    choices: [exported, imported]
    required: true
  content:
    description: What V(exported) has returned as RV(content).
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
- name: Take the queue from the former manager
  gpumesh.cluster.slurm_state:
    state: exported
  register: queue
  delegate_to: n1
  no_log: true

- name: Put it in place
  gpumesh.cluster.slurm_state:
    state: imported
    content: "{{ queue.content }}"
  no_log: true
"""

RETURN = r"""
content:
  description: The state, compressed and in base64.
  type: str
  returned: O(state=exported)
files:
  description: The files that were written. Empty where a controller has run here before.
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
    if given["state"] == "exported":
        return Outcome(False, {"content": state.pack(given["folder"])})
    if state.in_use(given["folder"]):
        return Outcome(False, {"files": []})
    files = [] if module.check_mode else state.unpack(given["folder"], given["content"], given["user"])
    return Outcome(True, {"files": files})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["exported", "imported"], "required": True},
            "content": {"type": "str", "no_log": True},
            "folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
            "user": {"type": "str", "default": "slurm"},
        },
        required_if=[("state", "imported", ("content",))],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
