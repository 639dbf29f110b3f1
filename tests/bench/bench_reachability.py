# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ordered pairs of many hosts with the role reachability, against the same pairs with tasks that call nc.

    python tests/bench/bench_reachability.py             50 hosts with sshd in their own namespaces, 2,450 pairs
    python tests/bench/bench_reachability.py --hosts 10

Requires root, sshd and nc (netcat-openbsd). The full baseline would take an hour: nc is timed on a sample of the pairs,
and its time for all of them is extrapolated and marked as such. Three ways of using nc are shown:

- one pair after the other: what people do by hand, a listener there, a line of text here, one TCP port,
- all hosts at once, each with a loop over its peers, against existing listeners, one TCP port,
- the same for as many TCP ports as the role tests. The role also tests UDP, 1 MiB each way, the path MTU, the routes, the
  sources and the clocks, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import SshTestbed, create_network

#: The limit: how many times faster the role must be than one pair after the other.
MIN_RATIO = 50.0
TEST_PORT = 2337
#: TCP ports that the role tests for each pair: four named ones and four of the ephemeral range.
TCP_PORT_COUNT = 8


def run_role(farm: SshTestbed, forks: int) -> float:
    """Run the role on all pairs. Returns the elapsed seconds; exits if any pair is found to fail."""
    result_path = farm.directory / "result.json"
    tasks: list[dict[str, Any]] = [
        {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}},
        {
            "ansible.builtin.copy": {"content": "{{ reachability_result | to_json }}", "dest": str(result_path)},
            "delegate_to": "localhost",
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
            "run_once": True,
        },
    ]
    started_at = time.monotonic()
    completed = farm.run_play(tasks, forks=forks, reachability_members=farm.members_variable())
    seconds = time.monotonic() - started_at
    if completed.returncode != 0:
        sys.exit(completed.stdout[-4000:] + completed.stderr[-4000:])
    reachability = json.loads(result_path.read_text())
    print(f"role reachability: {reachability['summary']} {seconds:.1f} s")
    if reachability["status"] != "pass":
        failed_pairs = [pair for pair in reachability["pairs"] if pair["status"] != "pass"]
        sys.exit("\n".join(f"{pair['from']} -> {pair['to']}: {pair['message']}" for pair in failed_pairs[:20]))
    return seconds


