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

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh.desired import derive_parameters
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

CLUSTER_SIZES = (10, 100, 200, 400, 600, 800, 1000)
#: Seconds of the controller for 1,000 members with 999 peers each, in total.
CONTROLLER_LIMIT = 5.0
#: Milliseconds in which each of these hosts compares the tunnel with its current state.
HOST_LIMIT_MS = 20.0
#: The maximum ratio of a second run to one ping of the same hosts.
MAX_PING_RATIO = 2.0
#: The maximum growth of the time per peer, from the middle of the table to its end.
MAX_GROWTH = 1.5


def create_record(size: int) -> dict[str, Any]:
    """Create a cluster of sites with eight members each.

    A third of the sites have no endpoints, so some pairs need a relay.
    """
    members = []
    for number in range(1, size + 1):
        site = number // 8
        mesh_address = f"10.99.{number // 250}.{number % 250 + 1}"
        members.append(
            {
                "machine": f"n{number}",
                "address": f"172.16.{number // 250}.{number % 250 + 1}",
                "site": f"site{site}",
                "endpoint": f"198.18.{number // 250}.{number % 250 + 1}:51820" if site % 3 == 0 else None,
                "mesh": {
                    "address": mesh_address,
                    "public_key": base64.b64encode(hashlib.sha256(mesh_address.encode()).digest()).decode(),
                },
            }
        )
    settings = {"backend": "wireguard", "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": None}
    return {"name": "bench", "manager": "n1", "members": members, "mesh": settings}


class MeshCost(NamedTuple):
    """CPU seconds for all members, and the total number of their peers."""

    controller_seconds: float
    host_seconds: float
    peer_count: int


def measure_cluster(size: int) -> MeshCost:
    """Compute every member's tunnel, as the controller does, and compare it with the running interface, as hosts do."""
    cluster_record = create_record(size)
    controller_seconds = host_seconds = 0.0
    for member in cluster_record["members"]:
        started_at = time.process_time()
        derived_tunnel = derive_parameters(cluster_record, {"machine": member["machine"], "relays": []})
        derived_at = time.process_time()
        compare_tunnel(derived_tunnel)
        controller_seconds, host_seconds = (
            controller_seconds + derived_at - started_at,
            host_seconds + time.process_time() - derived_at,
        )
    return MeshCost(controller_seconds, host_seconds, size * (size - 1))


def compare_tunnel(tunnel_inputs: Mapping[str, Any]) -> None:
    """Do what a host does with its tunnel if nothing has to change."""
    desired = make_desired(
        tunnel_inputs["interface"],
        tunnel_inputs["address"],
        tunnel_inputs["listen_port"],
        tunnel_inputs["mtu"],
        tunnel_inputs["peers"],
    )
    conf = render_conf(desired, "/etc/wireguard/gpumesh0.key")
    peers_by_key = {
        peer.public_key: RunningPeer(peer.public_key, peer.endpoint, peer.allowed_ips, 0, 0, 0, 0)
        for peer in desired.peers
    }
    running = RunningInterface(
        WireguardDump("key", desired.listen_port, peers_by_key),
        InterfaceLink(desired.mtu, True, (desired.address,), "wireguard"),
        frozenset(),
    )
    addresses_by_endpoint = {peer.endpoint: (peer.endpoint,) for peer in desired.peers if peer.endpoint}
    plan_interface(desired, running, "key", parse_conf(conf), addresses_by_endpoint, 0)


def measure_scale() -> bool:
    """Print the time by the number of members. Returns whether it is within the limits."""
    print("The tunnel of every member: computed by the controller, compared by the hosts")
    print(f"{'members':>8} {'peers':>9} {'controller s':>13} {'µs a peer':>10} {'each host ms':>13}")
    cost_by_size = {size: measure_cluster(size) for size in CLUSTER_SIZES}
    for size, cost in cost_by_size.items():
        per_peer, host_ms = cost.controller_seconds / cost.peer_count * 1e6, cost.host_seconds / size * 1e3
        print(f"{size:>8} {cost.peer_count:>9} {cost.controller_seconds:>13.2f} {per_peer:>10.2f} {host_ms:>13.1f}")
    largest, middle = cost_by_size[CLUSTER_SIZES[-1]], cost_by_size[200]
    growth = (largest.controller_seconds / largest.peer_count) / (middle.controller_seconds / middle.peer_count)
    host_ms = largest.host_seconds / CLUSTER_SIZES[-1] * 1e3
    print(f"a peer at {CLUSTER_SIZES[-1]} members costs {growth:.2f} x a peer at 200 (limit {MAX_GROWTH})")
    print(
        f"{CLUSTER_SIZES[-1]} members: controller {largest.controller_seconds:.1f} s (limit {CONTROLLER_LIMIT:.0f} s)"
    )
    print(f"{CLUSTER_SIZES[-1]} members: each host {host_ms:.1f} ms (limit {HOST_LIMIT_MS:.0f} ms)")
    return largest.controller_seconds <= CONTROLLER_LIMIT and host_ms <= HOST_LIMIT_MS and growth <= MAX_GROWTH


def median_duration(argv: list[str], run_count: int = 5) -> float:
    """Return the median duration of a command, in seconds."""
    durations = []
    for _run in range(run_count):
        started_at = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        durations.append(time.perf_counter() - started_at)
    return statistics.median(durations)


def measure_second_run(inventory: str, cluster: str | None) -> bool:
    """Print the cost of a run that changes nothing against a ping. Returns whether it is within the limit."""
    bin_directory = Path(sys.executable).parent
    ping_command = [str(bin_directory / "ansible"), "-i", inventory, "cluster", "-m", "ansible.builtin.ping"]
    mesh_command = [str(bin_directory / "ansible-playbook"), "-i", inventory, "gpumesh.cluster.mesh"]
    mesh_command += ["-e", f"cluster_name={cluster}"] if cluster else []
    median_duration(mesh_command, run_count=1)
    ping_seconds, mesh_seconds = median_duration(ping_command), median_duration(mesh_command)
    ratio = mesh_seconds / ping_seconds
    print(
        f"ping {ping_seconds:.2f} s, second run of the mesh {mesh_seconds:.2f} s: {ratio:.2f} x (limit {MAX_PING_RATIO})"
    )
    return ratio <= MAX_PING_RATIO


def main() -> int:
    """Return exit status 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", help="hosts whose mesh has been set up")
    parser.add_argument("--cluster", help="the cluster of these hosts (default: cluster_name of the inventory)")
    arguments = parser.parse_args()
    within_limits = measure_scale()
    if arguments.inventory:
        within_limits = measure_second_run(arguments.inventory, arguments.cluster) and within_limits
    return 0 if within_limits else 1


if __name__ == "__main__":
    sys.exit(main())
