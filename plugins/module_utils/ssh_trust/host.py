# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster's SSH trust on a host: its accounts, what the SSH server accepts, and the keys in the trust's folder."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import names_in, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import server
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust.server import Account, Login

#: The signing key is in the same folder as the users' keys; no user can have this name.
SIGNING = "SIGNING"
_CERTIFICATE = "-cert.pub"
_PUBLIC = ".pub"
#: How many addresses a message contains.
_NAMED = 3
#: In the order in which clients prefer them. Clients have refused DSA keys for long.
_HOST_KEY_KINDS = ("ed25519", "ecdsa", "rsa")


class Certificate(NamedTuple):
    """A user certificate as shown by ``ssh-keygen -L``. Fingerprints as ``SHA256:...``."""

    public_key: str
    signing_key: str
    identifier: str
    principals: Sequence[str]
    forever: bool


def parse_certificate(text: str) -> Optional[Certificate]:
    """Parse the output of ``ssh-keygen -L``; None if it is not a user certificate."""
    fields = dict(re.findall(r"(?m)^ {8}([A-Z][A-Za-z ]*): ?(.*)$", text))
    block = re.search(r"(?m)^ {8}Principals: *\n((?: {16}.*\n)*)", text)
    fingerprints = [re.search(r"SHA256:\S+", fields.get(name, "")) for name in ("Public key", "Signing CA")]
    if "user certificate" not in fields.get("Type", "") or block is None or None in fingerprints:
        return None
    public_key, signing_key = (found.group() for found in fingerprints if found is not None)
    principals = [line.strip() for line in block.group(1).splitlines()]
    return Certificate(
        public_key, signing_key, fields.get("Key ID", "").strip('"'), principals, fields.get("Valid") == "forever"
    )


def fingerprint(public_key: Optional[str]) -> Optional[str]:
    """``SHA256:...`` of a public key in OpenSSH's form, None if it is not a key."""
    words = (public_key or "").split()
    try:
        blob = base64.b64decode(words[1], validate=True)
    except (IndexError, ValueError):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode("ascii").rstrip("=")


class Host(NamedTuple):
    """The current state."""

    #: The users of the trust; None for a missing account.
    accounts: Mapping[str, Optional[Account]]
    #: What applies to the logins of each of these accounts from the other members.
    servers: Mapping[str, Sequence[server.Answer]]
    #: The public keys of the SSH server.
    host_keys: Sequence[str]
    #: The public half of the key with which this host certifies its users.
    signing_key: Optional[str]
    #: Users without a key, or without a valid certificate: all of them if other accounts may know one of the keys.
    uncertified: Sequence[str]
    #: All users who have a key in the folder.
    trusted: Mapping[str, Optional[Account]]


def folder_of(cluster: str) -> str:
    """The directory with a host's keys and known hosts of a cluster."""
    return f"/etc/gpumesh/ssh/{cluster}"


def look(run: Runner, folder: str, users: Sequence[str], identifier: str, logins: Sequence[Login]) -> Host:
    """Read the state of the host.

    ``identifier``: the identity in certificates, with ``{user}`` in place of the user's name.
    """
    accounts = {user: _account(user) for user in users}
    existing = [user for user, account in accounts.items() if account is not None]
    matched = server.criteria(run) if existing and len(logins) > 1 else []
    servers = {user: server.look(run, user, logins, matched) for user in existing}
    signing_key = _public_key(os.path.join(folder, SIGNING))
    leaked = bool(exposed(folder, users))
    return Host(
        accounts,
        servers,
        host_keys(next((answers[0].server.host_key_files for answers in servers.values()), ())),
        signing_key,
        [
            user
            for user in users
            if leaked or not _is_certified(run, folder, user, signing_key, identifier.format(user=user))
        ],
        {user: _account(user) for user in trusted_users(folder)},
    )


