# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host's login to a tailnet as data: read the output of tailscale(1), plan the differences, build its options.

This module does not touch the host, and never has a key for logging in.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    HostStateError,
    InputError,
    translate_parse_errors,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_tool_json

#: The default login server.
DEFAULT_LOGIN_SERVER = "https://controlplane.tailscale.com"
#: The prefix of an OAuth client's secret, with which a key for one login is created.
OAUTH_PREFIX = "tskey-client-"
#: The prefix of all keys of Tailscale's own control server. Headscale assigns tags through the key, and rejects a host
#: that requests some itself.
_TAILSCALE_PREFIX = "tskey-"

#: The options of ``tailscale up``: the name, the field of TailnetPrefs, and the default.
_UP_FLAGS: Tuple[Tuple[str, str, Any], ...] = (
    ("login-server", "login_server", DEFAULT_LOGIN_SERVER),
    ("hostname", "hostname", ""),
    ("advertise-tags", "tags", ()),
    ("advertise-routes", "routes", ()),
    ("accept-routes", "accept_routes", False),
    ("accept-dns", "accept_dns", True),
    ("ssh", "ssh", False),
    ("shields-up", "shields_up", False),
    ("operator", "operator", ""),
)
#: The settings that ``tailscale set`` changes without a new login.
_SETTABLE = ("hostname", "routes", "accept_routes", "accept_dns", "ssh")

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_TAG_PATTERN = re.compile(r"tag:[a-zA-Z][a-zA-Z0-9-]*\Z")
_SERVER_URL = re.compile(r"https?://[^\s/?#]+\Z")


class DesiredPrefs(NamedTuple):
    """The requested settings; None keeps the current value."""

    login_server: Optional[str] = None
    hostname: Optional[str] = None
    tags: Optional[Tuple[str, ...]] = None
    routes: Optional[Tuple[str, ...]] = None
    accept_routes: Optional[bool] = None
    accept_dns: Optional[bool] = None
    ssh: Optional[bool] = None


class TailnetPrefs(NamedTuple):
    """The settings of the daemon, from ``tailscale debug prefs``."""

    login_server: str
    hostname: str
    tags: Tuple[str, ...]
    routes: Tuple[str, ...]
    accept_routes: bool
    accept_dns: bool
    ssh: bool
    shields_up: bool
    operator: str


class TailnetPeer(NamedTuple):
    """A peer as the daemon sees it now. ``endpoint``: where packets go directly, '' if they do not."""

    peer_name: str
    addresses: Tuple[str, ...]
    is_online: bool
    endpoint: str
    #: The DERP region that relays to it.
    derp_region: str
    #: Whether packets were exchanged with it recently.
    recently_active: bool


class TailnetStatus(NamedTuple):
    """The content of ``tailscale status --json``.

    ``backend_state`` is one of NoState, NeedsLogin, NeedsMachineAuth, Stopped, Starting and Running.
    """

    version: str
    uses_tun: bool
    backend_state: str
    node_id: str
    #: The first label of its name in the tailnet.
    host_label: str
    addresses: Tuple[str, ...]
    tags: Tuple[str, ...]
    public_key: str
    #: '' if the key does not expire.
    key_expiry: str
    health_messages: Tuple[str, ...]
    peers: Tuple[TailnetPeer, ...]


#: The status without a daemon.
NO_STATUS = TailnetStatus("", False, "", "", "", (), (), "", "", (), ())


class LoginPlan(NamedTuple):
    """A plan. ``login_reason``: why the host has to log in, or ''. ``switch_on``: it is logged in, but switched off.

    ``set_options``: the options for ``tailscale set``.
    """

    login_reason: str = ""
    switch_on: bool = False
    set_options: Tuple[str, ...] = ()

    @property
    def has_steps(self) -> bool:
        """Whether there is anything to do."""
        return self != LoginPlan()


# --- check the options ---------------------------------------------------------------------------------------


