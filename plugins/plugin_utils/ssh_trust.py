# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that let the members' users log in to each other, derived from the record.

Each member has a signing key of its own, readable only by its root. With it, the member certifies the keys that its own
users have on it: "this is alice". The record contains the public half, and every member accepts such a certificate for
alice's account, but only from that member's addresses. So private keys are never transferred, one key per member is
enough for any number of users, and removing a member's line ends its logins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import derive, model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust.host import folder_of
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.names import named_members

STANDARD_PORT = 22
# Seconds until ssh gives up on a silent connection: one that is lost after it was accepted would hang forever, and the
# proxy of a tailscaled that has just started loses some.
_CONNECT_SECONDS = 30
_USER = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


def desired(
    record: model.Record, machine: str, users: Sequence[str], port: int = STANDARD_PORT, state: str = "present"
) -> dict[str, Any]:
    """The parameters of the module ssh_trust on one machine. Raises InputError for an invalid name of a user."""
    cluster = record["name"]
    if state == "absent":
        return {"cluster": cluster, "state": state}
    members = named_members(record)
    # The only member of a cluster stands in for another one.
    peers = [named for named in members if named.machine != machine] or members
    return {
        "cluster": cluster,
        "state": state,
        "machine": machine,
        "users": list(users),
        "port": port,
        "address": derive.cluster_address(record, derive.member_of(record, machine)),
        "peers": {peer.addresses[0]: (peer.names or peer.addresses)[0] for peer in peers},
        "known_hosts": known_hosts(record, port),
        "client_config": client_config(record, users, port),
        "authorized_keys": authorized_keys(record),
    }


def known_hosts(record: model.Record, port: int = STANDARD_PORT) -> str:
    """Lines of known_hosts(5) for all members whose host keys are in the record, with all their names and addresses."""
    lines = []
    for named in named_members(record):
        hosts = [_with_port(host, port) for host in (*named.names, *named.addresses)]
        keys = derive.member_of(record, named.machine)["ssh_host_keys"]
        lines += [f"{','.join(hosts)} {key}" for key in keys]
    return "".join(f"{line}\n" for line in lines)


def authorized_keys(record: model.Record) -> str:
    """Lines of authorized_keys(5), the same for all users: a certificate is valid for the user that it names.

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
    """A file for /etc/ssh/ssh_config.d: verified host keys for everyone, and our key for ``users``.

    Naming a key keeps ssh from trying the default ones, so these are named as well. Raises InputError for an invalid
    user name.
    """
    refuse_names(users)
    hosts = [host for named in named_members(record) for host in (*named.names, *named.addresses)]
    base = folder_of(record["name"])
    lines = [
        f"# Cluster {record['name']}, written by gpumesh.cluster.",
        f"Host {' '.join(hosts)}",
        f"    GlobalKnownHostsFile {base}/known_hosts /etc/ssh/ssh_known_hosts",
        "    StrictHostKeyChecking yes",
        f"    ConnectTimeout {_CONNECT_SECONDS}",
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


def refuse_names(users: Sequence[str]) -> None:
    """Refuse what cannot be the name of a user. Raises InputError."""
    for user in users:
        if not _USER.fullmatch(user):
            raise InputError(f"ssh_trust_users: '{user}' is not a valid user name.")


def registration(record: model.Record, machine: str, host: Mapping[str, Any]) -> dict[str, Any] | None:
    """The parameters of cluster_member that update a machine's keys in the record; None if it is up to date.

    ``host``: the result of the module ssh_trust, from a verified connection. Keys that the machine does not have yet
    are left as they are.
    """
    member = next((each for each in record["members"] if each["machine"] == machine), None)
    if member is None:
        return None
    key, host_keys = host.get("signing_key"), host.get("host_keys")
    entry: dict[str, Any] = {}
    if key and values.ssh_key(key) != member["ssh_public_key"]:
        entry["ssh_public_key"] = values.ssh_key(key)
    if host_keys and host_keys != member["ssh_host_keys"]:
        entry["ssh_host_keys"] = host_keys
    return {"machine": machine, **entry} if entry else None


def _with_port(host: str, port: int) -> str:
    return host if port == STANDARD_PORT else f"[{host}]:{port}"
