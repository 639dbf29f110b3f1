# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA between two hosts with ib_write_bw and ib_write_lat: the port, the command, and the output. Pure."""

from __future__ import annotations

import re
from typing import Callable, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import RdmaEndpoint
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.models import Gid, RdmaPort

#: The measurements and their programs.
PROGRAM_BY_MEASUREMENT = {"bandwidth": "ib_write_bw", "latency": "ib_write_lat"}
#: The number of round trips of which a latency is the median: one second at a millisecond each.
_ROUND_TRIP_COUNT = 1000
#: Lines that are printed by healthy runs, too: the title, the settings and addresses of both ends, and notices of the
#: program and of libibverbs. With --duration, the first line is always a warning that the peak is not measured.
_ROUTINE_LINE = re.compile(
    r"^[^A-Za-z]|^[\w.*/ -]+?\s+: |: (?:ON|OFF)\b|(?:BW|Latency) Test$|^(?:local|remote) address: |^GID: |\bwarning\b|^Conflicting CPU frequency|"
    r"^Device not recognized to implement inline|^Requested mtu is higher|^Changing to |^Waiting for client|^Please run the same",
    re.IGNORECASE,
)
#: What follows this line has the status of the queue pair, such as 12: the peer did not answer.
_COMPLETION_ERROR_PREFIX, _STATUS_PREFIX = "Completion with error", "Failed status"
_MAPPED_IPV4_PREFIX = "0000:0000:0000:0000:0000:ffff:"


def choose_endpoint(
    rdma_ports: Sequence[RdmaPort], interface_name: str, find: Callable[[str], Optional[str]]
) -> RdmaEndpoint:
    """The port with which this host takes part: the one behind ``interface_name``, or the fastest active one.

    ``find`` returns the path of a program. Without a usable port, the result has a reason.
    """
    missing = [program for program in PROGRAM_BY_MEASUREMENT.values() if find(program) is None]
    active_ports = [port for port in rdma_ports if port["state"] == "active"]
    if not rdma_ports:
        return _no_endpoint("no RDMA device")
    if not active_ports:
        return _no_endpoint(f"no port of {', '.join(sorted({port['device'] for port in rdma_ports}))} is active")
    if missing:
        return _no_endpoint(f"{join_names(missing)} of perftest {'are' if len(missing) > 1 else 'is'} not installed")
    chosen_port = min(
        active_ports,
        key=lambda port: (
            all(gid["interface"] != interface_name for gid in port["gids"]),
            -(port["rate_gbps"] or 0.0),
            port["device"],
            port["port"],
        ),
    )
    return {
        "device": chosen_port["device"],
        "port": chosen_port["port"],
        "gid_index": _choose_gid_index(chosen_port, interface_name),
        # Software RDMA devices report arbitrary rates.
        "rate_gbps": chosen_port["rate_gbps"] if chosen_port["pci_address"] else None,
        "reason": "",
    }


def _no_endpoint(reason: str) -> RdmaEndpoint:
    return {"device": "", "port": 0, "gid_index": None, "rate_gbps": None, "reason": reason}


def _choose_gid_index(rdma_port: RdmaPort, interface_name: str) -> Optional[int]:
    """The index of the GID. RoCE needs a routable one: version 2 of an IPv4 address. InfiniBand needs none."""
    if rdma_port["link_layer"] != "Ethernet":
        return None

    def rank(gid: Gid) -> tuple[bool, bool, bool, int]:
        return (
            gid["type"] != "RoCE v2",
            not gid["gid"].startswith(_MAPPED_IPV4_PREFIX),
            gid["interface"] != interface_name,
            gid["index"],
        )

    return min(rdma_port["gids"], key=rank)["index"] if rdma_port["gids"] else None


def build_command(
    measurement: str, rdma_endpoint: RdmaEndpoint, tcp_port: int, seconds: int, server_address: str = ""
) -> List[str]:
    """Return the command of the server, or with ``server_address``, of the client. Both need the same options."""
    gid = [] if rdma_endpoint["gid_index"] is None else [f"--gid-index={rdma_endpoint['gid_index']}"]
    amount_arguments = (
        [f"--duration={seconds}", "--report_gbits"] if measurement == "bandwidth" else [f"--iters={_ROUND_TRIP_COUNT}"]
    )
    return [
        PROGRAM_BY_MEASUREMENT[measurement],
        f"--ib-dev={rdma_endpoint['device']}",
        f"--ib-port={rdma_endpoint['port']}",
        *gid,
        f"--port={tcp_port}",
        # This option prevents a warning about the CPU frequency in the table.
        "--CPU-freq",
        *amount_arguments,
        *([server_address] if server_address else []),
    ]


def parse_bandwidth(output_text: str) -> Optional[float]:
    """The average of the largest size in 10^9 bit/s; None if nothing was measured."""
    average_rate = _read_column(output_text, "BW average")
    if average_rate is None:
        return None
    # The unit without --report_gbits is 2^20 bytes/s, which older versions call MB/sec.
    is_mebibytes = re.search(r"BW average\[Mi?B/sec\]", output_text)
    return round(average_rate * 8 * (1 << 20) / 1e9 if is_mebibytes else average_rate, 3)


def parse_latency(output_text: str) -> Optional[float]:
    """The latency one way in microseconds, the median, or else the mean; None if nothing was measured."""
    median = _read_column(output_text, "t_typical")
    return median if median is not None else _read_column(output_text, "t_avg")


def parse_failure(output_text: str) -> str:
    """The program's own message on why it measured nothing."""
    message_lines = [
        line for line in map(str.strip, output_text.splitlines()) if line and not _ROUTINE_LINE.search(line)
    ]
    if not message_lines:
        return "it printed no result"
    statuses = [line for line in message_lines if line.startswith(_STATUS_PREFIX)]
    if statuses and message_lines[0].startswith((_COMPLETION_ERROR_PREFIX, _STATUS_PREFIX)):
        return ", ".join(dict.fromkeys((message_lines[0], statuses[0])))
    return message_lines[0].rstrip(".")


def is_refused(output_text: str) -> bool:
    """Whether the peer was not listening yet."""
    return "Couldn't connect to" in output_text


def _read_column(output_text: str, title_prefix: str) -> Optional[float]:
    """The number below a title that starts with this text, in the last row of the table."""
    column_titles: List[str] = []
    column_number = None
    for line in output_text.splitlines():
        if line.lstrip().startswith("#bytes"):
            # Titles contain single blanks, and end with a unit, except for the first two.
            column_titles = re.findall(r"#\w+|[\w.%][\w.% ]*?(?:\[[^\]]+\]|(?=\s{2}|$))", line)
        elif column_titles:
            fields = line.split()
            if len(fields) != len(column_titles):
                continue
            column_index = next(
                (index for index, column_title in enumerate(column_titles) if column_title.startswith(title_prefix)),
                None,
            )
            try:
                column_number = float(fields[column_index]) if column_index is not None else None
            except ValueError:
                continue
    return column_number
