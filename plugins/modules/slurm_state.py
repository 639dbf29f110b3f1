#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_state
short_description: Transfer the queue of a Slurm controller from one manager to another
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Packs the state of a stopped controller, and installs it before the next controller starts.
    M(gpumesh.cluster.slurm_state_info) returns it in parts.
  - The state contains the scripts and environments of jobs, which may include secrets of users. Use it only in tasks with
    C(no_log).
  - A marker in the directory shows to which cluster the state belongs, and in which tenures it was written. A tenure is the
    time in which one machine manages the cluster, identified by the generation of the record in which it started.
  - Runs with the privileges of O(user), and accepts only plain files below O(folder) from the other manager.
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.internal
attributes:
  diff_mode:
    support: none
    details:
      - The state is binary and may contain secrets of users.
options:
  state:
    description:
      - V(packed) creates an archive of the state in O(folder).
      - V(imported) writes a part, and installs the state after the last one.
      - V(marked) writes the marker.
      - V(retired) stops the controller and slurmdbd, deletes the accounting, which is saved first with O(keep), and empties
        O(folder). It takes no other option, and can be run again after an interruption.
      - For V(packed) and V(imported), the controller must be stopped.
    type: str
    choices: [packed, imported, marked, retired]
    required: true
  part:
    description: The number of the part, starting at 0.
    type: int
    default: 0
  parts:
    description: The number of parts, as returned by V(packed). Required for V(imported).
    type: int
  checksum:
    description: The checksum of the archive, as returned by V(packed). Required for V(imported).
    type: str
  content:
    description: The part, as M(gpumesh.cluster.slurm_state_info) returns it. Required for V(imported).
    type: str
  cluster_id:
    description: The id of the cluster of the state, as in the record. Required for V(marked).
    type: str
  machine:
    description: The machine that has it. Required for V(marked).
    type: str
  tenures:
    description: The generations with which the tenures began, oldest first. Required for V(marked).
    type: list
    elements: int
  keep:
    description:
      - Whether V(retired) moves the state and the accounting to a directory next to O(folder), named after the time at
        which it began.
    type: bool
    default: true
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
  gpumesh.cluster.slurm_state_info:
    part: 0
  register: first
  delegate_to: n1
  no_log: true

- name: Write the part on the new manager
  gpumesh.cluster.slurm_state:
    state: imported
    part: 0
    parts: "{{ queue.parts }}"
    checksum: "{{ queue.checksum }}"
    content: "{{ first.content }}"
  no_log: true

- name: Write the marker of its owner
  gpumesh.cluster.slurm_state:
    state: marked
    cluster_id: "{{ cluster_record.id }}"
    machine: n2
    tenures: [1, 9]
"""

RETURN = r"""
parts:
  description: The number of parts of the archive.
  type: int
  returned: O(state=packed)
checksum:
  description: The SHA-256 of the archive.
  type: str
  returned: O(state=packed)
files:
  description: The installed files. Empty before the last part.
  type: list
  elements: str
  returned: O(state=imported)
moved_to:
  description: The directory to which the state was moved. Empty if there was none, or if it was deleted.
  type: str
  returned: O(state=retired)
"""

import contextlib
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import state, term


def work(module: AnsibleModule) -> ModuleResult:
    """Transfer, mark or retire the state of the controller."""
    if module.params["state"] == "retired":
        return retire_state(module)
    if module.params["state"] == "marked":
        return mark_state(module)
    return transfer_state(module)


def transfer_state(module: AnsibleModule) -> ModuleResult:
    """Pack the state, or import a part of it."""
    params = module.params
    state_directory, part_index, user = params["folder"], params["part"], params["user"]
    if params["state"] == "packed":
        refuse_running(user)
        packed_state = state.StateArchive(0, "") if module.check_mode else state.pack_state(state_directory, user)
        return ModuleResult(True, {"parts": packed_state.part_count, "checksum": packed_state.checksum})
    unpacked_files = []
    if not module.check_mode:
        state.write_part(state_directory, part_index, params["content"], user)
        if part_index == params["parts"] - 1:
            unpacked_files = state.unpack_state(state_directory, params["checksum"], user)
    return ModuleResult(True, {"files": unpacked_files})


def refuse_running(user: str) -> None:
    """Refuse if the controller still runs, since it would write to its files meanwhile. Raises HostStateError."""
    with contextlib.suppress(KeyError):
        if service.find_command_lines(Tree(), "slurmctld", pwd.getpwnam(user).pw_uid):
            raise HostStateError(
                "slurmctld of the former manager still runs here, so its queue was not copied.",
                "Include this machine in the run of the playbook remove, which stops it.",
            )


def retire_state(module: AnsibleModule) -> ModuleResult:
    """Empty the directory of the state, which is moved with ``keep``."""
    params = module.params
    state_exists = term.state_exists(params["folder"])
    moved_to = ""
    if state_exists and not module.check_mode:
        moved_to = term.retire_state(params["folder"], params["keep"], params["user"])
    return ModuleResult(state_exists, {"moved_to": moved_to})


def mark_state(module: AnsibleModule) -> ModuleResult:
    """Write to which cluster the state belongs, and in which tenures it was written."""
    params = module.params
    marker = term.StateMarker(params["cluster_id"], params["machine"], tuple(params["tenures"]))
    changed = marker != term.read_controller_state(params["folder"]).marker
    if changed and not module.check_mode:
        term.write_marker(params["folder"], marker, params["user"])
    return ModuleResult(changed, {})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["packed", "imported", "marked", "retired"],
                "required": True,
            },
            "part": {"type": "int", "default": 0},
            "parts": {"type": "int"},
            "checksum": {"type": "str"},
            "content": {"type": "str", "no_log": True},
            "cluster_id": {"type": "str"},
            "machine": {"type": "str"},
            "tenures": {"type": "list", "elements": "int"},
            "keep": {"type": "bool", "default": True},
            "folder": {"type": "path", "default": state.STATE_DIRECTORY},
            "user": {"type": "str", "default": "slurm"},
        },
        required_if=[
            ("state", "imported", ("parts", "checksum", "content")),
            ("state", "marked", ("cluster_id", "machine", "tenures")),
        ],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
