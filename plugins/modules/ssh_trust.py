#!/usr/bin/python
# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ssh_trust
short_description: Let users log in between the members of a cluster without a prompt
version_added: 1.0.0
author:
  - The gpumesh authors (@gpumesh)
description:
  - Generates a key for each user, certified by a signing key of this host, and accepts users who were certified by the
    other members. The private keys never leave the host.
  - Maintains the verified host keys of all members, and the client configuration of C(ssh) for them.
  - If a user has no account or home directory, or the SSH server of the host would not accept the users from one of the
    other members, the module fails before it changes anything.
  - If other accounts own or can read a private key in the cluster's folder, all of the host's keys for its users are
    certified again with a new signing key.
  - Installs the SSH client if it is missing.
  - Set O(record). The other options are derived from it.
  - Keys of this host that are not in the record yet are returned as RV(registration), for M(gpumesh.cluster.cluster_member).
  - "Reads these options of roles: C(ssh_trust_port), C(ssh_trust_users)."
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
  - gpumesh.cluster.record.copy
  - gpumesh.cluster.internal
options:
  state:
    description: V(absent) removes the keys, the known hosts, the client configuration and the block in the users' authorized
      keys.
    type: str
    choices: [present, absent]
    default: present
  users:
    description: The users who can log in, each to the account of the same name. An empty list has the effect of O(state=absent).
    type: list
    elements: str
    default: []
  port:
    description: The port of the members' SSH servers.
    type: int
    default: 22
  cluster:
    description: The name of the cluster.
    type: str
  machine:
    description: The name of this host in the record, which is part of its certificates.
    type: str
  address:
    description: The address of this host in the cluster.
    type: str
  peers:
    description:
      - The other members, with their address in the cluster as the key and their name as the value. Users who come from
        there must be accepted by the SSH server.
      - The server is queried once for all members that its C(Match) blocks do not distinguish, and for at most 30 kinds of
        members.
    type: dict
  known_hosts:
    description: The host keys of the members, in the format of C(known_hosts).
    type: str
  client_config:
    description: The client configuration for the members, in the format of C(ssh_config).
    type: str
  authorized_keys:
    description: The signing keys of the members, in the format of C(authorized_keys).
    type: str
"""

EXAMPLES = r"""
- name: Let two users log in between the members
  gpumesh.cluster.ssh_trust:
    record: cluster_record
  register: ssh_trust

- name: Register the keys of the members
  gpumesh.cluster.cluster_member:
    cluster: lab
    registered: ssh_trust
  run_once: true
  delegate_to: "{{ cluster_record.manager }}"
"""

RETURN = r"""
copy_differs:
  description: V(true) if the host's copy of the record is not O(record_copy). Nothing else was done then.
  type: bool
  returned: when it differs
certified:
  description: The users who received a certified key, or would receive one in check mode.
  type: list
  elements: str
  returned: success
  sample: [root]
paths:
  description: Other files that were changed, or would be changed in check mode.
  type: list
  elements: str
  returned: success
host_keys:
  description: The public keys of the SSH server, without comments.
  type: list
  elements: str
  returned: with O(state=present)
signing_key:
  description: The public key with which this host certifies its users. Null if there is none yet.
  type: str
  returned: with O(state=present)
missing:
  description: The programs of the SSH client that the host lacks. Nothing else was done then.
  type: list
  elements: str
  returned: when there are any
unqueried:
  description: The number of members among O(peers) for whose logins the SSH server was not queried.
  type: int
  returned: when there are any
  sample: 12
registration:
  description: The keys of this host that are not in the record yet, as an entry for M(gpumesh.cluster.cluster_member).
  type: dict
  returned: when there are any
  sample:
    machine: n1
    ssh_public_key: ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGK5
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import apply
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.desired import derive_parameters


def report(module: AnsibleModule) -> ModuleResult:
    """Do the work, and warn about members that were left out of the queries."""
    trust_result = apply.work(module.params, module.check_mode)
    unqueried_count = trust_result.return_values.get("unqueried")
    if unqueried_count:
        module.warn(
            f"{module.params['machine']}: the Match blocks of the SSH server distinguish so many addresses that logins from "
            f"only {len(module.params['peers']) - unqueried_count} of {len(module.params['peers'])} members were checked."
        )
    return trust_result


def main() -> None:
    """The module's entry point."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "raw"}, **DERIVED_OPTION, **COPY_OPTION, **apply.OPTIONS},
        supports_check_mode=True,
    )
    exit_with(module, lambda: report(module), derive=derive_parameters)


if __name__ == "__main__":
    main()
