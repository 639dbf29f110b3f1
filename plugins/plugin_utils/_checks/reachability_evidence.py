# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The combined results of all members about each other. Nothing here contacts a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    ListenerPort,
    PeerResult,
    PeerRoute,
    PortResult,
    ProbeReport,
    RdmaEndpoint,
    RdmaRate,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.derive import find_pods, member_views
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError

#: Seconds of a listener's lifetime for each member: Ansible runs five at a time, so phases grow with their number.
_SECONDS_PER_HOST = 8


class ExpectedMember(NamedTuple):
    """An expected member: its address, and the interface that has it.

    ``is_pod``: only its programs have these, not its kernel, and only for TCP.
    ``network``: the one in which all members have their addresses; empty if it is not known.
    """

    machine: str
    address: str
    interface: str
    is_pod: bool = False
    network: str = ""

    def identity_options(self) -> dict[str, str]:
        """The options with which a module of this member identifies itself."""
        return {"machine": self.machine, "address": self.address, "interface": self.interface}


def expected_members(members: Any, address_layer: str = "mesh") -> list[ExpectedMember]:
    """The members from a cluster record, or from a list of mappings with machine, address and interface.

    ``address_layer``: the cluster addresses of a record's members (mesh), or their own (subnet). Raises InputError.
    """
    pod_names: Sequence[str] = ()
    network = ""
    if isinstance(members, Mapping) and "members" in members:
        pod_names = find_pods(cast(Record, members)) if address_layer == "mesh" else ()
        uses_mesh = address_layer == "mesh" and members["mesh"]["backend"] != "none"
        network = str((members["mesh"] if uses_mesh else members).get("subnet") or "")
        members = list(member_views(cast(Record, members)).values()) if address_layer == "mesh" else members["members"]
    if not isinstance(members, Sequence) or isinstance(members, str):
        raise InputError("The members are neither a cluster record nor a list.", "Set the fact cluster_record.")
    targets = []
    for member in members:
        if isinstance(member, ExpectedMember):
            targets.append(member)
            continue
        if not isinstance(member, Mapping) or not {"machine", "address", "interface"} <= set(member):
            raise InputError(f"{str(member)[:80]!r} is not a member.", "Set machine, address and interface.")
        machine = str(member["machine"])
        targets.append(
            ExpectedMember(
                machine,
                str(member["address"]),
                str(member["interface"]),
                machine in pod_names,
                str(member.get("network") or network),
            )
        )
    return targets


def _keep_tcp_results(peer_result: PeerResult) -> PeerResult:
    """Keep the results of a pair with a pod that apply.

    Kernels have no route between the two, and datagrams do not pass.
    """
    port_results: list[PortResult] = [
        {**port, "outcome": "not_checked", "detail": "only TCP passes to and from a pod"}
        if port["protocol"] == "udp"
        else port
        for port in peer_result["ports"]
    ]
    empty_route: PeerRoute = {"dev": None, "prefsrc": None, "gateway": None, "error": None}
    return {**peer_result, "route": empty_route, "macs": None, "ports": port_results, "path_mtu": None}


def _drop_ended_listeners(peer_result: PeerResult, listener_ports: Sequence[ListenerPort]) -> PeerResult:
    """The results without ports that are refused because the listener of another run, which had them, has ended."""
    busy_ports = {port["port"] for port in listener_ports if port["state"] == "busy"}
    kept_results = [
        port for port in peer_result["ports"] if port["outcome"] != "refused" or port["port"] not in busy_ports
    ]
    return {**peer_result, "ports": kept_results}


def build_peers(listen_results: Mapping[str, Mapping[str, Any]], members: Any) -> list[dict[str, Any]]:
    """The members in the form that the module expects: with the ports of each one's listener, if it has one.

    ``listen_results`` are the results of the phase listen by machine. Raises InputError.
    """
    return [
        {
            "machine": expected_member.machine,
            "address": expected_member.address,
            "ports": (listen_results.get(expected_member.machine) or {}).get("ports") or [],
            "rdma": bool(((listen_results.get(expected_member.machine) or {}).get("rdma") or {}).get("device")),
        }
        for expected_member in expected_members(members)
    ]


def listener_lifetime(minimum_seconds: int, host_count: int, throughput_seconds: int) -> int:
    """The seconds after which the listeners of this number of hosts end at the latest."""
    lifetime_seconds = max(minimum_seconds, _SECONDS_PER_HOST * host_count)
    if throughput_seconds:
        lifetime_seconds += 120 + _SECONDS_PER_HOST * host_count + host_count * 2 * (throughput_seconds * 3 + 7)
    return lifetime_seconds


