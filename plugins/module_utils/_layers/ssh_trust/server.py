# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the SSH server of a host would accept a user with a key from the other members, judged by ``sshd -T``."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Dict, List, NamedTuple, Optional, Pattern, Sequence, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError

#: The maximum number of queries for a user; each takes 0.02 s.
MAX_QUERIES = 30
#: Criteria of Match blocks that have no patterns.
_PATTERNLESS_CRITERIA = ("all", "invalid-user")


class PeerLogin(NamedTuple):
    """The source and destination of a login. ``peer_name`` is the name of another member."""

    peer_name: str
    peer_address: str
    address: str
    port: int


class UserAccount(NamedTuple):
    """A user of the host, with the names of its groups."""

    uid: int
    home_directory: str
    has_home: bool
    groups: Sequence[str]


class SshdSettings(NamedTuple):
    """The settings that the trust depends on, as ``sshd -T`` prints them for one login."""

    use_dns: bool
    public_key_login: bool
    root_login: str
    authentication_methods: Sequence[str]
    deny_users: Sequence[str]
    allow_users: Sequence[str]
    deny_groups: Sequence[str]
    allow_groups: Sequence[str]
    authorized_keys_files: Sequence[str]
    host_key_files: Sequence[str]


class SshdResponse(NamedTuple):
    """The settings for logins that the server does not distinguish."""

    settings: SshdSettings
    logins: Sequence[PeerLogin]


class MatchCriterion(NamedTuple):
    """A criterion of a Match block: ``address`` or ``host``, and its patterns, separated by commas."""

    name: str
    patterns: str


def read_match_criteria(run: Runner) -> List[MatchCriterion]:
    """Read the criteria of the server's Match blocks for the client.

    ``sshd -T`` does not print the blocks, and the server reads included files too. But it mentions each block while it
    checks the configuration. If this is invalid, the queries that follow fail with the reason.
    """
    match_criteria = []
    for match_block in re.findall(r"checking syntax for 'Match (.*)'", run(["sshd", "-t", "-ddd"], check=False).stderr):
        block_words = iter(re.findall(r'"[^"]*"|[^\s=]+', match_block))
        for criterion_name in (keyword.lower() for keyword in block_words):
            patterns = "" if criterion_name in _PATTERNLESS_CRITERIA else next(block_words, "").strip('"')
            if criterion_name in ("address", "host"):
                match_criteria.append(MatchCriterion(criterion_name, patterns))
    return match_criteria


def query_server(
    run: Runner, user: str, logins: Sequence[PeerLogin], match_criteria: Sequence[MatchCriterion]
) -> List[SshdResponse]:
    """Query the settings for logins of ``user``, including the Match blocks that apply to them.

    One query is enough for all logins that none of the ``match_criteria`` distinguishes. With more than MAX_QUERIES
    kinds of logins, the others are omitted. Raises GpumeshError.
    """

    def query_settings(login: PeerLogin, client_name: str) -> SshdSettings:
        # A criterion of a Match block that is missing here is an error for sshd.
        connection_spec = (
            f"user={user},host={client_name},addr={login.peer_address},laddr={login.address},lport={login.port}"
        )
        return parse_sshd_settings(run(["sshd", "-T", "-C", connection_spec]).stdout)

    # The server uses a client's address as its name without UseDNS.
    first_settings = query_settings(logins[0], logins[0].peer_address)
    settings_by_login = {} if first_settings.use_dns else {logins[0]: first_settings}
    logins_by_match: Dict[Tuple[bool, ...], List[PeerLogin]] = {}
    for login in logins:
        logins_by_match.setdefault(
            tuple(_matches_criterion(criterion, login, first_settings.use_dns) for criterion in match_criteria), []
        ).append(login)
    return [
        SshdResponse(
            settings_by_login.get(alike[0]) or query_settings(alike[0], _client_name(alike[0], first_settings.use_dns)),
            alike,
        )
        for alike in list(logins_by_match.values())[:MAX_QUERIES]
    ]


def parse_sshd_settings(sshd_output: str) -> SshdSettings:
    """Parse the output of ``sshd -T``: one setting per line. Users and groups have a line each.

    Up to 10.0, OpenSSH prints the names in lower case, and later as the manual page writes them.
    """
    values_by_setting: Dict[str, List[str]] = {}
    for line in sshd_output.splitlines():
        setting, _space, value = line.strip().partition(" ")
        values_by_setting.setdefault(setting.lower(), []).append(value.strip())
    if "pubkeyauthentication" not in values_by_setting:
        raise ParseError("sshd -T", "it has no line 'pubkeyauthentication'")
    return SshdSettings(
        values_by_setting.get("usedns") == ["yes"],
        values_by_setting["pubkeyauthentication"] == ["yes"],
        values_by_setting.get("permitrootlogin", [""])[0],
        " ".join(values_by_setting.get("authenticationmethods", [])).split(),
        values_by_setting.get("denyusers", []),
        values_by_setting.get("allowusers", []),
        values_by_setting.get("denygroups", []),
        values_by_setting.get("allowgroups", []),
        " ".join(values_by_setting.get("authorizedkeysfile", [])).split(),
        values_by_setting.get("hostkey", []),
    )


