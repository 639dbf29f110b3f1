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

from typing import Any, Dict, List, Tuple

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.generation import (
    COPY_OPTION,
    DERIVED_OPTION,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, exit_with
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import files, host, keys
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.desired import derive_parameters


def work(module_params: Dict[str, Any], check_mode: bool) -> ModuleResult:
    """Inspect the host, create missing keys, then write the files."""
    params = {**module_params, "users": module_params["users"] if module_params["state"] == "present" else []}
    cluster, users = params["cluster"], params["users"]
    missing_programs = host.find_missing_programs() if users else []
    if missing_programs:
        return ModuleResult(check_mode, {"missing": missing_programs})
    key_directory, identifier = host.trust_directory_path(cluster), files.certificate_identifier(params)
    expected_logins = files.peer_logins(params) if users else []
    host_state = host.read_host_trust(run, key_directory, users, identifier, expected_logins)
    if users:
        _refuse_unusable(params["machine"], host.explain_refusals(users, host_state))
    # Everything is checked before anything is changed.
    directory_steps = managed_files.plan_changes(files.directory_entries(cluster)) if users else []
    file_steps = managed_files.plan_changes(files.desired_entries(params, host_state))
    certified_users, stale_paths = (
        list(host_state.uncertified_users),
        files.find_stale_keys(params, host_state) if users else [],
    )
    if not check_mode:
        managed_files.apply_file_changes(directory_steps)
        if certified_users:
            keys.certify_users(run, key_directory, certified_users, identifier)
        managed_files.apply_file_changes(file_steps)
        # The keys are removed last, since they identify the lines that have to be removed.
        for stale_path in stale_paths:
            remove_file(stale_path)
    steps = [*directory_steps, *file_steps]
    values: Dict[str, Any] = {"certified": certified_users, "paths": [*(step.path for step in steps), *stale_paths]}
    if users:
        current_state = (
            host.read_host_trust(run, key_directory, users, identifier, expected_logins)
            if certified_users and not check_mode
            else host_state
        )
        values.update(host_keys=current_state.host_keys, signing_key=current_state.signing_key)
        unqueried_count = host.count_unqueried_members(host_state, expected_logins)
        values.update({"unqueried": unqueried_count} if unqueried_count else {})
    diff_before, diff_after = managed_files.format_diff(steps)
    created_diff, removed_diff = _format_key_diff(key_directory, certified_users, stale_paths)
    return ModuleResult(
        bool(certified_users or values["paths"]),
        values,
        diff_before + removed_diff[0] + created_diff[0],
        diff_after + removed_diff[1] + created_diff[1],
    )


def _refuse_unusable(machine: str, refusal_reasons: List[str]) -> None:
    if refusal_reasons:
        raise HostStateError(" ".join(f"{machine}: {reason}" for reason in refusal_reasons))


def _format_key_diff(
    key_directory: str, certified_users: List[str], stale_paths: List[str]
) -> Tuple[Tuple[str, str], Tuple[str, str]]:
    """Return the diffs of the keys, which only tell that keys are created or removed."""
    certificate_paths = [f"{key_directory}/{user}-cert.pub" for user in certified_users]
    return (
        (
            "".join(f"{path}: absent\n" for path in certificate_paths),
            "".join(f"{path}: file\n" for path in certificate_paths),
        ),
        ("".join(f"{path}: file\n" for path in stale_paths), "".join(f"{path}: absent\n" for path in stale_paths)),
    )


def report(module: AnsibleModule) -> ModuleResult:
    """Do the work, and warn about members that were left out of the queries."""
    trust_result = work(module.params, module.check_mode)
    unqueried_count = trust_result.return_values.get("unqueried")
    if unqueried_count:
        module.warn(
            f"{module.params['machine']}: the Match blocks of the SSH server distinguish so many addresses that logins from "
            f"only {len(module.params['peers']) - unqueried_count} of {len(module.params['peers'])} members were checked."
        )
    return trust_result


def main() -> None:
    """The module's entry point."""
    text_option = {"type": "str"}
    module = AnsibleModule(
        argument_spec={
            "record": {"type": "raw"},
            **DERIVED_OPTION,
            **COPY_OPTION,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "users": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 22},
            "cluster": text_option,
            "machine": text_option,
            "address": text_option,
            "peers": {"type": "dict"},
            "known_hosts": text_option,
            "client_config": text_option,
            "authorized_keys": {"type": "str", "no_log": False},
        },
        supports_check_mode=True,
    )
    exit_with(module, lambda: report(module), derive=derive_parameters)


if __name__ == "__main__":
    main()
