# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The phases of a run on one host, as the modules call them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import (
    arp,
    listener,
    perftest,
    prober,
    routes,
    runner,
    schedule,
    sockets,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import ports as port_ranges
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    AddressDuplicate,
    ListenerPort,
    LocalMember,
    PeerResult,
    PeerRoute,
    ProbedPeer,
    ProbeNic,
    ProbeReport,
    RdmaEndpoint,
    ReachabilityLimits,
    ThroughputResult,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command, leased_process
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import host_firewall, hostname, rdma
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import HostnameResolution

#: Seconds in which hosts answer an ARP request, including retries.
_ARP_SECONDS = 1.0
#: Seconds for which the results of a finished measurement are kept.
_RESULT_SECONDS = 300
#: Seconds for a background process of this host to respond.
_CONTROL_TIMEOUT = 10.0


class RequestedPorts(NamedTuple):
    """The ports to open, and for how many seconds."""

    named_ports: Sequence[int]
    ephemeral_range: port_ranges.PortRange
    sample_count: int
    lifetime_seconds: int


class ListenerReport(NamedTuple):
    """The data of a listener that the other hosts need, and which firewall may keep them from it."""

    ports: List[ListenerPort]
    rdma: RdmaEndpoint
    host_firewalls: Sequence[str]


def start_listener(
    local_member: LocalMember,
    run_id: str,
    token: str,
    requested_ports: RequestedPorts,
    visiting_machines: Sequence[str],
    spared: Sequence[str] = (),
) -> ListenerReport:
    """Start the listener; it accepts connections when this returns. Raises HostStateError.

    Listeners of interrupted runs are ended first, since they occupy the ports. Those of ``spared`` runs stay.
    """
    leased_process.end_earlier_runs(run_id, spared)
    rdma_endpoint = _choose_rdma_endpoint(local_member)
    control_socket = leased_process.open_control_socket("listener", run_id)
    listening_sockets: List[socket.socket] = []
    try:
        port_states, listening_sockets = sockets.open_ports(
            local_member.own_address,
            requested_ports.named_ports,
            requested_ports.ephemeral_range,
            requested_ports.sample_count,
            run_id,
        )
        if any(port["state"] == "service" for port in port_states):
            foreign_ports = leased_process.find_foreign_ports(run_id)
            for port in port_states:
                if port["state"] == "service" and port["port"] in foreign_ports:
                    port["state"] = "busy"
        mtu = arp.read_nic(local_member.interface_name)["mtu"] or 0
        settings = listener.ListenerSettings(
            run_id, token, local_member.own_address, mtu, visiting_machines, rdma_endpoint
        )
        keep = [open_socket.fileno() for open_socket in (control_socket, *listening_sockets)]
        term = leased_process.new_lease(requested_ports.lifetime_seconds)
        leased_process.run_leased(
            lambda: listener.run_listener(settings, listening_sockets, control_socket, term), term, keep
        )
        return ListenerReport(port_states, rdma_endpoint, host_firewall.find_active_firewalls(Tree()))
    finally:
        # The background process has its own copies.
        for open_socket in (control_socket, *listening_sockets):
            open_socket.close()


def _choose_rdma_endpoint(local_member: LocalMember) -> RdmaEndpoint:
    return perftest.choose_endpoint(rdma.read_ports(Tree()), local_member.interface_name, command.find_program)


def stop_run(run: Optional[str]) -> bool:
    """End the processes of this run on this host, or without a name, of interrupted runs.

    Returns False if there were none.
    """
    if run is None:
        return leased_process.end_earlier_runs("") > 0
    stop_responses = [
        leased_process.query_process(purpose, run, "stop", _CONTROL_TIMEOUT) for purpose in ("listener", "runner")
    ]
    return any(answer is not None for answer in stop_responses)


def probe_peers(
    local_member: LocalMember,
    token: str,
    peers: Sequence[ProbedPeer],
    probe_limits: ReachabilityLimits,
    check_name: bool,
) -> ProbeReport:
    """Connect to all peers. Raises ParseError or CommandError if the routes cannot be determined."""
    started_at = time.monotonic()
    own_nic = arp.read_nic(local_member.interface_name)
    routes_by_address = routes.query_routes(command.run, [peer["address"] for peer in peers])
    ordered = _rotate_peers(local_member.own_machine, peers)
    with ThreadPoolExecutor(max_workers=2) as pool:
        # Both only wait, so they take no additional time beside the probes.
        arp_results = pool.submit(_query_arp, local_member, own_nic, routes_by_address)
        resolution = pool.submit(_resolve_own_name) if check_name else None
        peer_results = asyncio.run(
            _run_prober(local_member, token, probe_limits, own_nic["mtu"], ordered, routes_by_address)
        )
        address_duplicate, macs = arp_results.result()
        hostname_result = resolution.result() if resolution is not None else None
    for result in peer_results:
        result["macs"] = macs.get(result["address"])
    return {
        "machine": local_member.own_machine,
        "address": local_member.own_address,
        "interface": own_nic,
        "own_macs": arp.read_own_macs(),
        "duplicate": address_duplicate,
        "hostname": hostname_result,
        "seconds": round(time.monotonic() - started_at, 3),
        "peers": peer_results,
    }


