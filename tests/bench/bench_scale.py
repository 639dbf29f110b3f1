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

SIZES = (3, 12, 48)
SETTINGS = {"cluster_name": "bench", "mesh_backend": "wireguard"}


class Cost(NamedTuple):
    """The cost of one run, in seconds."""

    members: int
    processor: float
    clock: float


def processor() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe(name: str, number: int, subnet: ipaddress.IPv4Network) -> dict[str, object]:
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
            for index in range(1, number + 1)
        ],
    }


def lab_playbook(name: str, description: Path) -> None:
    """Start or remove the hosts."""
    argv = [str(BIN / "ansible-playbook"), "-i", "localhost,", f"lab/{name}.yml"]
    subprocess.run(argv, cwd=ROOT, env={**os.environ, "LAB": str(description)}, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def neighbours(number: int) -> Iterator[None]:
    """Enlarge the neighbour tables, so that each of so many hosts can know all others, and the bridge all of them."""
    limits = sorted(Path("/proc/sys/net/ipv4/neigh/default").glob("gc_thresh[1-3]"), reverse=True)
    before = [path.read_text(encoding="ascii") for path in limits]
    try:
        for path, text in zip(limits, before):
            path.write_text(str(max(int(text), 2 * number * number)), encoding="ascii")
        yield
    finally:
        for path, text in zip(limits, before):
            path.write_text(text, encoding="ascii")


def measure(number: int, subnet: ipaddress.IPv4Network, folder: Path) -> Cost | None:
    """Return the cost of the second run; None, with the output printed, if a run fails or the second one changes
    something.
    """
    name = f"bench-scale-{number}"
    description = folder / f"{name}.yml"
    description.write_text(json.dumps(describe(name, number, subnet)))
    settings = ["--extra-vars", json.dumps({**SETTINGS, "check_report_dir": str(folder / name)})]
    try:
        lab_playbook("up", description)
        lab = Lab(name)
        first = lab.play("gpumesh.cluster.site", *settings)
        print(f"{number} members: the first run took {first.seconds:.0f} s", file=sys.stderr, flush=True)
        if first.code != 0:
            print(first.output)
            return None
        before = processor()
        second = lab.play("gpumesh.cluster.site", *settings)
        cost = Cost(number, processor() - before, second.seconds)
    finally:
        lab_playbook("down", description)
    if second.code != 0:
        print(second.output)
        return None
    if any(second.changed.values()):
        print(f"{number} members: the second run changed {second.changed}")
        return None
    return cost


def exponent(one: float, other: float, ratio: float) -> float:
    """Return the power of the number of members with which a cost has grown."""
    return math.log(other / one) / math.log(ratio)


def main() -> int:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description="Cost of a second site by the number of members")
    parser.add_argument("members", nargs="*", type=int, default=SIZES)
    parser.add_argument(
        "--subnet", type=ipaddress.IPv4Network, default="10.86.0.0/24", help="subnet for the addresses of the hosts"
    )
    given = parser.parse_args()
    # The hosts are removed with it, also when it is terminated.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))
    print(f"{'members':>7} {'processor':>10} {'a member':>9} {'clock':>8} {'a member':>9} {'exponents':>10}")
    last = None
    with tempfile.TemporaryDirectory() as folder:
        for number in sorted(given.members):
            with neighbours(number):
                cost = measure(number, given.subnet, Path(folder))
            if cost is None:
                return 1
            grown = ""
            if last is not None:
                ratio = cost.members / last.members
                powers = exponent(last.processor, cost.processor, ratio), exponent(last.clock, cost.clock, ratio)
                grown = f"{powers[0]:.2f} {powers[1]:.2f}"
            print(
                f"{number:>7} {cost.processor:>8.1f} s {cost.processor / number:>7.1f} s {cost.clock:>6.1f} s"
                f" {cost.clock / number:>7.1f} s {grown:>10}",
                flush=True,
            )
            last = cost
    return 0


if __name__ == "__main__":
    sys.exit(main())
