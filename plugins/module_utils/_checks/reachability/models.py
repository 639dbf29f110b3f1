# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The values that are passed between the phases of reachability, to the controller and into the results of modules."""

from __future__ import annotations

from typing import List, NamedTuple, Optional, TypedDict

from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import HostnameResolution


class ListenerPort(TypedDict):
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


class RdmaEndpoint(TypedDict):
    """The port of an RDMA device that a host uses. ``device`` is empty if ``reason`` says why there is none.

    ``gid_index`` is None for InfiniBand. ``rate_gbps`` is None for software devices.
    """

    device: str
    port: int
    gid_index: Optional[int]
    rate_gbps: Optional[float]
    reason: str


class ProbedPeer(TypedDict):
    """A member to probe. ``ports`` are those of its listener, or the named ones with the state ``unknown``.

    ``rdma``: whether it has a port to measure RDMA with.
    """

    machine: str
    address: str
    ports: List[ListenerPort]
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


class PeerRoute(TypedDict):
    """The kernel's route to a peer. Without one, all fields except ``error`` are None."""

    dev: Optional[str]
    prefsrc: Optional[str]
    gateway: Optional[str]
    error: Optional[str]


class PayloadTransfer(TypedDict):
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


class ClockDifference(TypedDict):
    """A comparison of clocks. ``offset_s``: the peer's clock minus ours.

    ``rtt_ms``: the shortest round trip, measured by the kernel if available.
    """

    offset_s: float
    rtt_ms: float


class PeerResult(TypedDict):
    """The results for one peer. What could not be measured is None.

    ``source`` is our source address, ``seen`` the one that the peer saw; they differ behind NAT. ``macs`` are the
    hardware addresses that answer for the peer's address, None if they were not queried.
    """

    machine: str
    address: str
    route: PeerRoute
    macs: Optional[List[str]]
    ports: List[PortResult]
    source: Optional[str]
    seen: Optional[str]
    clock: Optional[ClockDifference]
    path_mtu: Optional[PathMtu]
    sent: Optional[PayloadTransfer]
    received: Optional[PayloadTransfer]
    finished: bool


class AddressDuplicate(TypedDict):
    """The other hosts that answer for this host's own address. ``reason``: why this was not checked, or empty."""

    checked: bool
    reason: str
    macs: List[str]


class ProbeNic(TypedDict):
    """An interface of this host. ``mac`` is None if ARP does not apply, ``mtu`` None if it does not exist."""

    name: str
    mtu: Optional[int]
    mac: Optional[str]


class ProbeReport(TypedDict):
    """The results of one member."""

    machine: str
    address: str
    interface: ProbeNic
    own_macs: List[str]
    duplicate: AddressDuplicate
    hostname: Optional[HostnameResolution]
    seconds: float
    peers: List[PeerResult]


class RdmaRate(TypedDict):
    """RDMA to a peer: 10^9 bit/s, and microseconds one way. None if ``error`` says why, or one end has none."""

    gbps: Optional[float]
    latency_us: Optional[float]
    error: str


class ThroughputResult(TypedDict):
    """One measurement of throughput. ``gbps`` (10^9 bit/s, at the receiver) is None if ``error`` says why."""

    machine: str
    gbps: Optional[float]
    method: str
    error: str
    rdma: RdmaRate


class LocalMember(NamedTuple):
    """The host itself in a run."""

    own_machine: str
    own_address: str
    interface_name: str


class ReachabilityLimits(NamedTuple):
    """The limits: ``step_timeout`` in seconds for each single step, ``payload_bytes`` one way."""

    step_timeout: float
    payload_bytes: int
