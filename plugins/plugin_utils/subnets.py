# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subnets that all hosts actually share, best first, and why the others are ruled out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.addresses import Network
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.subnets_places import (
    DEFAULTS,
    HARDWARE,
    OVERLAY,
    Options,
    Place,
    Survey,
    survey,
)

#: The maximum number of reasons "has no address in it" that are written. A thousand hosts with a private subnet each
#: would need a million; the subnets on the most hosts come first, the others only have the number of their hosts.
DETAIL_BUDGET = 20_000

#: The number of hosts that a sentence names before it counts the rest.
_NAMED = 5

#: Significant steps. Smaller differences are ignored: an MTU of 1450 or 1500 decides nothing.
_SPEED_STEPS = (100, 1000, 2500, 5000, 10_000, 20_000, 25_000, 40_000, 50_000, 100_000, 200_000, 400_000, 800_000)
_MTU_STEPS = (1280, 1400, 1500, 2000, 4000, 8900, 60_000)

# Each weight is larger than the sum of all smaller ones, so that the order of the criteria is strict: preferred,
# physical, RDMA, speed, MTU, private range, same name, size of the subnet.
_PREFERRED = 1_000_000
_TIER = 100_000  # two steps
_RDMA = 50_000
_SPEED = 2_000  # thirteen steps
_MTU = 200  # seven steps
_PRIVATE = 100
_SAME_NAME = 50
_SIZE = 32  # points for a prefix that fills the address


class Shared(NamedTuple):
    """The results of the search; the two lists are the filter's result."""

    candidates: list[dict[str, Any]]
    rejected: list[dict[str, Any]]
    survey: Survey


def find_shared(facts: Mapping[str, Any], options: Options = DEFAULTS) -> Shared:
    """Rank the subnets that enough hosts share. Raises InputError."""
    if not facts:
        raise InputError("There are no hosts.", "Pass the facts of at least one host.")
    found = survey(facts, options)
    needed = options.min_hosts or len(found.hosts)
    if needed > len(found.hosts):
        raise InputError(
            f"min_hosts is {needed}, but there are only {len(found.hosts)} hosts.", "Set a smaller number."
        )
    candidates: list[tuple[Network, dict[str, Any]]] = []
    rejected: list[tuple[Network, str]] = []
    for network in {**found.usable, **found.unusable}:
        reason = _why_not(network, found, needed, options)
        if reason is None:
            candidates.append((network, _candidate(network, found)))
        else:
            rejected.append((network, reason))
    candidates.sort(key=lambda item: (-len(item[1]["members"]), -item[1]["score"], item[0].version, item[0]))
    return Shared([candidate for _network, candidate in candidates], _rejections(rejected, found), found)


def sole_places(network: Network, found: Survey) -> tuple[dict[str, list[Place]], dict[str, list[str]]]:
    """The places of each host with an address that no other host has; and the hosts of each duplicate address."""
    owners: dict[str, set[str]] = {}
    by_host = found.usable.get(network, {})
    for host, places in by_host.items():
        for place in places:
            owners.setdefault(place.address, set()).add(host)
    twice = {address: sorted(hosts) for address, hosts in owners.items() if len(hosts) > 1}
    sole = {host: [place for place in places if place.address not in twice] for host, places in by_host.items()}
    return sole, twice


def duplicate_words(twice: Mapping[str, Sequence[str]]) -> str:
    """The addresses that several hosts have, as a clause."""
    return "; ".join(f"{address} is on {listed(hosts)}" for address, hosts in sorted(twice.items())[:_NAMED])


def _why_not(network: Network, found: Survey, needed: int, options: Options) -> str | None:
    """Why a subnet is not a candidate, or None if it is one."""
    if options.wanted is not None and network != options.wanted:
        return f"not the requested subnet {options.wanted}"
    sole, twice = sole_places(network, found)
    without = [host for host, places in sole.items() if not places]
    if without:
        return f"not one network: {duplicate_words(twice)}, so each has a separate network with this range"
    if len(sole) >= needed:
        return None
    outs = {out.why for unusable in found.unusable.get(network, {}).values() for out in unusable}
    if not sole:
        return "; ".join(sorted(outs)[:_NAMED])
    return f"on {len(sole)} of {len(found.hosts)} hosts only: {listed(sorted(sole))}"


def _rejections(rejected: Iterable[tuple[Network, str]], found: Survey) -> list[dict[str, Any]]:
    """The rejected subnets, those on the most hosts first, with a reason for each host up to the maximum number."""
    budget = DETAIL_BUDGET
    place = {host: number for number, host in enumerate(found.hosts)}
    entries: list[dict[str, Any]] = []
    order = sorted(rejected, key=lambda item: (-_hosts_in(item[0], found), item[0].version, item[0]))
    for network, reason in order:
        reasons = {
            host: "; ".join(dict.fromkeys(out.why for out in outs))
            for host, outs in found.unusable.get(network, {}).items()
        }
        usable = found.usable.get(network, {})
        for host, places in usable.items():
            reasons[host] = f"{places[0].interface} has {places[0].address}/{places[0].prefix_length}"
        # Not a pass over all hosts for each subnet, which would be quadratic if every host has its own.
        missing = len(found.hosts) - len(reasons)
        if missing <= budget:
            budget -= missing
            reasons.update(
                {host: _why_missing(network, found.by_host[host]) for host in found.hosts if host not in reasons}
            )
        entries.append(
            {
                "subnet": str(network),
                "family": _family(network),
                "hosts": _hosts_in(network, found),
                "reason": reason,
                "reasons": {host: reasons[host] for host in sorted(reasons, key=place.__getitem__)},
            }
        )
    return entries