def make_desired(module_options: Mapping[str, Any]) -> DesiredPrefs:
    """Check and normalise a module's options. Raises InputError."""
    requested_tags, advertised_routes = module_options.get("tags"), module_options.get("advertise_routes")
    login_server, hostname = module_options.get("login_server"), module_options.get("hostname")
    for tag in requested_tags or []:
        if not _TAG_PATTERN.match(tag):
            raise InputError(f"'{tag}' is not a valid tag.", "Write it as tag:gpu: letters, digits and '-'.", tag=tag)
    if hostname is not None and not _DNS_LABEL.match(hostname):
        raise InputError(
            f"'{hostname}' cannot be the name of a host in a tailnet.",
            "Use 1 to 63 lower-case letters, digits and '-', starting and ending with a letter or digit.",
            hostname=hostname,
        )
    if login_server is not None and not _SERVER_URL.match(login_server.rstrip("/")):
        raise InputError(f"'{login_server}' is not a valid login server.", "Write it as https://headscale.example.org.")
    return DesiredPrefs(
        login_server.rstrip("/") if login_server else None,
        hostname,
        None if requested_tags is None else tuple(sorted(set(requested_tags))),
        None if advertised_routes is None else tuple(sorted({_parse_network(route) for route in advertised_routes})),
        module_options.get("accept_routes"),
        module_options.get("accept_dns"),
        module_options.get("ssh"),
    )


def format_login_key(auth_key: str, is_ephemeral: bool, tags: Optional[Sequence[str]]) -> str:
    """The key as tailscale(1) expects it: an OAuth client's secret includes the kind of key to create.

    Raises InputError.
    """
    if not auth_key.startswith(OAUTH_PREFIX):
        return auth_key
    if not tags:
        raise InputError("The key of an OAuth client can only create keys with tags.", "Set the tags of the host.")
    return f"{auth_key.partition('?')[0]}?ephemeral={str(is_ephemeral).lower()}&preauthorized=true"


def requests_tags(key: Optional[str]) -> bool:
    """Whether a host that logs in with this key requests its tags; with other keys, the key itself determines them."""
    return key is not None and key.startswith(_TAILSCALE_PREFIX)


def _parse_network(network_text: str) -> str:
    try:
        return str(ipaddress.ip_network(network_text))
    except ValueError as failure:
        raise InputError(
            f"'{network_text}' is an invalid network.", "Write it as 10.1.0.0/16, without host bits."
        ) from failure


# --- parse the output of the tools ---------------------------------------------------------------------------


@translate_parse_errors("tailscale debug prefs")
def parse_prefs(json_text: str) -> TailnetPrefs:
    """Read ``tailscale debug prefs``. Raises ParseError."""
    prefs_document = parse_tool_json(json_text)
    return TailnetPrefs(
        str(prefs_document["controlurl"] or DEFAULT_LOGIN_SERVER).rstrip("/"),
        str(prefs_document.get("hostname") or ""),
        tuple(sorted(prefs_document.get("advertisetags") or ())),
        tuple(sorted(prefs_document.get("advertiseroutes") or ())),
        bool(prefs_document["routeall"]),
        bool(prefs_document["corpdns"]),
        bool(prefs_document.get("runssh")),
        bool(prefs_document.get("shieldsup")),
        str(prefs_document.get("operatoruser") or ""),
    )


@translate_parse_errors("tailscale status --json")
def parse_status(json_text: str) -> TailnetStatus:
    """Read ``tailscale status --json``. Raises ParseError."""
    status_document = parse_tool_json(json_text)
    self_entry = status_document.get("self") or {}
    return TailnetStatus(
        str(status_document["version"]),
        bool(status_document["tun"]),
        str(status_document["backendstate"]),
        str(self_entry.get("id") or ""),
        _parse_first_label(self_entry),
        _parse_addresses(status_document),
        tuple(sorted(self_entry.get("tags") or ())),
        str(self_entry.get("publickey") or ""),
        str(self_entry.get("keyexpiry") or ""),
        tuple(status_document.get("health") or ()),
        tuple(_parse_peer(peer) for peer in (status_document.get("peer") or {}).values()),
    )


