# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the SSH server of a host would accept a user with a key from another member, judged by ``sshd -T``."""

from __future__ import annotations

import ipaddress
import re
from typing import Dict, List, NamedTuple, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError


class Login(NamedTuple):
    """Where users come from, and where they arrive. ``peer`` is the name of another member."""

    peer: str
    peer_address: str
    address: str
    port: int


class Account(NamedTuple):
    """A user of the host, with the names of its groups."""

    uid: int
    home: str
    has_home: bool
    groups: Sequence[str]


class Server(NamedTuple):
    """The settings that the trust depends on, as ``sshd -T`` prints them for one login."""

    use_dns: bool
    public_key_login: bool
    root_login: str
    methods: Sequence[str]
    deny_users: Sequence[str]
    allow_users: Sequence[str]
    deny_groups: Sequence[str]
    allow_groups: Sequence[str]
    authorized_keys: Sequence[str]
    host_key_files: Sequence[str]


def look(run: Runner, user: str, login: Login) -> Server:
    """The settings for a login of ``user``, including the Match blocks that apply to it. Raises GpumeshError."""

    def ask(client: str) -> Server:
        # A Match block about something that is not given here is an error.
        known = f"user={user},host={client},addr={login.peer_address},laddr={login.address},lport={login.port}"
        return parse(run(["sshd", "-T", "-C", known]).stdout)

    # Without UseDNS, the server uses a client's address as its name.
    found = ask(login.peer_address)
    return ask(login.peer) if found.use_dns else found


def parse(text: str) -> Server:
    """Parse the output of ``sshd -T``: one setting per line, in lower case. Users and groups have a line each."""
    settings: Dict[str, List[str]] = {}
    for line in text.splitlines():
        name, _space, value = line.strip().partition(" ")
        settings.setdefault(name, []).append(value)
    if "pubkeyauthentication" not in settings:
        raise ParseError("sshd -T", "it has no line 'pubkeyauthentication'")
    return Server(
        settings.get("usedns") == ["yes"],
        settings["pubkeyauthentication"] == ["yes"],
        settings.get("permitrootlogin", [""])[0],
        " ".join(settings.get("authenticationmethods", [])).split(),
        settings.get("denyusers", []),
        settings.get("allowusers", []),
        settings.get("denygroups", []),
        settings.get("allowgroups", []),
        " ".join(settings.get("authorizedkeysfile", [])).split(),
        settings.get("hostkey", []),
    )


def refusals(user: str, account: Account, server: Server, login: Login) -> List[str]:
    """Why the server would not accept the user, each with a remedy; empty if it would."""
    reasons = []
    if not server.public_key_login:
        reasons.append("it has PubkeyAuthentication no. Set it to yes.")
    if account.uid == 0 and server.root_login in ("no", "forced-commands-only"):
        reasons.append(
            f"it has PermitRootLogin {server.root_login}. Set it to prohibit-password, at least for the addresses of the "
            "members, or set other users in ssh_trust_users."
        )
    if server.methods not in ([], ["any"]) and "publickey" not in server.methods:
        reasons.append(
            f"a key is not sufficient with AuthenticationMethods {' '.join(server.methods)}. Set it to publickey for the "
            "addresses of the members."
        )
    if not any(path.endswith(".ssh/authorized_keys") for path in server.authorized_keys):
        reasons.append("it does not read ~/.ssh/authorized_keys. Add it to AuthorizedKeysFile.")
    return [*reasons, *_exclusions(user, account, server, login)]


def _exclusions(user: str, account: Account, server: Server, login: Login) -> List[str]:
    """The lists of users and groups that exclude the user."""
    client = login.peer if server.use_dns else login.peer_address
    denied = [pattern for pattern in server.deny_users if _is_user(pattern, user, client, login.peer_address)]
    excluded = [pattern for pattern in server.deny_groups if _has(account, pattern)]
    reasons = []
    if denied:
        reasons.append(f"DenyUsers has {' '.join(denied)}. Remove it.")
    if server.allow_users and not any(
        _is_user(pattern, user, client, login.peer_address) for pattern in server.allow_users
    ):
        reasons.append(f"AllowUsers has only {' '.join(server.allow_users)}. Add the user.")
    if excluded:
        reasons.append(f"DenyGroups has {' '.join(excluded)}. Remove it, or remove the user from the group.")
    if server.allow_groups and not any(_has(account, pattern) for pattern in server.allow_groups):
        reasons.append(f"AllowGroups has only {' '.join(server.allow_groups)}. Add a group of the user.")
    return reasons


def _has(account: Account, pattern: str) -> bool:
    return any(_matches(group, pattern) for group in account.groups)


def _is_user(pattern: str, user: str, client: str, address: str) -> bool:
    """Whether a pattern of AllowUsers or DenyUsers, USER or USER@HOST, is for this login."""
    name, at_sign, hosts = pattern.rpartition("@")
    if not at_sign:
        return _matches(user, pattern)
    return _matches(user, name) and _is_host(hosts.lower(), client.lower(), address)


def _is_host(patterns: str, client: str, address: str) -> bool:
    """Whether one of the patterns, separated by commas, is for the client, and none with an exclamation mark is."""
    found = [pattern for pattern in patterns.split(",") if _is_client(pattern.lstrip("!"), client, address)]
    return bool(found) and not any(pattern.startswith("!") for pattern in found)


def _is_client(pattern: str, client: str, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern)
    except ValueError:
        return _matches(client, pattern) or _matches(address, pattern)


def _matches(text: str, pattern: str) -> bool:
    """Whether a pattern of ssh_config(5) matches, which is a text with ``*`` and ``?``."""
    special = {"*": ".*", "?": "."}
    return bool(re.fullmatch("".join(special.get(one, re.escape(one)) for one in pattern), text))
