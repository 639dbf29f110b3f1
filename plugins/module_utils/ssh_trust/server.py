# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the SSH server of a host would accept a user with a key from the other members, judged by ``sshd -T``."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Dict, List, NamedTuple, Optional, Pattern, Sequence, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError

#: The most queries for a user; each takes 0.02 s.
QUERIES = 30
#: Criteria of Match blocks that have no patterns.
_WITHOUT_PATTERNS = ("all", "invalid-user")


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


class Answer(NamedTuple):
    """The settings for logins that the server does not distinguish."""

    server: Server
    logins: Sequence[Login]


class Criterion(NamedTuple):
    """A criterion of a Match block: ``address`` or ``host``, and its patterns, separated by commas."""

    name: str
    patterns: str


def criteria(run: Runner) -> List[Criterion]:
    """The criteria of the server's Match blocks for the client.

    ``sshd -T`` does not print the blocks, and the server reads included files too. But it mentions each block while it
    checks the configuration. If this is invalid, the queries that follow fail with the reason.
    """
    found = []
    for block in re.findall(r"checking syntax for 'Match (.*)'", run(["sshd", "-t", "-ddd"], check=False).stderr):
        words = iter(re.findall(r'"[^"]*"|[^\s=]+', block))
        for name in (word.lower() for word in words):
            patterns = "" if name in _WITHOUT_PATTERNS else next(words, "").strip('"')
            if name in ("address", "host"):
                found.append(Criterion(name, patterns))
    return found


def look(run: Runner, user: str, logins: Sequence[Login], matched: Sequence[Criterion]) -> List[Answer]:
    """The settings for logins of ``user``, including the Match blocks that apply to them.

    One query is enough for all logins that none of the criteria ``matched`` distinguishes. With more than QUERIES kinds
    of logins, the others are left out. Raises GpumeshError.
    """

    def ask(login: Login, client: str) -> Server:
        # A Match block about something that is not given here is an error.
        known = f"user={user},host={client},addr={login.peer_address},laddr={login.address},lport={login.port}"
        return parse(run(["sshd", "-T", "-C", known]).stdout)

    # Without UseDNS, the server uses a client's address as its name.
    found = ask(logins[0], logins[0].peer_address)
    answered = {} if found.use_dns else {logins[0]: found}
    kinds: Dict[Tuple[bool, ...], List[Login]] = {}
    for login in logins:
        kinds.setdefault(tuple(_is_matched(each, login, found.use_dns) for each in matched), []).append(login)
    return [
        Answer(answered.get(alike[0]) or ask(alike[0], _client(alike[0], found.use_dns)), alike)
        for alike in list(kinds.values())[:QUERIES]
    ]


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


def _is_matched(criterion: Criterion, login: Login, use_dns: bool) -> bool:
    name = _client(login, use_dns) if criterion.name == "host" else login.peer_address
    return _is_host(criterion.patterns.lower(), name.lower(), name)


def _client(login: Login, use_dns: bool) -> str:
    """The name by which the server knows the client."""
    return login.peer if use_dns else login.peer_address


def _exclusions(user: str, account: Account, server: Server, login: Login) -> List[str]:
    """The lists of users and groups that exclude the user."""
    client = _client(login, server.use_dns)
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
    network, place = _network(pattern), _network(address)
    if network is None or place is None:
        return _matches(client, pattern) or _matches(address, pattern)
    return place.network_address in network


# All patterns are compared with the addresses of all members.
@lru_cache(maxsize=None)
def _network(text: str) -> Optional[Union[ipaddress.IPv4Network, ipaddress.IPv6Network]]:
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        return None


def _matches(text: str, pattern: str) -> bool:
    """Whether a pattern of ssh_config(5) matches, which is a text with ``*`` and ``?``."""
    return bool(_expression(pattern).fullmatch(text))


@lru_cache(maxsize=None)
def _expression(pattern: str) -> Pattern[str]:
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(one, re.escape(one)) for one in pattern))
