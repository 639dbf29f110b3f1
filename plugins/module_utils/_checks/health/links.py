# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links that go down and come up again, and errors on them, from counters in two snapshots.

Only ports on the PCI bus that carry the cluster's traffic count: those of RDMA, and interfaces with a route.

Source: the kernel's Documentation/ABI/testing/sysfs-class-net, sysfs-class-net-statistics and stable/sysfs-class-infiniband.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import RdmaPort

_NO_EARLIER_SNAPSHOT = (
    "There is no earlier snapshot of the counters to compare with. The health program of Slurm records them."
)
_DAY, _HOUR = 86400.0, 3600.0
#: Only a wireless interface has one of these. It loses its connection whenever it changes its access point.
_WIRELESS_DIRECTORIES = ("phy80211", "wireless")
#: So many events of a link are kept.
_MAX_EVENTS = 1000


class _CounterKind(NamedTuple):
    """A counter. More than ``limit`` events within ``window`` seconds are a fault.

    ``burst``: an event that happens again between two snapshots is the same one, up to this number.
    """

    file_names: Sequence[str]
    window: float
    limit: int
    burst: int = 0


#: How often the link went down: by the subnet manager's counter, or that of the interface. An administrator who changes
#: an interface takes its link down, and some drivers do that for each of its settings.
DOWNS = "downs"
#: A bit error rate of 10⁻¹², the limit of ibdiagnet, gives 120 errors an hour at 32 Gbit/s. Faster links correct errors,
#: and count only what is left.
_COUNTER_KINDS = {
    DOWNS: _CounterKind(("counters/link_downed", "carrier_down_count"), _DAY, 2, burst=10),
    "symbol errors": _CounterKind(("counters/symbol_error",), _HOUR, 120),
    "receive errors": _CounterKind(("counters/port_rcv_errors",), _HOUR, 120),
    "CRC errors": _CounterKind(("statistics/rx_crc_errors",), _HOUR, 120),
}

#: By the port's name: its counters, and for each kind the events with their times, as [uptime, number].
LinkHistory = Dict[str, Dict[str, Any]]


def _list_routed_interfaces(tree: Tree) -> List[str]:
    """The wired interfaces on the PCI bus with a route of IPv4, also as a part of a bond."""
    routed = {line.split()[0] for line in (tree.read("proc/net/route") or "").splitlines()[1:] if line.split()}
    return [
        name
        for name in tree.list_names("sys/class/net")
        if not any(tree.exists("sys/class/net", name, directory) for directory in _WIRELESS_DIRECTORIES)
        and routed & {name, tree.link_target_name("sys/class/net", name, "master")}
        and tree.link_target_name("sys/class/net", name, "device", "subsystem") == "pci"
    ]


def read_link_counters(tree: Tree, rdma_ports: Sequence[RdmaPort]) -> Dict[str, Dict[str, int]]:
    """The counters of each of these ports, and of the interfaces, by kind."""
    directories = {
        f"{port['device']}:{port['port']}": f"sys/class/infiniband/{port['device']}/ports/{port['port']}"
        for port in rdma_ports
        if port["pci_address"]
    }
    directories.update({name: f"sys/class/net/{name}" for name in _list_routed_interfaces(tree)})
    counters = {}
    for port_name, directory in directories.items():
        readings = {
            kind: tree.read_integer(directory, file_name)
            for kind, counter in _COUNTER_KINDS.items()
            for file_name in counter.file_names
            if tree.exists(directory, file_name)
        }
        counters[port_name] = {kind: value for kind, value in readings.items() if value is not None}
    return {port_name: readings for port_name, readings in counters.items() if readings}


def continue_history(
    earlier: Mapping[str, Any], counters: Mapping[str, Mapping[str, int]], uptime: float, was_suspended: bool = False
) -> LinkHistory:
    """Add what has happened since the earlier snapshot. A counter that is smaller than before was reset.

    ``was_suspended``: so was the host in the meantime, which is why something has happened.
    """
    history: LinkHistory = {}
    for port_name, readings in counters.items():
        earlier_port = earlier.get(port_name)
        earlier_port = earlier_port if isinstance(earlier_port, dict) else {}
        earlier_readings, earlier_events = earlier_port.get("counters") or {}, earlier_port.get("events") or {}
        growth = {
            kind: value - earlier_readings[kind]
            for kind, value in readings.items()
            if not was_suspended and isinstance(earlier_readings.get(kind), int) and value > earlier_readings[kind]
        }
        if growth.get(DOWNS):
            # A link that goes down ends with errors, which say nothing more.
            growth = {DOWNS: growth[DOWNS]}
        events = {
            kind: [
                *(event for event in earlier_events.get(kind) or [] if 0 <= uptime - event[0] < counter.window),
                *([[uptime, growth[kind]]] if kind in growth else []),
            ][-_MAX_EVENTS:]
            for kind, counter in _COUNTER_KINDS.items()
        }
        history[port_name] = {
            "counters": dict(readings),
            "events": {kind: kind_events for kind, kind_events in events.items() if kind_events},
        }
    return history


def _find_excesses(history: LinkHistory, is_judged: Callable[[str], bool]) -> Dict[str, str]:
    """What has exceeded its limit, by port."""
    excesses = {}
    for port_name, port in history.items():
        numbers = {
            kind: sum(event[1] if event[1] >= _COUNTER_KINDS[kind].burst else 1 for event in events)
            for kind, events in port["events"].items()
        }
        excess_texts = [
            f"{number} {kind}"
            for kind, number in numbers.items()
            if is_judged(kind) and number > _COUNTER_KINDS[kind].limit
        ]
        if excess_texts:
            excesses[port_name] = ", ".join(excess_texts)
    return excesses


def judge_flaps(history: Optional[LinkHistory]) -> Judgement:
    """Judge whether links stay up. None: there is no earlier snapshot."""
    return _judge_history(
        history,
        lambda kind: kind == DOWNS,
        "No port of this host counts how often its link went down.",
        ("Links go down and come up again", "a day"),
        "Replace the cable or transceiver, or check the switch port. The check passes a day later, or after a reboot.",
    )


def judge_link_errors(history: Optional[LinkHistory]) -> Judgement:
    """Judge whether links carry data without errors. None: there is no earlier snapshot."""
    return _judge_history(
        history,
        lambda kind: kind != DOWNS,
        "No port of this host counts errors.",
        ("Links damage data", "an hour"),
        "Clean or replace the cable or transceiver of this port, and look at the counters of the switch port.",
    )


def _judge_history(
    history: Optional[LinkHistory],
    is_judged: Callable[[str], bool],
    no_port_reason: str,
    fault: Tuple[str, str],
    remedy: str,
) -> Judgement:
    """Judge the kinds of counters for which ``is_judged`` is true. ``fault``: what links do, and the time of the limit."""
    if history is None:
        return skipped(_NO_EARLIER_SNAPSHOT)
    if not history:
        return skipped(no_port_reason)
    excesses = _find_excesses(history, is_judged)
    good_count = len(history) - len(excesses)
    if not excesses:
        return passed(good_count, len(history), "links")
    description, window = fault
    excess_text = "; ".join(f"{port_name}: {text} in {window}" for port_name, text in excesses.items())
    return failed(good_count, len(history), f"{description}: {excess_text}.", remedy, "links")
