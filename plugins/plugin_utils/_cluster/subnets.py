# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subnets that all hosts actually share, best first, and why the others are ruled out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.addresses import Network
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import (
    DEFAULT_OPTIONS,
    HARDWARE,
    OVERLAY,
    AddressSurvey,
    HostAddress,
    SubnetOptions,
    survey_addresses,
)

#: The maximum number of reasons "has no address in it" that are written. A thousand hosts with a private subnet each
#: would need a million; the subnets on the most hosts come first, the others only have the number of their hosts.
MAX_ABSENCE_REASONS = 20_000
#: The maximum number of clauses of a reason.
_MAX_CLAUSES = 5
#: Significant steps of speed and MTU. Smaller differences are ignored: an MTU of 1450 or 1500 decides nothing.
_SPEED_STEPS = (100, 1000, 2500, 5000, 10_000, 20_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000)
_MTU_STEPS = (1280, 1400, 1500, 2000, 4000, 8900, 60_000)

# Each weight is larger than the sum of all smaller ones, so that the order of the criteria is strict: preferred,
# physical, RDMA, speed, MTU, private range, same name, size of the subnet.
_PREFERRED_POINTS = 1_000_000
_TIER_POINTS = 100_000  # two steps
_RDMA_POINTS = 50_000
_SPEED_POINTS = 2_000  # thirteen steps
_MTU_POINTS = 200  # seven steps
_PRIVATE_POINTS = 100
_SAME_NAME_POINTS = 50
_SIZE_POINTS = 32  # points for a prefix that fills the address


class SharedSubnets(NamedTuple):
    """The results of the search; the two lists are the filter's result."""

    candidates: list[dict[str, Any]]
    rejected: list[dict[str, Any]]
    survey: AddressSurvey


def find_shared(facts: Mapping[str, Any], options: SubnetOptions = DEFAULT_OPTIONS) -> SharedSubnets:
    """Rank the subnets that enough hosts share. Raises InputError."""
    if not facts:
        raise InputError("There are no hosts.", "Pass the facts of at least one host.")
    address_survey = survey_addresses(facts, options)
    needed_hosts = options.min_hosts or len(address_survey.host_names)
    if needed_hosts > len(address_survey.host_names):
        raise InputError(
            f"min_hosts is {needed_hosts}, but there are only {len(address_survey.host_names)} hosts.",
            "Set a smaller number.",
        )
    candidates: list[tuple[Network, dict[str, Any]]] = []
    rejected_networks: list[tuple[Network, str]] = []
    for network in {**address_survey.usable_by_network, **address_survey.unusable_by_network}:
        rejection_reason = _rejection_reason(network, address_survey, needed_hosts, options)
        if rejection_reason is None:
            candidates.append((network, _describe_candidate(network, address_survey)))
        else:
            rejected_networks.append((network, rejection_reason))
    candidates.sort(
        key=lambda candidate_entry: (
            -len(candidate_entry[1]["members"]),
            -candidate_entry[1]["score"],
            candidate_entry[0].version,
            candidate_entry[0],
        )
    )
    return SharedSubnets(
        [candidate for _network, candidate in candidates],
        _describe_rejected(rejected_networks, address_survey),
        address_survey,
    )


def find_unique_addresses(
    network: Network, address_survey: AddressSurvey
) -> tuple[dict[str, list[HostAddress]], dict[str, list[str]]]:
    """Return each host's addresses that no other host has, and the hosts of each duplicate address."""
    hosts_by_address: dict[str, set[str]] = {}
    addresses_by_host = address_survey.usable_by_network.get(network, {})
    for host, host_addresses in addresses_by_host.items():
        for host_address in host_addresses:
            hosts_by_address.setdefault(host_address.address, set()).add(host)
    hosts_by_duplicate = {address: sorted(hosts) for address, hosts in hosts_by_address.items() if len(hosts) > 1}
    unique_by_host = {
        host: [host_address for host_address in host_addresses if host_address.address not in hosts_by_duplicate]
        for host, host_addresses in addresses_by_host.items()
    }
    return unique_by_host, hosts_by_duplicate


def describe_duplicates(hosts_by_duplicate: Mapping[str, Sequence[str]]) -> str:
    """The addresses that several hosts have, as a clause."""
    return "; ".join(
        f"{address} is on {join_names(hosts)}" for address, hosts in sorted(hosts_by_duplicate.items())[:_MAX_CLAUSES]
    )


