# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on each ordered pair of members, and on each member: one cause, as a message, with its remedy.

Several tests fail for the same cause: a wrong route also looks like a firewall. So the causes are tried in the order in
which they explain each other, and the first that fits is the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.path_mtu import is_black_hole
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import PeerResult, PortResult
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_evidence import Evidence, Target, targets
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.vendors import maker

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

_PASSED = ("ok", "connected")
#: Interfaces of container engines and hypervisors, whose ranges are chosen without regard to the LAN.
_ENGINES = {
    "docker": "it belongs to Docker: set another range with `bip` in /etc/docker/daemon.json",
    "br-": "it is a Docker network: create it again with another range (`docker network create --subnet`)",
    "virbr": "it belongs to libvirt: set another range with `virsh net-edit default`",
    "cni": "it belongs to Kubernetes: use another range for the pods",
    "podman": "it belongs to Podman: set another range with `default_subnet` in containers.conf",
}


class Finding(NamedTuple):
    """The verdict on a pair or a host."""

    status: str
    verdict: str
    message: str
    remedy: str = ""


def _fault(verdict: str, message: str, remedy: str) -> Finding:
    return Finding("fail", verdict, message, remedy)


def _unknown(message: str, remedy: str) -> Finding:
    """What should have been checked, and could not be."""
    return Finding("error", "not_checked", message, remedy)


class _Pair(NamedTuple):
    """Everything that is known about one ordered pair."""

    evidence: Evidence
    one: Target
    other: Target
    there: PeerResult
    back: PeerResult | None
    max_offset: float

    def ports(self, protocol: str) -> list[PortResult]:
        return [port for port in self.there["ports"] if port["protocol"] == protocol]

    def passing(self) -> bool:
        return any(port["outcome"] in _PASSED for port in self.ports("tcp"))


