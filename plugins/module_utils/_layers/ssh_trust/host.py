# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster's SSH trust on a host: its accounts, what the SSH server accepts, and the keys in the trust's directory."""

from __future__ import annotations

import base64
import grp
import hashlib
import os
import pwd
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import list_names, read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import server
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.server import PeerLogin, UserAccount

#: The name of the signing key, which is in the same directory as the users' keys; no user can have it.
SIGNING_KEY_NAME = "SIGNING"
_CERTIFICATE_SUFFIX = "-cert.pub"
_PUBLIC_SUFFIX = ".pub"
#: The kinds of keys in the order in which clients prefer them. DSA is omitted: clients have refused it for long.
_HOST_KEY_KINDS = ("ed25519", "ecdsa", "rsa")
_CLIENT_PROGRAMS = ("ssh", "ssh-keygen")


class UserCertificate(NamedTuple):
    """A user certificate as shown by ``ssh-keygen -L``. Fingerprints as ``SHA256:...``."""

    public_key: str
    signing_key: str
    identifier: str
    principals: Sequence[str]
    valid_forever: bool


def parse_certificate(keygen_output: str) -> Optional[UserCertificate]:
    """Parse the output of ``ssh-keygen -L``; None if it is not a user certificate."""
    fields = dict(re.findall(r"(?m)^ {8}([A-Z][A-Za-z ]*): ?(.*)$", keygen_output))
    principals_match = re.search(r"(?m)^ {8}Principals: *\n((?: {16}.*\n)*)", keygen_output)
    fingerprint_matches = [re.search(r"SHA256:\S+", fields.get(name, "")) for name in ("Public key", "Signing CA")]
    if "user certificate" not in fields.get("Type", "") or principals_match is None or None in fingerprint_matches:
        return None
    public_key, signing_key = (
        fingerprint_match.group() for fingerprint_match in fingerprint_matches if fingerprint_match is not None
    )
    principals = [line.strip() for line in principals_match.group(1).splitlines()]
    return UserCertificate(
        public_key, signing_key, fields.get("Key ID", "").strip('"'), principals, fields.get("Valid") == "forever"
    )


def public_key_fingerprint(public_key: Optional[str]) -> Optional[str]:
    """Return ``SHA256:...`` of a public key in OpenSSH's form, None if it is not a key."""
    key_parts = (public_key or "").split()
    try:
        key_bytes = base64.b64decode(key_parts[1], validate=True)
    except (IndexError, ValueError):
        return None
    return "SHA256:" + base64.b64encode(hashlib.sha256(key_bytes).digest()).decode("ascii").rstrip("=")


class HostTrust(NamedTuple):
    """The current state."""

    #: The users of the trust; None for a missing account.
    account_by_user: Mapping[str, Optional[UserAccount]]
    #: The settings that apply to the logins of each of these accounts from the other members.
    responses_by_user: Mapping[str, Sequence[server.SshdResponse]]
    #: The public keys of the SSH server.
    host_keys: Sequence[str]
    #: The public half of the key with which this host certifies its users.
    signing_key: Optional[str]
    #: Users without a key, or without a valid certificate: all of them if other accounts may know one of the keys.
    uncertified_users: Sequence[str]
    #: All users who have a key in the directory.
    trusted_accounts: Mapping[str, Optional[UserAccount]]


def trust_directory_path(cluster: str) -> str:
    """Return the directory with a host's keys and known hosts of a cluster."""
    return f"/etc/gpumesh/ssh/{cluster}"


def find_missing_programs() -> List[str]:
    """Return the programs of the SSH client that the host lacks. From Debian 14 on, the server comes without them."""
    return [program for program in _CLIENT_PROGRAMS if find_program(program) is None]


def read_host_trust(
    run: Runner, trust_directory: str, users: Sequence[str], identifier: str, logins: Sequence[PeerLogin]
) -> HostTrust:
    """Read the state of the host.

    ``identifier``: the identity in certificates, with ``{user}`` in place of the user's name.
    """
    account_by_user = {user: _find_account(user) for user in users}
    existing_users = [user for user, account in account_by_user.items() if account is not None]
    match_criteria = server.read_match_criteria(run) if existing_users and len(logins) > 1 else []
    responses_by_user = {user: server.query_server(run, user, logins, match_criteria) for user in existing_users}
    signing_key = _read_public_key(os.path.join(trust_directory, SIGNING_KEY_NAME))
    keys_exposed = bool(find_exposed_keys(trust_directory, users))
    return HostTrust(
        account_by_user,
        responses_by_user,
        read_host_keys(next((responses[0].settings.host_key_files for responses in responses_by_user.values()), ())),
        signing_key,
        [
            user
            for user in users
            if keys_exposed or not _is_certified(run, trust_directory, user, signing_key, identifier.format(user=user))
        ],
        {user: _find_account(user) for user in list_trusted_users(trust_directory)},
    )


