# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The placement of the containers of a session: nodes, addresses and network identifiers. Pure.

A session is one job whose nodes are alike for Slurm, each as large as the largest must be. Its roles may differ, and
share nodes. All nodes derive the same placement from the token of the job, its ID and its nodes, without communicating.
A session has a /24 of the pool, its slot. Each container has an address in it and a VXLAN identifier, made of slot and
rank. The slot follows from the job ID, which no user chooses. A node refuses a slot that another session uses there. On
other nodes, jobs with distant IDs can have the same slot, so the network also distinguishes packets by the job.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from typing import Dict, Iterable, Iterator, List, Mapping, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.models import (
    HOST_NETWORK,
    NO_SLOT,
    Container,
    Role,
    SessionSpec,
    SessionToken,
)

_SUBNET_PREFIX = 24
#: The maximum number of slots: 8 of the 24 bits of an identifier are for the rank.
MAX_SLOTS = 1 << 16
#: The maximum number of containers, since ranks are the last part of an address in a /24.
MAX_CONTAINERS = 250
_TOKEN_PATTERN = re.compile(
    r"(?P<network>[+-]|[0-9]{1,5});(?P<name>[a-z0-9-]{1,32});(?P<roles>[a-z,-]{1,4000});(?P<nodes>[0-9,*+]{1,4000})"
)
_ROW_PATTERN = re.compile(r"(?:(?P<times>[1-9][0-9]{0,2})\*)?(?P<counts>[0-9]{1,3}(?:,[0-9]{1,3})*)")

#: A session may take up to this many times the CPUs and memory of its containers to use more nodes.
_MAX_EXCESS = 1.5

#: The number of containers of each role, in their order, on a node.
NodeRow = Tuple[int, ...]


class NodeSize(NamedTuple):
    """The resources that containers need on a node."""

    gpu_count: int = 0
    cpu_count: int = 0
    memory_mib: int = 0
    container_count: int = 0


def _add_sizes(sizes: Iterable[NodeSize]) -> NodeSize:
    return NodeSize(*(sum(amounts) for amounts in zip(*sizes)))


def parse_pools(pools: Sequence[str]) -> List[ipaddress.IPv4Network]:
    """Parse the networks of the pool. Raises InputError."""
    networks: List[ipaddress.IPv4Network] = []
    for network_text in pools:
        try:
            network = ipaddress.IPv4Network(network_text)
        except ValueError as failure:
            raise InputError(f"session_subnets: {failure}.", "Give networks such as 10.192.0.0/10.") from failure
        if network.prefixlen > _SUBNET_PREFIX:
            raise InputError(
                f"session_subnets: {network_text} is too small.",
                f"Give networks that contain at least a /{_SUBNET_PREFIX}.",
            )
        overlapping_networks = [earlier_network for earlier_network in networks if network.overlaps(earlier_network)]
        if overlapping_networks:
            raise InputError(
                f"session_subnets: {network_text} overlaps {overlapping_networks[0]}.",
                "Give networks that do not overlap.",
            )
        networks.append(network)
    if not networks:
        raise InputError("session_subnets is empty.", "Give at least one network, such as 10.192.0.0/10.")
    return networks


def slot_count(pools: Sequence[str]) -> int:
    """Return the number of sessions for which the pool has a subnet."""
    return min(MAX_SLOTS, sum(1 << (_SUBNET_PREFIX - network.prefixlen) for network in parse_pools(pools)))


def slot_subnet(pools: Sequence[str], slot: int) -> ipaddress.IPv4Network:
    """Return the subnet of a slot. Raises InputError if the pool does not have it."""
    if not 0 <= slot < slot_count(pools):
        raise InputError(f"The pool session_subnets has no subnet {slot}.", "Submit the session again.")
    slot_offset = slot
    for network in parse_pools(pools):
        subnet_count = 1 << (_SUBNET_PREFIX - network.prefixlen)
        if slot_offset < subnet_count:
            return ipaddress.IPv4Network(
                (int(network.network_address) + (slot_offset << (32 - _SUBNET_PREFIX)), _SUBNET_PREFIX)
            )
        slot_offset -= subnet_count
    raise AssertionError(slot)


def session_slot(token: SessionToken, job: int, pools: Sequence[str]) -> int:
    """Return the slot of the session of a job."""
    return job % slot_count(pools) if token.has_private_network else NO_SLOT


