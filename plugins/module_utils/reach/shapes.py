# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that are passed between the phases of reachability, to the controller and into the results of modules."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import HostnameResolution


class Port(TypedDict):
    """One port that a member could or could not open.

    ``role`` is ``named`` or ``ephemeral``, ``protocol`` is ``tcp`` or ``udp``. ``state`` is ``listening`` (ours),
    ``service`` (another program already listens there, so it can only be connected to), ``busy`` (the same, by the
    listener of another run, which may end at any time), ``forbidden`` (only root may open it) or ``unknown`` (the
    member has no listener).
    """

    port: int
    role: str
    protocol: str
    state: str


class RdmaEnd(TypedDict):
    """The port of an RDMA device that a host uses. ``device`` is empty if ``reason`` says why there is none.

    ``gid_index`` is None for InfiniBand. ``rate_gbps`` is None for software devices.
    """

    device: str
    port: int
    gid_index: Optional[int]
    rate_gbps: Optional[float]
    reason: str


class Peer(TypedDict):
    """A member to probe. ``ports`` are those of its listener, or the named ones with the state ``unknown``.

    ``rdma``: whether it has a port to measure RDMA with.
    """

    machine: str
    address: str
    ports: List[Port]
    rdma: bool


class PortResult(TypedDict):
    """The result of one port.

    ``outcome``: ``ok`` (our listener authenticated and echoed), ``connected`` (another program accepts), ``refused``,
    ``filtered`` (no answer in time), ``no_route`` (the network reports that there is no route), ``closed`` (accepted
    and closed), ``mute`` (accepted, then silent), ``stranger`` (the other side does not know the token),
    ``not_checked`` (for TCP: this host could not open a connection). ``detail`` is a message or empty.
    """

    port: int
    role: str
    protocol: str
    outcome: str
    detail: str


class Route(TypedDict):
    """The kernel's route to a peer. Without one, all fields except ``error`` are None."""

    dev: Optional[str]
    prefsrc: Optional[str]
    gateway: Optional[str]
    error: Optional[str]


class Transfer(TypedDict):
    """A payload of ``size`` bytes, one way. ``outcome``: ok, stalled, corrupted, broken, not_checked."""

    outcome: str
    size: int
    passed: int
    detail: str


class PathMtu(TypedDict):
    """The largest packets in bytes, including headers, that pass unfragmented; None if unknown.

    ``interface`` and ``peer_interface`` are the MTUs of both ends' interfaces. ``signalled`` is what this host's kernel
    has cached for the path: less than ``interface`` if a router has reported it.
    """

    interface: Optional[int]
    peer_interface: Optional[int]
    to_peer: Optional[int]
    from_peer: Optional[int]
    signalled: Optional[int]


class Clock(TypedDict):
    """``offset_s``: the peer's clock minus ours.

    ``rtt_ms``: the shortest round trip, measured by the kernel if available.
    """

    offset_s: float
    rtt_ms: float


class PeerResult(TypedDict):
    """All results for one peer. What could not be measured is None.

    ``source`` is our source address, ``seen`` the one that the peer saw; they differ behind NAT. ``macs`` are the
    hardware addresses that answer for the peer's address, None if they were not queried.
    """

    machine: str
    address: str
    route: Route
    macs: Optional[List[str]]
    ports: List[PortResult]
    source: Optional[str]
    seen: Optional[str]
    clock: Optional[Clock]
    path_mtu: Optional[PathMtu]
    sent: Optional[Transfer]
    received: Optional[Transfer]
    finished: bool


class Duplicate(TypedDict):
    """Which other hosts answer for this host's own address. ``reason``: why this was not checked, or empty."""

    checked: bool
    reason: str
    macs: List[str]


class Nic(TypedDict):
    """This host's interface. ``mac`` is None if ARP does not apply, ``mtu`` None if the interface does not exist."""

    name: str
    mtu: Optional[int]
    mac: Optional[str]


class Probe(TypedDict):
    """The results of one member."""

    machine: str
    address: str
    interface: Nic
    own_macs: List[str]
    duplicate: Duplicate
    hostname: Optional[HostnameResolution]
    seconds: float
    peers: List[PeerResult]


class RdmaRate(TypedDict):
    """RDMA to a peer: 10^9 bit/s, and microseconds one way. None if ``error`` says why, or one end has none."""

    gbps: Optional[float]
    latency_us: Optional[float]
    error: str


class Bandwidth(TypedDict):
    """One measurement of throughput. ``gbps`` (10^9 bit/s, at the receiver) is None if ``error`` says why."""

    machine: str
    gbps: Optional[float]
    method: str
    error: str
    rdma: RdmaRate


class Self(NamedTuple):
    """This host in a run."""

    machine: str
    address: str
    interface: str


class Limits(NamedTuple):
    """``timeout`` in seconds for each single step, ``payload`` in bytes, one way."""

    timeout: float
    payload: int
