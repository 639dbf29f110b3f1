# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of a session on one node: the commands for each container's namespace, and the hosts' nftables table.

Each container has its own namespace. Its eth0 is a bridge over a VXLAN device with the container's own identifier; each
peer is a static entry with the node, the identifier and the address of the peer, so that nothing is learned or flooded
and the containers of a node share nothing. The addresses of eth0 contain the job ID, so that the bridge drops packets
of a job that uses the identifiers of another one. The bridge has no other port: it is there because the kernel passes a
packet for a neighbour on the same node with the sender's route still attached, which a bridge drops.
"""

from __future__ import annotations

import ipaddress
import re
from typing import List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import Container, Settings

#: The UDP port between the members. Not VXLAN's own port, which other overlays may use.
PORT = 8474
TABLE = "gpumesh_session"
#: Names of our namespaces, and of the hosts' ends of ways out, begin with it.
PREFIX = "gms"
INTERFACE = "eth0"
#: Sets of the table: the interfaces through which sessions reach other networks; those of them that forward for sessions
#: alone; and the bridges among these, in pairs with themselves.
WAYS, OPENED, BRIDGES = "ways", "opened", "bridges"
_GATEWAY = "169.254.1.1"
_WITH_PORTS = "{ tcp, udp, udplite, dccp, sctp }"
_OUT = "out0"
#: The first byte of addresses of our own making: in the session, and of the two ends of an uplink.
_SESSION, _INNER, _OUTER = 2, 6, 10
#: The commands that disconnect a namespace from the network, for ``ip -batch``.
REMOVAL = f"link delete vx0\nlink delete {_OUT}\n"
_ALLOWED = re.compile(r"(?P<address>[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?:/[0-9]{1,2})?):(?P<port>[0-9]{1,5})")
SYSCTLS = (
    "net.ipv4.ip_unprivileged_port_start=0",
    "net.ipv4.ping_group_range=0 2147483647",
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
)


class Commands(NamedTuple):
    """Lines for ``ip -batch`` on the host, the same in the namespace, for ``bridge -batch`` there, and on the host again."""

    host: List[str]
    inside: List[str]
    bridge: List[str]
    after: List[str]


def namespace(job: int, local: int) -> str:
    """Of a container."""
    return f"{PREFIX}{job}.{local}"


def owner(name: str) -> int:
    """The job of a namespace; 0 if it is not ours."""
    found = re.fullmatch(rf"{PREFIX}([0-9]{{1,10}})\.[0-9]{{1,3}}", name)
    return int(found.group(1)) if found else 0


def mtu(underlay: int, address: str) -> int:
    """The MTU of a session, from that of the cluster's interface."""
    return underlay - (70 if ":" in address else 50)


def mac(job: int, one: Container) -> str:
    """Of a container's eth0. Job IDs have 32 bits, and a session has fewer than 256 ranks: see MOST_CONTAINERS."""
    return _colons(bytes([_SESSION, *job.to_bytes(4, "big"), one.rank]))


def _mac_of_outlet(end: int, one: Container) -> str:
    """Of an end of a container's uplink, which only its node sees."""
    return _colons(bytes([end, 0x67, 0x6D, *one.vni.to_bytes(3, "big")]))


def _colons(address: bytes) -> str:
    return ":".join(f"{byte:02x}" for byte in address)


def commands(job: int, own: Container, session: Sequence[Container], settings: Settings, underlay: int) -> Commands:
    """The commands that set up the network of a container on this node. ``underlay``: its MTU."""
    name, here = namespace(job, own.local), settings.members[settings.machine]
    size = mtu(underlay, here)
    host = [f"link add vx0 netns {name} type vxlan id {own.vni} dstport {PORT} local {here} nolearning ttl 64"]
    inside = [
        "link set lo up",
        f"link add {INTERFACE} address {mac(job, own)} type bridge mcast_snooping 0",
        f"link set vx0 mtu {size} master {INTERFACE} up",
        f"link set {INTERFACE} mtu {size} up",
        f"address add {own.address}/24 dev {INTERFACE}",
    ]
    peers = [one for one in session if one.name != own.name]
    inside += [f"neighbour add {one.address} lladdr {mac(job, one)} dev {INTERFACE} nud permanent" for one in peers]
    bridge = ["link set dev vx0 learning off"]
    bridge += [
        f"fdb add {mac(job, one)} dev vx0 dst {settings.members[one.node]} vni {one.vni} self permanent"
        for one in peers
    ]
    after: List[str] = []
    if settings.nat:
        out, inner, outer = outlet(own), _mac_of_outlet(_INNER, own), _mac_of_outlet(_OUTER, own)
        host.append(f"link add {out} address {outer} type veth peer name {_OUT} address {inner} netns {name}")
        inside += [
            f"link set {_OUT} up",
            f"route add {_GATEWAY} dev {_OUT} src {own.address}",
            f"neighbour add {_GATEWAY} lladdr {outer} dev {_OUT} nud permanent",
            f"route add default via {_GATEWAY} dev {_OUT} src {own.address}",
        ]
        after = [
            f"address add {_GATEWAY}/32 dev {out}",
            f"link set {out} up",
            f"neighbour add {own.address} lladdr {inner} dev {out} nud permanent",
            f"route add {own.address}/32 dev {out}",
        ]
    return Commands(host, inside, bridge, after)


def outlet(own: Container) -> str:
    """The host's end of a container's uplink."""
    return f"{PREFIX}{own.vni:06x}"


