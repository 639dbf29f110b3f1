# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a second `site` for the controller, by the number of members.

    python tests/bench/bench_scale.py [MEMBERS ...]        # 3 12 48

For each size, starts light hosts of its own (containers without a service manager, with the packages installed), makes
them a cluster, runs `site` again, and removes them. Prints the CPU time of the controller and the elapsed time of that
second run, in total and per member, and the exponent between one size and the next: 1 is a cost that grows with the
members, 2 one that grows with the pairs. The hosts share the machine with the controller, so the elapsed time says more
about the machine. Exits 1 if a run fails or changes something.

All hosts share the kernel's neighbour table (gc_thresh3, 1024 by default), which overflows with 48 hosts that know each
other: it is enlarged while this runs.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from lab_hosts import BIN, ROOT, Lab

CLUSTER_SIZES = (3, 12, 48)
CLUSTER_SETTINGS = {"cluster_name": "bench", "mesh_backend": "wireguard"}


class RunCost(NamedTuple):
    """The cost of one run, in seconds."""

    member_count: int
    cpu_seconds: float
    elapsed_seconds: float


def children_cpu_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def describe_lab(name: str, host_count: int, subnet: ipaddress.IPv4Network) -> dict[str, object]:
    """Return the description of a lab, in the format of lab/lab.yml."""
    network = f"gpumesh-{name}"
    return {
        "lab_name": name,
        "lab_prepared": True,
        "lab_networks": [{"name": network, "subnet": str(subnet)}],
        "lab_hosts": [
            {
                "name": f"n{index:02}",
                "init": "sshd",
                "decoy": "",
                "networks": [{"name": network, "ipv4_address": str(subnet[10 + index])}],
            }
            for index in range(1, host_count + 1)
        ],
    }


def lab_playbook(name: str, description: Path) -> None:
    """Start or remove the hosts."""
    argv = [str(BIN / "ansible-playbook"), "-i", "localhost,", f"lab/{name}.yml"]
    subprocess.run(argv, cwd=ROOT, env={**os.environ, "LAB": str(description)}, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def enlarge_neighbour_tables(host_count: int) -> Iterator[None]:
    """Enlarge the neighbour tables, so that each of so many hosts can know all others, and the bridge all of them."""
    limit_paths = sorted(Path("/proc/sys/net/ipv4/neigh/default").glob("gc_thresh[1-3]"), reverse=True)
    former_limits = [path.read_text(encoding="ascii") for path in limit_paths]
    try:
        for path, text in zip(limit_paths, former_limits):
            path.write_text(str(max(int(text), 2 * host_count * host_count)), encoding="ascii")
        yield
    finally:
        for path, text in zip(limit_paths, former_limits):
            path.write_text(text, encoding="ascii")


def measure_second_run(member_count: int, subnet: ipaddress.IPv4Network, directory: Path) -> RunCost | None:
    """Return the cost of the second run; None, with the output printed, if a run fails or the second one changes
    something.
    """
    name = f"bench-scale-{member_count}"
    description = directory / f"{name}.yml"
    description.write_text(json.dumps(describe_lab(name, member_count, subnet)))
    settings = ["--extra-vars", json.dumps({**CLUSTER_SETTINGS, "check_report_dir": str(directory / name)})]
    try:
        lab_playbook("up", description)
        lab = Lab(name)
        first_run = lab.run_playbook("gpumesh.cluster.site", *settings)
        print(f"{member_count} members: the first run took {first_run.seconds:.0f} s", file=sys.stderr, flush=True)
        if first_run.exit_status != 0:
            print(first_run.output)
            return None
        cpu_before = children_cpu_seconds()
        second_run = lab.run_playbook("gpumesh.cluster.site", *settings)
        cost = RunCost(member_count, children_cpu_seconds() - cpu_before, second_run.seconds)
    finally:
        lab_playbook("down", description)
    if second_run.exit_status != 0:
        print(second_run.output)
        return None
    if any(second_run.changed.values()):
        print(f"{member_count} members: the second run changed {second_run.changed}")
        return None
    return cost


def growth_exponent(smaller: float, larger: float, ratio: float) -> float:
    """Return the power of the number of members with which a cost has grown."""
    return math.log(larger / smaller) / math.log(ratio)


def main() -> int:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description="Cost of a second site by the number of members")
    parser.add_argument("members", nargs="*", type=int, default=CLUSTER_SIZES)
    parser.add_argument(
        "--subnet", type=ipaddress.IPv4Network, default="10.86.0.0/24", help="subnet for the addresses of the hosts"
    )
    arguments = parser.parse_args()
    # The hosts are removed with it, also when it is terminated.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))
    print(f"{'members':>7} {'processor':>10} {'a member':>9} {'clock':>8} {'a member':>9} {'exponents':>10}")
    previous_cost = None
    with tempfile.TemporaryDirectory() as directory:
        for member_count in sorted(arguments.members):
            with enlarge_neighbour_tables(member_count):
                cost = measure_second_run(member_count, arguments.subnet, Path(directory))
            if cost is None:
                return 1
            exponents = ""
            if previous_cost is not None:
                ratio = cost.member_count / previous_cost.member_count
                growth_exponents = (
                    growth_exponent(previous_cost.cpu_seconds, cost.cpu_seconds, ratio),
                    growth_exponent(previous_cost.elapsed_seconds, cost.elapsed_seconds, ratio),
                )
                exponents = f"{growth_exponents[0]:.2f} {growth_exponents[1]:.2f}"
            print(
                f"{member_count:>7} {cost.cpu_seconds:>8.1f} s {cost.cpu_seconds / member_count:>7.1f} s {cost.elapsed_seconds:>6.1f} s"
                f" {cost.elapsed_seconds / member_count:>7.1f} s {exponents:>10}",
                flush=True,
            )
            previous_cost = cost
    return 0


if __name__ == "__main__":
    sys.exit(main())