def explain_refusals(users: Sequence[str], host_trust: HostTrust) -> List[str]:
    """Explain why the users could not log in to this host; empty if they can."""
    reasons = []
    unknown_users = [user for user in users if host_trust.account_by_user[user] is None]
    if unknown_users:
        reasons.append(explain_missing_accounts(unknown_users))
    users_by_refusal: Dict[Tuple[str, str], List[str]] = {}
    for user, account in host_trust.account_by_user.items():
        if account is None:
            continue
        if not account.has_home:
            reasons.append(
                f"the home directory of {user}, {account.home_directory}, does not exist. Create it, for example with "
                f"'mkhomedir_helper {user}', mount the file system with it, or remove the name from ssh_trust_users."
            )
        addresses_by_reason: Dict[str, List[str]] = {}
        for response in host_trust.responses_by_user[user]:
            for login in response.logins:
                for reason in server.explain_refusals(user, account, response.settings, login):
                    addresses_by_reason.setdefault(reason, []).append(login.peer_address)
        for reason, addresses in addresses_by_reason.items():
            users_by_refusal.setdefault((join_names(addresses, ""), reason), []).append(user)
    for (source_addresses, reason), user_names in users_by_refusal.items():
        reasons.append(f"the SSH server would not accept {', '.join(user_names)} from {source_addresses}: {reason}")
    return reasons


def explain_missing_accounts(users: Sequence[str]) -> str:
    """Explain that a host does not have these users, and what to do."""
    return (
        f"there is no user {', '.join(users)}. Create the account on every member, or remove the name from "
        "ssh_trust_users."
    )


def count_unqueried_members(host_trust: HostTrust, logins: Sequence[PeerLogin]) -> int:
    """Count the members for which the server was not queried, since its Match blocks distinguish too many."""
    covered = [
        sum(len(response.logins) for response in responses) for responses in host_trust.responses_by_user.values()
    ]
    return len(logins) - min(covered, default=len(logins))


def find_exposed_keys(trust_directory: str, users: Sequence[str]) -> List[str]:
    """Return the names of the private keys that belong to another account than they should, or that others can read."""
    return [name for name in (SIGNING_KEY_NAME, *users) if _is_exposed(os.path.join(trust_directory, name), name)]


def _is_exposed(key_path: str, key_name: str) -> bool:
    account = _find_account("root" if key_name == SIGNING_KEY_NAME else key_name)
    try:
        file_status = os.stat(key_path)
    except FileNotFoundError:
        return False
    # The same condition as that of ssh, which does not use such a key.
    return account is not None and (file_status.st_uid != account.uid or bool(file_status.st_mode & 0o077))


def read_host_keys(files: Sequence[str]) -> List[str]:
    """Read the public halves of the server's keys, without their comments, in order of preference."""
    key_parts = [(read_text(path + _PUBLIC_SUFFIX) or "").split() for path in files]
    keys = [" ".join(parts[:2]) for parts in key_parts if len(parts) > 1]
    return [key for kind in _HOST_KEY_KINDS for key in keys if kind in key.split("@")[0].split()[0]]


def list_trusted_users(trust_directory: str) -> List[str]:
    """Return the users whose keys exist. They were trusted; the list of users may have become shorter since."""
    names = list_names(trust_directory)
    bases = {
        name[: -len(_PUBLIC_SUFFIX)]
        for name in names
        if name.endswith(_PUBLIC_SUFFIX) and not name.endswith(_CERTIFICATE_SUFFIX)
    }
    return sorted(bases - {SIGNING_KEY_NAME})


def _find_account(user_name: str) -> Optional[UserAccount]:
    try:
        passwd_entry = pwd.getpwnam(user_name)
    except KeyError:
        return None
    groups = [_group_name(gid) for gid in os.getgrouplist(user_name, passwd_entry.pw_gid)]
    return UserAccount(passwd_entry.pw_uid, passwd_entry.pw_dir, os.path.isdir(passwd_entry.pw_dir), groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _read_public_key(path: str) -> Optional[str]:
    """Read the public half of a key pair whose private half exists too."""
    text = read_text(path + _PUBLIC_SUFFIX)
    return text.strip() if text is not None and os.path.exists(path) else None


def _is_certified(run: Runner, trust_directory: str, user: str, signing_key: Optional[str], identifier: str) -> bool:
    user_fingerprint = public_key_fingerprint(_read_public_key(os.path.join(trust_directory, user)))
    signer_fingerprint = public_key_fingerprint(signing_key)
    certificate_path = os.path.join(trust_directory, user + _CERTIFICATE_SUFFIX)
    if user_fingerprint is None or signer_fingerprint is None or not os.path.exists(certificate_path):
        return False
    certificate = parse_certificate(run(["ssh-keygen", "-L", "-f", certificate_path], check=False).stdout)
    return certificate == UserCertificate(user_fingerprint, signer_fingerprint, identifier, [user], True)
