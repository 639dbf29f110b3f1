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

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text
from ansible_collections.gpumesh.cluster.plugins.module_utils.net import hostname, rdma
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import HostnameResolution
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import (
    arp,
    detach,
    listener,
    perftest,
    prober,
    routes,
    runner,
    schedule,
    sockets,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import ports as port_ranges
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import (
    Bandwidth,
    Duplicate,
    Limits,
    Nic,
    Peer,
    PeerResult,
    Port,
    Probe,
    RdmaEnd,
    Route,
    Self,
)

#: Seconds in which hosts answer an ARP request, including retries.
_ARP_SECONDS = 1.0
#: Seconds for which the results of a finished measurement are kept.
_COLLECT_SECONDS = 300
#: Seconds for a detached process of this host to answer.
_CONTROL_SECONDS = 10.0


class Wanted(NamedTuple):
    """The ports to open, and for how many seconds."""

    named: Sequence[int]
    ephemeral: port_ranges.Range
    sample: int
    lifetime: int


class Listening(NamedTuple):
    """The data of a listener that the other hosts need."""

    ports: List[Port]
    rdma: RdmaEnd


def listen(
    own: Self, run: str, token: str, wanted: Wanted, visitors: Sequence[str], spared: Sequence[str] = ()
) -> Listening:
    """Start the listener; it accepts connections when this returns. Raises HostStateError.

    Listeners of interrupted runs are ended first, since they occupy the ports. Those of ``spared`` runs stay.
    """
    detach.replace_others(run, spared)
    end = _rdma_end(own)
    control = detach.control_socket("listener", run)
    opened: List[socket.socket] = []
    try:
        found, opened = sockets.open_ports(own.address, wanted.named, wanted.ephemeral, wanted.sample, run)
        if any(port["state"] == "service" for port in found):
            others = detach.ports_of_others(run)
            for port in found:
                if port["state"] == "service" and port["port"] in others:
                    port["state"] = "busy"
        mtu = arp.read_nic(own.interface)["mtu"] or 0
        settings = listener.Settings(run, token, own.address, mtu, visitors, end)
        keep = [one.fileno() for one in (control, *opened)]
        term = detach.new_lease(wanted.lifetime)
        detach.detach(lambda: listener.run(settings, opened, control, term), term, keep)
        return Listening(found, end)
    finally:
        # The detached process has its own copies.
        for one in (control, *opened):
            one.close()


def _rdma_end(own: Self) -> RdmaEnd:
    return perftest.choose(rdma.read_ports(Tree()), own.interface, command.find)


def stop(run: Optional[str]) -> bool:
    """End the processes of this run on this host, or without a name, of interrupted runs.

    Returns False if there were none.
    """
    if run is None:
        return detach.replace_others("") > 0
    answers = [detach.ask(purpose, run, "stop", _CONTROL_SECONDS) for purpose in ("listener", "runner")]
    return any(answer is not None for answer in answers)


def probe(own: Self, token: str, peers: Sequence[Peer], limits: Limits, check_name: bool) -> Probe:
    """Connect to all peers. Raises ParseError or CommandError if the routes cannot be determined."""
    begin = time.monotonic()
    nic = arp.read_nic(own.interface)
    known = routes.ask(command.run, [peer["address"] for peer in peers])
    ordered = _after(own.machine, peers)
    with ThreadPoolExecutor(max_workers=2) as pool:
        # Both only wait, so they take no additional time beside the probes.
        answers = pool.submit(_ask_arp, own, nic, known)
        resolution = pool.submit(_resolve_own_name) if check_name else None
        results = asyncio.run(_probe(own, token, limits, nic["mtu"], ordered, known))
        duplicate, macs = answers.result()
        name = resolution.result() if resolution is not None else None
    for result in results:
        result["macs"] = macs.get(result["address"])
    return {
        "machine": own.machine,
        "address": own.address,
        "interface": nic,
        "own_macs": arp.own_macs(),
        "duplicate": duplicate,
        "hostname": name,
        "seconds": round(time.monotonic() - begin, 3),
        "peers": results,
    }


def start_throughput(own: Self, run: str, token: str, peers: Sequence[Peer], seconds: int) -> int:
    """Start the process that measures the throughput.

    Returns the seconds within which it ends, 0 if there are no peers.

    ``peers`` are all participants, in the same order on all hosts; the listener of the first one starts all of them.
    """
    timetable = schedule.timetable([peer["machine"] for peer in peers], own.machine)
    if not timetable:
        return 0
    longest = runner.longest(timetable, runner.half_round(peers, seconds), len(peers))
    control = detach.control_socket("runner", run)
    try:
        by_name = {peer["machine"]: peer for peer in peers}
        term = detach.new_lease(longest + _COLLECT_SECONDS)
        work = runner.Runner(own, token, by_name, timetable, seconds, _rdma_end(own), term)
        detach.detach(lambda: work.run(peers[0]["machine"], control), term, [control.fileno()])
    finally:
        control.close()
    return longest


def collect_throughput(run: str, timeout: float) -> List[Bandwidth]:
    """The measurements, once they are complete. Raises HostStateError."""
    answer = detach.ask("runner", run, "collect", timeout)
    if answer is None:
        raise HostStateError(
            f"There is no measurement of run {run} on this host.",
            "Start one with throughput_seconds of the module reachability.",
            run=run,
        )
    measured: List[Bandwidth] = answer["measured"]
    return measured


async def _probe(
    own: Self, token: str, limits: Limits, mtu: Optional[int], peers: Sequence[Peer], known: Dict[str, Route]
) -> List[PeerResult]:
    return await prober.Prober(own, token, limits, mtu).all(peers, known)


def _after(machine: str, peers: Sequence[Peer]) -> List[Peer]:
    """Those after ``machine`` in the alphabet first, so that members start with different peers."""
    ordered = sorted(peers, key=lambda peer: peer["machine"])
    return [peer for peer in ordered if peer["machine"] > machine] + [
        peer for peer in ordered if peer["machine"] <= machine
    ]


def _ask_arp(own: Self, nic: Nic, known: Dict[str, Route]) -> Tuple[Duplicate, Dict[str, Optional[List[str]]]]:
    """Which hosts answer for this host's address, and for those of the peers on the same link."""
    reason = ""
    if ipaddress.ip_address(own.address).version != 4:
        reason = "the kernel checks this for IPv6"
    elif nic["mac"] is None:
        reason = f"{own.interface} does not support ARP"
    if reason:
        return {"checked": False, "reason": reason, "macs": []}, {}
    senders = {own.address: arp.NOBODY}
    for address, route in known.items():
        if route["dev"] == own.interface and route["gateway"] is None:
            senders[address] = own.address
    try:
        found = arp.ask(nic, senders, _ARP_SECONDS)
    except PermissionError:
        return {"checked": False, "reason": "only root can send ARP requests", "macs": []}, {}
    except OSError as failure:
        return {"checked": False, "reason": f"{own.interface} cannot be used: {failure.strerror}", "macs": []}, {}
    own_replies = found.pop(own.address)
    if own_replies is None:
        return {"checked": False, "reason": f"{own.machine} lost replies to ARP requests", "macs": []}, found
    return {"checked": True, "reason": "", "macs": own_replies}, found


def _resolve_own_name() -> Optional[HostnameResolution]:
    name = socket.gethostname()
    try:
        hosts = read_text("/etc/hosts") or ""
    except GpumeshError:
        hosts = ""
    return hostname.judge(name, hosts, hostname.resolve(name))