def refuse_full(pools: Sequence[str], used_slots: Iterable[int]) -> None:
    """Raise InputError if all slots are used by sessions."""
    total_slots = slot_count(pools)
    if len(set(used_slots)) >= total_slots:
        raise InputError(
            f"All {total_slots} subnets of session_subnets are used by sessions.",
            "Wait for one to end, or ask the administrator to add a network.",
        )


def rank_layouts(spec: SessionSpec, node_count: int, core_threads: int) -> List[Tuple[NodeRow, ...]]:
    """Return the layouts of the containers on at most this many nodes, the best first.

    ``core_threads``: the CPUs of a core, which Slurm allocates as a whole.
    """
    unit_counts = [role.replicas // _replicas_per_unit(role) for role in spec.roles]
    min_nodes = max((role.replicas // role.per_node for role in spec.roles if role.per_node), default=1)
    max_nodes = max(min(node_count, sum(unit_counts)), min_nodes)
    # A smaller number of nodes makes a difference only if one of them then gets more containers.
    node_counts = {min_nodes, max_nodes}
    for units in (*unit_counts, sum(unit_counts)):
        node_counts |= {
            count for count in range(min_nodes + 1, max_nodes) if -(-units // count) < -(-units // (count - 1))
        }
    candidate_layouts = [_build_layout(spec, count, core_threads) for count in sorted(node_counts)]
    needed_size = _add_sizes(_scale_role(role, role.replicas, core_threads) for role in spec.roles)
    return sorted(
        candidate_layouts,
        key=lambda layout: _layout_cost(needed_size, largest_node(spec, layout, core_threads), len(layout)),
    )


def _layout_cost(needed_size: NodeSize, node_size: NodeSize, node_count: int) -> Tuple[int, float, int]:
    """Return the cost of a layout: its GPUs, then its excess of CPUs and memory, then a preference for more nodes."""
    cpu_ratio = node_size.cpu_count * node_count / needed_size.cpu_count
    memory_ratio = node_size.memory_mib * node_count / needed_size.memory_mib if needed_size.memory_mib else 1.0
    return node_size.gpu_count * node_count, max(cpu_ratio, memory_ratio, _MAX_EXCESS), -node_count


def _build_layout(spec: SessionSpec, node_count: int, core_threads: int) -> Tuple[NodeRow, ...]:
    """Spread the containers evenly over this many nodes. The first container is on the first node."""
    node_rows, node_sizes = [[0] * len(spec.roles) for _node in range(node_count)], [NodeSize()] * node_count
    units = [
        (role_index, role)
        for role_index, role in enumerate(spec.roles)
        for _unit in range(role.replicas // _replicas_per_unit(role))
    ]
    larger_units = sorted(units[1:], key=lambda unit: _unit_size(unit[1], core_threads), reverse=True)
    for number, (role_index, role) in enumerate([units[0], *larger_units]):
        free_nodes = (
            [node for node in range(node_count) if not (role.per_node and node_rows[node][role_index])]
            if number
            else [0]
        )
        unit_size = _unit_size(role, core_threads)
        node = min(free_nodes, key=lambda candidate: (_add_sizes([node_sizes[candidate], unit_size]), candidate))
        node_rows[node][role_index] += _replicas_per_unit(role)
        node_sizes[node] = _add_sizes([node_sizes[node], unit_size])
    return tuple(tuple(row) for row in node_rows)


def _replicas_per_unit(role: Role) -> int:
    return role.per_node or 1


def _unit_size(role: Role, core_threads: int) -> NodeSize:
    """Return the size of the containers of a role that are placed together."""
    return _scale_role(role, _replicas_per_unit(role), core_threads)


def _scale_role(role: Role, count: int, core_threads: int) -> NodeSize:
    return NodeSize(role.gpus * count, -(-role.cpus // core_threads) * core_threads * count, role.memory * count, count)


def largest_node(spec: SessionSpec, layout: Sequence[NodeRow], core_threads: int) -> NodeSize:
    """Return the size that each node must have: as much of each resource as the node that needs the most."""
    node_sizes = (
        _add_sizes(_scale_role(role, count, core_threads) for role, count in zip(spec.roles, row)) for row in layout
    )
    return NodeSize(*(max(amounts) for amounts in zip(*node_sizes)))


def format_token(token: SessionToken) -> str:
    """Format the token for the job, such as ``+;demo;main,sub;1,1+2*0,1``."""
    row_texts = [",".join(str(count) for count in row) for row in token.node_rows]
    repeated_rows = [(row, len(list(equal_rows))) for row, equal_rows in itertools.groupby(row_texts)]
    nodes_text = "+".join(f"{repeat_count}*{row}" if repeat_count > 1 else row for row, repeat_count in repeated_rows)
    return f"{'+' if token.has_private_network else '-'};{token.name};{','.join(token.role_names)};{nodes_text}"


def parse_token(token_text: str) -> SessionToken:
    """Parse the token of a job. Raises InputError: the user who submits a job can write anything."""
    match = _TOKEN_PATTERN.fullmatch(token_text)
    node_rows = list(_parse_rows(match.group("nodes"))) if match else []
    role_names = tuple(match.group("roles").split(",")) if match else ()
    is_valid = node_rows and all(len(row) == len(role_names) and any(row) for row in node_rows) and all(role_names)
    if match is None or not is_valid or len(set(role_names)) < len(role_names) or not node_rows[0][0]:
        raise InputError(f"The job is not a session: {token_text[:80]!r}.", "Start sessions with gpumesh-session.")
    # Earlier versions wrote a number.
    token = SessionToken(match.group("network") != "-", match.group("name"), role_names, tuple(node_rows))
    replica_counts = [count for _name, count in token.replica_counts()]
    if not all(replica_counts) or sum(replica_counts) > MAX_CONTAINERS:
        raise InputError(f"The job is not a session: {token_text[:80]!r}.", "Start sessions with gpumesh-session.")
    return token


def _parse_rows(rows_text: str) -> Iterator[NodeRow]:
    """Yield the row of each node; an empty one if the text is invalid."""
    for row_text in rows_text.split("+"):
        match = _ROW_PATTERN.fullmatch(row_text)
        if match is None:
            yield ()
            return
        node_row = tuple(int(count) for count in match.group("counts").split(","))
        yield from [node_row] * int(match.group("times") or 1)


def place_containers(
    token: SessionToken,
    slot: int,
    node_names: Sequence[str],
    addresses_by_member: Mapping[str, str],
    pools: Sequence[str],
) -> List[Container]:
    """Return the containers with their nodes and addresses. Raises InputError.

    ``node_names``: the nodes of the job, whose order in Slurm's output varies.
    """
    if len(node_names) < len(token.node_rows):
        raise InputError(
            f"The session needs {len(token.node_rows)} nodes, but its job has {len(node_names)}.", "Start it again."
        )
    network = None if slot == NO_SLOT else slot_subnet(pools, slot)
    containers: List[Container] = []
    first_local = 0
    for role_index, role in enumerate(token.role_names):
        role_number = 0
        for node_name, row in zip(sorted(node_names, key=lambda name: (len(name), name)), token.node_rows):
            for offset in range(row[role_index]):
                role_number, rank = role_number + 1, len(containers)
                address = (
                    str(network.network_address + rank + 1)
                    if network
                    else addresses_by_member.get(node_name, node_name)
                )
                vni = (slot << 8) + rank + 1 if network else 0
                containers.append(
                    Container(
                        f"{role}{role_number}", role, role_number, rank, node_name, first_local + offset, address, vni
                    )
                )
        first_local += max(row[role_index] for row in token.node_rows)
    return containers


def group_into_steps(containers: Sequence[Container]) -> List[List[Container]]:
    """Group the containers into steps of the job: at most one on a node, all of the same role.

    The first container, with which the session ends, has its own step: Slurm kills all other tasks of a step that ends.
    """
    containers_by_step: Dict[Tuple[int, bool], List[Container]] = {}
    for container in containers:
        containers_by_step.setdefault((container.local, container.rank > 0), []).append(container)
    return [containers_by_step[step_key] for step_key in sorted(containers_by_step)]


def make_token(spec: SessionSpec, layout: Sequence[NodeRow]) -> SessionToken:
    """Return the token of a session that is about to be submitted."""
    role_names = tuple(role.name for role in spec.roles)
    return SessionToken(spec.network != HOST_NETWORK, spec.name, role_names, tuple(layout))
