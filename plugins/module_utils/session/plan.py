# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From a session to the placement of its containers: nodes, addresses and network identifiers. Pure.

A session is one job whose nodes are alike for Slurm, each as large as the fullest needs; its roles may differ, and
share nodes. All nodes derive the same placement from the token of the job, its number and its nodes, without
communicating. A session has a /24 of the pool, its slot, and each container an address in it and a VXLAN identifier:
slot and rank. The slot follows from the number of the job, which no user chooses. A node refuses one that another session
uses there. On other nodes, jobs with distant numbers can have the same slot: so the network addresses packets by the job
as well.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.shapes import (
    HOST,
    NO_SLOT,
    Container,
    Role,
    Spec,
    Token,
)

_PREFIX = 24
#: Of the 24 bits of an identifier, 8 are the rank's.
MOST_SLOTS = 1 << 16
#: The maximum number of containers, since ranks are the last part of an address in a /24.
MOST_CONTAINERS = 250
_TOKEN = re.compile(
    r"(?P<network>[+-]|[0-9]{1,5});(?P<name>[a-z0-9-]{1,32});(?P<roles>[a-z,-]{1,4000});(?P<nodes>[0-9,*+]{1,4000})"
)
_ROW = re.compile(r"(?:(?P<times>[1-9][0-9]{0,2})\*)?(?P<counts>[0-9]{1,3}(?:,[0-9]{1,3})*)")

#: A session may take up to this many times the CPUs and memory of its containers to use more nodes.
_BEARABLE = 1.5

#: The number of containers of each role, in their order, on a node.
Row = Tuple[int, ...]


class Size(NamedTuple):
    """What containers need on a node. ``memory`` in MiB."""

    gpus: int = 0
    cpus: int = 0
    memory: int = 0
    containers: int = 0


def _sum(sizes: Iterable[Size]) -> Size:
    return Size(*(sum(amounts) for amounts in zip(*sizes)))


def parse_pools(pools: Sequence[str]) -> List[ipaddress.IPv4Network]:
    """The networks of the pool. Raises InputError."""
    found: List[ipaddress.IPv4Network] = []
    for text in pools:
        try:
            network = ipaddress.IPv4Network(text)
        except ValueError as failure:
            raise InputError(f"session_subnets: {failure}.", "Give networks such as 10.192.0.0/10.") from failure
        if network.prefixlen > _PREFIX:
            raise InputError(
                f"session_subnets: {text} is too small.", f"Give networks that contain at least a /{_PREFIX}."
            )
        twice = [other for other in found if network.overlaps(other)]
        if twice:
            raise InputError(f"session_subnets: {text} overlaps {twice[0]}.", "Give networks that do not overlap.")
        found.append(network)
    if not found:
        raise InputError("session_subnets is empty.", "Give at least one network, such as 10.192.0.0/10.")
    return found


def slots(pools: Sequence[str]) -> int:
    """The number of sessions for which the pool has a subnet."""
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


def slot_of(token: Token, job: int, pools: Sequence[str]) -> int:
    """The slot of the session of a job."""
    return job % slots(pools) if token.private else NO_SLOT


def refuse_full(pools: Sequence[str], taken: Iterable[int]) -> None:
    """Raises InputError if sessions have all slots."""
    count = slots(pools)
    if len(set(taken)) >= count:
        raise InputError(
            f"All {count} subnets of session_subnets are used by sessions.",
            "Wait for one to end, or ask the administrator to add a network.",
        )