def explain_refusals(user: str, account: UserAccount, sshd_settings: SshdSettings, login: PeerLogin) -> List[str]:
    """Explain why the server would not accept the user, with remedies; empty if it would."""
    reasons = []
    if not sshd_settings.public_key_login:
        reasons.append("it has PubkeyAuthentication no. Set it to yes.")
    if account.uid == 0 and sshd_settings.root_login in ("no", "forced-commands-only"):
        reasons.append(
            f"it has PermitRootLogin {sshd_settings.root_login}. "
            "Set it to prohibit-password, at least for the addresses of the members, "
            "or set other users in ssh_trust_users."
        )
    if (
        sshd_settings.authentication_methods not in ([], ["any"])
        and "publickey" not in sshd_settings.authentication_methods
    ):
        reasons.append(
            f"a key is not sufficient with AuthenticationMethods {' '.join(sshd_settings.authentication_methods)}"
            ". Set it to publickey for the addresses of the members."
        )
    if not any(path.endswith(".ssh/authorized_keys") for path in sshd_settings.authorized_keys_files):
        reasons.append("it does not read ~/.ssh/authorized_keys. Add it to AuthorizedKeysFile.")
    return [*reasons, *_explain_exclusions(user, account, sshd_settings, login)]


def _matches_criterion(criterion: MatchCriterion, login: PeerLogin, use_dns: bool) -> bool:
    name = _client_name(login, use_dns) if criterion.name == "host" else login.peer_address
    return _matches_host(criterion.patterns.lower(), name.lower(), name)


def _client_name(login: PeerLogin, use_dns: bool) -> str:
    """Return the name by which the server knows the client."""
    return login.peer_name if use_dns else login.peer_address


def _explain_exclusions(user: str, account: UserAccount, sshd_settings: SshdSettings, login: PeerLogin) -> List[str]:
    """Explain which lists of users and groups exclude a login."""
    client_name = _client_name(login, sshd_settings.use_dns)
    denying_patterns = [
        pattern for pattern in sshd_settings.deny_users if _matches_user(pattern, user, client_name, login.peer_address)
    ]
    denying_groups = [pattern for pattern in sshd_settings.deny_groups if _has_group(account, pattern)]
    reasons = []
    if denying_patterns:
        reasons.append(f"DenyUsers has {' '.join(denying_patterns)}. Remove it.")
    if sshd_settings.allow_users and not any(
        _matches_user(pattern, user, client_name, login.peer_address) for pattern in sshd_settings.allow_users
    ):
        reasons.append(f"AllowUsers has only {' '.join(sshd_settings.allow_users)}. Add the user.")
    if denying_groups:
        reasons.append(f"DenyGroups has {' '.join(denying_groups)}. Remove it, or remove the user from the group.")
    if sshd_settings.allow_groups and not any(_has_group(account, pattern) for pattern in sshd_settings.allow_groups):
        reasons.append(f"AllowGroups has only {' '.join(sshd_settings.allow_groups)}. Add a group of the user.")
    return reasons


def _has_group(account: UserAccount, pattern: str) -> bool:
    return any(_matches_pattern(group, pattern) for group in account.groups)


def _matches_user(pattern: str, user: str, client_name: str, address: str) -> bool:
    """Whether a pattern of AllowUsers or DenyUsers, USER or USER@HOST, is for this login."""
    user_pattern, at_sign, host_patterns = pattern.rpartition("@")
    if not at_sign:
        return _matches_pattern(user, pattern)
    return _matches_pattern(user, user_pattern) and _matches_host(host_patterns.lower(), client_name.lower(), address)


def _matches_host(patterns: str, client_name: str, address: str) -> bool:
    """Whether one of the patterns, separated by commas, is for the client, and none with an exclamation mark."""
    matching_patterns = [
        pattern for pattern in patterns.split(",") if _matches_client(pattern.lstrip("!"), client_name, address)
    ]
    return bool(matching_patterns) and not any(pattern.startswith("!") for pattern in matching_patterns)


def _matches_client(pattern: str, client_name: str, address: str) -> bool:
    pattern_network, client_network = _parse_network(pattern), _parse_network(address)
    if pattern_network is None or client_network is None:
        return _matches_pattern(client_name, pattern) or _matches_pattern(address, pattern)
    return client_network.network_address in pattern_network


# All patterns are compared with the addresses of all members.
@lru_cache(maxsize=None)
def _parse_network(network_text: str) -> Optional[Union[ipaddress.IPv4Network, ipaddress.IPv6Network]]:
    try:
        return ipaddress.ip_network(network_text)
    except ValueError:
        return None


def _matches_pattern(text: str, pattern: str) -> bool:
    """Whether a pattern of ssh_config(5) matches, which is a text with ``*`` and ``?``."""
    return bool(_compile_pattern(pattern).fullmatch(text))


@lru_cache(maxsize=None)
def _compile_pattern(pattern: str) -> Pattern[str]:
    special = {"*": ".*", "?": "."}
    return re.compile("".join(special.get(character, re.escape(character)) for character in pattern))
