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

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import values
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    InputError,
    ParseError,
    translate_parse_errors,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_tool_json

#: The first line of every managed configuration. A file without it is not changed.
CONF_HEADER = "# Managed by gpumesh.cluster: edits are replaced at the next run."

#: WireGuard ends a session after this time without a new handshake (REJECT_AFTER_TIME of the protocol).
SESSION_SECONDS = 180

_MACHINE_COMMENT = "# Machine = "
_PATH_COMMENT = "# Path MTU = "
#: wg-quick(8) is a bash script, and bash can send datagrams: one to the port "discard" of each address.
_HANDSHAKE_COMMAND = "for peer in {}; do echo > /dev/udp/$peer/9 || true; done 2>/dev/null"
#: The kernel's IPv6 settings of each interface, and of those to come (``default``).
IPV6_CONF_DIRECTORY = "/proc/sys/net/ipv6/conf"
#: The command with which wg-quick does what interface.route_keeping_settings does.
_KEEP_ROUTES_COMMAND = (
    f"for conf in {IPV6_CONF_DIRECTORY}/*; do "
    "if [[ $(<$conf/forwarding)$(<$conf/accept_ra) == 01 ]]; then echo 2 > $conf/accept_ra; fi; done"
)
_SECRET_KEYS = ("privatekey", "presharedkey")


class PresharedKey(NamedTuple):
    """The preshared key of a pair of hosts: the file that contains it, and its digest."""

    file_path: str
    key_digest: str


#: The value that means no preshared key to wg(8).
NO_PRESHARED_KEY = PresharedKey("/dev/null", "")


class DesiredPeer(NamedTuple):
    """A desired peer. ``endpoint`` is ``host:port``, or None if this side waits for the peer."""

    machine: str
    public_key: str
    endpoint: Optional[str]
    allowed_ips: Tuple[str, ...]
    #: Seconds; 0 is off.
    persistent_keepalive: int
    #: The measured MTU in bytes of the path to the endpoint; 0 if it did not answer, None if it was not measured.
    path_mtu: Optional[int] = None
    #: The key, or None to leave the running interface as it is.
    preshared_key: Optional[PresharedKey] = None


class DesiredInterface(NamedTuple):
    """A desired interface. ``address`` is in CIDR form with the prefix length of the whole mesh."""

    interface: str
    address: str
    listen_port: int
    #: Bytes.
    mtu: int
    peers: Tuple[DesiredPeer, ...]
    #: Whether this host forwards between its peers.
    forward: bool = False


class RunningPeer(NamedTuple):
    """A peer of the running interface."""

    public_key: str
    endpoint: Optional[str]
    allowed_ips: Tuple[str, ...]
    #: Seconds since 1970; 0 for never.
    latest_handshake: int
    #: Bytes.
    received_bytes: int
    sent_bytes: int
    persistent_keepalive: int
    #: The digest of the preshared key; '' if there is none.
    preshared_digest: str = ""


class WireguardDump(NamedTuple):
    """The output of ``wg show <interface> dump`` without its secrets."""

    public_key: Optional[str]
    listen_port: int
    peers_by_key: Dict[str, RunningPeer]


class InterfaceLink(NamedTuple):
    """The output of ``ip -j -d address show`` for the interface."""

    mtu: int
    is_up: bool
    #: CIDR, as set by whoever created the interface; link-local addresses, which the kernel adds, are omitted.
    addresses: Tuple[str, ...]
    link_kind: str


class RunningInterface(NamedTuple):
    """The running interface. ``mesh_routes`` are those through it that the kernel has not added itself."""

    wg_dump: WireguardDump
    interface_link: InterfaceLink
    mesh_routes: FrozenSet[str]
    #: Whether the kernel has all settings of ``forwarding_settings``.
    is_forwarding: bool = False


class InterfacePlan(NamedTuple):
    """The steps from a running interface to the desired one. ``has_steps`` is false for an empty plan."""

    load_key: bool = False
    listen_port: Optional[int] = None
    mtu: Optional[int] = None
    set_up: bool = False
    start_forwarding: bool = False
    add_addresses: Tuple[str, ...] = ()
    drop_addresses: Tuple[str, ...] = ()
    #: Added or changed, with the endpoint to set now; None leaves the endpoint as it is.
    set_peers: Tuple[DesiredPeer, ...] = ()
    #: Public keys.
    drop_peers: Tuple[str, ...] = ()
    add_routes: Tuple[str, ...] = ()
    drop_routes: Tuple[str, ...] = ()

    @property
    def has_steps(self) -> bool:
        """Whether there is anything to do."""
        return self != InterfacePlan()