def judge(results: Mapping[str, Mapping[str, Any]], members: Any, max_clock_offset: float = 5.0) -> dict[str, Any]:
    """All verdicts.

    ``results`` is ``{listen, probe, throughput: {machine: as the task registered it}}``; a machine that is not in the
    run is in none of them. ``members`` is the cluster record or a list of ``{machine, address, interface}``. Returns::

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
    evidence = Evidence(results, targets(members))
    pairs = [
        _judged(evidence, one, other, max_clock_offset)
        for one in evidence.members.values()
        for other in evidence.members.values()
        if one != other
    ]
    hosts = [
        {"host": machine, **finding._asdict()}
        for machine in evidence.members
        for finding in _judge_host(evidence, machine, max_clock_offset)
    ]
    statuses = {found["status"] for found in (*pairs, *hosts)}
    counts = Counter(pair["verdict"] for pair in pairs)
    return {
        "status": next((status for status in ("fail", "error", "pass") if status in statuses), "skipped"),
        "summary": _summary(pairs),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]},
        "pairs": pairs,
        "hosts": hosts,
        "checks": _checks(evidence, hosts),
        "rdma": {machine: end for machine in evidence.members if (end := evidence.rdma_end(machine))},
        "lingering": evidence.lingering(),
    }


def _judged(evidence: Evidence, one: Target, other: Target, max_offset: float) -> dict[str, Any]:
    found, rdma = evidence.peer(one.machine, other.machine), evidence.rdma(one.machine, other.machine)
    finding = _judge_pair(evidence, one, other, found, max_offset)
    clock, mtu = (found["clock"], found["path_mtu"]) if found else (None, None)
    return {
        "from": one.machine,
        "to": other.machine,
        **finding._asdict(),
        "rtt_ms": clock["rtt_ms"] if clock else None,
        "path_mtu": mtu["to_peer"] if mtu else None,
        "offset_s": round(clock["offset_s"], 3) if clock else None,
        "bandwidth_gbps": evidence.bandwidth(one.machine, other.machine),
        "rdma_gbps": rdma["gbps"],
        "rdma_latency_us": rdma["latency_us"],
        "rdma_error": rdma["error"],
    }


def _judge_pair(evidence: Evidence, one: Target, other: Target, there: PeerResult | None, max_offset: float) -> Finding:
    if there is None:
        return _not_probed(evidence, one, other)
    pair = _Pair(evidence, one, other, there, evidence.peer(other.machine, one.machine), max_offset)
    return next(finding for cause in _CAUSES if (finding := cause(pair)) is not None)


def _not_probed(evidence: Evidence, one: Target, other: Target) -> Finding:
    trouble = evidence.trouble(one.machine) or f"{one.machine} did not probe {other.machine}"
    if not evidence.took_part(one.machine):
        return Finding("skipped", "not_checked", f"Not checked: {trouble}.")
    return _unknown(f"Not checked: {trouble}.", f"Make {one.machine} reachable, then check again.")


def _duplicate_address(pair: _Pair) -> Finding | None:
    if pair.there["route"]["dev"] == "lo":
        return _fault(
            "duplicate_address",
            f"{pair.one.machine} itself has {pair.other.address}, the address of {pair.other.machine}.",
            f"Remove {pair.other.address} from {pair.one.machine} (see `ip addr`), or change the address of "
            f"{pair.other.machine}.",
        )
    for target in (pair.other, pair.one):
        finding = _duplicate_of(pair.evidence, target.machine)
        if finding is not None:
            return finding
    return None


def _duplicate_of(evidence: Evidence, machine: str) -> Finding | None:
    macs = evidence.duplicates[machine]
    if not macs:
        return None
    address = evidence.members[machine].address
    if machine in evidence.probes:
        names = [f"{evidence.owner(mac)} ({mac})" if evidence.owner(mac) else f"{mac} ({maker(mac)})" for mac in macs]
        message = f"{address} is the address of {machine}, but {', '.join(names)} also answers for it."
    else:
        names = [f"{mac} ({maker(mac)})" for mac in macs]
        message = f"{len(macs)} MAC addresses answer for {machine}'s address {address}: {', '.join(names)}. It is "
        message += "on two hosts, or on two interfaces of one."
    return _fault(
        "duplicate_address",
        message,
        f"Find the other one by its MAC address in the tables of the switch or the DHCP server, and remove {address} "
        "from it.",
    )


def _route(pair: _Pair) -> Finding | None:
    route, one, other = pair.there["route"], pair.one, pair.other
    if route["error"] is not None:
        return _fault(
            "no_route",
            f"{one.machine} has no route to {other.machine} ({other.address}): {route['error']}.",
            f"Connect {one.interface} of {one.machine} to the network of {other.address}, or add a route to it.",
        )
    if route["dev"] is not None and route["dev"] != one.interface:
        engine = next((words for prefix, words in _ENGINES.items() if route["dev"].startswith(prefix)), None)
        remedy = (
            f"{route['dev']} has a range that overlaps the cluster's: {engine}."
            if engine
            else f"Keep only one interface in this network, or lower the metric of the route through {one.interface}."
        )
        return _fault(
            "wrong_interface",
            f"{one.machine} sends to {other.machine} ({other.address}) via {route['dev']} instead of {one.interface}"
            + (f", from {route['prefsrc']}." if route["prefsrc"] else "."),
            remedy,
        )
    if route["prefsrc"] is not None and route["prefsrc"] != one.address:
        return _wrong_source(pair, route["prefsrc"])
    return None


def _wrong_source(pair: _Pair, source: str) -> Finding:
    one, other = pair.one, pair.other
    return _fault(
        "wrong_interface",
        f"{one.machine} sends to {other.machine} from {source} instead of {one.address}, its address in the record.",
        f"Make {one.address} the first address of {one.interface}, or add `src {one.address}` to the route.",
    )


def _no_listener(pair: _Pair) -> Finding | None:
    """A member that Ansible could not reach is still probed, but only on ports on which a service may listen."""
    one, other = pair.one, pair.other
    if pair.evidence.listened(other.machine):
        return None
    trouble = pair.evidence.trouble(other.machine) or f"{other.machine} had no listener"
    alive = [port for port in pair.ports("tcp") if port["outcome"] in (*_PASSED, "refused", "closed")]
    if alive or pair.there["macs"]:
        how = "answers ARP requests"
        if alive:
            how = f"{'accepts' if alive[0]['outcome'] in _PASSED else 'refuses'} a connection to TCP {alive[0]['port']}"
        message = f"Not checked: {trouble}. {other.address} is alive: it {how}."
        if not pair.evidence.took_part(other.machine):
            return Finding("skipped", "not_checked", message)
        return _unknown(message, f"Make {other.machine} reachable, then check again.")
    silent = f" No host answers ARP requests for {other.address}." if pair.there["macs"] == [] else ""
    return _fault(
        "no_answer",
        f"{other.machine} ({other.address}) does not answer {one.machine} at all, and {trouble}.{silent}",
        f"Start {other.machine} and check its network. If it is permanently lost, remove it from the cluster.",
    )


def _nothing_passes(pair: _Pair) -> Finding | None:
    one, other = pair.one, pair.other
    if pair.passing():
        return None
    outcomes = {port["outcome"] for port in pair.ports("tcp")}
    if not outcomes:
        return _unknown(
            f"Not checked: {other.machine} could not listen on any of the ports.",
            "Choose ports that are free.",
        )
    if outcomes == {"not_checked"}:
        return _unopened(pair)
    if "stranger" in outcomes:
        return _stranger(pair)
    verdict, words = _how_nothing_passes(pair, outcomes)
    if pair.back is not None and any(port["outcome"] == "ok" for port in pair.back["ports"]):
        return _fault(
            "asymmetric",
            f"One way only: {words}, while {other.machine} reaches {one.machine}.",
            f"Allow {one.address} to connect to {other.address} in the firewalls of {other.machine} and on the path; "
            "the other direction is open.",
        )
    if verdict == "no_route":
        remedy = "Check the cables, the VLANs of the switch and the routes: both hosts are up, but not on one network."
    elif "closed" in outcomes:
        remedy = (
            f"Look for a proxy, port forwarding or an inspecting firewall between {one.machine} and {other.machine}."
        )
    else:
        remedy = f"Allow {one.address} to connect to {other.address} on all ports in both firewalls and on the path."
    return _fault(verdict, f"{words[0].upper()}{words[1:]}.", remedy)


def _how_nothing_passes(pair: _Pair, outcomes: set[str]) -> tuple[str, str]:
    """The verdict, and a clause. ``outcomes`` are those of all TCP ports, all of which failed."""
    one, other, answered = pair.one.machine, pair.other.machine, pair.there["macs"]
    if outcomes == {"refused"}:
        return "refused", f"{other} refuses every connection from {one}, although it listens"
    if "closed" in outcomes:
        return "filtered", f"connections from {one} to {other} are accepted, but closed before any data passes"
    if outcomes == {"mute"}:
        return "filtered", f"{other} accepts connections from {one}, but no data passes"
    if "no_route" not in outcomes:
        return "filtered", f"every connection from {one} to {other} times out"
    if answered:
        return "filtered", f"connections from {one} to {other} are rejected by a firewall"
    if answered is not None:
        return "no_route", f"no host answers the ARP requests of {one} for the address {pair.other.address} of {other}"
    detail = next(port["detail"] for port in pair.ports("tcp") if port["outcome"] == "no_route")
    return "no_route", f"the network reports '{detail}' for connections from {one} to {other}"


def _stranger(pair: _Pair) -> Finding:
    one, other = pair.one, pair.other
    return _fault(
        "wrong_host",
        f"The host that answers {one.machine} at {other.address} is not {other.machine}: it does not know the token of "
        "this run.",
        f"Look for a proxy or port forwarding between {one.machine} and {other.machine}, and for the same private "
        "range at two sites: an address must belong to only one host.",
    )


def _some_ports(pair: _Pair) -> Finding | None:
    one, other = pair.one, pair.other
    failed = [port for port in pair.there["ports"] if port["outcome"] not in (*_PASSED, "not_checked")]
    if not failed:
        return None
    if any(port["outcome"] == "stranger" for port in failed):
        return _stranger(pair)
    refused = all(port["outcome"] == "refused" for port in failed)
    closed = all(port["outcome"] == "closed" for port in failed)
    passed = [port for port in pair.there["ports"] if port["outcome"] in _PASSED]
    deed = "refuses" if refused else "closes the connections of" if closed else "does not answer"
    opening = "TCP and UDP on the whole ephemeral range" if _ephemeral_only(failed) else _port_names(failed)
    return _fault(
        "refused" if refused else "filtered",
        f"{other.machine} {deed} {one.machine} on {_port_names(failed)}; {_port_names(passed)} pass.",
        f"Open {opening} from {one.address} in the firewall of {other.machine} (`nft list ruleset`) and on the path.",
    )


def _unopened(pair: _Pair) -> Finding | None:
    """Ports to which the probing host itself could open no connection."""
    ports = [port for port in pair.ports("tcp") if port["outcome"] == "not_checked"]
    if not ports:
        return None
    return _unknown(
        f"Not checked: {_port_names(ports)} of {pair.other.machine}, since {ports[0]['detail']}.",
        f"Raise the limit of open files on {pair.one.machine} (`ulimit -n`), or free memory there; then check again.",
    )


def _ephemeral_only(failed: Sequence[PortResult]) -> bool:
    return all(port["role"] == "ephemeral" for port in failed)


def _port_names(ports: Sequence[PortResult]) -> str:
    """For example TCP 22, 6817 and UDP 40001."""
    parts = []
    for protocol in ("tcp", "udp"):
        numbers = sorted(port["port"] for port in ports if port["protocol"] == protocol)
        if numbers:
            parts.append(f"{protocol.upper()} {', '.join(str(number) for number in numbers)}")
    return " and ".join(parts) or "no port"


def _translated(pair: _Pair) -> Finding | None:
    one, other = pair.one, pair.other
    source, seen = pair.there["source"], pair.there["seen"]
    if source is None or seen is None:
        return None
    if seen != source:
        return _fault(
            "nat",
            f"{other.machine} sees {one.machine} as {seen} instead of {one.address}: NAT is between them.",
            "Members must see each other's own addresses. Remove the translation (a masquerade rule, the bridge "
            "network of a container), or connect the members with a mesh: mesh_backend=wireguard.",
        )
    return _wrong_source(pair, source) if source != one.address else None


def _large_packets(pair: _Pair) -> Finding | None:
    one, other, mtu, sent = pair.one, pair.other, pair.there["path_mtu"], pair.there["sent"]
    if mtu is not None and is_black_hole(mtu["interface"], mtu["to_peer"], mtu["signalled"]):
        transfer = " A large transfer stalls." if sent is not None and sent["outcome"] == "stalled" else ""
        peers_own = mtu["peer_interface"]
        remedy = (
            f"Set the MTU of {one.interface} on {one.machine} to {mtu['to_peer']} (`ip link set {one.interface} mtu "
            f"{mtu['to_peer']}`), or increase it on the path; and allow ICMP 'fragmentation needed'."
        )
        if peers_own is not None and peers_own == mtu["to_peer"]:
            remedy = (
                f"{other.interface} of {other.machine} has an MTU of {peers_own}: set the same MTU on all members, and "
                "at least that on the switches."
            )
        return _fault(
            "mtu_black_hole",
            f"Packets of {mtu['to_peer']} bytes pass from {one.machine} to {other.machine}, but larger ones, up to the "
            f"interface's {mtu['interface']}, are lost without a message.{transfer}",
            remedy,
        )
    # The opposite direction is judged with the other pair, unless that was not probed.
    transfers = [sent] if pair.back is not None else [sent, pair.there["received"]]
    stalled = next((given for given in transfers if given is not None and given["outcome"] == "stalled"), None)
    if stalled is not None:
        return _fault(
            "mtu_black_hole",
            f"Small messages pass between {one.machine} and {other.machine}, but a payload of {stalled['size']} bytes "
            f"stalls: {stalled['detail']}.",
            "Lower the MTU of both interfaces, and allow ICMP 'fragmentation needed'.",
        )
    return None


def _corrupted(pair: _Pair) -> Finding | None:
    transfers = [transfer for transfer in (pair.there["sent"], pair.there["received"]) if transfer is not None]
    if not any(transfer["outcome"] == "corrupted" for transfer in transfers):
        return None
    return _fault(
        "corrupted",
        f"A payload between {pair.one.machine} and {pair.other.machine} was corrupted without TCP noticing it.",
        f"Suspect the NICs: disable their offloads (`ethtool -K {pair.one.interface} rx off tx off`), and test the "
        "memory of both.",
    )


def _loopback_name(pair: _Pair) -> Finding | None:
    return _name_of(pair.evidence, pair.other.machine)


def _name_of(evidence: Evidence, machine: str) -> Finding | None:
    probe = evidence.probes.get(machine)
    name = probe["hostname"] if probe is not None else None
    if name is None or not name["loopback"]:
        return None
    found = ", ".join(name["addresses"])
    return _fault(
        "name_is_loopback",
        f"{machine} resolves its own name {name['name']} to {found}: others cannot reach what it announces by name.",
        f"Map {name['name']} only to {evidence.members[machine].address} in /etc/hosts of {machine}: if there is also "
        "a line with a loopback address, the resolver returns that first.",
    )


def _clock_skew(pair: _Pair) -> Finding | None:
    clock = pair.there["clock"]
    if clock is None or abs(clock["offset_s"]) <= pair.max_offset:
        return None
    way = "ahead of" if clock["offset_s"] > 0 else "behind"
    return _fault(
        "clock_skew",
        f"{pair.other.machine}'s clock is {abs(clock['offset_s']):.1f} s {way} {pair.one.machine}'s; "
        f"{pair.max_offset:g} s are allowed.",
        "Run chrony or systemd-timesyncd on both: munge, and with it Slurm, rejects credentials if clocks differ.",
    )


def _cut_short(pair: _Pair) -> Finding | None:
    if pair.there["finished"]:
        return None
    sent, received = pair.there["sent"], pair.there["received"]
    what = f"the connection of {pair.one.machine} and {pair.other.machine} broke before the tests ended"
    if sent is not None and sent["outcome"] == "ok" and pair.back is not None:
        again = pair.back["sent"]
        if received is None or received["outcome"] == "ok" or again is None or again["outcome"] != "ok":
            # The reverse direction failed, which is judged with the other pair.
            return None
        ends = f"{pair.one.machine} received from {pair.other.machine}"
        what = f"{received['detail']} once when {ends}, while another transfer passed"
    return _unknown(
        f"Not checked: {what}.",
        "Check again; if it happens again, check the load of both hosts.",
    )


def _no_path_mtu(pair: _Pair) -> Finding | None:
    mtu = pair.there["path_mtu"]
    if mtu is None or mtu["to_peer"] is not None:
        return None
    return _unknown(
        f"Not checked: the path MTU from {pair.one.machine} to {pair.other.machine}. All packets that measure it were "
        "lost, although one had passed before.",
        "Check again; if it happens again, look for packet loss between both hosts.",
    )


def _good(pair: _Pair) -> Finding:
    passed = sum(1 for port in pair.there["ports"] if port["outcome"] in _PASSED)
    mtu, sent = pair.there["path_mtu"], pair.there["sent"]
    parts = [f"{passed} ports"]
    if sent is not None:
        parts.append(f"{sent['size']} bytes {'in each direction' if pair.there['finished'] else 'to it'}")
    if pair.one.pod or pair.other.pod:
        parts.append("UDP and the path MTU not checked: only TCP passes to and from a pod")
    else:
        parts.append(f"path MTU {mtu['to_peer']}" if mtu is not None else "path MTU not checked: no UDP port")
    return Finding("pass", "ok", f"{pair.one.machine} reaches {pair.other.machine}: {', '.join(parts)}.")


_CAUSES: tuple[Callable[[_Pair], Finding | None], ...] = (
    _duplicate_address,
    _route,
    _no_listener,
    _nothing_passes,
    _some_ports,
    _unopened,
    _translated,
    _large_packets,
    _corrupted,
    _loopback_name,
    _clock_skew,
    _cut_short,
    _no_path_mtu,
    _good,
)


def _judge_host(evidence: Evidence, machine: str, max_offset: float) -> list[Finding]:
    found = [_duplicate_of(evidence, machine), _name_of(evidence, machine)]
    ahead = evidence.clock_errors.get(machine, 0.0)
    if abs(ahead) > max_offset:
        found.append(
            _fault(
                "clock_skew",
                f"{machine}'s clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the other members'.",
                f"Run chrony or systemd-timesyncd on {machine}.",
            )
        )
    trouble = evidence.trouble(machine)
    if trouble and evidence.took_part(machine):
        found.append(_unknown(f"{trouble[0].upper()}{trouble[1:]}.", f"Repair {machine} first."))
    return [finding for finding in found if finding is not None]


#: The checks of each single member: verdict, name of the check, purpose, and the value of a failed one.
_HOST_CHECKS = (
    ("duplicate_address", "unique_address", "No other host has the member's address", "shared"),
    ("name_is_loopback", "own_name", "The member's own name does not resolve to a loopback address", "loopback"),
)


def _checks(evidence: Evidence, hosts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    made = []
    found = {(one["host"], one["verdict"]): one for one in reversed(hosts)}
    for machine, target in evidence.members.items():
        required = {"unique_address": target.address, "own_name": "no loopback"}
        for verdict, name, purpose, bad in _HOST_CHECKS:
            finding = found.get((machine, verdict))
            skipped = _why_skipped(evidence, machine, name)
            status = "fail" if finding is not None else "skipped" if skipped else "pass"
            made.append(
                {
                    "id": f"reachability.{name}",
                    "purpose": purpose,
                    "host": machine,
                    "actual": {"pass": required[name], "fail": bad}.get(status),
                    "required": required[name],
                    "unit": "",
                    "status": status,
                    "reason": finding["message"] if finding else f"Not checked: {skipped}." if skipped else "",
                    "remedy": finding["remedy"] if finding else "",
                }
            )
    return made


def _why_skipped(evidence: Evidence, machine: str, name: str) -> str:
    probe = evidence.probes.get(machine)
    if probe is None:
        return evidence.trouble(machine)
    if name == "unique_address":
        return probe["duplicate"]["reason"]
    return "" if probe["hostname"] is not None else "it was not checked"


def _summary(pairs: Sequence[Mapping[str, Any]]) -> str:
    if not pairs:
        return "There are no pairs to check."
    good = sum(1 for pair in pairs if pair["status"] == "pass")
    bad = sum(1 for pair in pairs if pair["status"] == "fail")
    rest = len(pairs) - good - bad
    if good == len(pairs):
        return f"All {good} pairs reach each other."
    parts = [f"{good} of {len(pairs)} pairs reach each other"]
    if bad:
        parts.append(f"{bad} {'fails' if bad == 1 else 'fail'}")
    if rest:
        parts.append(f"{rest} {'was' if rest == 1 else 'were'} not checked")
    return ", ".join(parts) + "."