def refusals(users: Sequence[str], host: Host) -> List[str]:
    """Why the users could not log in to this host; empty if they can."""
    reasons = []
    unknown = [user for user in users if host.accounts[user] is None]
    if unknown:
        reasons.append(without_account(unknown))
    refused: Dict[Tuple[str, str], List[str]] = {}
    for user, account in host.accounts.items():
        if account is None:
            continue
        if not account.has_home:
            reasons.append(
                f"the home directory of {user}, {account.home}, does not exist. Create it, for example with "
                f"'mkhomedir_helper {user}', mount the file system with it, or remove the name from ssh_trust_users."
            )
        excluded: Dict[str, List[str]] = {}
        for answer in host.servers[user]:
            for login in answer.logins:
                for reason in server.refusals(user, account, answer.server, login):
                    excluded.setdefault(reason, []).append(login.peer_address)
        for reason, addresses in excluded.items():
            refused.setdefault((_some(addresses), reason), []).append(user)
    for (sources, reason), names in refused.items():
        reasons.append(f"the SSH server would not accept {', '.join(names)} from {sources}: {reason}")
    return reasons


def without_account(users: Sequence[str]) -> str:
    """That a host does not have these users, and what to do."""
    return (
        f"there is no user {', '.join(users)}. Create the account on every member, or remove the name from "
        "ssh_trust_users."
    )


def unqueried(host: Host, logins: Sequence[Login]) -> int:
    """From how many members the server was not queried about each user, since its Match blocks distinguish too many."""
    covered = [sum(len(answer.logins) for answer in answers) for answers in host.servers.values()]
    return len(logins) - min(covered, default=len(logins))


def _some(addresses: Sequence[str]) -> str:
    more = f" and {len(addresses) - _NAMED} more" if len(addresses) > _NAMED else ""
    return ", ".join(addresses[:_NAMED]) + more


def exposed(folder: str, users: Sequence[str]) -> List[str]:
    """The private keys, by their names, that belong to another account than they should, or that others can read."""
    return [name for name in (SIGNING, *users) if _is_exposed(os.path.join(folder, name), name)]


def _is_exposed(path: str, name: str) -> bool:
    account = _account("root" if name == SIGNING else name)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    # The same condition as that of ssh, which does not use such a key.
    return account is not None and (found.st_uid != account.uid or bool(found.st_mode & 0o077))


def host_keys(files: Sequence[str]) -> List[str]:
    """The public halves of the server's keys, without their comments, in order of preference."""
    texts = [(read_text(path + _PUBLIC) or "").split() for path in files]
    keys = [" ".join(words[:2]) for words in texts if len(words) > 1]
    return [key for kind in _HOST_KEY_KINDS for key in keys if kind in key.split("@")[0].split()[0]]


def trusted_users(folder: str) -> List[str]:
    """Users whose keys exist were trusted; the list of users may have become shorter since."""
    names = names_in(folder)
    bases = {name[: -len(_PUBLIC)] for name in names if name.endswith(_PUBLIC) and not name.endswith(_CERTIFICATE)}
    return sorted(bases - {SIGNING})


def _account(user: str) -> Optional[Account]:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return None
    groups = [_group_name(gid) for gid in os.getgrouplist(user, found.pw_gid)]
    return Account(found.pw_uid, found.pw_dir, os.path.isdir(found.pw_dir), groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _public_key(path: str) -> Optional[str]:
    """The public half of a key pair whose private half exists too."""
    text = read_text(path + _PUBLIC)
    return text.strip() if text is not None and os.path.exists(path) else None


def _is_certified(run: Runner, folder: str, user: str, signing_key: Optional[str], identifier: str) -> bool:
    key = fingerprint(_public_key(os.path.join(folder, user)))
    signed_by = fingerprint(signing_key)
    path = os.path.join(folder, user + _CERTIFICATE)
    if key is None or signed_by is None or not os.path.exists(path):
        return False
    shown = parse_certificate(run(["ssh-keygen", "-L", "-f", path], check=False).stdout)
    return shown == Certificate(key, signed_by, identifier, [user], True)
