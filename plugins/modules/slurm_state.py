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
  - Packs the state of a stopped controller, returns it in parts, and installs it before the next controller starts.
  - The state contains the scripts and environments of jobs, which may include secrets of users. Use it only in tasks with
    C(no_log).
  - A marker in the directory shows to which cluster the state belongs, and in which tenures it was written. A tenure is the
    time in which one machine manages the cluster, identified by the generation of the record in which it started.
  - With O(record) and V(state=inspected), it decides which queue is the current one, from the history of the record and the
    markers. A manager continues with the queue of its own tenure, or takes over that of the former manager. It does not
    start with an empty queue while another machine may have the current one.
  - Runs with the privileges of O(user), and accepts only plain files below O(folder) from the other manager.
  - "Reads these options of roles: C(cluster_manager_lost), C(slurm_former_manager)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
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
      - V(exported) returns a part of the archive.
      - V(imported) writes a part, and installs the state after the last one.
      - V(inspected) returns what is in O(folder), and changes nothing.
      - V(marked) writes the marker.
      - V(retired) stops the controller and slurmdbd, deletes the accounting, which is saved first with O(keep), and empties
        O(folder). It takes no other option, and can be run again after an interruption.
      - For V(packed) and V(imported), the controller must be stopped.
    type: str
    choices: [packed, exported, imported, inspected, marked, retired]
    required: true
  manager_queue:
    description: The result of V(inspected) on the manager, when the former manager is queried.
    type: dict
  member_queue:
    description: The result of V(inspected) on a machine that is not the manager, when the manager is queried.
    type: dict
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
    description: RV(content) as returned by V(exported). Required for V(imported).
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
  gpumesh.cluster.slurm_state:
    state: exported
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

- name: Note whose it is
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
content:
  description: The part, in base64.
  type: str
  returned: O(state=exported)
files:
  description: The installed files. Empty before the last part.
  type: list
  elements: str
  returned: O(state=imported)
used:
  description: Whether a controller has written to the directory.
  type: bool
  returned: O(state=inspected)
marker:
  description: The owner of the state. Null if it is not known.
  type: dict
  returned: O(state=inspected)
  contains:
    cluster:
      description: The id of the cluster.
      type: str
    machine:
      description: The machine that has, or had, the queue.
      type: str
    tenures:
      description: The generations of the record with which the tenures began, oldest first.
      type: list
      elements: int
accounting:
  description: Whether the accounting of a former manager is present and still has to be loaded.
  type: bool
  returned: O(state=inspected)
node:
  description: Whether the host is set up as a node of Slurm.
  type: bool
  returned: O(state=inspected)
slurm_version:
  description: The version of the installed slurmctld. Null if it is not installed.
  type: str
  returned: O(state=inspected)
  sample: 24.11.5
rest_certificates:
  description: The certificates that clients of the REST API of this host have to trust. Empty if it does not serve it with
    TLS.
  type: list
  elements: str
  returned: O(state=inspected)
succession:
  description:
    - The action of the manager, C(action), is V(go_on) to continue with its queue, V(mark) to mark it with the current
      tenure, or V(take) to take it over first.
    - C(former) is the machine to query before the decision, empty for none.
    - C(retire) is what happens to an older queue of the manager, V(keep) or V(delete), empty if there is none.
    - C(tenures) are those in which the queue was written, for V(mark) and V(take).
  type: dict
  returned: with O(record), unless with O(member_queue)
leftover:
  description:
    - What happens to the queue of a machine that is not the manager. V(delete) if the manager's queue is its continuation,
      V(keep) if it is not, and empty if the manager itself does not have the current queue.
  type: str
  returned: with O(record) and O(member_queue)
kept:
  description: The directory to which the state was moved. Empty if there was none, or if it was deleted.
  type: str
  returned: O(state=retired)
"""

import contextlib
import os
import pwd

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release, rest, state, term

_SLURMD_ENVIRONMENT = "/etc/slurm/node/slurmd.env"


def work(module: AnsibleModule) -> ModuleResult:
    """Transfer, inspect, mark or retire the state of the controller."""
    desired_state = module.params["state"]
    if desired_state in ("inspected", "marked", "retired"):
        return manage_ownership(module)
    return transfer_state(module)


def transfer_state(module: AnsibleModule) -> ModuleResult:
    """Pack the state, or export or import a part of it."""
    params = module.params
    state_directory, part_index, user = params["folder"], params["part"], params["user"]
    if params["state"] == "packed":
        refuse_running(user)
        packed_state = state.StateArchive(0, "") if module.check_mode else state.pack_state(state_directory, user)
        return ModuleResult(True, {"parts": packed_state.part_count, "checksum": packed_state.checksum})
    if params["state"] == "exported":
        return ModuleResult(False, {"content": state.read_part(state_directory, part_index, user)})
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


def manage_ownership(module: AnsibleModule) -> ModuleResult:
    """Report to which cluster the state belongs, mark it, or retire it."""
    params = module.params
    state_directory, user = params["folder"], params["user"]
    if params["state"] == "retired":
        state_exists = term.state_exists(state_directory)
        kept_path = (
            term.retire_state(state_directory, params["keep"], user) if state_exists and not module.check_mode else ""
        )
        return ModuleResult(state_exists, {"kept": kept_path})
    controller_state = term.read_controller_state(state_directory)
    if params["state"] == "inspected":
        slurm_version = release.installed_version(run, "slurmctld")
        values = {
            "used": controller_state.in_use,
            "marker": controller_state.marker._asdict() if controller_state.marker else None,
            "accounting": controller_state.pending_accounting,
            "node": os.path.exists(_SLURMD_ENVIRONMENT),
            "slurm_version": release.format_version(slurm_version) if slurm_version else None,
            "rest_certificates": server_certificate.read_trusted(rest.PROXY_DIRECTORY),
        }
        return ModuleResult(False, values)
    marker = term.StateMarker(params["cluster_id"], params["machine"], tuple(params["tenures"]))
    if marker != controller_state.marker and not module.check_mode:
        term.write_marker(state_directory, marker, user)
    return ModuleResult(marker != controller_state.marker, {})


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["packed", "exported", "imported", "inspected", "marked", "retired"],
                "required": True,
            },
            "record": {"type": "raw"},
            "manager_queue": {"type": "dict"},
            "member_queue": {"type": "dict"},
            "part": {"type": "int", "default": 0},
            "parts": {"type": "int"},
            "checksum": {"type": "str"},
            "content": {"type": "str", "no_log": True},
            "cluster_id": {"type": "str"},
            "machine": {"type": "str"},
            "tenures": {"type": "list", "elements": "int"},
            "keep": {"type": "bool", "default": True},
            "folder": {"type": "path", "default": "/var/lib/slurm/slurmctld"},
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
