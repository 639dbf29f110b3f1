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
    are commented out, and their other names, such as the full one, are added to that line too.
  - A container engine overwrites the file at each start. On hosts without systemd, supervisord runs a program when it
    starts that restores the names.
  - Set O(record). The other options are derived from it.
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
    description: V(absent) removes the block and restores lines that were commented out.
    type: str
    choices: [present, absent]
    default: present
  machine:
    description: The name of this host in the record.
    type: str
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
      names: {description: "The names of the member, if any.", type: list, elements: str, required: true}
  address:
    description: The cluster address of this host.
    type: str
  supervisor_programs:
    description:
      - The directory of the programs that supervisord includes. Defaults to the host variable
        C(daemon_supervisor_programs).
    type: path
    default: /etc/supervisor/conf.d
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
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
paths:
  description: The files that were changed, or would be changed in check mode.
  type: list
  elements: str
  returned: success
  sample: [/etc/hosts]
outdated:
  description: The contents that the host needs. The action sends them.
  type: list
  elements: str
  returned: success
  sample: [gpumesh-names]
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names_apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.host_names import derive_parameters


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **COPY_OPTION, **names_apply.OPTIONS},
        supports_check_mode=True,
    )
    exit_with(module, lambda: names_apply.work(module.params, module.check_mode), derive=derive_parameters)


if __name__ == "__main__":
    main()
