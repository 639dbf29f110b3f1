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

from ansible_collections.gpumesh.cluster.plugins.module_utils import expiry
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError, reading
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: The default login server.
DEFAULT_LOGIN_SERVER = "https://controlplane.tailscale.com"
#: The prefix of an OAuth client's secret, with which a key for one login is created.
OAUTH_PREFIX = "tskey-client-"
#: The prefix of all keys of Tailscale's own control server. Headscale assigns tags through the key, and rejects a host
#: that requests some itself.
_TAILSCALE_PREFIX = "tskey-"

#: The options of ``tailscale up``: its name, the field of Prefs, and its default.
_FLAGS: Tuple[Tuple[str, str, Any], ...] = (
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

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")
_TAG = re.compile(r"tag:[a-zA-Z][a-zA-Z0-9-]*\Z")
_SERVER = re.compile(r"https?://[^\s/?#]+\Z")


class Desired(NamedTuple):
    """The requested settings; None keeps the current value."""

    login_server: Optional[str] = None
    hostname: Optional[str] = None
    tags: Optional[Tuple[str, ...]] = None
    routes: Optional[Tuple[str, ...]] = None
    accept_routes: Optional[bool] = None
    accept_dns: Optional[bool] = None
    ssh: Optional[bool] = None


class Prefs(NamedTuple):
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


class Peer(NamedTuple):
    """A peer as the daemon sees it now. ``endpoint``: where packets go directly, '' if they do not."""

    name: str
    addresses: Tuple[str, ...]
    online: bool
    endpoint: str
    #: The DERP region that relays to it.
    relay: str
    #: Whether packets were exchanged with it recently.
    active: bool


class Status(NamedTuple):
    """The content of ``tailscale status --json``.

    ``state`` is one of NoState, NeedsLogin, NeedsMachineAuth, Stopped, Starting and Running.
    """

    version: str
    tun: bool
    state: str
    id: str
    #: The first label of its name in the tailnet.
    name: str
    addresses: Tuple[str, ...]
    tags: Tuple[str, ...]
    public_key: str
    #: '' if the key does not expire.
    key_expiry: str
    health: Tuple[str, ...]
    peers: Tuple[Peer, ...]


#: The status without a daemon.
NOBODY = Status("", False, "", "", "", (), (), "", "", (), ())


class Plan(NamedTuple):
    """``login``: why the host has to log in, or ''. ``resume``: whether it is logged in, but switched off.

    ``settings``: the options for ``tailscale set``.
    """

    login: str = ""
    resume: bool = False
    settings: Tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self != Plan()


# --- check what the user gave --------------------------------------------------------------------------------


def make_desired(given: Mapping[str, Any]) -> Desired:
    """Check and normalise a module's options. Raises InputError."""
    tags, routes = given.get("tags"), given.get("advertise_routes")
    server, hostname = given.get("login_server"), given.get("hostname")
    for tag in tags or []:
        if not _TAG.match(tag):
            raise InputError(f"'{tag}' is not a valid tag.", "Write it as tag:gpu: letters, digits and '-'.", tag=tag)
    if hostname is not None and not _LABEL.match(hostname):
        raise InputError(
            f"'{hostname}' cannot be the name of a host in a tailnet.",
            "Use 1 to 63 lower-case letters, digits and '-', starting and ending with a letter or digit.",
            hostname=hostname,
        )
    if server is not None and not _SERVER.match(server.rstrip("/")):
        raise InputError(f"'{server}' is not a valid login server.", "Write it as https://headscale.example.org.")
    return Desired(
        server.rstrip("/") if server else None,
        hostname,
        None if tags is None else tuple(sorted(set(tags))),
        None if routes is None else tuple(sorted({_network(route) for route in routes})),
        given.get("accept_routes"),
        given.get("accept_dns"),
        given.get("ssh"),
    )


def login_key(key: str, ephemeral: bool, tags: Optional[Sequence[str]]) -> str:
    """The key as tailscale(1) expects it: an OAuth client's secret includes the kind of key to create.

    Raises InputError.
    """
    if not key.startswith(OAUTH_PREFIX):
        return key
    if not tags:
        raise InputError("The key of an OAuth client can only create keys with tags.", "Set the tags of the host.")
    return f"{key.partition('?')[0]}?ephemeral={str(ephemeral).lower()}&preauthorized=true"


def asks_for_tags(key: Optional[str]) -> bool:
    """Whether a host that logs in with this key requests its tags; with other keys, the key itself determines them."""
    return key is not None and key.startswith(_TAILSCALE_PREFIX)


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as failure:
        raise InputError(f"'{text}' is an invalid network.", "Write it as 10.1.0.0/16, without host bits.") from failure


# --- read what the tools print -------------------------------------------------------------------------------


@reading("tailscale debug prefs")
def parse_prefs(text: str) -> Prefs:
    """Read ``tailscale debug prefs``. Raises ParseError."""
    content = from_json(text)
    return Prefs(
        str(content["ControlURL"] or DEFAULT_LOGIN_SERVER).rstrip("/"),
        str(content.get("Hostname") or ""),
        tuple(sorted(content.get("AdvertiseTags") or ())),
        tuple(sorted(content.get("AdvertiseRoutes") or ())),
        bool(content["RouteAll"]),
        bool(content["CorpDNS"]),
        bool(content.get("RunSSH")),
        bool(content.get("ShieldsUp")),
        str(content.get("OperatorUser") or ""),
    )


@reading("tailscale status --json")
def parse_status(text: str) -> Status:
    """Read ``tailscale status --json``. Raises ParseError."""
    content = from_json(text)
    own = content.get("Self") or {}
    return Status(
        str(content["Version"]),
        bool(content["TUN"]),
        str(content["BackendState"]),
        str(own.get("ID") or ""),
        _first_label(own),
        _addresses(content),
        tuple(sorted(own.get("Tags") or ())),
        str(own.get("PublicKey") or ""),
        str(own.get("KeyExpiry") or ""),
        tuple(content.get("Health") or ()),
        tuple(_peer(peer) for peer in (content.get("Peer") or {}).values()),
    )


def _peer(content: Mapping[str, Any]) -> Peer:
    return Peer(
        _first_label(content),
        _addresses(content),
        bool(content.get("Online")),
        str(content.get("CurAddr") or ""),
        str(content.get("Relay") or ""),
        bool(content.get("Active")),
    )


def _first_label(content: Mapping[str, Any]) -> str:
    return str(content.get("DNSName") or content.get("HostName") or "").partition(".")[0]


def _addresses(content: Mapping[str, Any]) -> Tuple[str, ...]:
    return tuple(str(ipaddress.ip_address(one)) for one in content.get("TailscaleIPs") or ())


#: The line that ``tailscale ping`` prints for each answer.
_PONG = re.compile(
    r"^pong from .* via (?P<way>DERP\((?P<relay>[^)]*)\)|peer-relay\((?P<peer>[^)]*)\)|\S+) in ", re.MULTILINE
)


def parse_ping(text: str) -> Dict[str, str]:
    """``path``, ``endpoint`` and ``relay`` of the last answer in the output of ``tailscale ping``."""
    answers = list(_PONG.finditer(text))
    if not answers:
        return {"path": "none", "endpoint": "", "relay": ""}
    relay = answers[-1].group("relay") or answers[-1].group("peer") or ""
    if relay:
        return {"path": "relayed", "endpoint": "", "relay": relay}
    return {"path": "direct", "endpoint": answers[-1].group("way"), "relay": ""}


def peer_paths(status: Status, addresses: Sequence[str]) -> Dict[str, Dict[str, str]]:
    """How each of these addresses is currently reached, without sending packets: ``idle`` without recent traffic."""
    by_address = {address: peer for peer in status.peers for address in peer.addresses}
    found = {}
    for address in addresses:
        peer = by_address.get(address)
        if peer is None:
            found[address] = {"name": "", "path": "unknown", "endpoint": "", "relay": ""}
            continue
        path = "direct" if peer.endpoint else "idle" if peer.online else "offline"
        found[address] = {"name": peer.name, "path": path, "endpoint": peer.endpoint, "relay": peer.relay}
    return found


# --- plan ----------------------------------------------------------------------------------------------------


def plan(desired: Desired, prefs: Prefs, status: Status, with_tags: bool) -> Plan:
    """Decide what to do. ``with_tags``: whether the host can request its tags by logging in again.

    Raises HostStateError for a host that is in another tailnet.
    """
    server = desired.login_server or prefs.login_server
    logged_in = status.state not in ("NoState", "NeedsLogin")
    if logged_in and server != prefs.login_server:
        raise HostStateError(
            f"This host is logged in at {prefs.login_server} as {status.name}, not at {server}.",
            "Log out there first (tailscale logout) if that tailnet is not needed, or set its server.",
            login_server=prefs.login_server,
        )
    if not logged_in:
        return Plan(login=f"it is not logged in at {server}")
    if with_tags and tags_differ(desired, status):
        return Plan(login=f"its tags are {_listed(status.tags)}, not {_listed(desired.tags or ())}")
    return Plan(resume=status.state == "Stopped", settings=tuple(_options(desired, prefs)))


def tags_differ(desired: Desired, status: Status) -> bool:
    """Whether the control server has given the host other tags than the desired ones."""
    return desired.tags is not None and status.state == "Running" and desired.tags != status.tags


def expires_soon(status: Status, now: float) -> bool:
    """Whether the key of a host that is in its tailnet ends so soon that it has to be replaced."""
    if status.state != "Running":
        return False
    try:
        end = expiry.moment(status.key_expiry)
    except ValueError:
        return False
    return end is not None and expiry.days_left(end, now) < expiry.NOTICE


def partners(status: Status, members: Sequence[str]) -> List[str]:
    """The addresses that the host must reach with its next key as well: of members, and where packets come from now.

    Among the latter is the machine that runs Ansible, if that is in the tailnet.
    """
    return [
        peer.addresses[0]
        for peer in status.peers
        if peer.addresses and peer.online and (peer.active or set(peer.addresses) & set(members))
    ]


def offline(status: Status) -> List[str]:
    """The addresses of peers that are not connected to the control server."""
    return [address for peer in status.peers if not peer.online for address in peer.addresses]


def login_options(desired: Desired, prefs: Prefs, with_tags: bool) -> List[str]:
    """The options for ``tailscale up``, which requires all settings whose current or desired value is not the default."""
    merged = prefs._replace(**{key: value for key, value in desired._asdict().items() if value is not None})
    if not with_tags:
        merged = merged._replace(tags=())
    return [
        f"--{name}={_text(getattr(merged, field))}"
        for name, field, default in _FLAGS
        if getattr(merged, field) != default or getattr(prefs, field) != default
    ]


def _options(desired: Desired, prefs: Prefs) -> List[str]:
    """The options for ``tailscale set`` where the two differ."""
    return [
        f"--{name}={_text(getattr(desired, field))}"
        for name, field, _default in _FLAGS
        if field in _SETTABLE and getattr(desired, field) not in (None, getattr(prefs, field))
    ]


def _text(value: Any) -> str:
    """A value in the form of an option of tailscale(1)."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else ",".join(value)


def describe(prefs: Prefs, status: Status) -> str:
    """The settings as lines, for the diff."""
    lines = [
        f"state: {status.state}",
        f"login_server: {prefs.login_server}",
        f"hostname: {prefs.hostname}",
        f"tags: {_listed(status.tags)}",
        f"advertise_routes: {_listed(prefs.routes)}",
        f"accept_routes: {str(prefs.accept_routes).lower()}",
        f"accept_dns: {str(prefs.accept_dns).lower()}",
        f"ssh: {str(prefs.ssh).lower()}",
    ]
    return "".join(f"{line}\n" for line in lines)


def planned(desired: Desired, prefs: Prefs, status: Status) -> Tuple[Prefs, Status]:
    """The settings and status as they would be, for check mode."""
    wanted = {key: value for key, value in desired._asdict().items() if value is not None}
    return prefs._replace(**wanted), status._replace(state="Running")


def _listed(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"