def _parse_peer(peer_entry: Mapping[str, Any]) -> TailnetPeer:
    return TailnetPeer(
        _parse_first_label(peer_entry),
        _parse_addresses(peer_entry),
        bool(peer_entry.get("online")),
        str(peer_entry.get("curaddr") or ""),
        str(peer_entry.get("relay") or ""),
        bool(peer_entry.get("active")),
    )


def _parse_first_label(node_entry: Mapping[str, Any]) -> str:
    return str(node_entry.get("dnsname") or node_entry.get("hostname") or "").partition(".")[0]


def _parse_addresses(status_entry: Mapping[str, Any]) -> Tuple[str, ...]:
    return tuple(str(ipaddress.ip_address(ip_address)) for ip_address in status_entry.get("tailscaleips") or ())


#: The line that ``tailscale ping`` prints for each answer.
_PONG_LINE = re.compile(
    r"^pong from .* via (?P<way>DERP\((?P<relay>[^)]*)\)|peer-relay\((?P<peer>[^)]*)\)|\S+) in ", re.MULTILINE
)


def parse_ping(ping_output: str) -> Dict[str, str]:
    """Return ``path``, ``endpoint`` and ``relay`` of the last reply in the output of ``tailscale ping``."""
    pong_matches = list(_PONG_LINE.finditer(ping_output))
    if not pong_matches:
        return {"path": "none", "endpoint": "", "relay": ""}
    relay = pong_matches[-1].group("relay") or pong_matches[-1].group("peer") or ""
    if relay:
        return {"path": "relayed", "endpoint": "", "relay": relay}
    return {"path": "direct", "endpoint": pong_matches[-1].group("way"), "relay": ""}


