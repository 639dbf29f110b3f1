# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a session to its places: components of its job, nodes, addresses and network identifiers. Pure.

All nodes derive the same from the token of the job and its nodes, without a word between them. A session has a /24 of the
pool, its slot, and each container an address in it and a VXLAN identifier: slot and rank. A node refuses a slot that
another session has there, and packets go to the nodes of the session alone: two sessions of one slot could never meet.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    HOST,
    NO_SLOT,
    Component,
    Container,
    Role,
    Spec,
    Token,
    by_component,
)

_PREFIX = 24
#: Of the 24 bits of an identifier, 8 are the rank's.
MOST_SLOTS = 1 << 16
_TOKEN = re.compile(
    r"(?P<slot>[0-9]{1,5}|-);(?P<name>[a-z0-9-]{1,32});(?P<components>[0-9]{1,3}/[a-z0-9:,/+-]{1,4000})"
)


def parse_pools(pools: Sequence[str]) -> List[ipaddress.IPv4Network]:
    """The networks of the pool. Raises InputError."""
    found: List[ipaddress.IPv4Network] = []
    for text in pools:
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as failure:
            raise InputError(f"session_subnets: {failure}.", "Give networks such as 10.192.0.0/10.") from failure
        if network.prefixlen > _PREFIX:
            raise InputError(f"session_subnets: {text} is too small.", f"Give networks of at least a /{_PREFIX}.")
        twice = [other for other in found if network.overlaps(other)]
        if twice:
            raise InputError(f"session_subnets: {text} overlaps with {twice[0]}.", "Give networks that do not overlap.")
        found.append(network)
    if not found:
        raise InputError("session_subnets is empty.", "Give at least one network, such as 10.192.0.0/10.")
    return found


def slots(pools: Sequence[str]) -> int:
    """For how many sessions the pool has a subnet."""
    return min(MOST_SLOTS, sum(1 << (_PREFIX - network.prefixlen) for network in parse_pools(pools)))


def subnet(pools: Sequence[str], slot: int) -> ipaddress.IPv4Network:
    """The subnet of a slot. Raises InputError for one that the pool does not have."""
    if not 0 <= slot < slots(pools):
        raise InputError(f"The pool session_subnets has no subnet {slot}.", "Submit the session again.")
    rest = slot
    for network in parse_pools(pools):
        count = 1 << (_PREFIX - network.prefixlen)
        if rest < count:
            return ipaddress.IPv4Network((int(network.network_address) + (rest << (32 - _PREFIX)), _PREFIX))
        rest -= count
    raise AssertionError(slot)


def free_slot(pools: Sequence[str], taken: Iterable[int], start: int) -> int:
    """A slot that nobody has, searched for from ``start`` on. Raises InputError where all are taken."""
    count, used = slots(pools), set(taken)
    for offset in range(count):
        slot = (start + offset) % count
        if slot not in used:
            return slot
    raise InputError(
        f"All {count} subnets of session_subnets are used by sessions.",
        "Wait for one to end, or have the administrator add a network.",
    )


def components(spec: Spec, nodes: int) -> Tuple[Component, ...]:
    """Neighbouring roles of the same size are one component. ``nodes``: how many the cluster has."""
    groups: List[List[Role]] = []
    for role in spec.roles:
        if groups and _size(groups[-1][0]) == _size(role):
            groups[-1].append(role)
        else:
            groups.append([role])
    # No node is in two components of a job.
    room = max(nodes - len(groups) + 1, 1)
    return tuple(
        Component(
            group[0].per_node or _per_node(sum(role.replicas for role in group), room),
            tuple((role.name, role.replicas) for role in group),
        )
        for group in groups
    )


def _size(role: Role) -> Tuple[int, int, int, int]:
    return role.cpus, role.memory, role.gpus, role.per_node


def _per_node(containers: int, nodes: int) -> int:
    """As few on each node as the nodes allow, and the same number on each."""
    return next(
        number for number in range(1, containers + 1) if not containers % number and containers // number <= nodes
    )


def token_text(token: Token) -> str:
    """The token as the job has it: ``17;demo;1/main:1+1/sub:3``."""
    parts = (f"{one.per_node}/{','.join(f'{name}:{count}' for name, count in one.roles)}" for one in token.components)
    return f"{'-' if token.slot == NO_SLOT else token.slot};{token.name};{'+'.join(parts)}"


def parse_token(text: str) -> Token:
    """Raises InputError: whoever submits a job can write what they like."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        raise InputError(f"The job is not a session: {text[:80]!r}.", "Start sessions with gpumesh-session.")
    try:
        parts = [_component(part) for part in found.group("components").split("+")]
    except ValueError as failure:
        raise InputError(
            f"The job is not a session: {text[:80]!r}.", "Start sessions with gpumesh-session."
        ) from failure
    slot = NO_SLOT if found.group("slot") == "-" else int(found.group("slot"))
    return Token(slot, found.group("name"), tuple(parts))


def _component(text: str) -> Component:
    per_node, _slash, roles = text.partition("/")
    pairs = [one.partition(":") for one in roles.split(",")]
    found = Component(int(per_node), tuple((name, int(count)) for name, _colon, count in pairs))
    if (
        not found.per_node
        or not 0 < found.containers <= 250
        or any(count < 1 or not name for name, count in found.roles)
    ):
        raise ValueError(text)
    return found


def places(
    token: Token, nodes: Sequence[Sequence[str]], members: Mapping[str, str], pools: Sequence[str]
) -> List[Container]:
    """Where the containers are. ``nodes``: those of each component, in order. Raises InputError."""
    network = None if token.slot == NO_SLOT else subnet(pools, token.slot)
    found: List[Container] = []
    for number, (named, one) in enumerate(zip(by_component(token), token.components)):
        if len(nodes[number]) < one.nodes:
            raise InputError(
                f"The session needs {one.nodes} nodes, and its job has {len(nodes[number])}.", "Start it again."
            )
        for place, (role, index) in enumerate(named):
            rank, node = len(found), nodes[number][place // one.per_node]
            address = str(network.network_address + rank + 1) if network else members.get(node, node)
            vni = (token.slot << 8) + rank + 1 if network else 0
            found.append(
                Container(f"{role}{index}", role, index, rank, number, node, place % one.per_node, address, vni)
            )
    return found


def token_of(spec: Spec, nodes: int, slot: int) -> Token:
    """The token of a session that is about to be submitted."""
    return Token(NO_SLOT if spec.network == HOST else slot, spec.name, components(spec, nodes))
