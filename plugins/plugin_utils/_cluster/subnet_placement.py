# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The address of each host in each subnet, and addresses that no other machine can reach.

Pure. The facts are the results of interface_info, by host. The time depends only on the number of addresses.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.addresses import Network, normalise_subnet

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
OWN_TUNNEL_PATTERNS = ("gpumesh*",)

#: Devices that encapsulate packets of another network, by the kernel's kind.
_OVERLAY_KINDS = frozenset(
    (
        *("wireguard", "tun", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan"),
        *("ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm"),
    )
)

OVERLAY, VIRTUAL, HARDWARE = range(3)

#: Why addresses are not used that a machine has for itself, on no network: 127.0.0.1, and those that it announces by BGP.
_LOOPBACK_REASON = "it is the loopback interface"
_REASON_BY_LINK_KIND = {
    "dummy": "it is on a dummy interface, which reaches no other host",
    "vrf": "it is on a VRF, which is not a network itself",
}
INTERNAL_REASONS = (_LOOPBACK_REASON, *_REASON_BY_LINK_KIND.values())


class SubnetOptions(NamedTuple):
    """The user's options. Patterns are like those of file names, and match interface names."""

    requested_subnet: Network | None = None
    min_hosts: int = 0  # 0: every host
    prefer: Sequence[str] = ()
    exclude: Sequence[str] = ()
    include: Sequence[str] = ()
    own_tunnels: Sequence[str] = OWN_TUNNEL_PATTERNS


DEFAULT_OPTIONS = SubnetOptions()


class HostAddress(NamedTuple):
    """One usable address of a host."""

    interface: str
    kind: str
    tier: int  # OVERLAY, VIRTUAL or HARDWARE
    address: str
    ip_address: IpAddress
    prefix_length: int
    mtu: int
    speed_mbps: int | None
    rdma: Mapping[str, Any] | None
    is_secondary: bool
    is_preferred: bool  # by the user's patterns

    @property
    def rdma_active(self) -> bool:
        """Whether an RDMA port behind it is active."""
        return self.rdma is not None and self.rdma.get("state") == "active"

    def sort_key(self) -> tuple[Any, ...]:
        """A sort key, best first; the name and the address make it deterministic."""
        return (
            not self.is_preferred,
            -self.tier,
            not self.rdma_active,
            -(self.speed_mbps or 0),
            -self.mtu,
            self.is_secondary,
            self.interface,
            self.address,
        )


class UnusableAddress(NamedTuple):
    """An unusable address, and the reason."""

    interface: str
    address: str
    prefix_length: int
    reason: str


class AddressSurvey(NamedTuple):
    """All hosts' addresses by subnet, then by host."""

    host_names: tuple[str, ...]
    usable_by_network: dict[Network, dict[str, list[HostAddress]]]
    unusable_by_network: dict[Network, dict[str, list[UnusableAddress]]]
    usable_by_host: dict[str, list[HostAddress]]


class _InterfaceRank(NamedTuple):
    """The properties of an interface that decide between addresses, as in HostAddress."""

    tier: int
    speed_mbps: int | None
    is_preferred: bool


def survey_addresses(facts: Mapping[str, Any], options: SubnetOptions) -> AddressSurvey:
    """Sort all addresses of all hosts into usable and unusable ones. Raises InputError for invalid facts."""
    address_survey = AddressSurvey(tuple(str(host) for host in facts), {}, {}, {})
    interface_judge = InterfaceJudge(options)
    for host, host_facts in facts.items():
        host_name = str(host)
        address_survey.usable_by_host[host_name] = []
        interfaces = _read_interfaces(host_name, host_facts)
        interfaces_by_name = {str(interface["name"]): interface for interface in interfaces}
        for interface in interfaces:
            interface_reason = interface_judge.exclusion_reason(interface, interfaces_by_name)
            interface_rank = _InterfaceRank(
                tier := _interface_tier(interface, interfaces_by_name),
                _interface_speed(interface, interfaces_by_name) if tier == HARDWARE else interface.get("speed_mbps"),
                interface_judge.prefer_pattern.match(str(interface["name"])) is not None,
            )
            for address_entry in interface["addresses"]:
                _classify_address(
                    address_survey,
                    host_name,
                    interface,
                    interface_rank,
                    interface_reason,
                    address_entry,
                    options.requested_subnet,
                )
    for host_addresses in address_survey.usable_by_host.values():
        host_addresses.sort(key=HostAddress.sort_key)
    return address_survey


def _read_interfaces(host_name: str, host_facts: Any) -> Sequence[Mapping[str, Any]]:
    interfaces = host_facts.get("interfaces") if isinstance(host_facts, Mapping) else None
    if isinstance(interfaces, Sequence) and not isinstance(interfaces, str):
        return interfaces
    raise InputError(
        f"{host_name}: its list of interfaces is missing.",
        "Pass the result of gpumesh.cluster.interface_info for each host, and omit hosts that did not answer.",
        host=host_name,
    )


def _classify_address(
    address_survey: AddressSurvey,
    host_name: str,
    interface: Mapping[str, Any],
    interface_rank: _InterfaceRank,
    interface_reason: str | None,
    address_entry: Mapping[str, Any],
    requested_subnet: Network | None,
) -> None:
    ip_interface: IpInterface = ipaddress.ip_interface(f"{address_entry['address']}/{address_entry['prefix_length']}")
    # A cloud may assign a single address of a subnet that the user knows; then the user's request takes precedence.
    is_requested = (
        requested_subnet is not None
        and ip_interface.version == requested_subnet.version
        and ip_interface.ip in requested_subnet
    )
    network: Network = requested_subnet if is_requested and requested_subnet is not None else ip_interface.network
    unusable_reason = interface_reason or _unusable_reason(
        str(interface["name"]), ip_interface, address_entry, is_requested
    )
    if unusable_reason is not None:
        unusable_address = UnusableAddress(
            str(interface["name"]), str(ip_interface.ip), ip_interface.network.prefixlen, unusable_reason
        )
        address_survey.unusable_by_network.setdefault(network, {}).setdefault(host_name, []).append(unusable_address)
        return
    host_address = HostAddress(
        interface=str(interface["name"]),
        kind=str(interface["kind"]),
        tier=interface_rank.tier,
        address=str(ip_interface.ip),
        ip_address=ip_interface.ip,
        prefix_length=ip_interface.network.prefixlen,
        mtu=int(interface["mtu"]),
        speed_mbps=interface_rank.speed_mbps,
        rdma=interface.get("rdma"),
        is_secondary=bool(address_entry.get("secondary")),
        is_preferred=interface_rank.is_preferred,
    )
    address_survey.usable_by_network.setdefault(network, {}).setdefault(host_name, []).append(host_address)
    address_survey.usable_by_host[host_name].append(host_address)


def _unusable_reason(
    interface_name: str, address: IpInterface, address_entry: Mapping[str, Any], is_requested: bool
) -> str | None:
    flags = address_entry.get("flags") or ()
    if address.ip.is_loopback:
        return _LOOPBACK_REASON
    if address.ip.is_link_local:
        return "link-local: every interface has such an address"
    if address_entry.get("scope") in ("host", "link", "nowhere"):
        return f"{interface_name} has {address.ip} for this host or link alone (scope {address_entry['scope']})"
    if "dadfailed" in flags:
        return (
            f"{interface_name} has {address.ip}, which another machine has as well (duplicate address detection failed)"
        )
    if "deprecated" in flags:
        return f"{interface_name} has {address.ip}, which is deprecated"
    if address.network.prefixlen == address.max_prefixlen and not is_requested:
        return f"{interface_name} has {address}, a single address without other hosts"
    return None


class InterfaceJudge:
    """Judges whole interfaces, with the patterns compiled once."""

    def __init__(self, options: SubnetOptions) -> None:
        self.runtime_pattern = re.compile(f"{_compile_patterns(RUNTIME_INTERFACES).pattern}|{_DOCKER_BRIDGE}\\Z")
        self.exclude_pattern = _compile_patterns(options.exclude)
        self.include_pattern = _compile_patterns(options.include)
        self.prefer_pattern = _compile_patterns(options.prefer)
        self.own_tunnels = _compile_patterns(options.own_tunnels)

    def exclusion_reason(
        self, interface: Mapping[str, Any], interfaces_by_name: Mapping[str, Mapping[str, Any]]
    ) -> str | None:
        """Return the reason why an interface is not used, or None. ``interfaces_by_name``: those of the host."""
        name = str(interface["name"])
        if interface["kind"] == "loopback" or interface.get("link_kind") in _REASON_BY_LINK_KIND:
            return _REASON_BY_LINK_KIND.get(str(interface.get("link_kind")), _LOOPBACK_REASON)
        if interface["state"] not in ("up", "unknown"):
            return f"{name} is {interface['state']}"
        if self.exclude_pattern.match(name):
            return f"{name} is excluded by your pattern"
        if self.own_tunnels.match(name):
            return f"{name} is the cluster's own tunnel"
        if self.include_pattern.match(name):
            return None
        if self.runtime_pattern.match(name):
            return f"{name} belongs to a container runtime or hypervisor"
        if interface["kind"] == "bridge" and not _is_on_hardware(interface, interfaces_by_name):
            return f"{name} is a bridge without a physical port"
        return None


def _compile_patterns(patterns: Iterable[str]) -> re.Pattern[str]:
    """One expression for all patterns; without patterns, it matches nothing."""
    return re.compile("|".join(translate(pattern) for pattern in patterns) or r"(?!)")


def _interface_tier(interface: Mapping[str, Any], interfaces_by_name: Mapping[str, Mapping[str, Any]]) -> int:
    if interface["kind"] in _OVERLAY_KINDS or interface.get("link_kind") in _OVERLAY_KINDS:
        return OVERLAY
    return HARDWARE if _is_on_hardware(interface, interfaces_by_name) else VIRTUAL


def _is_on_hardware(
    interface: Mapping[str, Any],
    interfaces_by_name: Mapping[str, Mapping[str, Any]],
    visited_names: frozenset[str] = frozenset(),
) -> bool:
    """Whether it is a card, or a bond, bridge or VLAN on top of one.

    ``visited_names`` guards against cycles in invalid facts.
    """
    if interface["physical"]:
        return True
    lower_interfaces = {*interface.get("members", ()), interface.get("parent")} - {None} - visited_names
    return any(
        _is_on_hardware(interfaces_by_name[name], interfaces_by_name, visited_names | {interface["name"]})
        for name in lower_interfaces
        if name in interfaces_by_name
    )


def _interface_speed(
    interface: Mapping[str, Any],
    interfaces_by_name: Mapping[str, Mapping[str, Any]],
    visited_names: frozenset[str] = frozenset(),
) -> int | None:
    """Return the speed in Mbit/s.

    For a bridge or a similar interface, which has none itself, that of the fastest port below it.
    """
    if interface["physical"] or interface.get("speed_mbps"):
        return interface.get("speed_mbps")
    lower_interfaces = {*interface.get("members", ()), interface.get("parent")} - {None} - visited_names
    lower_speeds = [
        _interface_speed(interfaces_by_name[name], interfaces_by_name, visited_names | {interface["name"]})
        for name in lower_interfaces
        if name in interfaces_by_name
    ]
    return max(filter(None, lower_speeds), default=None)


def build_options(
    subnet: str | None = None,
    min_hosts: int = 0,
    prefer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    include: str | Sequence[str] = (),
    own_tunnels: str | Sequence[str] = OWN_TUNNEL_PATTERNS,
) -> SubnetOptions:
    """Build the options from a playbook. Raises InputError.

    An empty subnet counts as none, and a text as one pattern.
    """
    return SubnetOptions(
        requested_subnet=normalise_subnet(subnet) if subnet else None,
        min_hosts=min_hosts,
        prefer=_normalize_patterns(prefer),
        exclude=_normalize_patterns(exclude),
        include=_normalize_patterns(include),
        own_tunnels=_normalize_patterns(own_tunnels),
    )


def _normalize_patterns(given_patterns: str | Sequence[str]) -> tuple[str, ...]:
    """Return the patterns of an option.

    A filter gets its options as they are written, so a text may stand for a list.
    """
    return (given_patterns,) if isinstance(given_patterns, str) else tuple(given_patterns)