def find_peer_paths(daemon_status: TailnetStatus, addresses: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """Return how each address is currently reached, without sending packets: ``idle`` without recent traffic."""
    by_address = {
        peer_address: tailnet_peer for tailnet_peer in daemon_status.peers for peer_address in tailnet_peer.addresses
    }
    path_by_address = {}
    for peer_address in addresses:
        tailnet_peer = by_address.get(peer_address)
        if tailnet_peer is None:
            path_by_address[peer_address] = {"name": "", "path": "unknown", "endpoint": "", "relay": ""}
            continue
        path = "direct" if tailnet_peer.endpoint else "idle" if tailnet_peer.is_online else "offline"
        path_by_address[peer_address] = {
            "name": tailnet_peer.peer_name,
            "path": path,
            "endpoint": tailnet_peer.endpoint,
            "relay": tailnet_peer.derp_region,
        }
    return path_by_address


# --- plan ----------------------------------------------------------------------------------------------------


def plan_login(
    desired_prefs: DesiredPrefs, current_prefs: TailnetPrefs, daemon_status: TailnetStatus, may_request_tags: bool
) -> LoginPlan:
    """Decide what to do. ``may_request_tags``: whether the host can request its tags by logging in again.

    Raises HostStateError for a host that is in another tailnet.
    """
    login_server = desired_prefs.login_server or current_prefs.login_server
    logged_in = daemon_status.backend_state not in ("NoState", "NeedsLogin")
    if logged_in and login_server != current_prefs.login_server:
        raise HostStateError(
            f"This host is logged in at {current_prefs.login_server} as {daemon_status.host_label}, not at {login_server}.",
            "Log out there first (tailscale logout) if that tailnet is not needed, or set its server.",
            login_server=current_prefs.login_server,
        )
    if not logged_in:
        return LoginPlan(login_reason=f"it is not logged in at {login_server}")
    if may_request_tags and tags_differ(desired_prefs, daemon_status):
        return LoginPlan(
            login_reason=f"its tags are {_join_texts(daemon_status.tags)}, not {_join_texts(desired_prefs.tags or ())}"
        )
    return LoginPlan(
        switch_on=daemon_status.backend_state == "Stopped",
        set_options=tuple(_set_options(desired_prefs, current_prefs)),
    )


def tags_differ(desired_prefs: DesiredPrefs, daemon_status: TailnetStatus) -> bool:
    """Whether the control server has given the host other tags than the desired ones."""
    return (
        desired_prefs.tags is not None
        and daemon_status.backend_state == "Running"
        and desired_prefs.tags != daemon_status.tags
    )


def is_expiring(daemon_status: TailnetStatus, current_time: float) -> bool:
    """Whether the key of a host that is in its tailnet ends so soon that it has to be replaced."""
    if daemon_status.backend_state != "Running":
        return False
    try:
        expires_at = expiry.parse_time(daemon_status.key_expiry)
    except ValueError:
        return False
    return expires_at is not None and expiry.days_left(expires_at, current_time) < expiry.NOTICE_DAYS


def required_peers(daemon_status: TailnetStatus, member_addresses: Sequence[str]) -> List[str]:
    """The addresses that the host must reach with its next key as well: of members, and where packets come from now.

    Among the latter is the machine that runs Ansible, if that is in the tailnet.
    """
    return [
        peer.addresses[0]
        for peer in daemon_status.peers
        if peer.addresses and peer.is_online and (peer.recently_active or set(peer.addresses) & set(member_addresses))
    ]


def offline_addresses(daemon_status: TailnetStatus) -> List[str]:
    """The addresses of peers that are not connected to the control server."""
    return [address for peer in daemon_status.peers if not peer.is_online for address in peer.addresses]


def login_options(desired_prefs: DesiredPrefs, current_prefs: TailnetPrefs, with_tags: bool) -> List[str]:
    """Return the options for ``tailscale up``: all settings whose current or desired value is not the default."""
    merged_prefs = current_prefs._replace(
        **{key: setting for key, setting in desired_prefs._asdict().items() if setting is not None}
    )
    if not with_tags:
        merged_prefs = merged_prefs._replace(tags=())
    return [
        f"--{name}={_format_option(getattr(merged_prefs, field))}"
        for name, field, default in _UP_FLAGS
        if getattr(merged_prefs, field) != default or getattr(current_prefs, field) != default
    ]


def _set_options(desired_prefs: DesiredPrefs, current_prefs: TailnetPrefs) -> List[str]:
    """The options for ``tailscale set`` where the two differ."""
    return [
        f"--{name}={_format_option(getattr(desired_prefs, field))}"
        for name, field, _default in _UP_FLAGS
        if field in _SETTABLE and getattr(desired_prefs, field) not in (None, getattr(current_prefs, field))
    ]


def _format_option(setting: Any) -> str:
    """A value in the form of an option of tailscale(1)."""
    if isinstance(setting, bool):
        return str(setting).lower()
    return setting if isinstance(setting, str) else ",".join(setting)


def describe_prefs(current_prefs: TailnetPrefs, daemon_status: TailnetStatus) -> str:
    """The settings as lines, for the diff."""
    setting_lines = [
        f"state: {daemon_status.backend_state}",
        f"login_server: {current_prefs.login_server}",
        f"hostname: {current_prefs.hostname}",
        f"tags: {_join_texts(daemon_status.tags)}",
        f"advertise_routes: {_join_texts(current_prefs.routes)}",
        f"accept_routes: {str(current_prefs.accept_routes).lower()}",
        f"accept_dns: {str(current_prefs.accept_dns).lower()}",
        f"ssh: {str(current_prefs.ssh).lower()}",
    ]
    return "".join(f"{line}\n" for line in setting_lines)


def planned_state(
    desired_prefs: DesiredPrefs, current_prefs: TailnetPrefs, daemon_status: TailnetStatus
) -> Tuple[TailnetPrefs, TailnetStatus]:
    """Return the settings and status after the change, for check mode."""
    changed_prefs = {key: setting for key, setting in desired_prefs._asdict().items() if setting is not None}
    return current_prefs._replace(**changed_prefs), daemon_status._replace(backend_state="Running")


def _join_texts(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"
