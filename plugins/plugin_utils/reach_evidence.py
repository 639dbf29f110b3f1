# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The combined results of all members about each other. Nothing here contacts a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import (
    PeerResult,
    Port,
    PortResult,
    Probe,
    RdmaEnd,
    RdmaRate,
    Route,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.derive import member_views, pods
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record

#: Seconds of a listener's lifetime for each member: Ansible runs five at a time, so phases grow with their number.
_SECONDS_EACH = 8


class Target(NamedTuple):
    """An expected member: its address, and the interface that has it.

    ``pod``: not its kernel, but only its programs have these, and only for TCP.
    """

    machine: str
    address: str
    interface: str
    pod: bool = False

    def parameters(self) -> dict[str, str]:
        """The options with which a module of this member identifies itself."""
        return {"machine": self.machine, "address": self.address, "interface": self.interface}


def targets(members: Any, layer: str = "mesh") -> list[Target]:
    """The members from a cluster record, or from a list of mappings with machine, address and interface.

    ``layer``: the cluster addresses of a record's members (mesh), or their own (subnet). Raises InputError.
    """
    confined: Sequence[str] = ()
    if isinstance(members, Mapping) and "members" in members:
        confined = pods(cast(Record, members)) if layer == "mesh" else ()
        members = list(member_views(cast(Record, members)).values()) if layer == "mesh" else members["members"]
    if not isinstance(members, Sequence) or isinstance(members, str):
        raise InputError("The members are neither a cluster record nor a list.", "Set the fact cluster_record.")
    found = []
    for member in members:
        if isinstance(member, Target):
            found.append(member)
            continue
        if not isinstance(member, Mapping) or not {"machine", "address", "interface"} <= set(member):
            raise InputError(f"{str(member)[:80]!r} is not a member.", "Set machine, address and interface.")
        machine = str(member["machine"])
        found.append(Target(machine, str(member["address"]), str(member["interface"]), machine in confined))
    return found


def _by_tcp_alone(found: PeerResult) -> PeerResult:
    """The results of a pair with a pod that apply: kernels have no route between the two, and datagrams do not pass."""
    ports: list[PortResult] = [
        {**port, "outcome": "not_checked", "detail": "only TCP passes to and from a pod"}
        if port["protocol"] == "udp"
        else port
        for port in found["ports"]
    ]
    route: Route = {"dev": None, "prefsrc": None, "gateway": None, "error": None}
    return {**found, "route": route, "macs": None, "ports": ports, "path_mtu": None}


def _without_ended(found: PeerResult, ports: Sequence[Port]) -> PeerResult:
    """The results without ports that are refused because the listener of another run, which had them, has ended."""
    busy = {port["port"] for port in ports if port["state"] == "busy"}
    kept = [port for port in found["ports"] if port["outcome"] != "refused" or port["port"] not in busy]
    return {**found, "ports": kept}


def peers(listening: Mapping[str, Mapping[str, Any]], members: Any) -> list[dict[str, Any]]:
    """The members in the form that the module expects: with the ports of each one's listener, if it has one.

    ``listening`` are the results of the phase listen by machine. Raises InputError.
    """
    return [
        {
            "machine": target.machine,
            "address": target.address,
            "ports": (listening.get(target.machine) or {}).get("ports") or [],
            "rdma": bool(((listening.get(target.machine) or {}).get("rdma") or {}).get("device")),
        }
        for target in targets(members)
    ]


def lifetime(least: int, hosts: int, throughput_seconds: int) -> int:
    """The seconds after which the listeners of this number of hosts end at the latest."""
    seconds = max(least, _SECONDS_EACH * hosts)
    if throughput_seconds:
        seconds += 120 + _SECONDS_EACH * hosts + hosts * 2 * (throughput_seconds * 3 + 7)
    return seconds


