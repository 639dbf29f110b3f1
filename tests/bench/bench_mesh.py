# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the mesh's cost grows with the cluster, and what a second run costs.

    python tests/bench/bench_mesh.py                      all members' plans and configurations, N against time
    python tests/bench/bench_mesh.py --inventory HOSTS    also: a second run of playbooks/mesh.yml on real hosts,
                                                          against `ansible -m ping` of the same hosts

Times differ from machine to machine; the ratios should not.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.topology import plan_for, read_mesh
from ansible_collections.gpumesh.cluster.plugins.module_utils.mesh.wireguard import (
    Dump,
    Link,
    Runtime,
    RuntimePeer,
    make_desired,
    parse_conf,
    plan,
    render_conf,
)

SIZES = (10, 100, 200, 400, 600, 800, 1000)
#: Seconds for 1,000 members, each with 999 peers, all told.
LIMIT = 20.0
#: A second run costs at most this many times one ping of the same hosts.
PING_LIMIT = 3.0
#: How much faster than the number of peers the time may grow, from the middle of the table to its end.
GROWTH_LIMIT = 1.5


def record(size: int) -> dict[str, Any]:
    """A cluster of sites of eight: a third of the sites without endpoints, so that there are relayed pairs too."""
    members = []
    for number in range(1, size + 1):
        site = number // 8
        inside = f"10.99.{number // 250}.{number % 250 + 1}"
        members.append(
            {
                "machine": f"n{number}",
                "address": f"172.16.{number // 250}.{number % 250 + 1}",
                "site": f"site{site}",
                "endpoint": f"198.18.{number // 250}.{number % 250 + 1}:51820" if site % 3 == 0 else None,
                "mesh": {
                    "address": inside,
                    "public_key": base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode(),
                },
            }
        )
    settings = {"backend": "wireguard", "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": None}
    return {"name": "bench", "manager": "n1", "members": members, "mesh": settings}


def whole_cluster(size: int) -> tuple[float, int]:
    """Seconds for the plan, the configuration and the difference to a running interface, of every member; peers."""
    members = record(size)
    start = time.perf_counter()
    total = 0
    for member in members["members"]:
        mesh = read_mesh(members)
        tunnel = plan_for(mesh, member["machine"])
        wanted = make_desired(
            tunnel["interface"], tunnel["address"], tunnel["listen_port"], tunnel["mtu"], tunnel["peers"]
        )
        conf = render_conf(wanted, "/etc/wireguard/gpumesh0.key")
        live = {
            peer.public_key: RuntimePeer(peer.public_key, peer.endpoint, peer.allowed_ips, 0, 0, 0, 0)
            for peer in wanted.peers
        }
        running = Runtime(
            Dump("key", wanted.listen_port, live), Link(wanted.mtu, True, (wanted.address,), "wireguard"), frozenset()
        )
        resolved = {peer.endpoint: (peer.endpoint,) for peer in wanted.peers if peer.endpoint}
        plan(wanted, running, "key", parse_conf(conf), resolved, 0)
        total += size - 1
    return time.perf_counter() - start, total


def scale() -> bool:
    """Print N against time; whether it stays in the limits."""
    print("Plan, configuration and difference of every member")
    print(f"{'members':>8} {'peers':>9} {'seconds':>9} {'µs a peer':>10}")
    per_peer = {}
    seconds = 0.0
    for size in SIZES:
        seconds, peers = whole_cluster(size)
        per_peer[size] = seconds / peers * 1e6
        print(f"{size:>8} {peers:>9} {seconds:>9.2f} {per_peer[size]:>10.1f}")
    growth = per_peer[SIZES[-1]] / per_peer[200]
    print(f"a peer at {SIZES[-1]} members costs {growth:.2f} x a peer at 200 (limit {GROWTH_LIMIT})")
    print(f"{SIZES[-1]} members: {seconds:.1f} s (limit {LIMIT:.0f} s)")
    return seconds <= LIMIT and growth <= GROWTH_LIMIT


def timed(argv: list[str], runs: int = 5) -> float:
    """The median of the seconds that a command takes."""
    taken = []
    for _run in range(runs):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def second_run(inventory: str, cluster: str) -> bool:
    """Print what a run that changes nothing costs, against a ping; whether it stays in the limit."""
    bin_folder = Path(sys.executable).parent
    ping = [str(bin_folder / "ansible"), "-i", inventory, "cluster", "-m", "ansible.builtin.ping"]
    mesh = [
        str(bin_folder / "ansible-playbook"),
        "-i",
        inventory,
        "gpumesh.cluster.mesh",
        "-e",
        f"cluster_name={cluster}",
    ]
    timed(mesh, runs=1)
    ping_seconds, mesh_seconds = timed(ping), timed(mesh)
    ratio = mesh_seconds / ping_seconds
    print(f"ping {ping_seconds:.2f} s, second run of the mesh {mesh_seconds:.2f} s: {ratio:.2f} x (limit {PING_LIMIT})")
    return ratio <= PING_LIMIT


def main() -> int:
    """Exit status 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", help="hosts whose mesh has been set up")
    parser.add_argument("--cluster", default="gpumesh", help="the cluster of these hosts (default: gpumesh)")
    arguments = parser.parse_args()
    good = scale()
    if arguments.inventory:
        good = second_run(arguments.inventory, arguments.cluster) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
