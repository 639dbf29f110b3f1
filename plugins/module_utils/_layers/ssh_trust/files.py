# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files on this host with which the members' users log in to each other."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import host as ssh_host
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.server import PeerLogin

#: A user's files in the trust's directory.
KEY_SUFFIXES = ("", ".pub", "-cert.pub")


def directory_entries(cluster: str) -> List[Dict[str, Any]]:
    """Return the entries of the directory in which keys are generated."""
    parent_entries = [{"path": path, "state": "directory"} for path in ("/etc/gpumesh", "/etc/gpumesh/ssh")]
    return [*parent_entries, {"path": ssh_host.trust_directory_path(cluster), "state": "directory", "mode": "0755"}]


def desired_entries(params: Mapping[str, Any], host_trust: ssh_host.HostTrust) -> List[Dict[str, Any]]:
    """Return the desired files, for managed_files. Without users, the trust is removed for all."""
    cluster, users = params["cluster"], params["users"]
    trust_directory, config_path = (
        ssh_host.trust_directory_path(cluster),
        f"/etc/ssh/ssh_config.d/gpumesh-{cluster}.conf",
    )
    block_options = {"state": "block", "marker": managed_files.block_marker(cluster)}
    file_entries: List[Dict[str, Any]] = []
    if users:
        file_entries += [
            {"path": f"{trust_directory}/known_hosts", "content": params["known_hosts"]},
            {"path": config_path, "content": params["client_config"]},
        ]
    for user in users:
        account = host_trust.account_by_user[user]
        if account is not None:
            path, owner_option = f"{account.home_directory}/.ssh", {"owner": user}
            file_entries += [
                {"path": path, "state": "directory", "mode": "0700", **owner_option},
                {
                    "path": f"{path}/authorized_keys",
                    "content": params["authorized_keys"],
                    **block_options,
                    "mode": "0600",
                    **owner_option,
                },
            ]
    for user, account in host_trust.trusted_accounts.items():
        # A deleted account has no managed lines either.
        if user not in users and account is not None:
            file_entries.append(
                {"path": f"{account.home_directory}/.ssh/authorized_keys", **block_options, "state": "absent"}
            )
    if not users:
        # The keys are removed last, since they show whose lines have to be removed.
        file_entries += [{"path": path, "state": "absent"} for path in (config_path, trust_directory)]
    return file_entries


def find_stale_keys(params: Mapping[str, Any], host_trust: ssh_host.HostTrust) -> List[str]:
    """Return the key files of users who are no longer trusted, which no diff may show."""
    trust_directory = ssh_host.trust_directory_path(params["cluster"])
    key_paths = [
        f"{trust_directory}/{user}{suffix}"
        for user in host_trust.trusted_accounts
        for suffix in KEY_SUFFIXES
        if user not in params["users"]
    ]
    return [path for path in key_paths if os.path.lexists(path)]


def find_differences(run: Runner, params: Mapping[str, Any]) -> managed_files.LayerDifferences:
    """Describe how this host differs from the module's parameters."""
    trust_directory, users = ssh_host.trust_directory_path(params["cluster"]), params["users"]
    missing_programs = ssh_host.find_missing_programs()
    if missing_programs:
        return managed_files.LayerDifferences([f"{', '.join(missing_programs)} not installed"], False)
    host_trust = ssh_host.read_host_trust(
        run, trust_directory, users, certificate_identifier(params), peer_logins(params)
    )
    refusal_reasons = ssh_host.explain_refusals(users, host_trust)
    if refusal_reasons:
        return managed_files.LayerDifferences([" ".join(refusal_reasons).rstrip(".")], False)
    descriptions, all_absent = managed_files.differences(desired_entries(params, host_trust))
    certificate_paths = [f"{trust_directory}/{user}-cert.pub" for user in host_trust.uncertified_users]
    descriptions += [f"{path} {'differs' if os.path.exists(path) else 'is missing'}" for path in certificate_paths]
    descriptions += [f"{path} is no longer wanted" for path in find_stale_keys(params, host_trust)]
    return managed_files.LayerDifferences(descriptions, all_absent and len(certificate_paths) == len(users))


def certificate_identifier(params: Mapping[str, Any]) -> str:
    """Return the identity in the certificates of this host's users; ``{user}`` stands for a user's name."""
    return f"{{user}}@{params['machine']} gpumesh {params['cluster']}"


def peer_logins(params: Mapping[str, Any]) -> List[PeerLogin]:
    """Return the logins from the other members, for which the SSH server is queried."""
    return [PeerLogin(name, address, params["address"], params["port"]) for address, name in params["peers"].items()]