class Evidence:
    """The results of the phases, ``{listen, probe, throughput: {machine: the registered result}}``."""

    def __init__(self, results: Mapping[str, Mapping[str, Any]], members: Sequence[Target]) -> None:
        self.members = {member.machine: member for member in members}
        self._asked = {machine for phase in results.values() for machine in phase}
        self._results = {
            machine: {phase: result[machine] for phase, result in results.items() if result.get(machine)}
            for machine in self.members
        }
        self.probes: dict[str, Probe] = {}
        self._peers: dict[tuple[str, str], PeerResult] = {}
        for machine in self.members:
            probe = (self._results[machine].get("probe") or {}).get("probe")
            if probe:
                self.probes[machine] = probe
                for peer in probe["peers"]:
                    other = self.members.get(peer["machine"])
                    confined = self.members[machine].pod or (other is not None and other.pod)
                    found = _without_ended(peer, self.ports(peer["machine"]) if other is not None else ())
                    self._peers[machine, peer["machine"]] = _by_tcp_alone(found) if confined else found
        self._rates: dict[str, dict[str, Mapping[str, Any]]] = {}
        for machine in self.members:
            collected = (self._results[machine].get("throughput") or {}).get("throughput") or []
            self._rates[machine] = {measured["machine"]: measured for measured in collected}
        self._listening = {
            machine: any(port["state"] == "listening" for port in self.ports(machine)) for machine in self.members
        }
        self._owners = {
            mac: machine for machine in reversed(list(self.probes)) for mac in self.probes[machine]["own_macs"]
        }
        #: By address, who received replies from which hardware addresses. Computed once, since all others are queried
        #: for each.
        self._heard = self._hear()
        self._proxies = self._find_proxies()
        self.duplicates = {machine: self._duplicate(machine) for machine in self.members}
        self.clock_errors = self._find_clock_errors()

    def peer(self, one: str, other: str) -> PeerResult | None:
        """The result of ``one`` for ``other``; None if it was not probed."""
        return self._peers.get((one, other))

    def ports(self, machine: str) -> list[Port]:
        """The results for the ports of a machine's listener; empty if it has none."""
        listen = self._results[machine].get("listen") or {}
        return list(listen.get("ports") or [])

    def listened(self, machine: str) -> bool:
        """Whether one of our listeners is known to have been running."""
        return self._listening[machine]

    def took_part(self, machine: str) -> bool:
        """Whether this machine is among the hosts of the run."""
        return machine in self._asked

    def trouble(self, machine: str) -> str:
        """Why a machine could not listen or probe, as a clause; empty if it could."""
        results = self._results[machine]
        if machine not in self._asked:
            return f"{machine} is not among the hosts of this run"
        if not results:
            return f"{machine} had failed earlier in this run"
        for phase, key in (("listen", "ports"), ("probe", "probe")):
            result = results.get(phase) or {}
            if result.get("unreachable"):
                return f"{machine} could not be reached over SSH"
            # With failed_when, the only sign of a failed task is that its result is missing.
            if key not in result and "msg" in result:
                said = str(result["msg"]).removeprefix(f"{machine}: ").rstrip(".")
                return f"{machine} could not {phase}: {said}"
        return "" if machine in self.probes else f"{machine} gave no result"

    def lingering(self) -> list[str]:
        """The machines whose listener may still be running, since not all others have sent it `done`."""
        asked = [machine for machine in self.members if self.took_part(machine)]
        return [
            machine
            for machine in asked
            if self.listened(machine)
            and not all(
                (found := self.peer(other, machine)) is not None and found["finished"]
                for other in asked
                if other != machine
            )
        ]

    def bandwidth(self, one: str, other: str) -> float | None:
        """10^9 bit/s from ``one`` to ``other``; None if it was not measured."""
        measured = self._measured(one, other)
        return measured["gbps"] if measured else None

    def rdma(self, one: str, other: str) -> RdmaRate:
        """The RDMA result from ``one`` to ``other``."""
        measured = self._measured(one, other)
        nothing: RdmaRate = {"gbps": None, "latency_us": None, "error": ""}
        return measured["rdma"] if measured and "rdma" in measured else nothing

    def rdma_end(self, machine: str) -> RdmaEnd | None:
        """The RDMA port of a machine, or why it has none; None if it could not be queried."""
        return (self._results[machine].get("listen") or {}).get("rdma")

    def _measured(self, one: str, other: str) -> Mapping[str, Any] | None:
        return self._rates[one].get(other)

    def _hear(self) -> dict[str, dict[str, list[str]]]:
        """The hardware addresses that answered each machine for each member's address, by member and machine."""
        heard: dict[str, dict[str, list[str]]] = {machine: {} for machine in self.members}
        for machine, probe in self.probes.items():
            for peer in probe["peers"]:
                if peer["macs"] and peer["machine"] in heard:
                    heard[peer["machine"]][machine] = list(peer["macs"])
            own = set(probe["own_macs"])
            heard[machine][machine] = [mac for mac in probe["duplicate"]["macs"] if mac not in own]
        return heard

    def _find_proxies(self) -> set[str]:
        """MACs of routers and cloud networks that answer for all addresses, and so are not duplicates."""
        members = {mac for probe in self.probes.values() for mac in probe["own_macs"]}
        counts: Counter[tuple[str, str]] = Counter()
        for answers in self._heard.values():
            for machine, macs in answers.items():
                counts.update((machine, mac) for mac in set(macs))
        return {mac for (_machine, mac), number in counts.items() if number > 1} - members

    def _duplicate(self, machine: str) -> list[str]:
        """The MACs of others that answer for a machine's address; all that do, if its own is not known.

        One foreign MAC instead of the machine's own means a network that translates them. Two replies to one request
        mean two hosts, and so does any reply to the machine's own request.
        """
        heard = {prober: set(macs) - self._proxies for prober, macs in self._heard[machine].items()}
        if machine not in self.probes:
            return sorted({mac for macs in heard.values() if len(macs) > 1 for mac in macs})
        own = set(self.probes[machine]["own_macs"])
        return sorted({mac for prober, macs in heard.items() if prober == machine or macs & own for mac in macs - own})

    def owner(self, mac: str) -> str | None:
        """The member that has a MAC."""
        return self._owners.get(mac)

    def _find_clock_errors(self) -> dict[str, float]:
        """Seconds by which each clock is ahead of the median of the others.

        If there are only two, either may be wrong.
        """
        if not self.probes:
            return {}
        judge = max(self.probes, key=lambda machine: sum(1 for peer in self.probes[machine]["peers"] if peer["clock"]))
        offsets = {judge: 0.0}
        for peer in self.probes[judge]["peers"]:
            if peer["clock"] is not None:
                offsets[peer["machine"]] = peer["clock"]["offset_s"]
        if len(offsets) < 3:
            return {}
        middle = median_low(offsets.values())
        return {machine: offset - middle for machine, offset in offsets.items()}
