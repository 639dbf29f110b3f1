# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that let the members' users log in to each other, derived from the record.

Each member has a signing key of its own, readable by its root alone. With it the member certifies the keys that its
own users have on it: "this is alice". The record holds the public half, and every member accepts such a certificate
for alice's account, from that member's addresses only. So no private key ever travels, one key a member is enough for
any number of users, and a member's logins end with its line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, values
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.names import named_members

STANDARD_PORT = 22
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


def folder(record: model.Record) -> str:
    """Where a member keeps its keys and known hosts of this cluster."""
    return f"/etc/gpumesh/ssh/{record['name']}"


def known_hosts(record: model.Record, port: int = STANDARD_PORT) -> str:
    """Lines of known_hosts(5) for every member whose host keys the record has, under all its names and addresses."""
    lines = []
    for named in named_members(record):
        hosts = [_with_port(host, port) for host in (*named.names, *named.addresses)]
        keys = derive.member_of(record, named.machine)["ssh_host_keys"]
        lines += [f"{','.join(hosts)} {key}" for key in keys]
    return "".join(f"{line}\n" for line in lines)


def authorized_keys(record: model.Record) -> str:
    """Lines of authorized_keys(5), the same for every user: a certificate counts for the user whom it names.

    Without a final newline. Members whose key is not known yet have no line.
    """
    lines = []
    for named in named_members(record):
        key = derive.member_of(record, named.machine)["ssh_public_key"]
        if key is not None:
            lines.append(
                f'cert-authority,from="{",".join(named.addresses)}" {key} gpumesh {record["name"]} {named.machine}'
            )
    return "\n".join(lines)


def client_config(record: model.Record, users: Sequence[str], port: int = STANDARD_PORT) -> str:
    """A file for /etc/ssh/ssh_config.d: verified host keys for everyone, our key for ``users``.

    Naming one key keeps ssh from trying the usual ones, so these are named too. Raises InputError for a user's name
    that is none.
    """
    for user in users:
        if not _USER.fullmatch(user):
            raise InputError(f"ssh_trust_users: '{user}' is no name of a user.")
    hosts = [host for named in named_members(record) for host in (*named.names, *named.addresses)]
    base = folder(record)
    lines = [
        f"# Cluster {record['name']}, written by gpumesh.cluster.",
        f"Host {' '.join(hosts)}",
        f"    GlobalKnownHostsFile {base}/known_hosts /etc/ssh/ssh_known_hosts",
        "    StrictHostKeyChecking yes",
    ]
    if port != STANDARD_PORT:
        lines.append(f"    Port {port}")
    if users:
        lines += [
            f"Match originalhost {','.join(hosts)} localuser {','.join(users)}",
            f"    CertificateFile {base}/%u-cert.pub",
            f"    IdentityFile {base}/%u",
            "    IdentityFile ~/.ssh/id_ed25519",
            "    IdentityFile ~/.ssh/id_ecdsa",
            "    IdentityFile ~/.ssh/id_rsa",
        ]
    return "".join(f"{line}\n" for line in lines)


def registrations(record: model.Record, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What cluster_member has to be told: the members whose keys differ from the record's.

    ``found``: what module ssh_trust_info gave by machine, read over a connection that is verified already. Members
    that are not in it, and what they have no key for yet, stay as they are.
    """
    changed = []
    for member in record["members"]:
        host = found.get(member["machine"]) or {}
        entry: dict[str, Any] = {}
        key, host_keys = host.get("signing_key"), host.get("host_keys")
        if key and values.ssh_key(key) != member["ssh_public_key"]:
            entry["ssh_public_key"] = values.ssh_key(key)
        if host_keys and host_keys != member["ssh_host_keys"]:
            entry["ssh_host_keys"] = host_keys
        if entry:
            changed.append({"machine": member["machine"], **entry})
    return changed


def refusals(users: Sequence[str], found: Mapping[str, Any]) -> list[str]:
    """Why the users could not log in to a host, of which module ssh_trust_info gave ``found``; empty when they can."""
    reasons = []
    unknown = [user for user in users if not found["accounts"].get(user)]
    server = found["server"]
    if unknown:
        reasons.append(
            f"there is no user {', '.join(unknown)}. Create the account on every member, or take the name out of "
            "ssh_trust_users."
        )
    if not server["public_key_login"]:
        reasons.append("the SSH server has PubkeyAuthentication no. Set it to yes.")
    if "root" in users and server["root_login"] == "no":
        reasons.append(
            "the SSH server has PermitRootLogin no, and root is in ssh_trust_users. Name other users there, or set "
            "PermitRootLogin to prohibit-password."
        )
    if not any(path.endswith(".ssh/authorized_keys") for path in server["authorized_keys"]):
        reasons.append("the SSH server does not read ~/.ssh/authorized_keys. Add it to AuthorizedKeysFile.")
    return reasons


def trust_files(
    record: model.Record, users: Sequence[str], found: Mapping[str, Any], port: int = STANDARD_PORT
) -> list[dict[str, Any]]:
    """What module file_set is to see to on a host, of which module ssh_trust_info gave ``found``.

    Without ``users``, the trust ends: nothing of it stays, whoever had it.
    """
    base, marker = folder(record), host_files.marker(record["name"])
    stale = {user: account for user, account in found["trusted"].items() if user not in users}
    files: list[dict[str, Any]] = []
    if users:
        files += [
            {"path": f"{base}/known_hosts", "content": known_hosts(record, port)},
            {"path": client_config_path(record), "content": client_config(record, users, port)},
        ]
    else:
        files += [{"path": path, "state": "absent"} for path in (client_config_path(record), base)]
    for user in users:
        home = found["accounts"][user]["home"]
        entry = {"path": f"{home}/.ssh", "state": "directory", "owner": user, "mode": "0700"}
        block = {"state": "block", "marker": marker, "content": authorized_keys(record), "owner": user, "mode": "0600"}
        files += [entry, {"path": f"{home}/.ssh/authorized_keys", **block}]
    for user, account in stale.items():
        # An account that is gone has no lines of ours either.
        if account is not None:
            files.append({"path": f"{account['home']}/.ssh/authorized_keys", "state": "absent", "marker": marker})
        if users:
            files += [{"path": f"{base}/{user}{suffix}", "state": "absent"} for suffix in ("", ".pub", "-cert.pub")]
    return files


def client_config_path(record: model.Record) -> str:
    """Where ssh reads of the members."""
    return f"/etc/ssh/ssh_config.d/gpumesh-{record['name']}.conf"


def _with_port(host: str, port: int) -> str:
    return host if port == STANDARD_PORT else f"[{host}]:{port}"