def run_in_turn(farm: SshTestbed, pair_count: int, forks: int) -> float:
    """Test ``pair_count`` pairs one after the other, each with a listener and a line of text.

    Returns the elapsed seconds.
    """
    machine_names = [member.machine for member in farm.members]
    addresses = {member.machine: member.address for member in farm.members}
    tasks: list[dict[str, Any]] = []
    for number in range(pair_count):
        source, target = (
            machine_names[number % len(machine_names)],
            machine_names[(number + 1 + number // len(machine_names)) % len(machine_names)],
        )
        tasks += [
            {
                "ansible.builtin.command": {"argv": ["nc", "-l", addresses[target], str(TEST_PORT)]},
                "async": 30,
                "poll": 0,
                "delegate_to": target,
                "run_once": True,
            },
            {
                "ansible.builtin.command": {
                    "argv": ["nc", "-N", "-w", "5", addresses[target], str(TEST_PORT)],
                    "stdin": "hello",
                },
                "delegate_to": source,
                "run_once": True,
                # The listener of the previous task may still be starting.
                "retries": 5,
                "delay": 0.2,
                "register": "said",
                "until": "said is success",
            },
        ]
    return time_play(farm, tasks, forks)


def run_at_once(farm: SshTestbed, peer_count: int, forks: int) -> float:
    """Let every host loop over ``peer_count`` peers, with sshd on port 22 as the listener.

    Returns the elapsed seconds.
    """
    machine_names = [member.machine for member in farm.members]
    addresses = [member.address for member in farm.members]
    targets = {
        name: [addresses[(index + step) % len(machine_names)] for step in range(1, peer_count + 1)]
        for index, name in enumerate(machine_names)
    }
    task: dict[str, Any] = {
        "ansible.builtin.command": {"argv": ["nc", "-z", "-w", "5", "{{ item }}", "22"]},
        "loop": "{{ targets[inventory_hostname] }}",
    }
    return time_play(farm, [task], forks, targets=targets)


def time_play(farm: SshTestbed, tasks: list[dict[str, Any]], forks: int, **variables: Any) -> float:
    started_at = time.monotonic()
    completed = farm.run_play(tasks, forks=forks, **variables)
    if completed.returncode != 0:
        sys.exit(completed.stdout[-4000:] + completed.stderr[-4000:])
    return time.monotonic() - started_at


@contextmanager
def enlarge_neighbour_table(host_count: int) -> Iterator[None]:
    """Let this machine's kernel hold the neighbours of all hosts: its limit counts all namespaces together.

    On hosts with their own kernels, the default limit is 1,024 neighbours each; here, 50 hosts already need 2,500.
    """
    limit_path = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    former_limit = limit_path.read_text()
    limit_path.write_text(str(max(int(former_limit), 4 * host_count * host_count)))
    try:
        yield
    finally:
        limit_path.write_text(former_limit)


def main() -> None:
    """Run all variants, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--forks", type=int, default=25)
    parser.add_argument("--sample", type=int, default=20, help="number of pairs to test one after the other")
    arguments = parser.parse_args()
    pair_count = arguments.hosts * (arguments.hosts - 1)
    with tempfile.TemporaryDirectory() as folder, enlarge_neighbour_table(
        arguments.hosts
    ), create_network() as namespace_network:
        started_at = time.monotonic()
        farm = SshTestbed(namespace_network, arguments.hosts, Path(folder))
        print(f"{arguments.hosts} hosts, {pair_count} ordered pairs; made in {time.monotonic() - started_at:.1f} s")
        # The first connection to each host costs every variant the same, so it is made before anything is timed.
        startup_seconds = time_play(farm, [{"ansible.builtin.raw": "true"}], arguments.forks)
        print(f"ansible-playbook with one raw task: {startup_seconds:.1f} s")
        role_seconds = run_role(farm, arguments.forks)

        # The cost of starting Ansible does not grow with the pairs, so it is subtracted before multiplying.
        idle_seconds = time_play(farm, [{"ansible.builtin.raw": "true", "run_once": True}], arguments.forks)
        in_turn_seconds = (
            run_in_turn(farm, arguments.sample, arguments.forks) - idle_seconds
        ) / arguments.sample * pair_count + idle_seconds
        at_once_seconds = (run_at_once(farm, 2, arguments.forks) - idle_seconds) / (
            2 * arguments.hosts
        ) * pair_count + idle_seconds
    print(
        f"nc, one pair after the other, one port: {in_turn_seconds:.0f} s (extrapolated from {arguments.sample} pairs)"
    )
    print(
        f"nc, all hosts at once, one port:        {at_once_seconds:.0f} s (extrapolated from {2 * arguments.hosts} pairs)"
    )
    print(
        f"nc, all hosts at once, {TCP_PORT_COUNT} ports:       {at_once_seconds * TCP_PORT_COUNT:.0f} s (the same, times {TCP_PORT_COUNT})"
    )
    print(f"ratio to one pair after the other:      {in_turn_seconds / role_seconds:.1f} (limit: {MIN_RATIO:g})")
    print(
        f"ratio to all hosts at once:             {at_once_seconds / role_seconds:.1f}, with {TCP_PORT_COUNT} ports "
        f"{at_once_seconds * TCP_PORT_COUNT / role_seconds:.1f}"
    )
    if in_turn_seconds / role_seconds < MIN_RATIO:
        sys.exit(f"below the limit of {MIN_RATIO:g}")


if __name__ == "__main__":
    main()
