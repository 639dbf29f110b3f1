# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""RDMA between two hosts with ib_write_bw and ib_write_lat: the port, the command, and the output. Pure."""

from __future__ import annotations

import re
from typing import Callable, List, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.shapes import Gid, RdmaPort
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import RdmaEnd

#: The measurements and their programs.
PROGRAMS = {"bandwidth": "ib_write_bw", "latency": "ib_write_lat"}
#: The number of round trips of which a latency is the median: one second at a millisecond each.
_ROUND_TRIPS = 1000
#: The lines around the settings and the table.
_RULE = re.compile(r"^-{20,}$", re.MULTILINE)
_IPV4 = "0000:0000:0000:0000:0000:ffff:"


def choose(ports: Sequence[RdmaPort], interface: str, find: Callable[[str], Optional[str]]) -> RdmaEnd:
    """The port with which this host takes part: the one behind ``interface``, or the fastest active one.

    ``find`` returns the path of a program. Without a usable port, the result has a reason.
    """
    missing = [program for program in PROGRAMS.values() if find(program) is None]
    active = [port for port in ports if port["state"] == "active"]
    if not ports:
        return _none("no RDMA device")
    if not active:
        return _none(f"no port of {', '.join(sorted({port['device'] for port in ports}))} is active")
    if missing:
        return _none(f"{' and '.join(missing)} of perftest {'are' if len(missing) > 1 else 'is'} not installed")
    best = min(
        active,
        key=lambda port: (
            all(gid["interface"] != interface for gid in port["gids"]),
            -(port["rate_gbps"] or 0.0),
            port["device"],
            port["port"],
        ),
    )
    return {
        "device": best["device"],
        "port": best["port"],
        "gid_index": _gid_index(best, interface),
        # Software RDMA devices report arbitrary rates.
        "rate_gbps": best["rate_gbps"] if best["pci_address"] else None,
        "reason": "",
    }


def _none(reason: str) -> RdmaEnd:
    return {"device": "", "port": 0, "gid_index": None, "rate_gbps": None, "reason": reason}


def _gid_index(port: RdmaPort, interface: str) -> Optional[int]:
    """The index of the GID. RoCE needs a routable one: version 2 of an IPv4 address. InfiniBand needs none."""
    if port["link_layer"] != "Ethernet":
        return None

    def rank(gid: Gid) -> tuple[bool, bool, bool, int]:
        return (
            gid["type"] != "RoCE v2",
            not gid["gid"].startswith(_IPV4),
            gid["interface"] != interface,
            gid["index"],
        )

    return min(port["gids"], key=rank)["index"] if port["gids"] else None


def command(what: str, end: RdmaEnd, port: int, seconds: int, peer: str = "") -> List[str]:
    """The command of the server, or with ``peer``, the server's address, of the client. Both need the same options."""
    gid = [] if end["gid_index"] is None else [f"--gid-index={end['gid_index']}"]
    amount = [f"--duration={seconds}", "--report_gbits"] if what == "bandwidth" else [f"--iters={_ROUND_TRIPS}"]
    return [
        PROGRAMS[what],
        f"--ib-dev={end['device']}",
        f"--ib-port={end['port']}",
        *gid,
        f"--port={port}",
        # Otherwise, it prints a warning about the CPU frequency into the table.
        "--CPU-freq",
        *amount,
        *([peer] if peer else []),
    ]


def parse_bandwidth(text: str) -> Optional[float]:
    """The average of the largest size in 10^9 bit/s; None if nothing was measured."""
    value = _column(text, "BW average")
    if value is None:
        return None
    # Without --report_gbits, it is in 2^20 bytes/s.
    return round(value * 8 * (1 << 20) / 1e9 if "BW average[MB/sec]" in text else value, 3)


def parse_latency(text: str) -> Optional[float]:
    """The latency one way in microseconds, the median, or else the mean; None if nothing was measured."""
    median = _column(text, "t_typical")
    return median if median is not None else _column(text, "t_avg")


def parse_failure(text: str) -> str:
    """The program's own message on why it measured nothing."""
    parts = _RULE.split(text)
    told = [line.strip() for part in (parts[0], parts[-1]) for line in part.splitlines() if line.strip()[:1].isalpha()]
    return told[0].rstrip(".") if told else "it printed nothing"


def refused(text: str) -> bool:
    """Whether the peer was not listening yet."""
    return "Couldn't connect to" in text


def _column(text: str, title: str) -> Optional[float]:
    """The number below a title that starts with this text, in the last row of the table."""
    titles: List[str] = []
    found = None
    for line in text.splitlines():
        if line.lstrip().startswith("#bytes"):
            # Titles contain single blanks, and end with a unit, except for the first two.
            titles = re.findall(r"#\w+|[\w.%][\w.% ]*?(?:\[[^\]]+\]|(?=\s{2}|$))", line)
        elif titles:
            fields = line.split()
            if len(fields) != len(titles):
                continue
            place = next((index for index, one in enumerate(titles) if one.startswith(title)), None)
            try:
                found = float(fields[place]) if place is not None else None
            except ValueError:
                continue
    return found