def _rejection_reason(
    network: Network, address_survey: AddressSurvey, needed_hosts: int, options: SubnetOptions
) -> str | None:
    """Return the reason why a subnet is not a candidate, or None if it is one."""
    if options.requested_subnet is not None and network != options.requested_subnet:
        return f"not the requested subnet {options.requested_subnet}"
    unique_by_host, hosts_by_duplicate = find_unique_addresses(network, address_survey)
    duplicated_hosts = [host for host, host_addresses in unique_by_host.items() if not host_addresses]
    if duplicated_hosts:
        return f"not one network: {describe_duplicates(hosts_by_duplicate)}, so each has a separate network with this range"
    if len(unique_by_host) >= needed_hosts:
        return None
    unusable_reasons = {
        unusable_address.reason
        for unusable_addresses in address_survey.unusable_by_network.get(network, {}).values()
        for unusable_address in unusable_addresses
    }
    if not unique_by_host:
        return "; ".join(sorted(unusable_reasons)[:_MAX_CLAUSES])
    return (
        f"on {len(unique_by_host)} of {len(address_survey.host_names)} hosts only: {join_names(sorted(unique_by_host))}"
    )


def _describe_rejected(
    rejected_networks: Iterable[tuple[Network, str]], address_survey: AddressSurvey
) -> list[dict[str, Any]]:
    """The rejected subnets, those on the most hosts first, with a reason for each host up to the maximum number."""
    remaining_reasons = MAX_ABSENCE_REASONS
    host_positions = {host: position for position, host in enumerate(address_survey.host_names)}
    entries: list[dict[str, Any]] = []
    sorted_networks = sorted(
        rejected_networks,
        key=lambda rejected_entry: (
            -_count_hosts(rejected_entry[0], address_survey),
            rejected_entry[0].version,
            rejected_entry[0],
        ),
    )
    for network, reason in sorted_networks:
        reasons_by_host = {
            host: "; ".join(dict.fromkeys(unusable_address.reason for unusable_address in unusable_addresses))
            for host, unusable_addresses in address_survey.unusable_by_network.get(network, {}).items()
        }
        usable_by_host = address_survey.usable_by_network.get(network, {})
        for host, host_addresses in usable_by_host.items():
            reasons_by_host[host] = (
                f"{host_addresses[0].interface} has {host_addresses[0].address}/{host_addresses[0].prefix_length}"
            )
        # A pass over all hosts for each subnet would be quadratic if every host has its own.
        absent_count = len(address_survey.host_names) - len(reasons_by_host)
        if absent_count <= remaining_reasons:
            remaining_reasons -= absent_count
            reasons_by_host.update(
                {
                    host: _absence_reason(network, address_survey.usable_by_host[host])
                    for host in address_survey.host_names
                    if host not in reasons_by_host
                }
            )
        entries.append(
            {
                "subnet": str(network),
                "family": _address_family(network),
                "hosts": _count_hosts(network, address_survey),
                "reason": reason,
                "reasons": {
                    host: reasons_by_host[host] for host in sorted(reasons_by_host, key=host_positions.__getitem__)
                },
            }
        )
    return entries


def _count_hosts(network: Network, address_survey: AddressSurvey) -> int:
    return len(
        address_survey.usable_by_network.get(network, {}).keys()
        | address_survey.unusable_by_network.get(network, {}).keys()
    )


def _absence_reason(network: Network, host_addresses: Sequence[HostAddress]) -> str:
    for host_address in host_addresses:
        if host_address.ip_address in network:
            return f"{host_address.interface} has {host_address.address}/{host_address.prefix_length}: inside, but the mask differs"
    return "no address in it"


def _describe_candidate(network: Network, address_survey: AddressSurvey) -> dict[str, Any]:
    unique_by_host, _duplicates = find_unique_addresses(network, address_survey)
    address_by_host = {
        host: min(host_addresses, key=HostAddress.sort_key) for host, host_addresses in sorted(unique_by_host.items())
    }
    score, reasons = _score_network(network, address_by_host)
    return {
        "subnet": str(network),
        "family": _address_family(network),
        "score": score,
        "reasons": reasons,
        "warnings": _list_warnings(unique_by_host),
        "members": {
            host: {
                "interface": host_address.interface,
                "address": host_address.address,
                "prefix_length": host_address.prefix_length,
                "mtu": host_address.mtu,
                "speed_mbps": host_address.speed_mbps,
                "kind": host_address.kind,
                "rdma": _rdma_summary(host_address),
            }
            for host, host_address in address_by_host.items()
        },
    }


def _rdma_summary(host_address: HostAddress) -> dict[str, Any] | None:
    """The port without its identifiers, which are in the facts."""
    if host_address.rdma is None:
        return None
    return {key: host_address.rdma.get(key) for key in ("device", "port", "state", "link_layer", "rate_gbps")}


def _list_warnings(unique_by_host: Mapping[str, Sequence[HostAddress]]) -> list[str]:
    warnings = []
    for host, host_addresses in sorted(unique_by_host.items()):
        interface_names = sorted({host_address.interface for host_address in host_addresses})
        if len(interface_names) > 1:
            warnings.append(
                f"{host} has {len(interface_names)} interfaces in it ({', '.join(interface_names)}): it may answer from the wrong one."
            )
    return warnings


