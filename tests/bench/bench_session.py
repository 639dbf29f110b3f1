# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a session beyond its containers.

    molecule converge -s session && python tests/bench/bench_session.py

start       until all containers of a session run, on nodes that have the image, against `srun podman run` with the same
            image. A session may take 3 s longer.
throughput  from a container to one on another node, and between the same nodes without a session, with iperf3: once at
            full speed, which is limited by the processor here, and once over a link of 400 Mbit/s, where a session must
            reach 85 %.

The two of a pair are measured in turn, and their medians compared. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from session_lab import HOSTS, LAB, ONE, await_nothing, by, inside, places, role, start

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table

LATER, SHARE = 3.0, 0.85
LIMIT = "400mbit"
SECONDS = "5"


def timed(work: Callable[[], object]) -> float:
    """Return the elapsed seconds of a call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def session() -> float:
    """Return the seconds to start a session with a container on each node."""
    seconds = timed(lambda: start("alice", [role("main"), role("sub", replicas=2)], session_name="bench"))
    by("alice", "gpumesh-session", "stop", "bench")
    await_nothing()
    return seconds


def podman() -> float:
    """Return the seconds to start the same containers without a session, each with empty storage, as in podman's first
    run.
    """
    argv = ["srun", "--nodes=3", "--ntasks=3", "--mem=256M", "podman", "run", "--rm", "--network=host"]
    argv += ["--cgroups=disabled", "--volume=/usr:/usr:ro", "localhost/bench", "true"]
    return timed(lambda: by("alice", *argv))


def rate(run: Callable[..., str], address: str) -> float:
    """Return the throughput to an iperf3 server, in Mbit/s."""
    shown = json.loads(run("iperf3", "--client", address, "--time", SECONDS, "--json"))
    return float(shown["end"]["sum_received"]["bits_per_second"]) / 1e6


def throughput(runs: int) -> tuple[float, float]:
    """Return the throughput inside a session and between its nodes, in Mbit/s."""
    found = places("alice", "bench")
    within, between = [], []
    for _run in range(runs):
        within.append(rate(lambda *argv: inside("alice", "main1", *argv, name="bench"), found["sub1"][0]))
        between.append(rate(lambda *argv: LAB.run("gpu1", *argv), HOSTS["gpu2"]))
    return median(within), median(between)


def main() -> int:
    """Print a table. Returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5, help="number of measurements of each kind")
    runs = options.parse_args().runs
    by("alice", "srun", "--nodes=3", "--ntasks=3", "sh", "-c", f"podman tag $(podman pull --quiet {ONE}) bench")
    session()
    pairs = [(session(), podman()) for _run in range(runs)]
    ours, plain = (median(times) for times in zip(*pairs))
    rows = [["start, s", f"{ours:.2f}", f"{plain:.2f}", f"{ours / plain:.2f}", f"{plain + LATER:.2f} s at most"]]
    well = ours <= plain + LATER
    start("alice", [role("main"), role("sub", command=["iperf3", "--server"])], session_name="bench")
    LAB.run("gpu2", "iperf3", "--server", "--daemon", "--pidfile", "/run/bench-iperf3")
    try:
        for limit in ("", LIMIT):
            if limit:
                words = ["root", "tbf", "rate", limit, "burst", "256kb", "latency", "50ms"]
                LAB.run("gpu1", "tc", "qdisc", "replace", "dev", "eth0", *words)
            within, between = throughput(runs)
            share = within / between
            least = f"{SHARE:.0%} at least" if limit else "the processor limits it"
            rows.append([f"Mbit/s {limit}".strip(), f"{within:.0f}", f"{between:.0f}", f"{share:.2f}", least])
            well = well and (not limit or share >= SHARE)
    finally:
        LAB.run("gpu1", "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        LAB.run("gpu2", "sh", "-c", "kill $(cat /run/bench-iperf3)", check=False)
        by("alice", "gpumesh-session", "stop", "bench", check=False)
    print(render_table(rows, ["", "session", "without", "ratio", "limit"]))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
