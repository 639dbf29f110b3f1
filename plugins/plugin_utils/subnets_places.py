# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The place of each host in each subnet, and its addresses that no other machine can reach.

Pure. The facts are the results of interface_info, by host. The time depends only on the number of addresses.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.addresses import Network, normalise_subnet

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
IpInterface = ipaddress.IPv4Interface | ipaddress.IPv6Interface

#: Interfaces that container runtimes, Kubernetes and hypervisors create for themselves. Their addresses belong to
#: private networks of the host, often with the same range on every host.
RUNTIME_INTERFACES = (
    *("docker*", "podman*", "nerdctl*", "cni*", "cbr*", "kube*", "nodelocaldns*", "flannel*", "cali*", "vxlan.calico"),
    *("vxlan-v6.calico", "tunl0", "cilium*", "lxc*", "weave*", "antrea*", "ovn*", "ovs-system", "br-int"),
    *("lxdbr*", "incusbr*", "virbr*", "vnet*"),
)
#: The bridge of a user-defined Docker network is named after the first digits of its ID.
_DOCKER_BRIDGE = r"br-[0-9a-f]{12}"

#: The tunnel of the mesh layer, which is derived from the cluster network, and so never a candidate for it.
OWN_TUNNELS = ("gpumesh*",)

#: Devices that encapsulate packets of another network, by the kernel's kind.
_OVERLAYS = frozenset(
    (
        *("wireguard", "tun", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan"),
        *("ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm"),
    )
)

OVERLAY, VIRTUAL, HARDWARE = range(3)


class Options(NamedTuple):
    """The user's options. Patterns are like those of file names, and match interface names."""

    wanted: Network | None = None
    min_hosts: int = 0  # 0: every host
    prefer: Sequence[str] = ()
    exclude: Sequence[str] = ()
    include: Sequence[str] = ()
    own_tunnels: Sequence[str] = OWN_TUNNELS


DEFAULTS = Options()


class Place(NamedTuple):
    """One usable address of a host."""

    interface: str
    kind: str
    tier: int  # OVERLAY, VIRTUAL or HARDWARE
    address: str
    parsed: IpAddress
    prefix_length: int
    mtu: int
    speed_mbps: int | None
    rdma: Mapping[str, Any] | None
    secondary: bool
    preferred: bool  # by the user's patterns

    @property
    def rdma_active(self) -> bool:
        """Whether an RDMA port behind it is active."""
        return self.rdma is not None and self.rdma.get("state") == "active"

    def quality(self) -> tuple[Any, ...]:
        """A sort key, best first; the name and the address make it deterministic."""
        return (
            not self.preferred,
            -self.tier,
            not self.rdma_active,
            -(self.speed_mbps or 0),
            -self.mtu,
            self.secondary,
            self.interface,
            self.address,
        )


class Unusable(NamedTuple):
    """An unusable address, and the reason."""

    interface: str
    address: str
    prefix_length: int
    why: str


class Survey(NamedTuple):
    """All hosts' addresses by subnet, then by host."""

    hosts: tuple[str, ...]
    usable: dict[Network, dict[str, list[Place]]]
    unusable: dict[Network, dict[str, list[Unusable]]]
    by_host: dict[str, list[Place]]


class _Rank(NamedTuple):
    """What decides between the addresses of different interfaces, as in Place."""

    tier: int
    speed_mbps: int | None
    preferred: bool


def survey(facts: Mapping[str, Any], options: Options) -> Survey:
    """Sort all addresses of all hosts into usable and unusable ones. Raises InputError for invalid facts."""
    result = Survey(tuple(str(host) for host in facts), {}, {}, {})
    judge = Judge(options)
    for host, host_facts in facts.items():
        name = str(host)
        result.by_host[name] = []
        interfaces = _interfaces(name, host_facts)
        by_name = {str(interface["name"]): interface for interface in interfaces}
        for interface in interfaces:
            why = judge.interface(interface, by_name)
            rank = _Rank(
                tier := _tier(interface, by_name),
                _speed(interface, by_name) if tier == HARDWARE else interface.get("speed_mbps"),
                judge.prefer.match(str(interface["name"])) is not None,
            )
            for entry in interface["addresses"]:
                _sort_in(result, name, interface, rank, why, entry, options.wanted)
    for places in result.by_host.values():
        places.sort(key=Place.quality)
    return result


def _interfaces(host: str, host_facts: Any) -> Sequence[Mapping[str, Any]]:
    interfaces = host_facts.get("interfaces") if isinstance(host_facts, Mapping) else None
    if isinstance(interfaces, Sequence) and not isinstance(interfaces, str):
        return interfaces
    raise InputError(
        f"{host}: its list of interfaces is missing.",
        "Pass the result of gpumesh.cluster.interface_info for each host, and omit hosts that did not answer.",
        host=host,
    )


def _sort_in(
    result: Survey,
    host: str,
    interface: Mapping[str, Any],
    rank: _Rank,
    interface_why: str | None,
    entry: Mapping[str, Any],
    wanted: Network | None,
) -> None:
    parsed: IpInterface = ipaddress.ip_interface(f"{entry['address']}/{entry['prefix_length']}")
    # A cloud may assign a single address of a subnet that the user knows; then the user's request takes precedence.
    in_wanted = wanted is not None and parsed.version == wanted.version and parsed.ip in wanted
    network: Network = wanted if in_wanted and wanted is not None else parsed.network
    why = interface_why or _address_trouble(str(interface["name"]), parsed, entry, in_wanted)
    if why is not None:
        out = Unusable(str(interface["name"]), str(parsed.ip), parsed.network.prefixlen, why)
        result.unusable.setdefault(network, {}).setdefault(host, []).append(out)
        return
    place = Place(
        interface=str(interface["name"]),
        kind=str(interface["kind"]),
        tier=rank.tier,
        address=str(parsed.ip),
        parsed=parsed.ip,
        prefix_length=parsed.network.prefixlen,
        mtu=int(interface["mtu"]),
        speed_mbps=rank.speed_mbps,
        rdma=interface.get("rdma"),
        secondary=bool(entry.get("secondary")),
        preferred=rank.preferred,
    )
    result.usable.setdefault(network, {}).setdefault(host, []).append(place)
    result.by_host[host].append(place)


def _address_trouble(name: str, address: IpInterface, entry: Mapping[str, Any], in_wanted: bool) -> str | None:
    flags = entry.get("flags") or ()
    if address.ip.is_loopback:
        return "it is the loopback interface"
    if address.ip.is_link_local:
        return "link-local: every interface has such an address"
    if entry.get("scope") in ("host", "link", "nowhere"):
        return f"{name} has {address.ip} for this host or link alone (scope {entry['scope']})"
    if "dadfailed" in flags:
        return f"{name} has {address.ip}, which another machine has as well (duplicate address detection failed)"
    if "deprecated" in flags:
        return f"{name} has {address.ip}, which is deprecated"
    if address.network.prefixlen == address.max_prefixlen and not in_wanted:
        return f"{name} has {address}, a single address without other hosts"
    return None


class Judge:
    """Judges whole interfaces, with the patterns compiled once."""

    def __init__(self, options: Options) -> None:
        self.runtime = re.compile(f"{_pattern(RUNTIME_INTERFACES).pattern}|{_DOCKER_BRIDGE}\\Z")
        self.exclude = _pattern(options.exclude)
        self.include = _pattern(options.include)
        self.prefer = _pattern(options.prefer)
        self.own = _pattern(options.own_tunnels)

    def interface(self, interface: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> str | None:
        """Why an interface is not used, or None. ``by_name`` has the host's interfaces."""
        name = str(interface["name"])
        if interface["kind"] == "loopback":
            return "it is the loopback interface"
        if interface["state"] not in ("up", "unknown"):
            return f"{name} is {interface['state']}"
        if self.exclude.match(name):
            return f"{name} is excluded by your pattern"
        if self.own.match(name):
            return f"{name} is the cluster's own tunnel"
        if self.include.match(name):
            return None
        if self.runtime.match(name):
            return f"{name} belongs to a container runtime or hypervisor"
        if interface["kind"] == "bridge" and not _on_hardware(interface, by_name):
            return f"{name} is a bridge without a physical port"
        return None


def _pattern(patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression for all patterns; without patterns, it matches nothing."""
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")


def _tier(interface: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]]) -> int:
    if interface["kind"] in _OVERLAYS or interface.get("link_kind") in _OVERLAYS:
        return OVERLAY
    return HARDWARE if _on_hardware(interface, by_name) else VIRTUAL


def _on_hardware(
    interface: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]], seen: frozenset[str] = frozenset()
) -> bool:
    """Whether it is a card, or a bond, bridge or VLAN on top of one.

    ``seen`` guards against cycles in invalid facts.
    """
    if interface["physical"]:
        return True
    below = {*interface.get("members", ()), interface.get("parent")} - {None} - seen
    return any(_on_hardware(by_name[name], by_name, seen | {interface["name"]}) for name in below if name in by_name)


def _speed(
    interface: Mapping[str, Any], by_name: Mapping[str, Mapping[str, Any]], seen: frozenset[str] = frozenset()
) -> int | None:
    """The speed in Mbit/s; that of the fastest port below a bridge or a similar interface, which has none itself."""
    if interface["physical"] or interface.get("speed_mbps"):
        return interface.get("speed_mbps")
    below = {*interface.get("members", ()), interface.get("parent")} - {None} - seen
    speeds = [_speed(by_name[name], by_name, seen | {interface["name"]}) for name in below if name in by_name]
    return max(filter(None, speeds), default=None)


def options_from(
    subnet: str | None = None,
    min_hosts: int = 0,
    prefer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    own_tunnels: str | Sequence[str] = OWN_TUNNELS,
) -> Options:
    """Options from a playbook; an empty subnet counts as none, and a text as one pattern. Raises InputError."""
    return Options(
        wanted=normalise_subnet(subnet) if subnet else None,
        min_hosts=min_hosts,
        prefer=_patterns(prefer),
        exclude=_patterns(exclude),
        include=_patterns(include),
        own_tunnels=_patterns(own_tunnels),
    )


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    """The patterns of an option. A filter gets its options as they are written, so a text may stand for a list."""
    return (given,) if isinstance(given, str) else tuple(given)
