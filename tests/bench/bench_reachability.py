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

from ansible_collections.gpumesh.cluster.tests.integration.reach.netns import Farm, network

#: The limit: how many times faster the role must be than one pair after the other.
LIMIT = 50.0
PORT = 2337
#: TCP ports that the role tests for each pair: four named ones and four of the ephemeral range.
TCP_PORTS = 8


def run_role(farm: Farm, forks: int) -> float:
    """Run the role on all pairs. Returns the elapsed seconds; exits if any pair is found to fail."""
    result = farm.folder / "result.json"
    tasks: list[dict[str, Any]] = [
        {"ansible.builtin.import_role": {"name": "gpumesh.cluster.reachability"}},
        {
            "ansible.builtin.copy": {"content": "{{ reachability_result | to_json }}", "dest": str(result)},
            "delegate_to": "localhost",
            "vars": {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"},
            "run_once": True,
        },
    ]
    begin = time.monotonic()
    done = farm.play(tasks, forks=forks, reachability_members=farm.members_variable())
    seconds = time.monotonic() - begin
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])
    found = json.loads(result.read_text())
    print(f"role reachability: {found['summary']} {seconds:.1f} s")
    if found["status"] != "pass":
        bad = [pair for pair in found["pairs"] if pair["status"] != "pass"]
        sys.exit("\n".join(f"{pair['from']} -> {pair['to']}: {pair['message']}" for pair in bad[:20]))
    return seconds


def run_in_turn(farm: Farm, pairs: int, forks: int) -> float:
    """Test ``pair_count`` pairs one after the other, each with a listener and a line of text.

    Returns the elapsed seconds.
    """
    names = [member.machine for member in farm.members]
    addresses = {member.machine: member.address for member in farm.members}
    tasks: list[dict[str, Any]] = []
    for number in range(pairs):
        one, other = names[number % len(names)], names[(number + 1 + number // len(names)) % len(names)]
        tasks += [
            {
                "ansible.builtin.command": {"argv": ["nc", "-l", addresses[other], str(PORT)]},
                "async": 30,
                "poll": 0,
                "delegate_to": other,
                "run_once": True,
            },
            {
                "ansible.builtin.command": {
                    "argv": ["nc", "-N", "-w", "5", addresses[other], str(PORT)],
                    "stdin": "hello",
                },
                "delegate_to": one,
                "run_once": True,
                # The listener of the previous task may still be starting.
                "retries": 5,
                "delay": 0.2,
                "register": "said",
                "until": "said is success",
            },
        ]
    return timed(farm, tasks, forks)


def run_at_once(farm: Farm, peers: int, forks: int) -> float:
    """Let every host loop over ``peer_count`` peers, with sshd on port 22 as the listener.

    Returns the elapsed seconds.
    """
    names = [member.machine for member in farm.members]
    addresses = [member.address for member in farm.members]
    targets = {
        name: [addresses[(place + step) % len(names)] for step in range(1, peers + 1)]
        for place, name in enumerate(names)
    }
    task: dict[str, Any] = {
        "ansible.builtin.command": {"argv": ["nc", "-z", "-w", "5", "{{ item }}", "22"]},
        "loop": "{{ targets[inventory_hostname] }}",
    }
    return timed(farm, [task], forks, targets=targets)


def timed(farm: Farm, tasks: list[dict[str, Any]], forks: int, **variables: Any) -> float:
    begin = time.monotonic()
    done = farm.play(tasks, forks=forks, **variables)
    if done.returncode != 0:
        sys.exit(done.stdout[-4000:] + done.stderr[-4000:])
    return time.monotonic() - begin


@contextmanager
def room_for_neighbours(hosts: int) -> Iterator[None]:
    """Let this machine's kernel hold the neighbours of all hosts: its limit counts all namespaces together.

    On hosts with their own kernels, the default limit is 1,024 neighbours each; here, 50 hosts already need 2,500.
    """
    setting = Path("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
    before = setting.read_text()
    setting.write_text(str(max(int(before), 4 * hosts * hosts)))
    try:
        yield
    finally:
        setting.write_text(before)


def main() -> None:
    """Run all variants, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--forks", type=int, default=25)
    parser.add_argument("--sample", type=int, default=20, help="number of pairs to test one after the other")
    arguments = parser.parse_args()
    pairs = arguments.hosts * (arguments.hosts - 1)
    with tempfile.TemporaryDirectory() as folder, room_for_neighbours(arguments.hosts), network() as net:
        begin = time.monotonic()
        farm = Farm(net, arguments.hosts, Path(folder))
        print(f"{arguments.hosts} hosts, {pairs} ordered pairs; made in {time.monotonic() - begin:.1f} s")
        # The first connection to each host costs every variant the same, so it is made before anything is timed.
        start = timed(farm, [{"ansible.builtin.raw": "true"}], arguments.forks)
        print(f"ansible-playbook with one raw task: {start:.1f} s")
        ours = run_role(farm, arguments.forks)

        # The cost of starting Ansible does not grow with the pairs, so it is subtracted before multiplying.
        idle = timed(farm, [{"ansible.builtin.raw": "true", "run_once": True}], arguments.forks)
        in_turn = (run_in_turn(farm, arguments.sample, arguments.forks) - idle) / arguments.sample * pairs + idle
        few = (run_at_once(farm, 2, arguments.forks) - idle) / (2 * arguments.hosts) * pairs + idle
    print(f"nc, one pair after the other, one port: {in_turn:.0f} s (extrapolated from {arguments.sample} pairs)")
    print(f"nc, all hosts at once, one port:        {few:.0f} s (extrapolated from {2 * arguments.hosts} pairs)")
    print(f"nc, all hosts at once, {TCP_PORTS} ports:       {few * TCP_PORTS:.0f} s (the same, times {TCP_PORTS})")
    print(f"ratio to one pair after the other:      {in_turn / ours:.1f} (limit: {LIMIT:g})")
    print(
        f"ratio to all hosts at once:             {few / ours:.1f}, with {TCP_PORTS} ports {few * TCP_PORTS / ours:.1f}"
    )
    if in_turn / ours < LIMIT:
        sys.exit(f"below the limit of {LIMIT:g}")


if __name__ == "__main__":
    main()