class PeerChanges(NamedTuple):
    """The differences by machine; a peer that no configuration names is shown by its public key."""

    added: List[str]
    removed: List[str]
    updated: List[str]


# --- check the options ---------------------------------------------------------------------------------------


def check_interface_name(name: str) -> str:
    """Return the name. Raises InputError if Linux or wg-quick would reject it."""
    try:
        return values.mesh_interface_name(name)
    except ValueError as failure:
        raise InputError(f"{failure}.", "Choose another mesh_interface.", interface=name) from failure


def check_public_key(key_text: str, owner_name: str) -> str:
    """Return the key. Raises InputError if it is not 32 bytes in base64."""
    try:
        return values.wireguard_key(key_text)
    except ValueError as failure:
        raise InputError(
            f"'{key_text}' is not the public key of {owner_name}: WireGuard keys are 32 bytes, 44 characters in base64.",
            "Run the mesh layer with that machine in the play, so that it registers its key.",
            machine=owner_name,
        ) from failure


def split_endpoint(endpoint_text: str) -> Tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``. Raises InputError."""
    try:
        host, _colon, port = values.endpoint(endpoint_text).rpartition(":")
    except ValueError as failure:
        raise InputError(
            f"{failure}.", "Write host:port, or [address]:port for IPv6.", endpoint=endpoint_text
        ) from failure
    return host.strip("[]"), int(port)


def join_endpoint(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def make_desired(
    interface_name: str,
    address: str,
    listen_port: int,
    mtu: int,
    peer_entries: Iterable[Mapping[str, Any]],
    forward: bool = False,
) -> DesiredInterface:
    """Check and normalise a module's options; peers keep their order. Raises InputError.

    Two peers with the same key or address are refused, since one would silently receive the other's traffic.
    """
    check_interface_name(interface_name)
    try:
        own_address = ipaddress.ip_interface(address if "%" not in address else "")
    except ValueError as failure:
        raise InputError(f"address={address} is not an address in CIDR form.", "Write it as 10.99.0.1/16.") from failure
    checked_peers: List[DesiredPeer] = []
    machine_by_key: Dict[str, str] = {}
    machine_by_network: Dict[str, str] = {}
    for peer_options in peer_entries:
        peer_machine = str(peer_options["machine"])
        try:
            values.printable_line(peer_machine)
        except ValueError as failure:
            raise InputError(f"Invalid name of a peer: {failure}.", "Give the name of a machine.") from failure
        public_key = check_public_key(str(peer_options["public_key"]), peer_machine)
        if public_key in machine_by_key:
            raise InputError(
                f"{machine_by_key[public_key]} and {peer_machine} have the same public key {public_key}.",
                "Remove /etc/wireguard/<interface>.key on one of them and run the mesh layer again.",
                machines=[machine_by_key[public_key], peer_machine],
            )
        machine_by_key[public_key] = peer_machine
        allowed_networks = []
        for allowed_network in _normalize_networks(peer_options.get("allowed_ips") or [], peer_machine):
            if allowed_network in machine_by_network:
                raise InputError(
                    f"{allowed_network} is allowed for {machine_by_network[allowed_network]} and for {peer_machine}.",
                    "Give each address to one peer.",
                    machines=[machine_by_network[allowed_network], peer_machine],
                )
            machine_by_network[allowed_network] = peer_machine
            allowed_networks.append(allowed_network)
        endpoint = peer_options.get("endpoint")
        if endpoint:
            split_endpoint(endpoint)
        checked_peers.append(
            DesiredPeer(
                peer_machine,
                public_key,
                endpoint or None,
                tuple(allowed_networks),
                int(peer_options.get("persistent_keepalive") or 0),
            )
        )
    return DesiredInterface(interface_name, str(own_address), listen_port, mtu, tuple(checked_peers), forward)


def _normalize_networks(network_texts: Iterable[str], machine: str) -> List[str]:
    """Sorted CIDR networks without duplicates. A default route does not belong in a mesh, and is refused."""
    unique_networks = set()
    for network_text in network_texts:
        if _parse_host_number(network_text) is not None:
            unique_networks.add(network_text)
            continue
        try:
            parsed_network = ipaddress.ip_network(network_text if "%" not in network_text else "")
        except ValueError as failure:
            raise InputError(
                f"{machine}: {network_text} is an invalid network.", "Write it as 10.99.0.2/32, without host bits."
            ) from failure
        if parsed_network.prefixlen == 0:
            raise InputError(
                f"{machine}: {network_text} would send all traffic of the host to this peer.",
                "Give only the networks behind the peer.",
            )
        unique_networks.add(str(parsed_network))
    return sorted(unique_networks)


def _parse_host_number(network: str) -> Optional[int]:
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


# --- parse the output of the tools ---------------------------------------------------------------------------


def compute_digest(secret: str) -> str:
    """A fingerprint of a preshared key."""
    return hashlib.sha256(secret.strip().encode("ascii")).hexdigest()


def parse_dump(dump_text: str) -> WireguardDump:
    """Read ``wg show <interface> dump`` (tab-separated, see wg(8)). Raises ParseError.

    A version that prints more about an interface or a peer prints it after these fields.
    The private key is dropped here, and only a digest of each preshared key is kept.
    """
    lines = dump_text.splitlines()
    command_name = "wg show dump"
    if not lines or len(lines[0].split("\t")) < 4:
        raise ParseError(command_name, "the first line does not have the 4 fields of an interface")
    interface_fields = lines[0].split("\t")
    peers_by_key = {}
    for line_number, line in enumerate(lines[1:], start=2):
        fields = line.split("\t")
        if len(fields) < 8:
            raise ParseError(command_name, f"line {line_number} has {len(fields)} fields, not the 8 of a peer")
        key, preshared_key, endpoint, allowed_ips, handshake, received, sent_bytes, keepalive_seconds = fields[:8]
        try:
            peers_by_key[key] = RunningPeer(
                key,
                None if endpoint == "(none)" else endpoint,
                () if allowed_ips == "(none)" else tuple(sorted(allowed_ips.split(","))),
                int(handshake),
                int(received),
                int(sent_bytes),
                0 if keepalive_seconds == "off" else int(keepalive_seconds),
                "" if preshared_key == "(none)" else compute_digest(preshared_key),
            )
        except ValueError as failure:
            raise ParseError(command_name, f"line {line_number} has a field that is not a number") from failure
    try:
        port = int(interface_fields[2])
    except ValueError as failure:
        raise ParseError(command_name, f"the port '{interface_fields[2]}' is not a number") from failure
    return WireguardDump(None if interface_fields[1] == "(none)" else interface_fields[1], port, peers_by_key)


@translate_parse_errors("ip -j -d address show")
def parse_link(json_text: str) -> InterfaceLink:
    """Read ``ip -j -d address show dev <interface>``. Raises ParseError."""
    link_entry = _parse_entries(json_text)[0]
    addresses = tuple(
        f"{address_entry['local']}/{address_entry['prefixlen']}"
        for address_entry in link_entry.get("addr_info") or []
        if address_entry and address_entry.get("scope") != "link"
    )
    return InterfaceLink(
        int(link_entry["mtu"]),
        "UP" in link_entry["flags"],
        addresses,
        str((link_entry.get("linkinfo") or {}).get("info_kind") or ""),
    )


@translate_parse_errors("ip -j route show")
def parse_routes(*json_texts: str) -> FrozenSet[str]:
    """The destinations in ``ip -j [-6] route show dev <interface>`` that the kernel did not add. Raises ParseError."""
    return frozenset(
        str(ipaddress.ip_network(str(entry["dst"])))
        for json_text in json_texts
        for entry in (_parse_entries(json_text) if json_text.strip() else [])
        if entry.get("protocol") != "kernel" and entry["dst"] != "default"
    )


def _parse_entries(json_text: str) -> List[Dict[str, Any]]:
    """Parse the list that ip(8) prints. iproute2 before 6.x pads it with empty objects."""
    return [entry for entry in parse_tool_json(json_text) if entry]


# --- the configuration ---------------------------------------------------------------------------------------


def render_conf(desired_interface: DesiredInterface, key_path: str) -> str:
    """The text for wg-quick(8). It contains no secret, so it can be shown and compared.

    The preshared keys stay in their files. The keepalives are set together with the key, since WireGuard sends the
    first one when it is set: in the section of the peer, that would be before the interface has a key, and a member
    behind NAT could not be reached during the first interval. ``Table = off``: all members are in the network of
    ``address``, for which the kernel adds a single route; wg-quick would run ip(8) once for each peer. Routes of
    networks outside of it are set explicitly.

    Last, a byte is sent to the other peers, which creates new sessions: a peer that has a session from before this host
    was restarted uses it for 15 seconds before it tries again, and nothing arrives.
    """
    peer_arguments = "".join(
        f" peer {desired_peer.public_key}{_preshared_argument(desired_peer)}{_keepalive_argument(desired_peer)}"
        for desired_peer in desired_interface.peers
        if desired_peer.persistent_keepalive or _preshared_argument(desired_peer)
    )
    conf_lines = [
        CONF_HEADER,
        "[Interface]",
        f"Address = {desired_interface.address}",
        f"ListenPort = {desired_interface.listen_port}",
        f"MTU = {desired_interface.mtu}",
        "Table = off",
        f"PostUp = wg set %i private-key {key_path}{peer_arguments}",
    ]
    conf_lines += [
        f"PostUp = ip route replace {network} dev %i" for network in sorted(_find_outside_networks(desired_interface))
    ]
    if desired_interface.forward and ":" in desired_interface.address:
        conf_lines.append(f"PostUp = {_KEEP_ROUTES_COMMAND}")
    if desired_interface.forward:
        conf_lines += [
            f"PostUp = echo {setting_text} > {path}"
            for path, setting_text in forwarding_settings(desired_interface.address, "%i")
        ]
    handshake_addresses = [
        desired_peer.allowed_ips[0].partition("/")[0]
        for desired_peer in desired_interface.peers
        if desired_peer.endpoint and desired_peer.allowed_ips and not desired_peer.persistent_keepalive
    ]
    if handshake_addresses:
        conf_lines.append(f"PostUp = {_HANDSHAKE_COMMAND.format(' '.join(handshake_addresses))}")
    for desired_peer in desired_interface.peers:
        conf_lines += ["", "[Peer]", f"{_MACHINE_COMMENT}{desired_peer.machine}"]
        if desired_peer.path_mtu is not None:
            # Stored here, so that an endpoint is measured only once, and not in every run.
            conf_lines.append(f"{_PATH_COMMENT}{desired_peer.path_mtu or 'unknown'}")
        conf_lines += _render_peer(desired_peer)
    return "\n".join(conf_lines) + "\n"


def _preshared_argument(peer: DesiredPeer) -> str:
    return (
        f" preshared-key {peer.preshared_key.file_path}"
        if peer.preshared_key and peer.preshared_key != NO_PRESHARED_KEY
        else ""
    )


def _keepalive_argument(peer: DesiredPeer) -> str:
    return f" persistent-keepalive {peer.persistent_keepalive}" if peer.persistent_keepalive else ""


def preshared_arguments(peers: Iterable[DesiredPeer]) -> List[str]:
    """The options for ``wg set <interface>`` that give these peers their preshared keys.

    Peers may be new ones: their other settings come later, so that they never connect without the key.
    """
    options = []
    for peer in peers:
        if peer.preshared_key:
            options += ["peer", peer.public_key, "preshared-key", peer.preshared_key.file_path]
    return options


def forwarding_settings(address: str, interface: str) -> List[Tuple[str, str]]:
    """The kernel's settings, as path and value, with which it forwards between the peers of the mesh of ``address``.

    For IPv4, the setting of one interface is enough, so the host does not become a router between its other networks;
    for IPv6, the kernel has only a global setting. Redirects would tell peers to bypass the relay; kernel WireGuard
    disables them itself in the same way, a userspace one cannot.
    """
    if ":" in address:
        return [(f"{IPV6_CONF_DIRECTORY}/all/forwarding", "1")]
    return [
        (f"/proc/sys/net/ipv4/conf/{interface}/forwarding", "1"),
        (f"/proc/sys/net/ipv4/conf/{interface}/send_redirects", "0"),
        ("/proc/sys/net/ipv4/conf/all/send_redirects", "0"),
    ]


def render_peers(peers: Iterable[DesiredPeer]) -> str:
    """The text for ``wg addconf``: these peers, without the interface or its key."""
    lines: List[str] = []
    for peer in peers:
        # 'off' must be explicit; omitting it keeps the old interval.
        lines += ["[Peer]", *_render_peer(peer), f"PersistentKeepalive = {peer.persistent_keepalive or 'off'}"]
    return "\n".join(lines) + "\n"


def _render_peer(peer: DesiredPeer) -> List[str]:
    lines = [f"PublicKey = {peer.public_key}", f"AllowedIPs = {', '.join(peer.allowed_ips)}"]
    if peer.endpoint:
        lines.append(f"Endpoint = {peer.endpoint}")
    return lines


def _find_outside_networks(desired_interface: DesiredInterface) -> FrozenSet[str]:
    """The allowed networks that the route of the interface's own network does not cover."""
    interface_network = ipaddress.ip_interface(desired_interface.address).network
    first, mask = int(interface_network.network_address), int(interface_network.netmask)
    outside_networks = set()
    for peer in desired_interface.peers:
        for network_text in peer.allowed_ips:
            number = _parse_host_number(network_text)
            if number is not None and interface_network.version == 4:
                if number & mask != first:
                    outside_networks.add(network_text)
                continue
            network = ipaddress.ip_network(network_text)
            if network.version != interface_network.version or not (
                network.network_address in interface_network and network.prefixlen >= interface_network.prefixlen
            ):
                outside_networks.add(network_text)
    return frozenset(outside_networks)


