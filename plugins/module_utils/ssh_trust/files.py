# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files with which the members' users log in to each other, on this host."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import host as ssh_host
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust.server import Login

#: A user's files in the trust's directory.
KEY_SUFFIXES = ("", ".pub", "-cert.pub")


def folders(cluster: str) -> List[Dict[str, Any]]:
    """The directory in which keys are generated."""
    places = [{"path": path, "state": "directory"} for path in ("/etc/gpumesh", "/etc/gpumesh/ssh")]
    return [*places, {"path": ssh_host.folder_of(cluster), "state": "directory", "mode": "0755"}]


def entries(params: Mapping[str, Any], found: ssh_host.Host) -> List[Dict[str, Any]]:
    """The wanted files, for host_files. ``params``: the module's. Without users, the trust is removed for all."""
    cluster, users = params["cluster"], params["users"]
    folder, config = ssh_host.folder_of(cluster), f"/etc/ssh/ssh_config.d/gpumesh-{cluster}.conf"
    block = {"state": "block", "marker": host_files.marker(cluster)}
    wanted: List[Dict[str, Any]] = []
    if users:
        wanted += [
            {"path": f"{folder}/known_hosts", "content": params["known_hosts"]},
            {"path": config, "content": params["client_config"]},
        ]
    for user in users:
        account = found.accounts[user]
        if account is not None:
            path, owner = f"{account.home}/.ssh", {"owner": user}
            wanted += [
                {"path": path, "state": "directory", "mode": "0700", **owner},
                {
                    "path": f"{path}/authorized_keys",
                    "content": params["authorized_keys"],
                    **block,
                    "mode": "0600",
                    **owner,
                },
            ]
    for user, account in found.trusted.items():
        # A deleted account has no managed lines either.
        if user not in users and account is not None:
            wanted.append({"path": f"{account.home}/.ssh/authorized_keys", **block, "state": "absent"})
    if not users:
        # Last, since the keys show whose lines have to be removed.
        wanted += [{"path": path, "state": "absent"} for path in (config, folder)]
    return wanted


def stale_keys(params: Mapping[str, Any], found: ssh_host.Host) -> List[str]:
    """The key files of users who are no longer trusted. Not among the entries, whose contents a diff may show."""
    folder = ssh_host.folder_of(params["cluster"])
    paths = [
        f"{folder}/{user}{suffix}" for user in found.trusted for suffix in KEY_SUFFIXES if user not in params["users"]
    ]
    return [path for path in paths if os.path.lexists(path)]


def differences(run: Runner, params: Mapping[str, Any]) -> host_files.Differences:
    """How this host differs from the module's parameters."""
    folder, users = ssh_host.folder_of(params["cluster"]), params["users"]
    found = ssh_host.look(run, folder, users, identifier(params), logins(params))
    reasons = ssh_host.refusals(users, found)
    if reasons:
        return host_files.Differences([" ".join(reasons).rstrip(".")], False)
    words, nothing_there = host_files.differences(entries(params, found))
    certificates = [f"{folder}/{user}-cert.pub" for user in found.uncertified]
    words += [f"{path} {'differs' if os.path.exists(path) else 'is missing'}" for path in certificates]
    words += [f"{path} is no longer wanted" for path in stale_keys(params, found)]
    return host_files.Differences(words, nothing_there and len(certificates) == len(users))


def identifier(params: Mapping[str, Any]) -> str:
    """The identity in the certificates of this host's users; ``{user}`` stands for a user's name."""
    return f"{{user}}@{params['machine']} gpumesh {params['cluster']}"


def logins(params: Mapping[str, Any]) -> List[Login]:
    """The logins from the other members, for which the SSH server is queried."""
    return [Login(name, address, params["address"], params["port"]) for address, name in params["peers"].items()]
