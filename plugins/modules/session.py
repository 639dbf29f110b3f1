#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: session
short_description: Install gpumesh-session and its plugin for Slurm
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Installs the program C(gpumesh-session), a single file that requires only Python 3.8 and Podman. It
    starts containers with roles on a private network, as a Slurm job.
  - Compiles a Slurm plugin on the host that starts the tasks of a session in its network, and loads an nftables table
    that isolates sessions from each other and from the hosts.
  - Removes the remains of sessions that no longer run on the host.
  - Set O(record) and the options of the role. The other options are derived from the record on the controller.
  - "Reads these options of roles: C(session_allow), C(session_enabled), C(session_mounts_allowed), C(session_nat),
    C(session_storage_dir), C(session_subnets)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.record.copy
  - gpumesh.cluster.push
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) ends the sessions on this host and removes the program, the plugin and the table.
    type: str
    choices: [present, absent]
    default: present
  machine:
    description: The name of the host in the record.
    type: str
    default: ""
  manager:
    description: The name of the manager in the record.
    type: str
    default: ""
  interface:
    description: The interface with the host's cluster address.
    type: str
    default: ""
  members:
    description: The cluster addresses of the members by name.
    type: dict
    default: {}
  pools:
    description: The networks from which each session is assigned a /24 subnet.
    type: list
    elements: str
    default: []
  closed:
    description: The networks that sessions cannot reach.
    type: list
    elements: str
    default: []
  nat:
    description: Whether sessions can reach other networks, with the address of the host.
    type: bool
    default: true
  allow:
    description: Addresses and TCP ports in O(closed) that sessions can reach nevertheless, such as C(10.0.0.5:5000).
    type: list
    elements: str
    default: []
  volumes:
    description: The mount points of the shared volumes.
    type: list
    elements: str
    default: []
  mounts_allowed:
    description: Directories of the hosts that users may mount into containers, in addition to O(volumes).
    type: list
    elements: str
    default: []
  storage:
    description: The directory on a local disk of each node for images. C({user}) in it is replaced by the name of the user.
    type: str
    default: /var/lib/gpumesh/session/users/{user}
  mesh:
    description: The interface of the mesh, if the cluster has one.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Install gpumesh-session
  gpumesh.cluster.session:
    record: cluster_record
    pools: [10.192.0.0/10]
"""

RETURN = r"""
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
missing:
  description: Programs and files that are missing on the host. The action installs their packages.
  type: list
  elements: str
  returned: success
  sample: [podman]
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [gpumesh-session]
path:
  description: The path of C(gpumesh-session).
  type: str
  returned: success
  sample: /usr/local/bin/gpumesh-session
swept:
  description: The jobs whose remains were removed from the host.
  type: list
  elements: int
  returned: success
  sample: []
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.desired import derive_parameters


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **COPY_OPTION, **apply.OPTIONS},
        supports_check_mode=True,
    )
    exit_with(module, lambda: apply.work(module.params, module.check_mode), derive=derive_parameters)


if __name__ == "__main__":
    main()