def _score_network(network: Network, address_by_host: Mapping[str, HostAddress]) -> tuple[int, list[str]]:
    """The points and the messages for them, the most important first."""
    host_addresses = list(address_by_host.values())
    scored_criteria = [
        _score_preference(host_addresses),
        _score_tier(address_by_host),
        _score_rdma(address_by_host),
        _score_speed(host_addresses),
        _score_mtu(address_by_host),
        (_PRIVATE_POINTS, "private addresses") if not network.is_global else (0, "public addresses"),
        _score_names(address_by_host),
        (
            round(_SIZE_POINTS * network.prefixlen / network.max_prefixlen),
            f"room for {_format_capacity(network)} hosts",
        ),
    ]
    return sum(points for points, _explanation in scored_criteria), [
        explanation for _points, explanation in scored_criteria if explanation
    ]


def _score_preference(host_addresses: Sequence[HostAddress]) -> tuple[int, str]:
    return (
        (_PREFERRED_POINTS, "preferred by you")
        if all(host_address.is_preferred for host_address in host_addresses)
        else (0, "")
    )


def _score_tier(address_by_host: Mapping[str, HostAddress]) -> tuple[int, str]:
    tier_by_host = {host: host_address.tier for host, host_address in address_by_host.items()}
    lowest_tier = min(tier_by_host.values())
    points = _TIER_POINTS * lowest_tier
    if lowest_tier == HARDWARE:
        return points, "physical everywhere"
    weakest_hosts = [host for host, tier in tier_by_host.items() if tier == lowest_tier]
    location = "everywhere" if len(weakest_hosts) == len(tier_by_host) else f"on {join_names(weakest_hosts)}"
    return points, f"{'a tunnel' if lowest_tier == OVERLAY else 'virtual'} {location}"


def _score_rdma(address_by_host: Mapping[str, HostAddress]) -> tuple[int, str]:
    active_by_host = {host: host_address for host, host_address in address_by_host.items() if host_address.rdma_active}
    if not active_by_host:
        return 0, "no RDMA"
    if len(active_by_host) < len(address_by_host):
        return 0, f"RDMA on {join_names(list(active_by_host))} only"
    link_layers = sorted({str((host_address.rdma or {}).get("link_layer")) for host_address in active_by_host.values()})
    rdma_devices = sorted({str((host_address.rdma or {}).get("device")) for host_address in active_by_host.values()})
    return _RDMA_POINTS, f"RDMA everywhere ({'/'.join(link_layers)}, {join_names(rdma_devices)})"


def _score_speed(host_addresses: Sequence[HostAddress]) -> tuple[int, str]:
    speeds = [host_address.speed_mbps for host_address in host_addresses if host_address.speed_mbps]
    if len(speeds) < len(host_addresses):
        return 0, "speed unknown" if not speeds else "speed known for some only"
    slowest, fastest = min(speeds), max(speeds)
    speed_range = format_speed(slowest) if slowest == fastest else f"{format_speed(slowest)} to {format_speed(fastest)}"
    return _SPEED_POINTS * sum(slowest >= threshold for threshold in _SPEED_STEPS), speed_range


def format_speed(mbps: int) -> str:
    """Format a speed: 25000 is ``25 Gbit/s``."""
    return f"{mbps / 1000:g} Gbit/s" if mbps >= 1000 else f"{mbps} Mbit/s"


def _score_mtu(address_by_host: Mapping[str, HostAddress]) -> tuple[int, str]:
    mtus = {host_address.mtu for host_address in address_by_host.values()}
    smallest_mtu = min(mtus)
    points = _MTU_POINTS * sum(smallest_mtu >= threshold for threshold in _MTU_STEPS)
    if len(mtus) == 1:
        return points, f"MTU {smallest_mtu}"
    limited_hosts = [host for host, host_address in address_by_host.items() if host_address.mtu == smallest_mtu]
    return (
        points,
        f"MTU differs: {smallest_mtu} on {join_names(limited_hosts)}, up to {max(mtus)} elsewhere",
    )


def _score_names(address_by_host: Mapping[str, HostAddress]) -> tuple[int, str]:
    interface_names = sorted({host_address.interface for host_address in address_by_host.values()})
    if len(interface_names) == 1:
        return _SAME_NAME_POINTS, f"{interface_names[0]} on every host"
    return 0, f"different names: {join_names(interface_names)}"


def _format_capacity(network: Network) -> str:
    usable_addresses = network.num_addresses - (2 if network.version == 4 and network.prefixlen < 31 else 0)
    return f"{usable_addresses:,}" if usable_addresses < 10**9 else f"2^{network.max_prefixlen - network.prefixlen}"


def _address_family(network: Network) -> str:
    return "inet" if network.version == 4 else "inet6"