def is_managed(conf: str) -> bool:
    """Whether we wrote this configuration."""
    return conf.startswith(CONF_HEADER)


class ConfPeer(NamedTuple):
    """A peer in a configuration on disk."""

    machine: str
    endpoint: Optional[str]
    #: The measured MTU, as in DesiredPeer.
    path_mtu: Optional[int] = None


def parse_conf(conf: str) -> Dict[str, ConfPeer]:
    """The peers of a managed configuration by public key. Other lines are ignored."""
    peers_by_key: Dict[str, ConfPeer] = {}
    public_key, peer_machine, peer_endpoint, path_mtu = "", "", None, None
    for conf_line in [*conf.splitlines(), "[Peer]"]:
        if conf_line.startswith("#"):
            _name, _equals, setting_text = conf_line.partition("=")
            if conf_line.startswith(_MACHINE_COMMENT):
                peer_machine = setting_text.strip()
            elif conf_line.startswith(_PATH_COMMENT):
                path_mtu = int(setting_text) if setting_text.strip().isdecimal() else 0
            continue
        if conf_line.strip() == "[Peer]":
            if public_key:
                peers_by_key[public_key] = ConfPeer(peer_machine or public_key, peer_endpoint, path_mtu)
            public_key, peer_machine, peer_endpoint, path_mtu = "", "", None, None
            continue
        name, _equals, setting_text = conf_line.partition("=")
        name = name.strip().lower()
        if name == "publickey":
            public_key = setting_text.strip()
        elif name == "endpoint":
            peer_endpoint = setting_text.strip()
    return peers_by_key


