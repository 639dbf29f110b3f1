# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A WireGuard interface as data: read the output of the tools, render its configuration, plan the differences.

This module does not touch the host, and never has a private key.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, ParseError, reading
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: The first line of every managed configuration. A file without it is not changed.
MARK = "# Managed by gpumesh.cluster: edits are replaced at the next run."

#: WireGuard ends a session after this time without a new handshake (REJECT_AFTER_TIME of the protocol).
SESSION_SECONDS = 180

_MACHINE_COMMENT = "# Machine = "
_PATH_COMMENT = "# Path MTU = "
#: wg-quick(8) is a bash script, and bash can send datagrams: one to the port "discard" of each address.
_GREETING = "for peer in {}; do echo > /dev/udp/$peer/9 || true; done 2>/dev/null"
#: The kernel's IPv6 settings of each interface, and of those to come (``default``).
IPV6_SETTINGS = "/proc/sys/net/ipv6/conf"
#: The same as interface.kept_routes, for wg-quick.
_KEEP_ROUTES = (
    f"for conf in {IPV6_SETTINGS}/*; do "
    "if [[ $(<$conf/forwarding)$(<$conf/accept_ra) == 01 ]]; then echo 2 > $conf/accept_ra; fi; done"
)
_SECRET_KEYS = ("privatekey", "presharedkey")


class Preshared(NamedTuple):
    """The preshared key of a pair of hosts: the file that contains it, and its digest."""

    path: str
    digest: str


#: The value that means no preshared key to wg(8).
UNSHARED = Preshared("/dev/null", "")


class Peer(NamedTuple):
    """A desired peer. ``endpoint`` is ``host:port``, or None if this side waits for the peer."""

    machine: str
    public_key: str
    endpoint: Optional[str]
    allowed_ips: Tuple[str, ...]
    #: Seconds; 0 is off.
    persistent_keepalive: int
    #: The measured MTU in bytes of the path to the endpoint; 0 if it did not answer, None if it was not measured.
    path_mtu: Optional[int] = None
    #: None leaves the running interface as it is.
    preshared: Optional[Preshared] = None


class Desired(NamedTuple):
    """A desired interface. ``address`` is in CIDR form with the prefix length of the whole mesh."""

    interface: str
    address: str
    listen_port: int
    #: Bytes.
    mtu: int
    peers: Tuple[Peer, ...]
    #: Whether this host forwards between its peers.
    forward: bool = False


class RuntimePeer(NamedTuple):
    """A peer of the running interface."""

    public_key: str
    endpoint: Optional[str]
    allowed_ips: Tuple[str, ...]
    #: Seconds since 1970; 0 for never.
    latest_handshake: int
    #: Bytes.
    received: int
    sent: int
    persistent_keepalive: int
    #: The digest of the preshared key; '' if there is none.
    preshared: str = ""


class Dump(NamedTuple):
    """The output of ``wg show <interface> dump`` without its secrets."""

    public_key: Optional[str]
    listen_port: int
    peers: Dict[str, RuntimePeer]


class Link(NamedTuple):
    """The output of ``ip -j -d address show`` for the interface."""

    mtu: int
    up: bool
    #: CIDR, as set by whoever created the interface; link-local addresses, which the kernel adds, are omitted.
    addresses: Tuple[str, ...]
    kind: str


class Runtime(NamedTuple):
    """The running interface. ``routes`` are those through it that the kernel has not added itself."""

    dump: Dump
    link: Link
    routes: FrozenSet[str]
    #: Whether the kernel has all settings of ``forwarding_settings``.
    forwards: bool = False