def parse_allowed(texts: Sequence[str]) -> List[Tuple[str, int]]:
    """Addresses and TCP ports of the cluster that sessions may reach. Raises InputError."""
    pairs = []
    for text in texts:
        found = _ALLOWED.fullmatch(text)
        if found is None or not _is_network(found.group("address")) or not 0 < int(found.group("port")) < 65536:
            raise InputError(f"session_allow: '{text}' cannot be read.", "Give an address and a port: 10.0.0.5:5000.")
        pairs.append((found.group("address"), int(found.group("port"))))
    return pairs


def _is_network(text: str) -> bool:
    try:
        ipaddress.IPv4Interface(text)
    except ValueError:
        return False
    return True


def table(settings: Settings) -> str:
    """The rules of a host, which do not depend on its sessions. Loading them replaces the existing ones."""
    four = sorted(address for address in settings.members.values() if ":" not in address)
    six = sorted(address for address in settings.members.values() if ":" in address)
    guards = []
    if settings.mesh:
        guards.append(f'udp dport {PORT} iifname != {{ "lo", "{settings.mesh}" }} drop')
    for family, addresses in (("ip", four), ("ip6", six)):
        listed = f" {family} saddr != {{ {', '.join(addresses)} }}" if addresses else ""
        guards.append(f"meta nfproto {'ipv4' if family == 'ip' else 'ipv6'} udp dport {PORT}{listed} drop")
    allowed = [f"ip daddr {address} tcp dport {port} accept" for address, port in parse_allowed(settings.allow)]
    closed = closed_networks(settings)
    pools = f"{{ {', '.join(settings.pools)} }}"
    answers = "ct state established,related accept"
    mesh = [f'oifname "{settings.mesh}" iifname != "{settings.mesh}" iifname @{WAYS} drop'] if settings.mesh else []
    names = ["meta l4proto { tcp, udp } th dport 53 accept"]
    lines = [
        f"table inet {TABLE}",
        f"delete table inet {TABLE}",
        f"table inet {TABLE} {{",
        f"  set {WAYS} {{ type ifname; }}",
        f"  set {OPENED} {{ type ifname; }}",
        f"  set {BRIDGES} {{ type ifname . ifname; }}",
        # Sessions have no other addresses.
        *_chain(
            "from_anywhere", "filter hook prerouting priority raw", [f'iifname "{PREFIX}*" ip saddr != {pools} drop']
        ),
        *_chain(
            "to_host",
            "filter hook input priority filter - 10",
            [
                f'iifname "{PREFIX}*" {answers}',
                *(f'iifname "{PREFIX}*" {rule}' for rule in (*names, *allowed)),
                f'iifname "{PREFIX}*" reject with icmpx admin-prohibited',
                *guards,
            ],
        ),
        # A packet from a namespace belongs to no user of the host: only the kernel may use the port.
        *_chain(
            "from_host",
            "filter hook output priority filter - 10",
            [
                f'oifname "{PREFIX}*" ct state new reject with icmpx admin-prohibited',
                f"udp dport {PORT} meta skuid != 0 reject with icmpx admin-prohibited",
            ],
        ),
        *_chain(
            "through",
            "filter hook forward priority filter - 10",
            [
                # What this host masquerades would have its address, which is a member's.
                *guards,
                # Nobody else has these addresses on the way through this host, or would leave with the host's own. The
                # host itself may use a resolver, and be used by people, with an address that is only like theirs.
                f'ip saddr {pools} iifname != "{PREFIX}*" drop',
                # What conntrack cannot place would leave with the address and port of the container.
                f'iifname "{PREFIX}*" ct state invalid drop',
                f'iifname "{PREFIX}*" oifname "{PREFIX}*" reject with icmpx admin-prohibited',
                *(f'iifname "{PREFIX}*" {rule}' for rule in (*names, *allowed)),
                f'iifname "{PREFIX}*" ip daddr {{ {", ".join(closed)} }} reject with icmpx admin-prohibited',
                f'oifname "{PREFIX}*" {answers}',
                f'oifname "{PREFIX}*" drop',
                f"iifname @{WAYS} {answers}",
                *mesh,
                f"iifname . oifname @{BRIDGES} accept",
                f"iifname @{OPENED} meta nfproto ipv4 drop",
            ],
        ),
        *_chain(
            "outwards",
            "nat hook postrouting priority srcnat",
            [
                # NFS servers take a port below 1024 for root's, which any user of a container can have.
                f'ip saddr {pools} oifname != "{PREFIX}*" meta l4proto {_WITH_PORTS} masquerade to :1024-65535',
                f'ip saddr {pools} oifname != "{PREFIX}*" masquerade',
            ],
        ),
        "}",
    ]
    return "".join(f"{line}\n" for line in lines)


def closed_networks(settings: Settings) -> List[str]:
    """The IPv4 networks that sessions do not reach, except for what is allowed."""
    four = [address for address in settings.members.values() if ":" not in address]
    return networks([*settings.closed, *four, *settings.pools])


def networks(texts: Sequence[str]) -> List[str]:
    """IPv4 networks without those that are in others, which a set of nftables refuses."""
    given = [ipaddress.ip_network(text, strict=False) for text in texts]
    four = [one for one in given if isinstance(one, ipaddress.IPv4Network)]
    return [str(one) for one in ipaddress.collapse_addresses(four)]


def _chain(name: str, kind: str, rules: Sequence[str]) -> List[str]:
    return [f"  chain {name} {{", f"    type {kind}; policy accept;", *(f"    {rule}" for rule in rules), "  }"]
