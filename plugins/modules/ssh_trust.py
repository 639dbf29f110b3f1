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
  - Set O(record). The other options are derived from it on the controller.
  - Keys of this host that are not in the record yet are returned as RV(registration), for M(gpumesh.cluster.cluster_member).
extends_documentation_fragment:
  - gpumesh.cluster.attributes
  - gpumesh.cluster.attributes.state_module
  - gpumesh.cluster.record.given
  - gpumesh.cluster.record.derived
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
    users: [root, alice]
  register: ssh_trust

- name: Register the keys of the members
  gpumesh.cluster.cluster_member:
    cluster: lab
    registered: ssh_trust
  run_once: true
  delegate_to: "{{ cluster_record.manager }}"
"""

RETURN = r"""
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

from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.generation import DERIVED_OPTION
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import files, host, keys


def work(given: Dict[str, Any], check_mode: bool) -> Outcome:
    """Look, make the keys that are missing, then write the files."""
    params = {**given, "users": given["users"] if given["state"] == "present" else []}
    cluster, users = params["cluster"], params["users"]
    folder, identifier = host.folder_of(cluster), files.identifier(params)
    logins = files.logins(params) if users else []
    found = host.look(run, folder, users, identifier, logins)
    if users:
        _refuse(params["machine"], host.refusals(users, found))
    # Everything is checked before anything is changed.
    folders = host_files.plan_all(files.folders(cluster)) if users else []
    others = host_files.plan_all(files.entries(params, found))
    certified, stale = list(found.uncertified), files.stale_keys(params, found) if users else []
    if not check_mode:
        host_files.apply_all(folders)
        if certified:
            keys.certify(run, folder, certified, identifier)
        host_files.apply_all(others)
        # Last, since they say whose lines have to go.
        for path in stale:
            remove_file(path)
    steps = [*folders, *others]
    values: Dict[str, Any] = {"certified": certified, "paths": [*(step.path for step in steps), *stale]}
    if users:
        now = host.look(run, folder, users, identifier, logins) if certified and not check_mode else found
        values.update(host_keys=now.host_keys, signing_key=now.signing_key)
        unqueried = host.unqueried(found, logins)
        values.update({"unqueried": unqueried} if unqueried else {})
    before, after = host_files.as_diff(steps)
    made, gone = _as_diff(folder, certified, stale)
    return Outcome(bool(certified or values["paths"]), values, before + gone[0] + made[0], after + gone[1] + made[1])


def _refuse(machine: str, reasons: List[str]) -> None:
    if reasons:
        raise HostStateError(" ".join(f"{machine}: {reason}" for reason in reasons))


def _as_diff(folder: str, certified: List[str], stale: List[str]) -> Tuple[Tuple[str, str], Tuple[str, str]]:
    """Of keys, only that they come and go."""
    made = [f"{folder}/{user}-cert.pub" for user in certified]
    return (
        ("".join(f"{path}: absent\n" for path in made), "".join(f"{path}: file\n" for path in made)),
        ("".join(f"{path}: file\n" for path in stale), "".join(f"{path}: absent\n" for path in stale)),
    )


def report(module: AnsibleModule) -> Outcome:
    """Do the work, and warn about members that were left out of the queries."""
    outcome = work(module.params, module.check_mode)
    unqueried = outcome.values.get("unqueried")
    if unqueried:
        module.warn(
            f"{module.params['machine']}: the Match blocks of the SSH server distinguish so many addresses that logins from "
            f"only {len(module.params['peers']) - unqueried} of {len(module.params['peers'])} members were checked."
        )
    return outcome


def main() -> None:
    """The module's entry point."""
    text = {"type": "str"}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "users": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 22},
            "cluster": text,
            "machine": text,
            "address": text,
            "peers": {"type": "dict"},
            "known_hosts": text,
            "client_config": text,
            "authorized_keys": {"type": "str", "no_log": False},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: report(module))


if __name__ == "__main__":
    main()
