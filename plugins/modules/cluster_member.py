#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Add, update or remove members in a cluster record."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_member
short_description: Add, update or remove members in a cluster record
version_added: 1.0.0
description:
  - Changes the members in the record of an existing cluster. Run it on the manager.
  - All members are changed together, as a single change of the record.
  - A machine with the same address or key as another one, such as a clone, is refused. The error names both.
  - "Reads these options of roles: C(cluster_older_version)."
author:
  - The gpumesh authors (@gpumesh)
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record
  - gpumesh.cluster.record.change
  - gpumesh.cluster.record.members
options:
  cluster:
    description: The name of the cluster.
    type: str
    required: true
  state:
    description:
      - V(present) adds new members and updates the others.
      - V(absent) removes them, and records that they were removed; only the C(machine) of each is used.
    type: str
    choices:
      - present
      - absent
    default: present
  machine:
    description: A single machine, instead of O(members), to remove or to check that it is a member.
    type: str
  registered:
    description:
      - The name of a variable that an earlier task has registered on the hosts of the play. The members are the values of
        C(registration) in it; if there are none, nothing is done. In check mode the record is not read.
      - It is read on the controller. Set it instead of O(members), with C(run_once).
    type: str
  new_manager:
    description:
      - The member that becomes the manager. Required if the manager is removed.
      - On a member, if the former manager is lost, its copy becomes the record.
    type: str
  untrusted:
    description:
      - With O(state=absent), record that the keys that the machines had must be replaced, including those of machines
        that were removed before.
    type: bool
    default: false
seealso:
  - module: gpumesh.cluster.cluster
  - module: gpumesh.cluster.cluster_info
"""

EXAMPLES = r"""
- name: Add a machine
  gpumesh.cluster.cluster_member:
    cluster: lab
    members:
      - machine: gpu3
        address: 192.168.1.13
        interface: eno1
        gpus: 8

- name: Register the public key of a member's tunnel
  gpumesh.cluster.cluster_member:
    cluster: lab
    members:
      - machine: gpu3
        mesh:
          public_key: xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=

- name: Remove the manager
  gpumesh.cluster.cluster_member:
    cluster: lab
    machine: gpu1
    new_manager: gpu2
    state: absent
"""

RETURN = r"""
record:
  description: The complete record as it is now or, in check mode, as it would be. See M(gpumesh.cluster.cluster).
  returned: success, and its digest is not among O(known_digests)
  type: dict
  sample: {}
digest:
  description: The SHA-256 digest that identifies the record.
  returned: success
  type: str
  sample: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
generation:
  description: The generation of the record.
  returned: success
  type: int
  sample: 4
previous_generation:
  description: The previous generation.
  returned: success
  type: int
  sample: 3
changes:
  description: The changes, each with its kind, a text and the machines that it concerns.
  returned: success
  type: list
  elements: dict
  sample:
    - kind: join
      detail: machine gpu3 joined
      machines:
        - gpu3
path:
  description: The file of the record.
  returned: success
  type: str
  sample: /var/lib/gpumesh/clusters/lab.json
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import apply, interface
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with


def work(params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Carry out one request."""
    record_store = interface.open_store(params, params["cluster"])
    actor = interface.actor_name(params)
    members = list(params["members"] or [])
    if params["machine"] is not None:
        members.append({"machine": params["machine"]})
    if params["state"] == "present":
        applied_change = apply.members_present(
            record_store, members, params["new_manager"], actor, check_mode, params["joining"], params["older_version"]
        )
    else:
        leaving_machines = [member["machine"] for member in members]
        applied_change = apply.members_absent(
            record_store,
            leaving_machines,
            params["new_manager"],
            params["force"],
            params["untrusted"],
            actor,
            check_mode,
            params["older_version"],
        )
    return interface.build_result(applied_change, record_store, params["known_digests"])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "machine": {"type": "str"},
            "members": interface.MEMBERS_OPTION,
            "joining": interface.JOINING_OPTION,
            "registered": {"type": "str"},
            "new_manager": {"type": "str"},
            "untrusted": {"type": "bool", "default": False},
            **interface.CHANGE_OPTIONS,
        },
        required_one_of=[("members", "machine", "new_manager")],
        mutually_exclusive=[("members", "machine")],
        supports_check_mode=True,
    )
    exit_with(module, lambda: work(module.params, module.check_mode), echo_arguments=False)


if __name__ == "__main__":
    main()
