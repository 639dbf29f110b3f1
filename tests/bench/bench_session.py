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

from session_lab import (
    FIRST_IMAGE,
    HOSTS,
    LAB,
    assert_clean,
    find_containers,
    make_role,
    run_as,
    run_in_container,
    start_session,
)

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table

MAX_DELAY, MIN_SHARE = 3.0, 0.85
LINK_RATE = "400mbit"
MEASURE_SECONDS = "5"


def time_call(work: Callable[[], object]) -> float:
    """Return the elapsed seconds of a call."""
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


def time_session() -> float:
    """Return the seconds to start a session with a container on each node."""
    seconds = time_call(
        lambda: start_session("alice", [make_role("main"), make_role("sub", replicas=2)], session_name="bench")
    )
    run_as("alice", "gpumesh-session", "stop", "bench")
    assert_clean()
    return seconds


def time_podman() -> float:
    """Return the seconds to start the same containers without a session, each with empty storage, as in podman's first
    run.
    """
    argv = ["srun", "--nodes=3", "--ntasks=3", "--mem=256M", "podman", "run", "--rm", "--network=host"]
    argv += ["--cgroups=disabled", "--volume=/usr:/usr:ro", "localhost/bench", "true"]
    return time_call(lambda: run_as("alice", *argv))


def measure_rate(run: Callable[..., str], address: str) -> float:
    """Return the throughput to an iperf3 server, in Mbit/s."""
    iperf_result = json.loads(run("iperf3", "--client", address, "--time", MEASURE_SECONDS, "--json"))
    return float(iperf_result["end"]["sum_received"]["bits_per_second"]) / 1e6


def measure_throughput(run_count: int) -> tuple[float, float]:
    """Return the throughput inside a session and between its nodes, in Mbit/s."""
    containers = find_containers("alice", "bench")
    session_rates, node_rates = [], []
    for _run in range(run_count):
        session_rates.append(
            measure_rate(lambda *argv: run_in_container("alice", "main1", *argv, name="bench"), containers["sub1"][0])
        )
        node_rates.append(measure_rate(lambda *argv: LAB.run("gpu1", *argv), HOSTS["gpu2"]))
    return median(session_rates), median(node_rates)


def main() -> int:
    """Print a table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="number of measurements of each kind")
    run_count = parser.parse_args().runs
    run_as(
        "alice", "srun", "--nodes=3", "--ntasks=3", "sh", "-c", f"podman tag $(podman pull --quiet {FIRST_IMAGE}) bench"
    )
    time_session()
    pairs = [(time_session(), time_podman()) for _run in range(run_count)]
    session_seconds, podman_seconds = (median(times) for times in zip(*pairs))
    rows = [
        [
            "start, s",
            f"{session_seconds:.2f}",
            f"{podman_seconds:.2f}",
            f"{session_seconds / podman_seconds:.2f}",
            f"{podman_seconds + MAX_DELAY:.2f} s at most",
        ]
    ]
    within_limits = session_seconds <= podman_seconds + MAX_DELAY
    start_session("alice", [make_role("main"), make_role("sub", command=["iperf3", "--server"])], session_name="bench")
    LAB.run("gpu2", "iperf3", "--server", "--daemon", "--pidfile", "/run/bench-iperf3")
    try:
        for limit in ("", LINK_RATE):
            if limit:
                shaping_options = ["root", "tbf", "rate", limit, "burst", "256kb", "latency", "50ms"]
                LAB.run("gpu1", "tc", "qdisc", "replace", "dev", "eth0", *shaping_options)
            session_rate, node_rate = measure_throughput(run_count)
            share = session_rate / node_rate
            requirement = f"{MIN_SHARE:.0%} at least" if limit else "the processor limits it"
            rows.append(
                [f"Mbit/s {limit}".strip(), f"{session_rate:.0f}", f"{node_rate:.0f}", f"{share:.2f}", requirement]
            )
            within_limits = within_limits and (not limit or share >= MIN_SHARE)
    finally:
        LAB.run("gpu1", "tc", "qdisc", "del", "dev", "eth0", "root", check=False)
        LAB.run("gpu2", "sh", "-c", "kill $(cat /run/bench-iperf3)", check=False)
        run_as("alice", "gpumesh-session", "stop", "bench", check=False)
    print(render_table(rows, ["", "session", "without", "ratio", "limit"]))
    return 0 if within_limits else 1


if __name__ == "__main__":
    sys.exit(main())
