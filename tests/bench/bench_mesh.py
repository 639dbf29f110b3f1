# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the cost of the mesh grows with the cluster, and the cost of a second run.

    python tests/bench/bench_mesh.py                      all members' tunnels: N against the CPU time of the
                                                          controller, and that of the hosts, which work in parallel
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.wireguard import (
    InterfaceLink,
    RunningInterface,
    RunningPeer,
    WireguardDump,
    make_desired,
    parse_conf,
    plan_interface,
    render_conf,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.mesh import tunnel_options

SIZES = (10, 100, 200, 400, 600, 800, 1000)
#: Seconds of the controller for 1,000 members with 999 peers each, in total.
LIMIT = 5.0
#: Milliseconds in which each of these hosts compares the tunnel with its current state.
HOST_LIMIT = 20.0
#: The maximum ratio of a second run to one ping of the same hosts.
PING_LIMIT = 2.0
#: The maximum growth of the time per peer, from the middle of the table to its end.
GROWTH_LIMIT = 1.5


def record(size: int) -> dict[str, Any]:
    """Create a cluster of sites with eight members each.

    A third of the sites have no endpoints, so some pairs need a relay.
    """
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


class Cost(NamedTuple):
    """CPU seconds for all members, and the total number of their peers."""

    controller: float
    hosts: float
    peers: int


def whole_cluster(size: int) -> Cost:
    """Compute every member's tunnel, as the controller does, and compare it with the running interface, as hosts do."""
    members = record(size)
    controller = hosts = 0.0
    for member in members["members"]:
        start = time.process_time()
        given = tunnel_options(members, member["machine"], [])
        derived = time.process_time()
        compare(given)
        controller, hosts = controller + derived - start, hosts + time.process_time() - derived
    return Cost(controller, hosts, size * (size - 1))


def compare(given: Mapping[str, Any]) -> None:
    """Do what a host does with its tunnel if nothing has to change."""
    wanted = make_desired(given["interface"], given["address"], given["listen_port"], given["mtu"], given["peers"])
    conf = render_conf(wanted, "/etc/wireguard/gpumesh0.key")
    live = {
        peer.public_key: RunningPeer(peer.public_key, peer.endpoint, peer.allowed_ips, 0, 0, 0, 0)
        for peer in wanted.peers
    }
    running = RunningInterface(
        WireguardDump("key", wanted.listen_port, live),
        InterfaceLink(wanted.mtu, True, (wanted.address,), "wireguard"),
        frozenset(),
    )
    resolved = {peer.endpoint: (peer.endpoint,) for peer in wanted.peers if peer.endpoint}
    plan_interface(wanted, running, "key", parse_conf(conf), resolved, 0)


def scale() -> bool:
    """Print the time by the number of members. Returns whether it is within the limits."""
    print("The tunnel of every member: computed by the controller, compared by the hosts")
    print(f"{'members':>8} {'peers':>9} {'controller s':>13} {'µs a peer':>10} {'each host ms':>13}")
    found = {size: whole_cluster(size) for size in SIZES}
    for size, cost in found.items():
        per_peer, host = cost.controller / cost.peers * 1e6, cost.hosts / size * 1e3
        print(f"{size:>8} {cost.peers:>9} {cost.controller:>13.2f} {per_peer:>10.2f} {host:>13.1f}")
    last, middle = found[SIZES[-1]], found[200]
    growth = (last.controller / last.peers) / (middle.controller / middle.peers)
    host = last.hosts / SIZES[-1] * 1e3
    print(f"a peer at {SIZES[-1]} members costs {growth:.2f} x a peer at 200 (limit {GROWTH_LIMIT})")
    print(f"{SIZES[-1]} members: controller {last.controller:.1f} s (limit {LIMIT:.0f} s)")
    print(f"{SIZES[-1]} members: each host {host:.1f} ms (limit {HOST_LIMIT:.0f} ms)")
    return last.controller <= LIMIT and host <= HOST_LIMIT and growth <= GROWTH_LIMIT


def timed(argv: list[str], runs: int = 5) -> float:
    """Return the median duration of a command, in seconds."""
    taken = []
    for _run in range(runs):
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def second_run(inventory: str, cluster: str | None) -> bool:
    """Print the cost of a run that changes nothing against a ping. Returns whether it is within the limit."""
    bin_folder = Path(sys.executable).parent
    ping = [str(bin_folder / "ansible"), "-i", inventory, "cluster", "-m", "ansible.builtin.ping"]
    mesh = [str(bin_folder / "ansible-playbook"), "-i", inventory, "gpumesh.cluster.mesh"]
    mesh += ["-e", f"cluster_name={cluster}"] if cluster else []
    timed(mesh, runs=1)
    ping_seconds, mesh_seconds = timed(ping), timed(mesh)
    ratio = mesh_seconds / ping_seconds
    print(f"ping {ping_seconds:.2f} s, second run of the mesh {mesh_seconds:.2f} s: {ratio:.2f} x (limit {PING_LIMIT})")
    return ratio <= PING_LIMIT


def main() -> int:
    """Return exit status 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", help="hosts whose mesh has been set up")
    parser.add_argument("--cluster", help="the cluster of these hosts (default: cluster_name of the inventory)")
    arguments = parser.parse_args()
    good = scale()
    if arguments.inventory:
        good = second_run(arguments.inventory, arguments.cluster) and good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
