# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the cluster's subnet, or explain why this is impossible. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.addresses import Network
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnet_placement import (
    DEFAULT_OPTIONS,
    INTERNAL_REASONS,
    SubnetOptions,
    UnusableAddress,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import (
    SharedSubnets,
    describe_duplicates,
    find_shared,
    find_unique_addresses,
)

#: The number of hosts that an error describes in full.
_MAX_DESCRIBED_HOSTS = 5
#: NCCL that is told to use lo takes 127.0.0.1 (https://github.com/NVIDIA/nccl/issues/1053).
_INTERNAL_REMEDY = (
    "An address on a loopback interface, dummy interface or VRF, as with BGP to the host, is not supported as the address of "
    "a member. Give the network cards of all machines addresses of one subnet, or let a tunnel connect the machines with "
    "mesh_backend=wireguard."
)


def choose_subnet(facts: Mapping[str, Any], options: SubnetOptions = DEFAULT_OPTIONS) -> dict[str, Any]:
    """Return the best candidate of find_shared, or the requested subnet. Raises InputError."""
    shared_subnets = find_shared(facts, options)
    if shared_subnets.candidates:
        return shared_subnets.candidates[0]
    if options.requested_subnet is not None:
        raise _requested_subnet_error(options.requested_subnet, facts, options, shared_subnets)
    raise _no_shared_subnet_error(shared_subnets, options)


def _requested_subnet_error(
    requested_subnet: Network, facts: Mapping[str, Any], options: SubnetOptions, shared_subnets: SharedSubnets
) -> InputError:
    unique_by_host, hosts_by_duplicate = find_unique_addresses(requested_subnet, shared_subnets.survey)
    duplicated_hosts = sorted(host for host, host_addresses in unique_by_host.items() if not host_addresses)
    if duplicated_hosts:
        return InputError(
            f"{requested_subnet} is not one network: {describe_duplicates(hosts_by_duplicate)}.",
            f"Use separate addresses for {join_names(duplicated_hosts)}, or choose another subnet.{_suggest_subnet(facts, options)}",
            subnet=str(requested_subnet),
            hosts=duplicated_hosts,
        )
    missing_hosts = [host for host in shared_subnets.survey.host_names if host not in unique_by_host]
    host_descriptions = [
        f"{host}: {_describe_actual_address(host, requested_subnet, shared_subnets)}."
        for host in missing_hosts[:_MAX_DESCRIBED_HOSTS]
    ]
    if len(missing_hosts) > _MAX_DESCRIBED_HOSTS:
        host_descriptions.append(f"{len(missing_hosts) - _MAX_DESCRIBED_HOSTS} more hosts are not in it.")
    suggestion = _suggest_subnet(facts, options)
    remedy = f"{suggestion.strip().rstrip('.')}, or put" if suggestion else "Put"
    unusable_by_host = shared_subnets.survey.unusable_by_network.get(requested_subnet, {})
    is_internal = any(_find_internal_address(unusable_by_host.get(host, ())) for host in missing_hosts)
    return InputError(
        " ".join(host_descriptions),
        _INTERNAL_REMEDY
        if is_internal and not suggestion
        else f"{remedy} {join_names(missing_hosts)} on the cluster network.",
        subnet=str(requested_subnet),
        hosts=missing_hosts,
    )


def _suggest_subnet(facts: Mapping[str, Any], options: SubnetOptions) -> str:
    """Suggest the best subnet that all hosts share, in a sentence, if there is one."""
    other_candidates = find_shared(facts, options._replace(requested_subnet=None)).candidates
    return f" Give cluster_subnet={other_candidates[0]['subnet']}." if other_candidates else ""


def _describe_actual_address(host: str, requested_subnet: Network, shared_subnets: SharedSubnets) -> str:
    """Describe the address that a host has instead, and why one in the subnet does not count."""
    unusable_addresses = shared_subnets.survey.unusable_by_network.get(requested_subnet, {}).get(host)
    if unusable_addresses:
        return f"its address {unusable_addresses[0].address} in {requested_subnet} cannot be used: {unusable_addresses[0].reason}"
    usable_addresses = shared_subnets.survey.usable_by_host[host]
    same_family = [
        host_address
        for host_address in usable_addresses
        if (":" in host_address.address) == (requested_subnet.version == 6)
    ] or usable_addresses
    if not same_family:
        return f"it has no usable address, so none in {requested_subnet}"
    host_address = same_family[0]
    return f"{host_address.address} is not in {requested_subnet} ({host_address.interface} has {host_address.address}/{host_address.prefix_length})"


def _no_shared_subnet_error(shared_subnets: SharedSubnets, options: SubnetOptions) -> InputError:
    hosts = shared_subnets.survey.host_names
    host_descriptions = [
        f"{host} has {_describe_best_address(host, shared_subnets)}" for host in hosts[:_MAX_DESCRIBED_HOSTS]
    ]
    if len(hosts) > _MAX_DESCRIBED_HOSTS:
        host_descriptions.append(f"{len(hosts) - _MAX_DESCRIBED_HOSTS} more hosts")
    # A network that at least two hosts share is more informative than that of a single one.
    multi_host_subnets = {
        str(network)
        for network, addresses_by_host in shared_subnets.survey.usable_by_network.items()
        if len(addresses_by_host) > 1
    }
    closest_subnet = next(
        (
            rejected_subnet
            for rejected_subnet in shared_subnets.rejected
            if rejected_subnet["subnet"] in multi_host_subnets
        ),
        None,
    )
    closest_description = (
        f" The closest is {closest_subnet['subnet']}: {closest_subnet['reason']}." if closest_subnet else ""
    )
    needed_hosts = options.min_hosts or len(hosts)
    return InputError(
        f"No subnet is shared by {needed_hosts} of the {len(hosts)} hosts: {'; '.join(host_descriptions)}.{closest_description}",
        _suggest_remedy(
            [
                single_address
                for single_address in (
                    _find_single_address(host, shared_subnets) for host in hosts[:_MAX_DESCRIBED_HOSTS]
                )
                if single_address
            ]
        ),
        hosts=list(hosts),
    )


def _suggest_remedy(single_addresses: Sequence[UnusableAddress]) -> str:
    """Suggest a remedy for hosts without a shared subnet. ``single_addresses``: those that some of them have."""
    if _find_internal_address(single_addresses):
        return _INTERNAL_REMEDY
    remedy = "put the hosts on one network, or let a tunnel connect them with mesh_backend=wireguard."
    if single_addresses:
        return f"Give cluster_subnet where your cloud gives each machine a single address of it, {remedy}"
    return remedy.capitalize()


def _find_internal_address(unusable_addresses: Sequence[UnusableAddress]) -> UnusableAddress | None:
    """Return the first address that a machine has for itself, other than 127.0.0.1."""
    return next(
        (
            unusable_address
            for unusable_address in unusable_addresses
            if unusable_address.reason in INTERNAL_REASONS
            and not ipaddress.ip_address(unusable_address.address).is_loopback
        ),
        None,
    )


def _describe_best_address(host: str, shared_subnets: SharedSubnets) -> str:
    usable_addresses = shared_subnets.survey.usable_by_host[host]
    host_address = usable_addresses[0] if usable_addresses else _find_single_address(host, shared_subnets)
    if host_address is None:
        return "no usable address"
    return f"{host_address.address}/{host_address.prefix_length} ({host_address.interface})"


def _find_single_address(host: str, shared_subnets: SharedSubnets) -> UnusableAddress | None:
    """Return an address without a subnet, as some clouds assign, and as BGP to the host has on lo.

    Tunnels do not count, and neither does an address that several hosts have: it belongs to a service, or to WSL.
    """
    single_addresses = [
        unusable_by_host[host][0]
        for network, unusable_by_host in shared_subnets.survey.unusable_by_network.items()
        if network.prefixlen == network.max_prefixlen
        and network.is_private
        and not network.is_loopback
        and list(unusable_by_host) == [host]
    ]
    return min(single_addresses, key=lambda single_address: single_address.reason in INTERNAL_REASONS, default=None)
