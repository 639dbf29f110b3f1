# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cluster's SSH trust on a host: its accounts, the SSH server's settings, and the keys in the trust's folder."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text

#: The signing key is in the same folder as the users' keys; no user can have this name.
SIGNING = "SIGNING"
_CERTIFICATE = "-cert.pub"
_PUBLIC = ".pub"
#: In the order in which clients prefer them. Clients have refused DSA keys for long.
_HOST_KEY_KINDS = ("ed25519", "ecdsa", "rsa")


class Certificate(NamedTuple):
    """A user certificate as shown by ``ssh-keygen -L``. Fingerprints as ``SHA256:...``."""

    public_key: str
    signing_key: str
    identifier: str
    principals: Sequence[str]
    forever: bool


class Account(NamedTuple):
    """A user of the host."""

    gid: int
    home: str


class Server(NamedTuple):
    """The settings of the SSH server that the trust depends on, as ``sshd -T`` prints them."""

    public_key_login: bool
    root_login: str
    authorized_keys: Sequence[str]
    host_key_files: Sequence[str]


def parse_server(text: str) -> Server:
    """Parse the output of ``sshd -T``: one setting per line, in lower case."""
    settings: Dict[str, List[str]] = {}
    for line in text.splitlines():
        name, _space, value = line.strip().partition(" ")
        settings.setdefault(name, []).append(value)
    if "pubkeyauthentication" not in settings:
        raise ParseError("sshd -T", "it has no line 'pubkeyauthentication'")
    return Server(
        settings["pubkeyauthentication"] == ["yes"],
        settings.get("permitrootlogin", [""])[0],
        " ".join(settings.get("authorizedkeysfile", [])).split(),
        settings.get("hostkey", []),
    )


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
    server: Server
    #: The public keys of the SSH server.
    host_keys: Sequence[str]
    #: The public half of the key with which this host certifies its users.
    signing_key: Optional[str]
    #: Users without a key, or without a valid certificate.
    uncertified: Sequence[str]
    #: All users who have a key in the folder.
    trusted: Mapping[str, Optional[Account]]


def folder_of(cluster: str) -> str:
    """The directory with a host's keys and known hosts of a cluster."""
    return f"/etc/gpumesh/ssh/{cluster}"


def look(run: Runner, folder: str, users: Sequence[str], identifier: str) -> Host:
    """Read the state of the host.

    ``identifier``: the identity in certificates, with ``{user}`` in place of the user's name.
    """
    server = parse_server(run(["sshd", "-T", "-C", "user=root,host=localhost,addr=127.0.0.1"]).stdout)
    signing_key = _public_key(os.path.join(folder, SIGNING))
    return Host(
        {user: _account(user) for user in users},
        server,
        host_keys(server.host_key_files),
        signing_key,
        [user for user in users if not _is_certified(run, folder, user, signing_key, identifier.format(user=user))],
        {user: _account(user) for user in trusted_users(folder)},
    )


def refusals(users: Sequence[str], host: Host) -> List[str]:
    """Why the users could not log in to this host; empty if they can."""
    reasons = []
    unknown = [user for user in users if host.accounts[user] is None]
    if unknown:
        reasons.append(
            f"there is no user {', '.join(unknown)}. Create the account on every member, or remove the name from "
            "ssh_trust_users."
        )
    if not host.server.public_key_login:
        reasons.append("the SSH server has PubkeyAuthentication no. Set it to yes.")
    if "root" in users and host.server.root_login == "no":
        reasons.append(
            "the SSH server has PermitRootLogin no, but root is in ssh_trust_users. Set other users there, or set "
            "PermitRootLogin to prohibit-password."
        )
    if not any(path.endswith(".ssh/authorized_keys") for path in host.server.authorized_keys):
        reasons.append("the SSH server does not read ~/.ssh/authorized_keys. Add it to AuthorizedKeysFile.")
    return reasons


def host_keys(files: Sequence[str]) -> List[str]:
    """The public halves of the server's keys, without their comments, in order of preference."""
    texts = [(read_text(path + _PUBLIC) or "").split() for path in files]
    keys = [" ".join(words[:2]) for words in texts if len(words) > 1]
    return [key for kind in _HOST_KEY_KINDS for key in keys if kind in key.split("@")[0].split()[0]]


def trusted_users(folder: str) -> List[str]:
    """Users whose keys exist were trusted; the list of users may have become shorter since."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    bases = {name[: -len(_PUBLIC)] for name in names if name.endswith(_PUBLIC) and not name.endswith(_CERTIFICATE)}
    return sorted(bases - {SIGNING})


def _account(user: str) -> Optional[Account]:
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return None
    return Account(found.pw_gid, found.pw_dir)


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