def _hosts_in(network: Network, found: Survey) -> int:
    return len(found.usable.get(network, {}).keys() | found.unusable.get(network, {}).keys())


def _why_missing(network: Network, places: Sequence[Place]) -> str:
    for place in places:
        if place.parsed in network:
            return f"{place.interface} has {place.address}/{place.prefix_length}: inside, but the mask differs"
    return "no address in it"


def _candidate(network: Network, found: Survey) -> dict[str, Any]:
    sole, _twice = sole_places(network, found)
    chosen = {host: min(places, key=Place.quality) for host, places in sorted(sole.items())}
    score, reasons = _score(network, chosen)
    return {
        "subnet": str(network),
        "family": _family(network),
        "score": score,
        "reasons": reasons,
        "warnings": _warnings(sole),
        "members": {
            host: {
                "interface": place.interface,
                "address": place.address,
                "prefix_length": place.prefix_length,
                "mtu": place.mtu,
                "speed_mbps": place.speed_mbps,
                "kind": place.kind,
                "rdma": _rdma_summary(place),
            }
            for host, place in chosen.items()
        },
    }


def _rdma_summary(place: Place) -> dict[str, Any] | None:
    """The port without its identifiers, which are in the facts."""
    if place.rdma is None:
        return None
    return {key: place.rdma.get(key) for key in ("device", "port", "state", "link_layer", "rate_gbps")}


def _warnings(sole: Mapping[str, Sequence[Place]]) -> list[str]:
    warnings = []
    for host, places in sorted(sole.items()):
        names = sorted({place.interface for place in places})
        if len(names) > 1:
            warnings.append(
                f"{host} has {len(names)} interfaces in it ({', '.join(names)}): it may answer from the wrong one."
            )
    return warnings


def _score(network: Network, chosen: Mapping[str, Place]) -> tuple[int, list[str]]:
    """The points and the messages for them, the most important first."""
    places = list(chosen.values())
    parts = [
        _preferred(places),
        _tier(chosen),
        _rdma(chosen),
        _speed(places),
        _mtu(chosen),
        (_PRIVATE, "private addresses") if not network.is_global else (0, "public addresses"),
        _names(chosen),
        (round(_SIZE * network.prefixlen / network.max_prefixlen), f"room for {_room(network)} hosts"),
    ]
    return sum(points for points, _words in parts), [words for _points, words in parts if words]


def _preferred(places: Sequence[Place]) -> tuple[int, str]:
    return (_PREFERRED, "preferred by you") if all(place.preferred for place in places) else (0, "")


def _tier(chosen: Mapping[str, Place]) -> tuple[int, str]:
    tiers = {host: place.tier for host, place in chosen.items()}
    lowest = min(tiers.values())
    points = _TIER * lowest
    if lowest == HARDWARE:
        return points, "physical everywhere"
    weakest = [host for host, tier in tiers.items() if tier == lowest]
    where = "everywhere" if len(weakest) == len(tiers) else f"on {listed(weakest)}"
    return points, f"{'a tunnel' if lowest == OVERLAY else 'virtual'} {where}"


def _rdma(chosen: Mapping[str, Place]) -> tuple[int, str]:
    active = {host: place for host, place in chosen.items() if place.rdma_active}
    if not active:
        return 0, "no RDMA"
    if len(active) < len(chosen):
        return 0, f"RDMA on {listed(list(active))} only"
    layers = sorted({str((place.rdma or {}).get("link_layer")) for place in active.values()})
    devices = sorted({str((place.rdma or {}).get("device")) for place in active.values()})
    return _RDMA, f"RDMA everywhere ({'/'.join(layers)}, {listed(devices)})"


def _speed(places: Sequence[Place]) -> tuple[int, str]:
    speeds = [place.speed_mbps for place in places if place.speed_mbps]
    if len(speeds) < len(places):
        return 0, "speed unknown" if not speeds else "speed known for some only"
    slowest, fastest = min(speeds), max(speeds)
    words = speed_words(slowest) if slowest == fastest else f"{speed_words(slowest)} to {speed_words(fastest)}"
    return _SPEED * sum(slowest >= step for step in _SPEED_STEPS), words


def speed_words(mbps: int) -> str:
    """25000 is ``25 Gbit/s``."""
    return f"{mbps / 1000:g} Gbit/s" if mbps >= 1000 else f"{mbps} Mbit/s"


def _mtu(chosen: Mapping[str, Place]) -> tuple[int, str]:
    mtus = {place.mtu for place in chosen.values()}
    smallest = min(mtus)
    points = _MTU * sum(smallest >= step for step in _MTU_STEPS)
    if len(mtus) == 1:
        return points, f"MTU {smallest}"
    small = [host for host, place in chosen.items() if place.mtu == smallest]
    return points, f"MTU differs: {smallest} on {listed(small)}, up to {max(mtus)} elsewhere"


def _names(chosen: Mapping[str, Place]) -> tuple[int, str]:
    names = sorted({place.interface for place in chosen.values()})
    if len(names) == 1:
        return _SAME_NAME, f"{names[0]} on every host"
    return 0, f"different names: {listed(names)}"


def _room(network: Network) -> str:
    usable = network.num_addresses - (2 if network.version == 4 and network.prefixlen < 31 else 0)
    return f"{usable:,}" if usable < 10**9 else f"2^{network.max_prefixlen - network.prefixlen}"


def _family(network: Network) -> str:
    return "inet" if network.version == 4 else "inet6"


def listed(names: Sequence[str]) -> str:
    """``n1, n2 and n3``; if there are more than a handful, the rest are counted."""
    if len(names) > _NAMED:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