class Plan(NamedTuple):
    """The steps from a running interface to the desired one. ``needed`` is false for an empty plan."""

    load_key: bool = False
    listen_port: Optional[int] = None
    mtu: Optional[int] = None
    set_up: bool = False
    start_forwarding: bool = False
    add_addresses: Tuple[str, ...] = ()
    drop_addresses: Tuple[str, ...] = ()
    #: Added or changed, with the endpoint to set now; None leaves the endpoint as it is.
    set_peers: Tuple[Peer, ...] = ()
    #: Public keys.
    drop_peers: Tuple[str, ...] = ()
    add_routes: Tuple[str, ...] = ()
    drop_routes: Tuple[str, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether there is anything to do."""
        return self != Plan()


class PeerChanges(NamedTuple):
    """The differences by machine; a peer that no configuration names is shown by its public key."""

    added: List[str]
    removed: List[str]
    updated: List[str]


# --- check what the user gave --------------------------------------------------------------------------------


def check_interface_name(name: str) -> str:
    """Return the name. Raises InputError if Linux or wg-quick would reject it."""
    try:
        return values.mesh_interface_name(name)
    except ValueError as failure:
        raise InputError(f"{failure}.", "Choose another mesh_interface.", interface=name) from failure


def check_public_key(text: str, whose: str) -> str:
    """Return the key. Raises InputError if it is not 32 bytes in base64."""
    try:
        return values.wireguard_key(text)
    except ValueError as failure:
        raise InputError(
            f"'{text}' is not the public key of {whose}: WireGuard keys are 32 bytes, 44 characters in base64.",
            "Run the mesh layer with that machine in the play, so that it registers its key.",
            machine=whose,
        ) from failure


def split_endpoint(text: str) -> Tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``. Raises InputError."""
    try:
        host, _colon, port = values.endpoint(text).rpartition(":")
    except ValueError as failure:
        raise InputError(f"{failure}.", "Write host:port, or [address]:port for IPv6.", endpoint=text) from failure
    return host.strip("[]"), int(port)


def join_endpoint(host: str, port: int) -> str:
    """``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_desired(
    interface: str,
    address: str,
    listen_port: int,
    mtu: int,
    peers: Iterable[Mapping[str, Any]],
    forward: bool = False,
) -> Desired:
    """Check and normalise a module's options; peers keep their order. Raises InputError.

    Two peers with the same key or address are refused, since one would silently receive the other's traffic.
    """
    check_interface_name(interface)
    try:
        own = ipaddress.ip_interface(address if "%" not in address else "")
    except ValueError as failure:
        raise InputError(f"address={address} is not an address in CIDR form.", "Write it as 10.99.0.1/16.") from failure
    checked: List[Peer] = []
    owner_of_key: Dict[str, str] = {}
    owner_of_network: Dict[str, str] = {}
    for entry in peers:
        machine = str(entry["machine"])
        try:
            values.line(machine)
        except ValueError as failure:
            raise InputError(f"Invalid name of a peer: {failure}.", "Give the name of a machine.") from failure
        key = check_public_key(str(entry["public_key"]), machine)
        if key in owner_of_key:
            raise InputError(
                f"{owner_of_key[key]} and {machine} have the same public key {key}.",
                "Remove /etc/wireguard/<interface>.key on one of them and run the mesh layer again.",
                machines=[owner_of_key[key], machine],
            )
        owner_of_key[key] = machine
        networks = []
        for network in _networks(entry.get("allowed_ips") or [], machine):
            if network in owner_of_network:
                raise InputError(
                    f"{network} is allowed for {owner_of_network[network]} and for {machine}.",
                    "Give each address to one peer.",
                    machines=[owner_of_network[network], machine],
                )
            owner_of_network[network] = machine
            networks.append(network)
        endpoint = entry.get("endpoint")
        if endpoint:
            split_endpoint(endpoint)
        checked.append(
            Peer(machine, key, endpoint or None, tuple(networks), int(entry.get("persistent_keepalive") or 0))
        )
    return Desired(interface, str(own), listen_port, mtu, tuple(checked), forward)


def _networks(texts: Iterable[str], machine: str) -> List[str]:
    """Sorted CIDR networks without duplicates. A default route does not belong in a mesh, and is refused."""
    networks = set()
    for value in texts:
        if _host_number(value) is not None:
            networks.add(value)
            continue
        try:
            network = ipaddress.ip_network(value if "%" not in value else "")
        except ValueError as failure:
            raise InputError(
                f"{machine}: {value} is an invalid network.", "Write it as 10.99.0.2/32, without host bits."
            ) from failure
        if network.prefixlen == 0:
            raise InputError(
                f"{machine}: {value} would send all traffic of the host to this peer.",
                "Give only the networks behind the peer.",
            )
        networks.add(str(network))
    return sorted(networks)


def _host_number(network: str) -> Optional[int]:
    """The number of the single IPv4 address in ``network``, or None for any other text.

    Nearly all networks of a mesh have this form, and there is one per member; ipaddress would take ten times as long.
    """
    address, _slash, length = network.partition("/")
    if length != "32":
        return None
    try:
        return int.from_bytes(socket.inet_pton(socket.AF_INET, address), "big")
    except (OSError, ValueError):
        return None


# --- read what the tools print -------------------------------------------------------------------------------


def digest(secret: str) -> str:
    """A fingerprint of a preshared key."""
    return hashlib.sha256(secret.strip().encode("ascii")).hexdigest()


def parse_dump(text: str) -> Dump:
    """Read ``wg show <interface> dump`` (tab-separated, see wg(8)). Raises ParseError.

    The private key is dropped here, and only a digest of each preshared key is kept.
    """
    lines = text.splitlines()
    command = "wg show dump"
    if not lines or len(lines[0].split("\t")) != 4:
        raise ParseError(command, "the first line does not have the 4 fields of an interface")
    own = lines[0].split("\t")
    peers = {}
    for number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) != 8:
            raise ParseError(command, f"line {number} has {len(fields)} fields, not the 8 of a peer")
        key, preshared, endpoint, allowed, handshake, received, sent, keepalive = fields
        try:
            peers[key] = RuntimePeer(
                key,
                None if endpoint == "(none)" else endpoint,
                () if allowed == "(none)" else tuple(sorted(allowed.split(","))),
                int(handshake),
                int(received),
                int(sent),
                0 if keepalive == "off" else int(keepalive),
                "" if preshared == "(none)" else digest(preshared),
            )
        except ValueError as failure:
            raise ParseError(command, f"line {number} has a field that is not a number") from failure
    try:
        port = int(own[2])
    except ValueError as failure:
        raise ParseError(command, f"the port '{own[2]}' is not a number") from failure
    return Dump(None if own[1] == "(none)" else own[1], port, peers)


@reading("ip -j -d address show")
def parse_link(text: str) -> Link:
    """Read ``ip -j -d address show dev <interface>``. Raises ParseError."""
    # iproute2 before 6.x pads the list with empty objects.
    found = [entry for entry in from_json(text) if entry]
    entry = found[0]
    addresses = tuple(
        f"{one['local']}/{one['prefixlen']}" for one in entry.get("addr_info", []) if one.get("scope") != "link"
    )
    return Link(
        int(entry["mtu"]),
        "UP" in entry["flags"],
        addresses,
        str(entry.get("linkinfo", {}).get("info_kind", "")),
    )


@reading("ip -j route show")
def parse_routes(*texts: str) -> FrozenSet[str]:
    """The destinations in ``ip -j [-6] route show dev <interface>`` that the kernel did not add. Raises ParseError."""
    return frozenset(
        str(ipaddress.ip_network(str(entry["dst"])))
        for text in texts
        for entry in (from_json(text) if text.strip() else [])
        if entry.get("protocol") != "kernel" and entry["dst"] != "default"
    )


# --- the configuration ---------------------------------------------------------------------------------------


def render_conf(desired: Desired, key_path: str) -> str:
    """The text for wg-quick(8). It contains no secret, so it can be shown and compared.

    The preshared keys stay in their files. The keepalives are set together with the key, since WireGuard sends the
    first one when it is set: in the section of the peer, that would be before the interface has a key, and a member
    behind NAT could not be reached during the first interval. ``Table = off``: all members are in the network of
    ``address``, for which the kernel adds a single route; wg-quick would run ip(8) once for each peer. Routes of
    networks outside of it are set explicitly.

    Last, a byte is sent to the other peers, which creates new sessions: a peer that has a session from before this host
    was restarted uses it for 15 seconds before it tries again, and nothing arrives.
    """
    peers = "".join(
        f" peer {peer.public_key}{_with_preshared(peer)}{_with_keepalive(peer)}"
        for peer in desired.peers
        if peer.persistent_keepalive or _with_preshared(peer)
    )
    lines = [
        MARK,
        "[Interface]",
        f"Address = {desired.address}",
        f"ListenPort = {desired.listen_port}",
        f"MTU = {desired.mtu}",
        "Table = off",
        f"PostUp = wg set %i private-key {key_path}{peers}",
    ]
    lines += [f"PostUp = ip route replace {network} dev %i" for network in sorted(_outside_networks(desired))]
    if desired.forward and ":" in desired.address:
        lines.append(f"PostUp = {_KEEP_ROUTES}")
    if desired.forward:
        lines += [f"PostUp = echo {value} > {path}" for path, value in forwarding_settings(desired.address, "%i")]
    greeted = [
        peer.allowed_ips[0].partition("/")[0]
        for peer in desired.peers
        if peer.endpoint and peer.allowed_ips and not peer.persistent_keepalive
    ]
    if greeted:
        lines.append(f"PostUp = {_GREETING.format(' '.join(greeted))}")
    for peer in desired.peers:
        lines += ["", "[Peer]", f"{_MACHINE_COMMENT}{peer.machine}"]
        if peer.path_mtu is not None:
            # Stored here, so that an endpoint is measured only once, and not in every run.
            lines.append(f"{_PATH_COMMENT}{peer.path_mtu or 'unknown'}")
        lines += _peer_lines(peer)
    return "\n".join(lines) + "\n"


def _with_preshared(peer: Peer) -> str:
    return f" preshared-key {peer.preshared.path}" if peer.preshared and peer.preshared != UNSHARED else ""


def _with_keepalive(peer: Peer) -> str:
    return f" persistent-keepalive {peer.persistent_keepalive}" if peer.persistent_keepalive else ""


def preshared_options(peers: Iterable[Peer]) -> List[str]:
    """The options for ``wg set <interface>`` that give these peers their preshared keys.

    Peers may be new ones: their other settings come later, so that they never connect without the key.
    """
    options = []
    for peer in peers:
        if peer.preshared:
            options += ["peer", peer.public_key, "preshared-key", peer.preshared.path]
    return options


def forwarding_settings(address: str, interface: str) -> List[Tuple[str, str]]:
    """The kernel's settings, as path and value, with which it forwards between the peers of the mesh of ``address``.

    For IPv4, the setting of one interface is enough, so the host does not become a router between its other networks;
    for IPv6, the kernel has only a global setting. Redirects would tell peers to bypass the relay; kernel WireGuard
    disables them itself in the same way, a userspace one cannot.
    """
    if ":" in address:
        return [(f"{IPV6_SETTINGS}/all/forwarding", "1")]
    return [
        (f"/proc/sys/net/ipv4/conf/{interface}/forwarding", "1"),
        (f"/proc/sys/net/ipv4/conf/{interface}/send_redirects", "0"),
        ("/proc/sys/net/ipv4/conf/all/send_redirects", "0"),
    ]


def render_peers(peers: Iterable[Peer]) -> str:
    """The text for ``wg addconf``: these peers, without the interface or its key."""
    lines: List[str] = []
    for peer in peers:
        # 'off' must be explicit; omitting it keeps the old interval.
        lines += ["[Peer]", *_peer_lines(peer), f"PersistentKeepalive = {peer.persistent_keepalive or 'off'}"]
    return "\n".join(lines) + "\n"


def _peer_lines(peer: Peer) -> List[str]:
    lines = [f"PublicKey = {peer.public_key}", f"AllowedIPs = {', '.join(peer.allowed_ips)}"]
    if peer.endpoint:
        lines.append(f"Endpoint = {peer.endpoint}")
    return lines


def _outside_networks(desired: Desired) -> FrozenSet[str]:
    """The allowed networks that the route of the interface's own network does not cover."""
    own = ipaddress.ip_interface(desired.address).network
    first, mask = int(own.network_address), int(own.netmask)
    outside = set()
    for peer in desired.peers:
        for text in peer.allowed_ips:
            number = _host_number(text)
            if number is not None and own.version == 4:
                if number & mask != first:
                    outside.add(text)
                continue
            network = ipaddress.ip_network(text)
            if network.version != own.version or not (
                network.network_address in own and network.prefixlen >= own.prefixlen
            ):
                outside.add(text)
    return frozenset(outside)


def is_ours(conf: str) -> bool:
    """Whether we wrote this configuration."""
    return conf.startswith(MARK)


class Written(NamedTuple):
    """A peer in a configuration on disk."""

    machine: str
    endpoint: Optional[str]
    #: As in Peer.
    path_mtu: Optional[int] = None


def parse_conf(conf: str) -> Dict[str, Written]:
    """The peers of a managed configuration by public key. Other lines are ignored."""
    peers: Dict[str, Written] = {}
    key, machine, endpoint, path_mtu = "", "", None, None
    for line in [*conf.splitlines(), "[Peer]"]:
        if line.startswith("#"):
            _name, _equals, value = line.partition("=")
            if line.startswith(_MACHINE_COMMENT):
                machine = value.strip()
            elif line.startswith(_PATH_COMMENT):
                path_mtu = int(value) if value.strip().isdecimal() else 0
            continue
        if line.strip() == "[Peer]":
            if key:
                peers[key] = Written(machine or key, endpoint, path_mtu)
            key, machine, endpoint, path_mtu = "", "", None, None
            continue
        name, _equals, value = line.partition("=")
        name = name.strip().lower()
        if name == "publickey":
            key = value.strip()
        elif name == "endpoint":
            endpoint = value.strip()
    return peers


def written_mtu(conf: str) -> Optional[int]:
    """The MTU in a managed configuration; None where there is none."""
    found = re.search(r"(?m)^MTU = ([0-9]{1,5})$", conf)
    return int(found.group(1)) if found else None


def redact(conf: str) -> str:
    """A configuration that can be shown: one that is not ours may contain keys."""
    return "".join(
        f"{line.split('=', 1)[0].rstrip()} = (not shown)\n"
        if line.split("=", 1)[0].strip().lower() in _SECRET_KEYS
        else line
        for line in conf.splitlines(keepends=True)
    )


# --- plan ----------------------------------------------------------------------------------------------------


def plan(
    desired: Desired,
    runtime: Runtime,
    public_key: Optional[str],
    written: Mapping[str, Written],
    resolved: Mapping[str, Tuple[str, ...]],
    now: int,
) -> Plan:
    """Plan the changes to the running interface. Peers that are already correct are not changed.

    ``public_key`` belongs to the key on disk. ``written`` is the configuration on disk before this run. ``resolved``
    has the ``address:port`` forms of each desired endpoint, none if its name has no address now. ``now`` is in seconds
    since 1970. Linear in the number of peers.
    """
    peers = runtime.dump.peers
    wanted = {peer.public_key: peer for peer in desired.peers}
    leaving = {key: peer for key, peer in peers.items() if key not in wanted}
    # A peer whose key was changed keeps the endpoint learned from its packets: a member behind NAT has no other.
    learned = {peer.allowed_ips: peer.endpoint for peer in leaving.values() if peer.endpoint}
    set_peers = []
    for key, peer in wanted.items():
        live = peers.get(key)
        dial = resolved.get(peer.endpoint, ()) if peer.endpoint else ()
        if live is None:
            # A new peer has no preshared key to remove.
            shared = None if peer.preshared == UNSHARED else peer.preshared
            endpoint = dial[0] if dial else learned.get(peer.allowed_ips)
            set_peers.append(peer._replace(endpoint=endpoint, preshared=shared))
            continue
        move = _must_move(peer, live, written.get(key), resolved, now)
        # A key that only the running interface has is kept: the other end of the pair decides.
        rekey = peer.preshared is not None and peer.preshared.digest != live.preshared
        same = live.allowed_ips == peer.allowed_ips and live.persistent_keepalive == peer.persistent_keepalive
        if move or rekey or not same:
            set_peers.append(peer._replace(endpoint=dial[0] if move else None))
    routes = _outside_networks(desired)
    link = runtime.link
    return Plan(
        load_key=runtime.dump.public_key != public_key,
        listen_port=None if runtime.dump.listen_port == desired.listen_port else desired.listen_port,
        mtu=None if link.mtu == desired.mtu else desired.mtu,
        set_up=not link.up,
        start_forwarding=desired.forward and not runtime.forwards,
        add_addresses=() if desired.address in link.addresses else (desired.address,),
        drop_addresses=tuple(address for address in link.addresses if address != desired.address),
        set_peers=tuple(set_peers),
        drop_peers=tuple(leaving),
        add_routes=tuple(sorted(routes - runtime.routes)),
        drop_routes=tuple(sorted(runtime.routes - routes)),
    )


def _must_move(
    peer: Peer,
    live: RuntimePeer,
    written: Optional[Written],
    resolved: Mapping[str, Tuple[str, ...]],
    now: int,
) -> bool:
    """Whether the live endpoint must be set to the desired one.

    A peer may answer from an address other than its endpoint (NAT, a second address), and WireGuard follows it. Setting
    the endpoint back would send packets to the wrong address, and would be a change in every run. So a live session
    keeps its endpoint, unless the desired one has changed.
    """
    dial = resolved.get(peer.endpoint, ()) if peer.endpoint else ()
    if not dial or live.endpoint in dial:
        return False
    replanned = written is None or written.endpoint != peer.endpoint
    return replanned or now - live.latest_handshake > SESSION_SECONDS


def peer_changes(
    desired: Desired, old_keys: Mapping[str, str], touched: Sequence[str], dropped: Sequence[str]
) -> PeerChanges:
    """The differences in terms of machines. ``old_keys`` maps the previous public keys to machines.

    A machine with a new key is one updated peer, not one removed and one added.
    """
    new_keys = {peer.public_key: peer.machine for peer in desired.peers}
    old_machines, new_machines = set(old_keys.values()), set(new_keys.values())
    changed = {new_keys[key] for key in new_keys if key not in old_keys} | {new_keys[key] for key in touched}
    gone = {machine for key, machine in old_keys.items() if key not in new_keys} | {
        old_keys.get(key, key) for key in dropped
    }
    return PeerChanges(
        added=sorted(changed - old_machines),
        removed=sorted(gone - new_machines),
        updated=sorted(changed & old_machines),
    )