def parse_mtu(conf: str) -> Optional[int]:
    """The MTU in a managed configuration; None where there is none."""
    mtu_match = re.search(r"(?m)^MTU = ([0-9]{1,5})$", conf)
    return int(mtu_match.group(1)) if mtu_match else None


def redact_secrets(conf: str) -> str:
    """A configuration that can be shown: one that is not ours may contain keys."""
    return "".join(
        f"{line.split('=', 1)[0].rstrip()} = (not shown)\n"
        if line.split("=", 1)[0].strip().lower() in _SECRET_KEYS
        else line
        for line in conf.splitlines(keepends=True)
    )


# --- plan ----------------------------------------------------------------------------------------------------


def plan_interface(
    desired_interface: DesiredInterface,
    running_interface: RunningInterface,
    public_key: Optional[str],
    conf_peers: Mapping[str, ConfPeer],
    resolved_endpoints: Mapping[str, Tuple[str, ...]],
    current_time: int,
) -> InterfacePlan:
    """Plan the changes to the running interface. Peers that are already correct are not changed.

    ``public_key`` belongs to the key on disk. ``conf_peers`` is the configuration on disk before this run.
    ``resolved_endpoints`` has the ``address:port`` forms of each desired endpoint, none if its name has no address now.
    ``current_time`` is in seconds since 1970. Linear in the number of peers.
    """
    peers = running_interface.wg_dump.peers_by_key
    desired_peers = {desired_peer.public_key: desired_peer for desired_peer in desired_interface.peers}
    leaving_peers = {
        peer_key: desired_peer for peer_key, desired_peer in peers.items() if peer_key not in desired_peers
    }
    # A peer whose key was changed keeps the endpoint learned from its packets: a member behind NAT has no other.
    learned_endpoints = {
        desired_peer.allowed_ips: desired_peer.endpoint
        for desired_peer in leaving_peers.values()
        if desired_peer.endpoint
    }
    set_peers = []
    for peer_key, desired_peer in desired_peers.items():
        running_peer = peers.get(peer_key)
        dial_endpoints = resolved_endpoints.get(desired_peer.endpoint, ()) if desired_peer.endpoint else ()
        if running_peer is None:
            # There is no preshared key to remove from a new peer.
            preshared_key = None if desired_peer.preshared_key == NO_PRESHARED_KEY else desired_peer.preshared_key
            endpoint = dial_endpoints[0] if dial_endpoints else learned_endpoints.get(desired_peer.allowed_ips)
            set_peers.append(desired_peer._replace(endpoint=endpoint, preshared_key=preshared_key))
            continue
        sets_endpoint = _must_set_endpoint(
            desired_peer, running_peer, conf_peers.get(peer_key), resolved_endpoints, current_time
        )
        # The running interface keeps a key that only it has: the other member of the pair decides.
        changes_key = (
            desired_peer.preshared_key is not None
            and desired_peer.preshared_key.key_digest != running_peer.preshared_digest
        )
        is_unchanged = (
            running_peer.allowed_ips == desired_peer.allowed_ips
            and running_peer.persistent_keepalive == desired_peer.persistent_keepalive
        )
        if sets_endpoint or changes_key or not is_unchanged:
            set_peers.append(desired_peer._replace(endpoint=dial_endpoints[0] if sets_endpoint else None))
    outside_networks = _find_outside_networks(desired_interface)
    interface_link = running_interface.interface_link
    return InterfacePlan(
        load_key=running_interface.wg_dump.public_key != public_key,
        listen_port=None
        if running_interface.wg_dump.listen_port == desired_interface.listen_port
        else desired_interface.listen_port,
        mtu=None if interface_link.mtu == desired_interface.mtu else desired_interface.mtu,
        set_up=not interface_link.is_up,
        start_forwarding=desired_interface.forward and not running_interface.is_forwarding,
        add_addresses=() if desired_interface.address in interface_link.addresses else (desired_interface.address,),
        drop_addresses=tuple(address for address in interface_link.addresses if address != desired_interface.address),
        set_peers=tuple(set_peers),
        drop_peers=tuple(leaving_peers),
        add_routes=tuple(sorted(outside_networks - running_interface.mesh_routes)),
        drop_routes=tuple(sorted(running_interface.mesh_routes - outside_networks)),
    )


