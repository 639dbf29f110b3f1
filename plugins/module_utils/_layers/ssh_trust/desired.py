# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that let the members' users log in to each other, derived from the record. Pure.

Each member has a signing key of its own, readable only by its root. With it, the member certifies the keys that its own
users have on it: "this is alice". The record contains the public half, and every member accepts such a certificate for
alice's account, but only from that member's addresses. So private keys are never transferred, one key per member is
enough for any number of users, and removing a member's line ends its logins.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import membership
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.host import trust_directory_path

DEFAULT_SSH_PORT = 22
# The seconds until ssh gives up on a silent connection: one that is lost after it was accepted would hang forever, and
# the proxy of a tailscaled that has just started loses some.
_CONNECT_TIMEOUT = 30
_USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


def derive_parameters(record: membership.Record, options: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the parameters of the module that follow from the record.

    ``options``: those that it does not contain: machine, users and port. Raises InputError.
    """
    machine, users, port = options["machine"], options["users"], options["port"]
    named_members = membership.named_members(record)
    # The only member of a cluster stands in for another one.
    peers = [named_member for named_member in named_members if named_member.machine != machine] or named_members
    return {
        "cluster": record["name"],
        "address": membership.cluster_address(record, membership.find_member(record, machine)),
        "peers": {peer.addresses[0]: (peer.host_names or peer.addresses)[0] for peer in peers},
        "known_hosts": render_known_hosts(record, port),
        "client_config": render_client_config(record, users, port),
        "authorized_keys": render_authorized_keys(record),
    }


def render_known_hosts(record: membership.Record, port: int = DEFAULT_SSH_PORT) -> str:
    """Lines of known_hosts(5) for all members whose host keys are in the record, with all their names and addresses."""
    lines = []
    for named_member in membership.named_members(record):
        host_patterns = [_format_host(host, port) for host in (*named_member.host_names, *named_member.addresses)]
        host_keys = named_member.member["ssh_host_keys"]
        lines += [f"{','.join(host_patterns)} {key}" for key in host_keys]
    return "".join(f"{line}\n" for line in lines)


def render_authorized_keys(record: membership.Record) -> str:
    """Return lines of authorized_keys(5), which are equal for all users: a certificate names its user.

    They have no final newline. Members whose key is not known yet have no line.
    """
    lines = []
    for named_member in membership.named_members(record):
        signing_key = named_member.member["ssh_public_key"]
        if signing_key is not None:
            lines.append(
                f'cert-authority,from="{",".join(named_member.addresses)}" {signing_key} gpumesh {record["name"]} {named_member.machine}'
            )
    return "\n".join(lines)


def render_client_config(record: membership.Record, users: Sequence[str], port: int = DEFAULT_SSH_PORT) -> str:
    """A file for /etc/ssh/ssh_config.d: verified host keys for everyone, and our key for ``users``.

    Naming a key keeps ssh from trying the default ones, so these are named as well. Raises InputError for an invalid
    user name.
    """
    refuse_invalid_users(users)
    host_names = [
        host
        for named_member in membership.named_members(record)
        for host in (*named_member.host_names, *named_member.addresses)
    ]
    trust_directory = trust_directory_path(record["name"])
    lines = [
        f"# Cluster {record['name']}, written by gpumesh.cluster.",
        f"Host {' '.join(host_names)}",
        f"    GlobalKnownHostsFile {trust_directory}/known_hosts /etc/ssh/ssh_known_hosts",
        "    StrictHostKeyChecking yes",
        f"    ConnectTimeout {_CONNECT_TIMEOUT}",
    ]
    if port != DEFAULT_SSH_PORT:
        lines.append(f"    Port {port}")
    if users:
        lines += [
            f"Match originalhost {','.join(host_names)} localuser {','.join(users)}",
            f"    CertificateFile {trust_directory}/%u-cert.pub",
            f"    IdentityFile {trust_directory}/%u",
            "    IdentityFile ~/.ssh/id_ed25519",
            "    IdentityFile ~/.ssh/id_ecdsa",
            "    IdentityFile ~/.ssh/id_rsa",
        ]
    return "".join(f"{line}\n" for line in lines)


def refuse_invalid_users(users: Sequence[str]) -> None:
    """Refuse what cannot be the name of a user. Raises InputError."""
    for user in users:
        if not _USER_NAME.fullmatch(user):
            raise InputError(f"ssh_trust_users: '{user}' is not a valid user name.")


def _format_host(host: str, port: int) -> str:
    return host if port == DEFAULT_SSH_PORT else f"[{host}]:{port}"
