# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the cluster's subnet, or explain why this is impossible. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.addresses import Network
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets import (
    Shared,
    duplicate_words,
    find_shared,
    listed,
    sole_places,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import DEFAULTS, Options

#: The number of hosts that an error describes in full.
_TOLD = 5


def choose(facts: Mapping[str, Any], options: Options = DEFAULTS) -> dict[str, Any]:
    """The best candidate of find_shared; with ``wanted``, that subnet. Raises InputError."""
    shared = find_shared(facts, options)
    if shared.candidates:
        return shared.candidates[0]
    if options.wanted is not None:
        raise _not_wanted(options.wanted, facts, options, shared)
    raise _nothing_shared(shared, options)


def _not_wanted(wanted: Network, facts: Mapping[str, Any], options: Options, shared: Shared) -> InputError:
    sole, twice = sole_places(wanted, shared.survey)
    doubled = sorted(host for host, places in sole.items() if not places)
    if doubled:
        return InputError(
            f"{wanted} is not one network: {duplicate_words(twice)}.",
            f"Use separate addresses for {listed(doubled)}, or choose another subnet.{_elsewhere(facts, options)}",
            subnet=str(wanted),
            hosts=doubled,
        )
    missing = [host for host in shared.survey.hosts if host not in sole]
    told = [f"{host}: {_where_instead(host, wanted, shared)}." for host in missing[:_TOLD]]
    if len(missing) > _TOLD:
        told.append(f"{len(missing) - _TOLD} more hosts are not in it.")
    better = _elsewhere(facts, options)
    remedy = f"{better.strip().rstrip('.')}, or put" if better else "Put"
    return InputError(
        " ".join(told),
        f"{remedy} {listed(missing)} on the cluster network.",
        subnet=str(wanted),
        hosts=missing,
    )


def _elsewhere(facts: Mapping[str, Any], options: Options) -> str:
    """A sentence that names the best subnet that all hosts share, if there is one."""
    others = find_shared(facts, options._replace(wanted=None)).candidates
    return f" Give cluster_subnet={others[0]['subnet']}." if others else ""


def _where_instead(host: str, wanted: Network, shared: Shared) -> str:
    """The address that a host has instead, and why one in the subnet does not count."""
    outs = shared.survey.unusable.get(wanted, {}).get(host)
    if outs:
        return f"its address {outs[0].address} in {wanted} cannot be used: {outs[0].why}"
    places = shared.survey.by_host[host]
    alike = [place for place in places if (":" in place.address) == (wanted.version == 6)] or places
    if not alike:
        return f"it has no usable address, so none in {wanted}"
    place = alike[0]
    return f"{place.address} is not in {wanted} ({place.interface} has {place.address}/{place.prefix_length})"


def _nothing_shared(shared: Shared, options: Options) -> InputError:
    hosts = shared.survey.hosts
    told = [f"{host} has {_best_place(host, shared)}" for host in hosts[:_TOLD]]
    if len(hosts) > _TOLD:
        told.append(f"{len(hosts) - _TOLD} more hosts")
    # What at least two hosts share is more informative than a network of a single one.
    several = {str(network) for network, places in shared.survey.usable.items() if len(places) > 1}
    closest = next((entry for entry in shared.rejected if entry["subnet"] in several), None)
    nearly = f" The closest is {closest['subnet']}: {closest['reason']}." if closest else ""
    needed = options.min_hosts or len(hosts)
    remedy = "put the hosts on one network, or let a tunnel connect them with mesh_backend=wireguard."
    return InputError(
        f"No subnet is shared by {needed} of the {len(hosts)} hosts: {'; '.join(told)}.{nearly}",
        f"Give cluster_subnet where your cloud gives each machine a single address of it, {remedy}"
        if any(_single_address(host, shared) for host in hosts[:_TOLD])
        else remedy.capitalize(),
        hosts=list(hosts),
    )


def _best_place(host: str, shared: Shared) -> str:
    places = shared.survey.by_host[host]
    if not places:
        return _single_address(host, shared) or "no usable address"
    return f"{places[0].address}/{places[0].prefix_length} ({places[0].interface})"


def _single_address(host: str, shared: Shared) -> str:
    """An address without a subnet, as some clouds assign, on an interface that is not a tunnel; or an empty text."""
    for network, outs in shared.survey.unusable.items():
        if network.prefixlen == network.max_prefixlen and network.is_private and not network.is_loopback:
            for out in outs.get(host, ()):
                return f"{network} ({out.interface})"
    return ""