def _must_set_endpoint(
    desired_peer: DesiredPeer,
    running_peer: RunningPeer,
    conf_peer: Optional[ConfPeer],
    resolved_endpoints: Mapping[str, Tuple[str, ...]],
    current_time: int,
) -> bool:
    """Whether the live endpoint must be set to the desired one.

    A peer may answer from an address other than its endpoint (NAT, a second address), and WireGuard follows it. Setting
    the endpoint back would send packets to the wrong address, and would be a change in every run. So a live session
    keeps its endpoint, unless the desired one has changed.
    """
    dial_endpoints = resolved_endpoints.get(desired_peer.endpoint, ()) if desired_peer.endpoint else ()
    if not dial_endpoints or running_peer.endpoint in dial_endpoints:
        return False
    endpoint_changed = conf_peer is None or conf_peer.endpoint != desired_peer.endpoint
    return endpoint_changed or current_time - running_peer.latest_handshake > SESSION_SECONDS


def compare_peers(
    desired_interface: DesiredInterface,
    old_machine_by_key: Mapping[str, str],
    touched_keys: Sequence[str],
    dropped_keys: Sequence[str],
) -> PeerChanges:
    """The differences in terms of machines. ``old_machine_by_key`` maps the previous public keys to machines.

    A machine with a new key is one updated peer, not one removed and one added.
    """
    new_keys = {peer.public_key: peer.machine for peer in desired_interface.peers}
    old_machines, new_machines = set(old_machine_by_key.values()), set(new_keys.values())
    changed = {new_keys[key] for key in new_keys if key not in old_machine_by_key} | {
        new_keys[key] for key in touched_keys
    }
    removed_machines = {machine for key, machine in old_machine_by_key.items() if key not in new_keys} | {
        old_machine_by_key.get(key, key) for key in dropped_keys
    }
    return PeerChanges(
        added=sorted(changed - old_machines),
        removed=sorted(removed_machines - new_machines),
        updated=sorted(changed & old_machines),
    )
