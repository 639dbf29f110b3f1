# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on each ordered pair of members, and on each member: one cause, as a message, with its remedy.

Several tests fail for the same cause: a wrong route also looks like a firewall. So the causes are tried in the order in
which they explain each other, and the first that fits is the verdict.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import PeerResult, PortResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.path_mtu import is_black_hole
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.host_firewall import FIREWALLD, UFW
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import (
    ExpectedMember,
    ReachabilityEvidence,
    expected_members,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.vendors import mac_vendor

#: Every verdict, starting with the one that explains the most. The last ones are not faults.
VERDICTS = (
    "duplicate_address",
    "wrong_interface",
    "no_route",
    "no_answer",
    "wrong_host",
    "asymmetric",
    "refused",
    "filtered",
    "nat",
    "mtu_black_hole",
    "corrupted",
    "name_is_loopback",
    "clock_skew",
    "not_checked",
    "ok",
)

_PASSING_OUTCOMES = ("ok", "connected")
#: Interfaces of container engines and hypervisors, whose ranges are chosen without regard to the LAN.
_ENGINE_REMEDIES = {
    "docker": "it belongs to Docker: set another range with `bip` in /etc/docker/daemon.json",
    "br-": "it is a Docker network: create it again with another range (`docker network create --subnet`)",
    "virbr": "it belongs to libvirt: set another range with `virsh net-edit default`",
    "cni": "it belongs to Kubernetes: use another range for the pods",
    "podman": "it belongs to Podman: set another range with `default_subnet` in containers.conf",
}
#: The commands that allow connections from a network, by the firewall of the receiving host.
_FIREWALL_COMMANDS = {
    UFW: "`ufw allow in on {interface} from {network}`",
    # An interface that has no zone of its own is in the default one.
    FIREWALLD: (
        '`firewall-cmd --zone="$(firewall-cmd --get-zone-of-interface={interface} || firewall-cmd --get-default-zone)" '
        """--add-rich-rule='rule family="ipv{version}" source address="{network}" accept'`, """
        "also with --permanent"
    ),
}


class ReachabilityFinding(NamedTuple):
    """The verdict on a pair or a host."""

    status: str
    verdict: str
    message: str
    remedy: str = ""


def _fault_finding(verdict: str, message: str, remedy: str) -> ReachabilityFinding:
    return ReachabilityFinding("fail", verdict, message, remedy)


def _unchecked_finding(message: str, remedy: str) -> ReachabilityFinding:
    """Return the finding for something that should have been checked, and could not be."""
    return ReachabilityFinding("error", "not_checked", message, remedy)


class _MemberPair(NamedTuple):
    """The results of one ordered pair."""

    evidence: ReachabilityEvidence
    sender: ExpectedMember
    receiver: ExpectedMember
    forward_result: PeerResult
    reverse_result: PeerResult | None
    max_clock_offset: float

    def ports_of_protocol(self, protocol_name: str) -> list[PortResult]:
        return [port for port in self.forward_result["ports"] if port["protocol"] == protocol_name]

    def any_port_passes(self) -> bool:
        return any(port["outcome"] in _PASSING_OUTCOMES for port in self.ports_of_protocol("tcp"))


def judge_reachability(
    results: Mapping[str, Mapping[str, Any]],
    members: Any,
    max_clock_offset: float = 5.0,
    automatic_machines: Collection[str] = (),
) -> dict[str, Any]:
    """All verdicts.

    ``results`` is ``{listen, probe, throughput: {machine: as the task registered it}}``; a machine that is not in the
    run is in none of them. ``members`` is the cluster record or a list of ``{machine, address, interface}``.
    ``automatic_machines``: those with ``firewall_host: auto``. Returns::

        {status: pass|fail|error|skipped, summary: words, counts: {verdict: number of pairs},
         pairs: [{from, to, status, verdict, message, remedy, rtt_ms, path_mtu, offset_s, bandwidth_gbps, rdma_gbps,
                  rdma_latency_us, rdma_error}],
         rdma: {machine: its port, or why it has none},
         hosts: [{host, status, verdict, message, remedy}],
         checks: [{id, purpose, host, actual, required, unit, status, reason, remedy}],
         lingering: [machines whose listener may still be there]}

    ``hosts`` has what is wrong with single members, ``checks`` the same in the form of all checks, with what is right.
    Raises InputError.
    """
    evidence = ReachabilityEvidence(results, expected_members(members), automatic_machines)
    pair_verdicts = [
        _describe_pair(evidence, sender, receiver, max_clock_offset)
        for sender in evidence.members.values()
        for receiver in evidence.members.values()
        if sender != receiver
    ]
    host_findings = [
        {"host": machine, **finding._asdict()}
        for machine in evidence.members
        for finding in _judge_host(evidence, machine, max_clock_offset)
    ]
    statuses = {verdict_entry["status"] for verdict_entry in (*pair_verdicts, *host_findings)}
    verdict_counts = Counter(pair["verdict"] for pair in pair_verdicts)
    return {
        "status": next((status for status in ("fail", "error", "pass") if status in statuses), "skipped"),
        "summary": _summarize_pairs(pair_verdicts),
        "counts": {verdict: verdict_counts[verdict] for verdict in VERDICTS if verdict_counts[verdict]},
        "pairs": pair_verdicts,
        "hosts": host_findings,
        "checks": _build_host_checks(evidence, host_findings),
        "rdma": {machine: rdma_port for machine in evidence.members if (rdma_port := evidence.rdma_port(machine))},
        "lingering": evidence.find_lingering_listeners(),
    }


def _describe_pair(
    evidence: ReachabilityEvidence, sender: ExpectedMember, receiver: ExpectedMember, max_clock_offset: float
) -> dict[str, Any]:
    peer_result, rdma_result = (
        evidence.peer_result(sender.machine, receiver.machine),
        evidence.rdma_rate(sender.machine, receiver.machine),
    )
    finding = _judge_pair(evidence, sender, receiver, peer_result, max_clock_offset)
    clock_result, path_mtu = (peer_result["clock"], peer_result["path_mtu"]) if peer_result else (None, None)
    return {
        "from": sender.machine,
        "to": receiver.machine,
        **finding._asdict(),
        "rtt_ms": clock_result["rtt_ms"] if clock_result else None,
        "path_mtu": path_mtu["to_peer"] if path_mtu else None,
        "offset_s": round(clock_result["offset_s"], 3) if clock_result else None,
        "bandwidth_gbps": evidence.measured_bandwidth(sender.machine, receiver.machine),
        "rdma_gbps": rdma_result["gbps"],
        "rdma_latency_us": rdma_result["latency_us"],
        "rdma_error": rdma_result["error"],
    }


def _judge_pair(
    evidence: ReachabilityEvidence,
    sender: ExpectedMember,
    receiver: ExpectedMember,
    forward_result: PeerResult | None,
    max_clock_offset: float,
) -> ReachabilityFinding:
    if forward_result is None:
        return _judge_unprobed(evidence, sender, receiver)
    pair = _MemberPair(
        evidence,
        sender,
        receiver,
        forward_result,
        evidence.peer_result(receiver.machine, sender.machine),
        max_clock_offset,
    )
    return next(finding for check_cause in _CAUSES_IN_ORDER if (finding := check_cause(pair)) is not None)


def _judge_unprobed(
    evidence: ReachabilityEvidence, sender: ExpectedMember, receiver: ExpectedMember
) -> ReachabilityFinding:
    failure_reason = evidence.failure_reason(sender.machine) or f"{sender.machine} did not probe {receiver.machine}"
    if not evidence.is_in_run(sender.machine):
        return ReachabilityFinding("skipped", "not_checked", f"Not checked: {failure_reason}.")
    return _unchecked_finding(f"Not checked: {failure_reason}.", f"Make {sender.machine} reachable, then check again.")


def _check_duplicate_address(pair: _MemberPair) -> ReachabilityFinding | None:
    if pair.forward_result["route"]["dev"] == "lo":
        return _fault_finding(
            "duplicate_address",
            f"{pair.sender.machine} itself has {pair.receiver.address}, the address of {pair.receiver.machine}.",
            f"Remove {pair.receiver.address} from {pair.sender.machine} (see `ip addr`), or change the address of "
            f"{pair.receiver.machine}.",
        )
    for expected_member in (pair.receiver, pair.sender):
        finding = _find_duplicate_address(pair.evidence, expected_member.machine)
        if finding is not None:
            return finding
    return None


def _find_duplicate_address(evidence: ReachabilityEvidence, machine: str) -> ReachabilityFinding | None:
    duplicate_macs = evidence.duplicate_macs[machine]
    if not duplicate_macs:
        return None
    address = evidence.members[machine].address
    if machine in evidence.probes:
        mac_owners = [
            f"{evidence.find_mac_owner(mac)} ({mac})" if evidence.find_mac_owner(mac) else f"{mac} ({mac_vendor(mac)})"
            for mac in duplicate_macs
        ]
        message = f"{address} is the address of {machine}, but {', '.join(mac_owners)} also answers for it."
    else:
        mac_owners = [f"{mac} ({mac_vendor(mac)})" for mac in duplicate_macs]
        message = f"{len(duplicate_macs)} MAC addresses answer for {machine}'s address {address}: {', '.join(mac_owners)}. It is "
        message += "on two hosts, or on two interfaces of one."
    return _fault_finding(
        "duplicate_address",
        message,
        f"Find the other one by its MAC address in the tables of the switch or the DHCP server, and remove {address} "
        "from it.",
    )


def _check_route(pair: _MemberPair) -> ReachabilityFinding | None:
    route, sender, receiver = pair.forward_result["route"], pair.sender, pair.receiver
    if route["error"] is not None:
        return _fault_finding(
            "no_route",
            f"{sender.machine} has no route to {receiver.machine} ({receiver.address}): {route['error']}.",
            f"Connect {sender.interface} of {sender.machine} to the network of {receiver.address}, or add a route to it.",
        )
    if route["dev"] is not None and route["dev"] != sender.interface:
        engine_remedy = next(
            (remedy_text for prefix, remedy_text in _ENGINE_REMEDIES.items() if route["dev"].startswith(prefix)), None
        )
        remedy = (
            f"{route['dev']} has a range that overlaps the cluster's: {engine_remedy}."
            if engine_remedy
            else f"Keep only one interface in this network, or lower the metric of the route through {sender.interface}."
        )
        return _fault_finding(
            "wrong_interface",
            f"{sender.machine} sends to {receiver.machine} ({receiver.address}) via {route['dev']} instead of {sender.interface}"
            + (f", from {route['prefsrc']}." if route["prefsrc"] else "."),
            remedy,
        )
    if route["prefsrc"] is not None and route["prefsrc"] != sender.address:
        return _wrong_source_finding(pair, route["prefsrc"])
    return None


def _wrong_source_finding(pair: _MemberPair, source_address: str) -> ReachabilityFinding:
    sender, receiver = pair.sender, pair.receiver
    return _fault_finding(
        "wrong_interface",
        f"{sender.machine} sends to {receiver.machine} from {source_address} instead of {sender.address}, its address in the record.",
        f"Make {sender.address} the first address of {sender.interface}, or add `src {sender.address}` to the route.",
    )


def _check_listener(pair: _MemberPair) -> ReachabilityFinding | None:
    """Judge a member without a listener.

    A member that Ansible could not reach is still probed, but only on ports on which a service may listen.
    """
    sender, receiver = pair.sender, pair.receiver
    if pair.evidence.had_listener(receiver.machine):
        return None
    failure_reason = pair.evidence.failure_reason(receiver.machine) or f"{receiver.machine} had no listener"
    responding_ports = [
        port for port in pair.ports_of_protocol("tcp") if port["outcome"] in (*_PASSING_OUTCOMES, "refused", "closed")
    ]
    if responding_ports or pair.forward_result["macs"]:
        life_sign = "answers ARP requests"
        if responding_ports:
            life_sign = f"{'accepts' if responding_ports[0]['outcome'] in _PASSING_OUTCOMES else 'refuses'} a connection to TCP {responding_ports[0]['port']}"
        message = f"Not checked: {failure_reason}. {receiver.address} is alive: it {life_sign}."
        if not pair.evidence.is_in_run(receiver.machine):
            return ReachabilityFinding("skipped", "not_checked", message)
        return _unchecked_finding(message, f"Make {receiver.machine} reachable, then check again.")
    arp_sentence = f" No host answers ARP requests for {receiver.address}." if pair.forward_result["macs"] == [] else ""
    return _fault_finding(
        "no_answer",
        f"{receiver.machine} ({receiver.address}) does not answer {sender.machine} at all, and {failure_reason}.{arp_sentence}",
        f"Start {receiver.machine} and check its network. If it is permanently lost, remove it from the cluster.",
    )


def _check_any_connection(pair: _MemberPair) -> ReachabilityFinding | None:
    sender, receiver = pair.sender, pair.receiver
    if pair.any_port_passes():
        return None
    outcomes = {port["outcome"] for port in pair.ports_of_protocol("tcp")}
    if not outcomes:
        return _unchecked_finding(
            f"Not checked: {receiver.machine} could not listen on any of the ports.",
            "Choose ports that are free.",
        )
    if outcomes == {"not_checked"}:
        return _check_unopened_ports(pair)
    if "stranger" in outcomes:
        return _wrong_host_finding(pair)
    verdict, failure_clause = _explain_blocked_pair(pair, outcomes)
    if pair.reverse_result is not None and any(port["outcome"] == "ok" for port in pair.reverse_result["ports"]):
        return _fault_finding(
            "asymmetric",
            f"One way only: {failure_clause}, while {receiver.machine} reaches {sender.machine}.",
            _suggest_opening(
                pair,
                f"Allow {sender.address} to connect to {receiver.address} in the firewalls of {receiver.machine} and on the "
                "path; the other direction is open.",
            ),
        )
    if verdict == "no_route":
        remedy = "Check the cables, the VLANs of the switch and the routes: both hosts are up, but not on one network."
    elif "closed" in outcomes:
        remedy = f"Look for a proxy, port forwarding or an inspecting firewall between {sender.machine} and {receiver.machine}."
    else:
        remedy = _suggest_opening(
            pair,
            f"Allow {sender.address} to connect to {receiver.address} on all ports in both firewalls and on the path.",
        )
    return _fault_finding(verdict, f"{failure_clause[0].upper()}{failure_clause[1:]}.", remedy)


def _explain_blocked_pair(pair: _MemberPair, outcomes: set[str]) -> tuple[str, str]:
    """Explain why no connection passes. Returns the verdict, and a clause.

    ``outcomes`` are those of all TCP ports, all of which failed.
    """
    sender_name, receiver_name, arp_replies = pair.sender.machine, pair.receiver.machine, pair.forward_result["macs"]
    if outcomes == {"refused"}:
        return "refused", f"{receiver_name} refuses every connection from {sender_name}, although it listens"
    if "closed" in outcomes:
        return (
            "filtered",
            f"connections from {sender_name} to {receiver_name} are accepted, but closed before any data passes",
        )
    if outcomes == {"mute"}:
        return "filtered", f"{receiver_name} accepts connections from {sender_name}, but no data passes"
    if "no_route" not in outcomes:
        return "filtered", f"every connection from {sender_name} to {receiver_name} times out"
    if arp_replies:
        return "filtered", f"connections from {sender_name} to {receiver_name} are rejected by a firewall"
    if arp_replies is not None:
        return (
            "no_route",
            f"no host answers the ARP requests of {sender_name} for the address {pair.receiver.address} of {receiver_name}",
        )
    detail = next(port["detail"] for port in pair.ports_of_protocol("tcp") if port["outcome"] == "no_route")
    return "no_route", f"the network reports '{detail}' for connections from {sender_name} to {receiver_name}"


def _wrong_host_finding(pair: _MemberPair) -> ReachabilityFinding:
    sender, receiver = pair.sender, pair.receiver
    return _fault_finding(
        "wrong_host",
        f"The host that answers {sender.machine} at {receiver.address} is not {receiver.machine}: it does not know the token of "
        "this run.",
        f"Look for a proxy or port forwarding between {sender.machine} and {receiver.machine}, and for the same private "
        "range at two sites: an address must belong to only one host.",
    )


def _check_each_port(pair: _MemberPair) -> ReachabilityFinding | None:
    sender, receiver = pair.sender, pair.receiver
    failed_ports = [
        port for port in pair.forward_result["ports"] if port["outcome"] not in (*_PASSING_OUTCOMES, "not_checked")
    ]
    if not failed_ports:
        return None
    if any(port["outcome"] == "stranger" for port in failed_ports):
        return _wrong_host_finding(pair)
    all_refused = all(port["outcome"] == "refused" for port in failed_ports)
    all_closed = all(port["outcome"] == "closed" for port in failed_ports)
    passing_ports = [port for port in pair.forward_result["ports"] if port["outcome"] in _PASSING_OUTCOMES]
    failure_verb = "refuses" if all_refused else "closes the connections of" if all_closed else "does not answer"
    ports_to_open = (
        "TCP and UDP on the whole ephemeral range" if _all_ephemeral(failed_ports) else _format_ports(failed_ports)
    )
    return _fault_finding(
        "refused" if all_refused else "filtered",
        f"{receiver.machine} {failure_verb} {sender.machine} on {_format_ports(failed_ports)}; {_format_ports(passing_ports)} pass.",
        _suggest_opening(
            pair,
            f"Open {ports_to_open} from {sender.address} in the firewall of {receiver.machine} (`nft list ruleset`) and on the "
            "path.",
        ),
    )


def _suggest_opening(pair: _MemberPair, general_remedy: str) -> str:
    """Return the remedy for a pair that a firewall keeps apart: the command for the receiver's own, if that is known."""
    sender, receiver = pair.sender, pair.receiver
    firewalls = [name for name in pair.evidence.host_firewalls(receiver.machine) if name in _FIREWALL_COMMANDS]
    if not firewalls:
        return general_remedy
    opening = f"{join_names(firewalls)} {'is' if len(firewalls) == 1 else 'are'} active on {receiver.machine}"
    fallback = f"If that does not suffice: {general_remedy[0].lower()}{general_remedy[1:]}"
    if receiver.machine in pair.evidence.automatic_machines:
        return f"{opening}, with firewall_host=auto. Run site again, which adds rules that are missing. {fallback}"
    network = sender.network or sender.address
    version = ipaddress.ip_network(network).version
    commands = [
        _FIREWALL_COMMANDS[name].format(interface=receiver.interface, network=network, version=version)
        for name in firewalls
    ]
    # Without the network, the command is about a single member.
    scope = "" if sender.network else f", for {sender.machine} and the same for the other members"
    return f"{opening}. Set firewall_host=auto, or run there{scope}: {join_names(commands)}; and run site again. {fallback}"


def _check_unopened_ports(pair: _MemberPair) -> ReachabilityFinding | None:
    """Report ports to which the probing host itself could open no connection."""
    unopened_ports = [port for port in pair.ports_of_protocol("tcp") if port["outcome"] == "not_checked"]
    if not unopened_ports:
        return None
    return _unchecked_finding(
        f"Not checked: {_format_ports(unopened_ports)} of {pair.receiver.machine}, since {unopened_ports[0]['detail']}.",
        f"Raise the limit of open files on {pair.sender.machine} (`ulimit -n`), or free memory there; then check again.",
    )


def _all_ephemeral(failed_ports: Sequence[PortResult]) -> bool:
    return all(port["role"] == "ephemeral" for port in failed_ports)


def _format_ports(port_results: Sequence[PortResult]) -> str:
    """Format ports, for example as TCP 22, 6817 and UDP 40001."""
    protocol_parts = []
    for protocol in ("tcp", "udp"):
        numbers = sorted(port["port"] for port in port_results if port["protocol"] == protocol)
        if numbers:
            protocol_parts.append(f"{protocol.upper()} {', '.join(str(number) for number in numbers)}")
    return join_names(protocol_parts) or "no port"


def _check_translation(pair: _MemberPair) -> ReachabilityFinding | None:
    sender, receiver = pair.sender, pair.receiver
    source_address, observed_address = pair.forward_result["source"], pair.forward_result["seen"]
    if source_address is None or observed_address is None:
        return None
    if observed_address != source_address:
        return _fault_finding(
            "nat",
            f"{receiver.machine} sees {sender.machine} as {observed_address} instead of {sender.address}: NAT is between them.",
            "Members must see each other's own addresses. Remove the translation (a masquerade rule, the bridge "
            "network of a container), or connect the members with a mesh: mesh_backend=wireguard.",
        )
    return _wrong_source_finding(pair, source_address) if source_address != sender.address else None


def _check_large_packets(pair: _MemberPair) -> ReachabilityFinding | None:
    sender, receiver, path_mtu, sent_transfer = (
        pair.sender,
        pair.receiver,
        pair.forward_result["path_mtu"],
        pair.forward_result["sent"],
    )
    if path_mtu is not None and is_black_hole(path_mtu["interface"], path_mtu["to_peer"], path_mtu["signalled"]):
        transfer_note = (
            " A large transfer stalls." if sent_transfer is not None and sent_transfer["outcome"] == "stalled" else ""
        )
        peer_mtu = path_mtu["peer_interface"]
        remedy = (
            f"Set the MTU of {sender.interface} on {sender.machine} to {path_mtu['to_peer']} (`ip link set {sender.interface} mtu "
            f"{path_mtu['to_peer']}`), or increase it on the path; and allow ICMP 'fragmentation needed'."
        )
        if peer_mtu is not None and peer_mtu == path_mtu["to_peer"]:
            remedy = (
                f"{receiver.interface} of {receiver.machine} has an MTU of {peer_mtu}: set the same MTU on all members, and "
                "at least that on the switches."
            )
        return _fault_finding(
            "mtu_black_hole",
            f"Packets of {path_mtu['to_peer']} bytes pass from {sender.machine} to {receiver.machine}, but larger ones, up to the "
            f"interface's {path_mtu['interface']}, are lost without a message.{transfer_note}",
            remedy,
        )
    # The opposite direction is judged with the other pair, unless that was not probed.
    transfers = [sent_transfer] if pair.reverse_result is not None else [sent_transfer, pair.forward_result["received"]]
    stalled_transfer = next(
        (
            transfer_result
            for transfer_result in transfers
            if transfer_result is not None and transfer_result["outcome"] == "stalled"
        ),
        None,
    )
    if stalled_transfer is not None:
        return _fault_finding(
            "mtu_black_hole",
            f"Small messages pass between {sender.machine} and {receiver.machine}, but a payload of {stalled_transfer['size']} bytes "
            f"stalls: {stalled_transfer['detail']}.",
            "Lower the MTU of both interfaces, and allow ICMP 'fragmentation needed'.",
        )
    return None


def _check_corruption(pair: _MemberPair) -> ReachabilityFinding | None:
    transfers = [
        transfer for transfer in (pair.forward_result["sent"], pair.forward_result["received"]) if transfer is not None
    ]
    if not any(transfer["outcome"] == "corrupted" for transfer in transfers):
        return None
    return _fault_finding(
        "corrupted",
        f"A payload between {pair.sender.machine} and {pair.receiver.machine} was corrupted without TCP noticing it.",
        f"Suspect the NICs: disable their offloads (`ethtool -K {pair.sender.interface} rx off tx off`), and test the "
        "memory of both.",
    )


def _check_peer_name(pair: _MemberPair) -> ReachabilityFinding | None:
    return _check_own_name(pair.evidence, pair.receiver.machine)


def _check_own_name(evidence: ReachabilityEvidence, machine: str) -> ReachabilityFinding | None:
    probe = evidence.probes.get(machine)
    name_result = probe["hostname"] if probe is not None else None
    if name_result is None or not name_result["loopback"]:
        return None
    resolved_addresses = ", ".join(name_result["addresses"])
    return _fault_finding(
        "name_is_loopback",
        f"{machine} resolves its own name {name_result['name']} to {resolved_addresses}: others cannot reach what it announces by name.",
        f"Map {name_result['name']} only to {evidence.members[machine].address} in /etc/hosts of {machine}: if there is also "
        "a line with a loopback address, the resolver returns that first.",
    )


def _check_clock_skew(pair: _MemberPair) -> ReachabilityFinding | None:
    clock = pair.forward_result["clock"]
    if clock is None or abs(clock["offset_s"]) <= pair.max_clock_offset:
        return None
    direction = "ahead of" if clock["offset_s"] > 0 else "behind"
    return _fault_finding(
        "clock_skew",
        f"{pair.receiver.machine}'s clock is {abs(clock['offset_s']):.1f} s {direction} {pair.sender.machine}'s; "
        f"{pair.max_clock_offset:g} s are allowed.",
        "Run chrony or systemd-timesyncd on both: munge, and with it Slurm, rejects credentials if clocks differ.",
    )


def _check_completeness(pair: _MemberPair) -> ReachabilityFinding | None:
    if pair.forward_result["finished"]:
        return None
    sent_transfer, received_transfer = pair.forward_result["sent"], pair.forward_result["received"]
    interruption = f"the connection of {pair.sender.machine} and {pair.receiver.machine} broke before the tests ended"
    if sent_transfer is not None and sent_transfer["outcome"] == "ok" and pair.reverse_result is not None:
        repeated_transfer = pair.reverse_result["sent"]
        if (
            received_transfer is None
            or received_transfer["outcome"] == "ok"
            or repeated_transfer is None
            or repeated_transfer["outcome"] != "ok"
        ):
            # The reverse direction failed, which is judged with the other pair.
            return None
        transfer_direction = f"{pair.sender.machine} received from {pair.receiver.machine}"
        interruption = f"{received_transfer['detail']} once when {transfer_direction}, while another transfer passed"
    return _unchecked_finding(
        f"Not checked: {interruption}.",
        "Check again; if it happens again, check the load of both hosts.",
    )


def _check_path_mtu(pair: _MemberPair) -> ReachabilityFinding | None:
    mtu = pair.forward_result["path_mtu"]
    if mtu is None or mtu["to_peer"] is not None:
        return None
    return _unchecked_finding(
        f"Not checked: the path MTU from {pair.sender.machine} to {pair.receiver.machine}. All packets that measure it were "
        "lost, although one had passed before.",
        "Check again; if it happens again, look for packet loss between both hosts.",
    )


def _passed_finding(pair: _MemberPair) -> ReachabilityFinding:
    passing_count = sum(1 for port in pair.forward_result["ports"] if port["outcome"] in _PASSING_OUTCOMES)
    path_mtu, sent_transfer = pair.forward_result["path_mtu"], pair.forward_result["sent"]
    result_parts = [f"{passing_count} ports"]
    if sent_transfer is not None:
        result_parts.append(
            f"{sent_transfer['size']} bytes {'in each direction' if pair.forward_result['finished'] else 'to it'}"
        )
    if pair.sender.is_pod or pair.receiver.is_pod:
        result_parts.append("UDP and the path MTU not checked: only TCP passes to and from a pod")
    else:
        result_parts.append(
            f"path MTU {path_mtu['to_peer']}" if path_mtu is not None else "path MTU not checked: no UDP port"
        )
    return ReachabilityFinding(
        "pass", "ok", f"{pair.sender.machine} reaches {pair.receiver.machine}: {', '.join(result_parts)}."
    )


_CAUSES_IN_ORDER: tuple[Callable[[_MemberPair], ReachabilityFinding | None], ...] = (
    _check_duplicate_address,
    _check_route,
    _check_listener,
    _check_any_connection,
    _check_each_port,
    _check_unopened_ports,
    _check_translation,
    _check_large_packets,
    _check_corruption,
    _check_peer_name,
    _check_clock_skew,
    _check_completeness,
    _check_path_mtu,
    _passed_finding,
)


def _judge_host(evidence: ReachabilityEvidence, machine: str, max_clock_offset: float) -> list[ReachabilityFinding]:
    possible_findings = [_find_duplicate_address(evidence, machine), _check_own_name(evidence, machine)]
    clock_error = evidence.clock_errors.get(machine, 0.0)
    if abs(clock_error) > max_clock_offset:
        possible_findings.append(
            _fault_finding(
                "clock_skew",
                f"{machine}'s clock is {abs(clock_error):.1f} s {'ahead of' if clock_error > 0 else 'behind'} the other members'.",
                f"Run chrony or systemd-timesyncd on {machine}.",
            )
        )
    failure_reason = evidence.failure_reason(machine)
    if failure_reason and evidence.is_in_run(machine):
        possible_findings.append(
            _unchecked_finding(f"{failure_reason[0].upper()}{failure_reason[1:]}.", f"Repair {machine} first.")
        )
    return [finding for finding in possible_findings if finding is not None]


#: The checks of each single member: verdict, name of the check, purpose, and the value of a failed one.
_HOST_CHECKS = (
    ("duplicate_address", "unique_address", "No other host has the member's address", "shared"),
    ("name_is_loopback", "own_name", "The member's own name does not resolve to a loopback address", "loopback"),
)


def _build_host_checks(evidence: ReachabilityEvidence, hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    host_checks = []
    finding_by_host = {
        (host_finding["host"], host_finding["verdict"]): host_finding for host_finding in reversed(hosts)
    }
    for machine, target in evidence.members.items():
        required_by_check = {"unique_address": target.address, "own_name": "no loopback"}
        for verdict, check_name, purpose, failure_text in _HOST_CHECKS:
            finding = finding_by_host.get((machine, verdict))
            skip_reason = _skip_reason(evidence, machine, check_name)
            status = "fail" if finding is not None else "skipped" if skip_reason else "pass"
            host_checks.append(
                {
                    "id": f"reachability.{check_name}",
                    "purpose": purpose,
                    "host": machine,
                    "actual": {"pass": required_by_check[check_name], "fail": failure_text}.get(status),
                    "required": required_by_check[check_name],
                    "unit": "",
                    "status": status,
                    "reason": finding["message"] if finding else f"Not checked: {skip_reason}." if skip_reason else "",
                    "remedy": finding["remedy"] if finding else "",
                }
            )
    return host_checks


def _skip_reason(evidence: ReachabilityEvidence, machine: str, check_name: str) -> str:
    probe = evidence.probes.get(machine)
    if probe is None:
        return evidence.failure_reason(machine)
    if check_name == "unique_address":
        return probe["duplicate"]["reason"]
    return "" if probe["hostname"] is not None else "it was not checked"


def _summarize_pairs(pair_verdicts: Sequence[Mapping[str, Any]]) -> str:
    if not pair_verdicts:
        return "There are no pairs to check."
    passing_count = sum(1 for pair in pair_verdicts if pair["status"] == "pass")
    failing_count = sum(1 for pair in pair_verdicts if pair["status"] == "fail")
    unchecked_count = len(pair_verdicts) - passing_count - failing_count
    if passing_count == len(pair_verdicts):
        return f"All {passing_count} pairs reach each other."
    summary_parts = [f"{passing_count} of {len(pair_verdicts)} pairs reach each other"]
    if failing_count:
        summary_parts.append(f"{failing_count} {'fails' if failing_count == 1 else 'fail'}")
    if unchecked_count:
        summary_parts.append(f"{unchecked_count} {'was' if unchecked_count == 1 else 'were'} not checked")
    return ", ".join(summary_parts) + "."