def layouts(spec: Spec, nodes: int, threads: int) -> List[Tuple[Row, ...]]:
    """The ways to place the containers on at most so many nodes, the best first. ``threads``: CPUs of a core, which Slurm
    gives as a whole."""
    numbers = [role.replicas // _unit_of(role) for role in spec.roles]
    least = max((role.replicas // role.per_node for role in spec.roles if role.per_node), default=1)
    most = max(min(nodes, sum(numbers)), least)
    # Fewer nodes help only if one of them gets more.
    counts = {least, most}
    for number in (*numbers, sum(numbers)):
        counts |= {count for count in range(least + 1, most) if -(-number // count) < -(-number // (count - 1))}
    ways = [_layout(spec, count, threads) for count in sorted(counts)]
    needed = _sum(_times(role, role.replicas, threads) for role in spec.roles)
    return sorted(ways, key=lambda way: _cost(needed, fullest(spec, way, threads), len(way)))


def _cost(needed: Size, size: Size, nodes: int) -> Tuple[int, float, int]:
    """By this, ways are compared: the GPUs that they take, then CPUs and memory beyond what is bearable; and as many nodes
    as possible."""
    cpus = size.cpus * nodes / needed.cpus
    memory = size.memory * nodes / needed.memory if needed.memory else 1.0
    return size.gpus * nodes, max(cpus, memory, _BEARABLE), -nodes


def _layout(spec: Spec, nodes: int, threads: int) -> Tuple[Row, ...]:
    """The containers on this many nodes, which are filled evenly. The first container is on the first node."""
    rows, sizes = [[0] * len(spec.roles) for _node in range(nodes)], [Size()] * nodes
    units = [(place, role) for place, role in enumerate(spec.roles) for _unit in range(role.replicas // _unit_of(role))]
    large = sorted(units[1:], key=lambda unit: _size(unit[1], threads), reverse=True)
    for number, (place, role) in enumerate([units[0], *large]):
        free = [node for node in range(nodes) if not (role.per_node and rows[node][place])] if number else [0]
        wanted = _size(role, threads)
        node = min(free, key=lambda one: (_sum([sizes[one], wanted]), one))
        rows[node][place] += _unit_of(role)
        sizes[node] = _sum([sizes[node], wanted])
    return tuple(tuple(row) for row in rows)


def _unit_of(role: Role) -> int:
    return role.per_node or 1


def _size(role: Role, threads: int) -> Size:
    """The size of what is placed at once."""
    return _times(role, _unit_of(role), threads)


def _times(role: Role, count: int, threads: int) -> Size:
    return Size(role.gpus * count, -(-role.cpus // threads) * threads * count, role.memory * count, count)


def fullest(spec: Spec, layout: Sequence[Row], threads: int) -> Size:
    """What each node must have: as much of each resource as the node that needs the most."""
    sizes = (_sum(_times(role, count, threads) for role, count in zip(spec.roles, row)) for row in layout)
    return Size(*(max(values) for values in zip(*sizes)))


def token_text(token: Token) -> str:
    """The token as the job has it: ``+;demo;main,sub;1,1+2*0,1``."""
    rows = [",".join(str(count) for count in row) for row in token.nodes]
    runs = [(row, len(list(same))) for row, same in itertools.groupby(rows)]
    nodes = "+".join(f"{times}*{row}" if times > 1 else row for row, times in runs)
    return f"{'+' if token.private else '-'};{token.name};{','.join(token.roles)};{nodes}"


def parse_token(text: str) -> Token:
    """Raises InputError: the user who submits a job can write anything."""
    found = _TOKEN.fullmatch(text)
    rows = list(_rows(found.group("nodes"))) if found else []
    roles = tuple(found.group("roles").split(",")) if found else ()
    well = rows and all(len(row) == len(roles) and any(row) for row in rows) and all(roles)
    if found is None or not well or len(set(roles)) < len(roles) or not rows[0][0]:
        raise InputError(f"The job is not a session: {text[:80]!r}.", "Start sessions with gpumesh-session.")
    # Earlier versions wrote a number.
    token = Token(found.group("network") != "-", found.group("name"), roles, tuple(rows))
    counts = [count for _name, count in token.replicas()]
    if not all(counts) or sum(counts) > MOST_CONTAINERS:
        raise InputError(f"The job is not a session: {text[:80]!r}.", "Start sessions with gpumesh-session.")
    return token


def _rows(text: str) -> Iterator[Row]:
    """Those of the nodes; one that is no row at all where the text cannot be read."""
    for part in text.split("+"):
        found = _ROW.fullmatch(part)
        if found is None:
            yield ()
            return
        row = tuple(int(count) for count in found.group("counts").split(","))
        yield from [row] * int(found.group("times") or 1)


def places(
    token: Token, slot: int, nodes: Sequence[str], members: Mapping[str, str], pools: Sequence[str]
) -> List[Container]:
    """Where the containers are. ``nodes``: those of the job, of which Slurm tells one order here and another there. Raises
    InputError."""
    if len(nodes) < len(token.nodes):
        raise InputError(
            f"The session needs {len(token.nodes)} nodes, but its job has {len(nodes)}.", "Start it again."
        )
    network = None if slot == NO_SLOT else subnet(pools, slot)
    found: List[Container] = []
    first_local = 0
    for place, role in enumerate(token.roles):
        number = 0
        for node, row in zip(sorted(nodes, key=lambda name: (len(name), name)), token.nodes):
            for local in range(row[place]):
                number, rank = number + 1, len(found)
                address = str(network.network_address + rank + 1) if network else members.get(node, node)
                vni = (slot << 8) + rank + 1 if network else 0
                found.append(Container(f"{role}{number}", role, number, rank, node, first_local + local, address, vni))
        first_local += max(row[place] for row in token.nodes)
    return found


def steps(session: Sequence[Container]) -> List[List[Container]]:
    """The containers by the steps of the job that run them: at most one on a node, all of one role. The first one, with
    which the session ends, is alone: Slurm kills what else is in a step that ends."""
    found: Dict[Tuple[int, bool], List[Container]] = {}
    for one in session:
        found.setdefault((one.local, one.rank > 0), []).append(one)
    return [found[key] for key in sorted(found)]


def token_of(spec: Spec, layout: Sequence[Row]) -> Token:
    """The token of a session that is about to be submitted."""
    roles = tuple(role.name for role in spec.roles)
    return Token(spec.network != HOST, spec.name, roles, tuple(layout))
