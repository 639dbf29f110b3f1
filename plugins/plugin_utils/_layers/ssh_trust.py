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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import derive, model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.host import trust_directory_path
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import BASE, Layer
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.names import named_members

DEFAULT_SSH_PORT = 22
ROLE_OPTIONS = ("ssh_trust_users", "ssh_trust_port")
# The seconds until ssh gives up on a silent connection: one that is lost after it was accepted would hang forever, and
# the proxy of a tailscaled that has just started loses some.
_CONNECT_TIMEOUT = 30
_USER_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}")


def desired_parameters(
    record: model.Record, machine: str, options: Mapping[str, Any], state: str = "present"
) -> dict[str, Any]:
    """The parameters of the module ssh_trust on one machine. ``options``: those of ROLE_OPTIONS.

    Raises InputError for an invalid name of a user.
    """
    cluster_name = record["name"]
    if state == "absent":
        return {"cluster": cluster_name, "state": state}
    users, port = options["ssh_trust_users"], options["ssh_trust_port"]
    members = named_members(record)
    # The only member of a cluster stands in for another one.
    peers = [named_member for named_member in members if named_member.machine != machine] or members
    return {
        "cluster": cluster_name,
        "state": state,
        "machine": machine,
        "users": list(users),
        "port": port,
        "address": derive.cluster_address(record, derive.find_member(record, machine)),
        "peers": {peer.addresses[0]: (peer.host_names or peer.addresses)[0] for peer in peers},
        "known_hosts": render_known_hosts(record, port),
        "client_config": render_client_config(record, users, port),
        "authorized_keys": render_authorized_keys(record),
    }


def render_known_hosts(record: model.Record, port: int = DEFAULT_SSH_PORT) -> str:
    """Lines of known_hosts(5) for all members whose host keys are in the record, with all their names and addresses."""
    lines = []
    for named_member in named_members(record):
        host_patterns = [_format_host(host, port) for host in (*named_member.host_names, *named_member.addresses)]
        host_keys = derive.find_member(record, named_member.machine)["ssh_host_keys"]
        lines += [f"{','.join(host_patterns)} {key}" for key in host_keys]
    return "".join(f"{line}\n" for line in lines)


def render_authorized_keys(record: model.Record) -> str:
    """Return lines of authorized_keys(5), which are equal for all users: a certificate names its user.

    They have no final newline. Members whose key is not known yet have no line.
    """
    lines = []
    for named_member in named_members(record):
        signing_key = derive.find_member(record, named_member.machine)["ssh_public_key"]
        if signing_key is not None:
            lines.append(
                f'cert-authority,from="{",".join(named_member.addresses)}" {signing_key} gpumesh {record["name"]} {named_member.machine}'
            )
    return "\n".join(lines)


def render_client_config(record: model.Record, users: Sequence[str], port: int = DEFAULT_SSH_PORT) -> str:
    """A file for /etc/ssh/ssh_config.d: verified host keys for everyone, and our key for ``users``.

    Naming a key keeps ssh from trying the default ones, so these are named as well. Raises InputError for an invalid
    user name.
    """
    refuse_invalid_users(users)
    host_names = [
        host for named_member in named_members(record) for host in (*named_member.host_names, *named_member.addresses)
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


def key_registration(record: model.Record, machine: str, module_result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of cluster_member that update a machine's keys in the record; None if it is up to date.

    ``module_result``: that of the module ssh_trust, from a verified connection. Keys that the machine does not have yet
    are left as they are.
    """
    member = next((candidate for candidate in record["members"] if candidate["machine"] == machine), None)
    if member is None:
        return None
    signing_key, host_keys = module_result.get("signing_key"), module_result.get("host_keys")
    changed_keys: dict[str, Any] = {}
    if signing_key and values.ssh_key(signing_key) != member["ssh_public_key"]:
        changed_keys["ssh_public_key"] = values.ssh_key(signing_key)
    if host_keys and host_keys != member["ssh_host_keys"]:
        changed_keys["ssh_host_keys"] = host_keys
    return {"machine": machine, **changed_keys} if changed_keys else None


def _format_host(host: str, port: int) -> str:
    return host if port == DEFAULT_SSH_PORT else f"[{host}]:{port}"


LAYER = Layer(
    "ssh_trust",
    BASE,
    options=ROLE_OPTIONS,
    desired_parameters=desired_parameters,
    lists_members=True,
    title="SSH",
)