def start_throughput(
    local_member: LocalMember, run_id: str, token: str, peers: Sequence[ProbedPeer], measured_seconds: int
) -> int:
    """Start the process that measures the throughput.

    Returns the seconds within which it ends, 0 if there are no peers.

    ``peers`` are all participants, in the same order on all hosts; the listener of the first one starts all of them.
    """
    send_slots = schedule.plan_slots([peer["machine"] for peer in peers], local_member.own_machine)
    if not send_slots:
        return 0
    max_duration = runner.max_run_seconds(send_slots, runner.half_round_seconds(peers, measured_seconds), len(peers))
    control = leased_process.open_control_socket("runner", run_id)
    try:
        by_name = {peer["machine"]: peer for peer in peers}
        term = leased_process.new_lease(max_duration + _RESULT_SECONDS)
        work = runner.ThroughputRunner(
            local_member, token, by_name, send_slots, measured_seconds, _choose_rdma_endpoint(local_member), term
        )
        leased_process.run_leased(lambda: work.run(peers[0]["machine"], control), term, [control.fileno()])
    finally:
        control.close()
    return max_duration


def collect_throughput(run: str, timeout: float) -> List[ThroughputResult]:
    """The measurements, once they are complete. Raises HostStateError."""
    runner_response = leased_process.query_process("runner", run, "collect", timeout)
    if runner_response is None:
        raise HostStateError(
            f"There is no measurement of run {run} on this host.",
            "Start one with throughput_seconds of the module reachability.",
            run=run,
        )
    measured: List[ThroughputResult] = runner_response["measured"]
    return measured


async def _run_prober(
    local_member: LocalMember,
    token: str,
    limits: ReachabilityLimits,
    mtu: Optional[int],
    peers: Sequence[ProbedPeer],
    routes_by_address: Dict[str, PeerRoute],
) -> List[PeerResult]:
    return await prober.Prober(local_member, token, limits, mtu).probe_all(peers, routes_by_address)


def _rotate_peers(machine: str, peers: Sequence[ProbedPeer]) -> List[ProbedPeer]:
    """Return the peers after ``machine`` in the alphabet first, so that members start with different peers."""
    ordered = sorted(peers, key=lambda peer: peer["machine"])
    return [peer for peer in ordered if peer["machine"] > machine] + [
        peer for peer in ordered if peer["machine"] <= machine
    ]


def _query_arp(
    local_member: LocalMember, own_nic: ProbeNic, routes_by_address: Dict[str, PeerRoute]
) -> Tuple[AddressDuplicate, Dict[str, Optional[List[str]]]]:
    """Find the hosts that answer for this host's address, and for those of the peers on the same link."""
    reason = ""
    if ipaddress.ip_address(local_member.own_address).version != 4:
        reason = "the kernel checks this for IPv6"
    elif own_nic["mac"] is None:
        reason = f"{local_member.interface_name} does not support ARP"
    if reason:
        return {"checked": False, "reason": reason, "macs": []}, {}
    senders = {local_member.own_address: arp.UNSPECIFIED_SENDER}
    for address, route in routes_by_address.items():
        if route["dev"] == local_member.interface_name and route["gateway"] is None:
            senders[address] = local_member.own_address
    try:
        macs_by_address = arp.query_macs(own_nic, senders, _ARP_SECONDS)
    except PermissionError:
        return {"checked": False, "reason": "only root can send ARP requests", "macs": []}, {}
    except OSError as failure:
        return {
            "checked": False,
            "reason": f"{local_member.interface_name} cannot be used: {failure.strerror}",
            "macs": [],
        }, {}
    own_replies = macs_by_address.pop(local_member.own_address)
    if own_replies is None:
        return {
            "checked": False,
            "reason": f"{local_member.own_machine} lost replies to ARP requests",
            "macs": [],
        }, macs_by_address
    return {"checked": True, "reason": "", "macs": own_replies}, macs_by_address


def _resolve_own_name() -> Optional[HostnameResolution]:
    name = socket.gethostname()
    try:
        hosts = read_text("/etc/hosts") or ""
    except GpumeshError:
        hosts = ""
    return hostname.assess_resolution(name, hosts, hostname.resolve_hostname(name))
