#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_state_info
short_description: Show which queue of a Slurm controller is the current one
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Returns which queue and accounting a host has, as M(gpumesh.cluster.slurm_state) manages them.
  - With O(record), it decides which queue is the current one, from the history of the record and the markers. A manager
    continues with the queue of its own tenure, or takes over that of the former manager. It does not start with an empty
    queue while another machine may have the current one.
  - "Reads these options of roles: C(cluster_manager_lost), C(slurm_former_manager)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.info_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.internal
options:
  manager_state:
    description: The result of this module on the manager, when the former manager is queried.
    type: dict
  member_state:
    description: The result of this module on a machine that is not the manager, when the manager is queried.
    type: dict
  part:
    description:
      - Only return this part of the packed state, starting at 0. It may contain secrets of users, so set C(no_log).
    type: int
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
- name: Check which queue is the current one
  gpumesh.cluster.slurm_state_info:
    record: cluster_record
  register: manager_state
  delegate_to: "{{ cluster_record.manager }}"
  run_once: true
"""

RETURN = r"""
in_use:
  description: Whether a controller has written to the directory.
  type: bool
  returned: without O(part)
marker:
  description: The owner of the state. Null if it is not known.
  type: dict
  returned: without O(part)
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
pending_accounting:
  description: Whether the accounting of a former manager is present and still has to be loaded.
  type: bool
  returned: without O(part)
is_node:
  description: Whether Slurm is set up on the host.
  type: bool
  returned: without O(part)
slurm_version:
  description: The version of the installed slurmctld. Null if it is not installed.
  type: str
  returned: without O(part)
  sample: 24.11.5
rest_certificates:
  description: The certificates that clients of the REST API of this host have to trust. Empty if it does not serve it with
    TLS.
  type: list
  elements: str
  returned: without O(part)
plugins_included:
  description: Whether the C(plugstack.conf) of the controller includes the file with plugins of each host.
  type: bool
  returned: without O(part)
job_plugin:
  description: The plugin that sets the environment of jobs, for hosts like this one. Null if there is none.
  type: dict
  returned: without O(part)
  contains:
    stamp:
      description: What it was compiled for, and the SHA-256 of the library, as a comment in C.
      type: str
    source_digest:
      description: The SHA-256 of its source.
      type: str
    library:
      description: The library, compressed with zlib and in base64.
      type: str
content:
  description: The part, in base64.
  type: str
  returned: with O(part)
handover:
  description:
    - The action of the manager, C(action), is V(continue) to continue with its queue, V(mark) to mark it with the current
      tenure, or V(take_over) to take it over first.
    - C(query) is the machine to query before the decision, empty for none.
    - C(retire) is what happens to an older queue of the manager, V(keep) or V(delete), empty if there is none.
    - C(tenures) are those in which the queue was written, for V(mark) and V(take_over).
  type: dict
  returned: with O(record), unless with O(member_state)
leftover_action:
  description:
    - What happens to the queue of a machine that is not the manager. V(delete) if the manager's queue is its continuation,
      V(keep) if it is not, and empty if the manager itself does not have the current queue.
  type: str
  returned: with O(record) and O(member_state)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import controller, state


def work(module: AnsibleModule) -> ModuleResult:
    """Report to which cluster the state of the controller belongs, or return a part of it."""
    params = module.params
    if params["part"] is not None:
        return ModuleResult(False, {"content": state.read_part(params["folder"], params["part"], params["user"])})
    return ModuleResult(False, controller.read_controller(run, params["folder"]))


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            "manager_state": {"type": "dict"},
            "member_state": {"type": "dict"},
            "part": {"type": "int"},
            "folder": {"type": "path", "default": state.STATE_DIRECTORY},
            "user": {"type": "str", "default": "slurm"},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module))


if __name__ == "__main__":
    main()