class ReachabilityEvidence:
    """The results of the phases, ``{listen, probe, throughput: {machine: the registered result}}``.

    ``automatic_machines``: those whose own firewall gets the rules of the cluster.
    """

    def __init__(
        self,
        results_by_phase: Mapping[str, Mapping[str, Any]],
        members: Sequence[ExpectedMember],
        automatic_machines: Collection[str] = (),
    ) -> None:
        self.automatic_machines = automatic_machines
        self.members = {member.machine: member for member in members}
        self._run_machines = {machine for phase in results_by_phase.values() for machine in phase}
        self._results_by_machine = {
            machine: {phase: result[machine] for phase, result in results_by_phase.items() if result.get(machine)}
            for machine in self.members
        }
        self.probes: dict[str, ProbeReport] = {}
        self._results_by_pair: dict[tuple[str, str], PeerResult] = {}
        for machine in self.members:
            probe_result = (self._results_by_machine[machine].get("probe") or {}).get("probe")
            if probe_result:
                self.probes[machine] = probe_result
                for probed_peer in probe_result["peers"]:
                    peer_member = self.members.get(probed_peer["machine"])
                    involves_pod = self.members[machine].is_pod or (peer_member is not None and peer_member.is_pod)
                    peer_result = _drop_ended_listeners(
                        probed_peer, self.listener_ports(probed_peer["machine"]) if peer_member is not None else ()
                    )
                    self._results_by_pair[machine, probed_peer["machine"]] = (
                        _keep_tcp_results(peer_result) if involves_pod else peer_result
                    )
        self._rates_by_sender: dict[str, dict[str, Mapping[str, Any]]] = {}
        for machine in self.members:
            throughput_results = (self._results_by_machine[machine].get("throughput") or {}).get("throughput") or []
            self._rates_by_sender[machine] = {
                throughput_result["machine"]: throughput_result for throughput_result in throughput_results
            }
        self._is_listening = {
            machine: any(port["state"] == "listening" for port in self.listener_ports(machine))
            for machine in self.members
        }
        self._machine_by_mac = {
            mac: machine for machine in reversed(list(self.probes)) for mac in self.probes[machine]["own_macs"]
        }
        #: The hardware addresses that replied, by member and machine. They are computed once, since all other members
        #: are looked up for each.
        self._macs_by_machine = self._collect_replies()
        self._proxy_macs = self._find_proxy_macs()
        self.duplicate_macs = {machine: self._find_duplicate_macs(machine) for machine in self.members}
        self.clock_errors = self._find_clock_errors()

    def peer_result(self, sender_name: str, receiver_name: str) -> PeerResult | None:
        """The result of ``sender_name`` for ``receiver_name``; None if it was not probed."""
        return self._results_by_pair.get((sender_name, receiver_name))

    def listener_ports(self, machine: str) -> list[ListenerPort]:
        """The results for the ports of a machine's listener; empty if it has none."""
        listen_result = self._results_by_machine[machine].get("listen") or {}
        return list(listen_result.get("ports") or [])

    def had_listener(self, machine: str) -> bool:
        """Whether a listener of ours is known to have been running there."""
        return self._is_listening[machine]

    def is_in_run(self, machine: str) -> bool:
        """Whether this machine is among the hosts of the run."""
        return machine in self._run_machines

    def failure_reason(self, machine: str) -> str:
        """Explain why a machine could not listen or probe, as a clause; empty if it could."""
        phase_results = self._results_by_machine[machine]
        if machine not in self._run_machines:
            return f"{machine} is not among the hosts of this run"
        if not phase_results:
            return f"{machine} had failed earlier in this run"
        for phase, result_key in (("listen", "ports"), ("probe", "probe")):
            result = phase_results.get(phase) or {}
            if result.get("unreachable"):
                return f"{machine} could not be reached over SSH"
            # A missing result is the only sign of a failed task with failed_when.
            if result_key not in result and "msg" in result:
                failure_text = str(result["msg"]).removeprefix(f"{machine}: ").rstrip(".")
                return f"{machine} could not {phase}: {failure_text}"
        return "" if machine in self.probes else f"{machine} gave no result"

    def find_lingering_listeners(self) -> list[str]:
        """The machines whose listener may still be running, since not all others have sent it `done`."""
        run_machines = [machine for machine in self.members if self.is_in_run(machine)]
        return [
            machine
            for machine in run_machines
            if self.had_listener(machine)
            and not all(
                (peer_result := self.peer_result(sender_name, machine)) is not None and peer_result["finished"]
                for sender_name in run_machines
                if sender_name != machine
            )
        ]

    def measured_bandwidth(self, sender_name: str, receiver_name: str) -> float | None:
        """Return the bandwidth from ``sender_name`` to ``receiver_name`` in 10^9 bit/s; None if it was not measured."""
        throughput_result = self._throughput_result(sender_name, receiver_name)
        return throughput_result["gbps"] if throughput_result else None

    def rdma_rate(self, sender_name: str, receiver_name: str) -> RdmaRate:
        """The RDMA result from ``sender_name`` to ``receiver_name``."""
        throughput_result = self._throughput_result(sender_name, receiver_name)
        empty_rate: RdmaRate = {"gbps": None, "latency_us": None, "error": ""}
        return throughput_result["rdma"] if throughput_result and "rdma" in throughput_result else empty_rate

    def rdma_port(self, machine: str) -> RdmaEndpoint | None:
        """The RDMA port of a machine, or why it has none; None if it could not be queried."""
        return (self._results_by_machine[machine].get("listen") or {}).get("rdma")

    def host_firewalls(self, machine: str) -> list[str]:
        """The firewalls that are active on a machine, ufw and firewalld; empty if there is none, or if it is not known."""
        return list((self._results_by_machine[machine].get("listen") or {}).get("host_firewalls") or [])

    def _throughput_result(self, sender_name: str, receiver_name: str) -> Mapping[str, Any] | None:
        return self._rates_by_sender[sender_name].get(receiver_name)

    def _collect_replies(self) -> dict[str, dict[str, list[str]]]:
        """The hardware addresses that answered each machine for each member's address, by member and machine."""
        replies_by_machine: dict[str, dict[str, list[str]]] = {machine: {} for machine in self.members}
        for machine, probe in self.probes.items():
            for peer in probe["peers"]:
                if peer["macs"] and peer["machine"] in replies_by_machine:
                    replies_by_machine[peer["machine"]][machine] = list(peer["macs"])
            own_macs = set(probe["own_macs"])
            replies_by_machine[machine][machine] = [mac for mac in probe["duplicate"]["macs"] if mac not in own_macs]
        return replies_by_machine

    def _find_proxy_macs(self) -> set[str]:
        """MACs of routers and cloud networks that answer for all addresses, and so are not duplicates."""
        member_macs = {mac for probe in self.probes.values() for mac in probe["own_macs"]}
        reply_counts: Counter[tuple[str, str]] = Counter()
        for replies in self._macs_by_machine.values():
            for machine, macs in replies.items():
                reply_counts.update((machine, mac) for mac in set(macs))
        return {mac for (_machine, mac), reply_count in reply_counts.items() if reply_count > 1} - member_macs

    def _find_duplicate_macs(self, machine: str) -> list[str]:
        """Return the MACs of others that answer for a machine's address; all that do, if its own is not known.

        One foreign MAC instead of the machine's own means a network that translates them. Two replies to one request
        mean two hosts, and so does any reply to the machine's own request.
        """
        macs_by_prober = {
            prober: set(macs) - self._proxy_macs for prober, macs in self._macs_by_machine[machine].items()
        }
        if machine not in self.probes:
            return sorted({mac for macs in macs_by_prober.values() if len(macs) > 1 for mac in macs})
        own_macs = set(self.probes[machine]["own_macs"])
        return sorted(
            {
                mac
                for prober, macs in macs_by_prober.items()
                if prober == machine or macs & own_macs
                for mac in macs - own_macs
            }
        )

    def find_mac_owner(self, mac: str) -> str | None:
        """The member that has a MAC."""
        return self._machine_by_mac.get(mac)

    def _find_clock_errors(self) -> dict[str, float]:
        """Return the seconds by which each clock is ahead of the median of the others.

        If there are only two, either may be wrong.
        """
        if not self.probes:
            return {}
        reference_machine = max(
            self.probes, key=lambda machine: sum(1 for peer in self.probes[machine]["peers"] if peer["clock"])
        )
        offset_by_machine = {reference_machine: 0.0}
        for peer in self.probes[reference_machine]["peers"]:
            if peer["clock"] is not None:
                offset_by_machine[peer["machine"]] = peer["clock"]["offset_s"]
        if len(offset_by_machine) < 3:
            return {}
        median_offset = median_low(offset_by_machine.values())
        return {machine: offset - median_offset for machine, offset in offset_by_machine.items()}
