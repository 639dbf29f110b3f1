# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How much faster is interface_info than ansible.builtin.setup, and does shared_subnets handle a thousand hosts?

    python tests/bench/bench_detect.py --inventory inventories/lab --as-gpu-server

On the hosts of the inventory, the modules are run in turn, in the form in which Ansible sends them. Two times are
shown:

on the host   the elapsed time of one run of the module by the host's own clock, including Ansible's start-up on the
              host; and its CPU time, which is less affected by other load.
whole task    the same with SSH and the controller's work, as a task of a playbook. ansible.builtin.ping, which does
              nothing, is the minimum for any module.

The work of setup grows with the hardware of a machine; that of interface_info hardly does. A bare container has nearly
nothing: --as-gpu-server gives disposable hosts what GPU servers have: ethtool, pciutils and dmidecode, which setup
calls, and eight more network interfaces. The interfaces are removed afterwards, the packages are kept.

The best of all runs is compared, host by host, since a busy machine only adds time. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.subnets import find_shared
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table

INTERFACE_INFO, SETUP, PING = "gpumesh.cluster.interface_info", "ansible.builtin.setup", "ansible.builtin.ping"
MODULES = (PING, SETUP, INTERFACE_INFO)
MIN_SPEEDUP = 3.0
HOST_COUNT, FILTER_LIMIT = 1000, 2.0

#: A program that runs every module file that Ansible left on a host, in turn, and prints the elapsed and CPU time of
#: each.
TIMING_PROGRAM = """
import glob, json, resource, subprocess, sys, time
files = {path.rsplit("AnsiballZ_", 1)[1][:-3]: path for path in glob.glob(sys.argv[1] + "/*/AnsiballZ_*.py")}
seconds = {name: [] for name in files}
def used():
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
for _run in range(int(sys.argv[2])):
    for name, path in files.items():
        start, cpu = time.perf_counter(), used()
        subprocess.run([sys.executable, path], stdout=subprocess.DEVNULL, check=True)
        seconds[name].append([time.perf_counter() - start, used() - cpu])
print(json.dumps(seconds))
"""


_COMMAND_MODULE = "ansible.builtin.command"
EQUIP_TASKS: list[dict[str, Any]] = [
    {
        "name": "Install what GPU servers have",
        "ansible.builtin.apt": {
            "name": ["ethtool", "pciutils", "dmidecode"],
            "install_recommends": False,
            "update_cache": True,
        },
    },
    *[
        {"name": f"Add {verb[1]} {verb[-1]}", _COMMAND_MODULE: {"argv": ["ip", *verb]}}
        for rail in range(8)
        for verb in (
            ("link", "add", f"rail{rail}", "type", "veth", "peer", "name", f"switch{rail}"),
            ("address", "add", f"10.200.{rail}.1/24", "dev", f"rail{rail}"),
            ("link", "set", f"rail{rail}", "up"),
        )
    ],
]
UNEQUIP_TASKS: list[dict[str, Any]] = [
    {"name": f"Delete rail{rail}", _COMMAND_MODULE: {"argv": ["ip", "link", "delete", f"rail{rail}"]}}
    for rail in range(8)
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inventory", help="hosts to compare the modules on; without it only the filter is measured")
    parser.add_argument("--pattern", default="cluster", help="which of these hosts (%(default)s)")
    parser.add_argument("--as-gpu-server", action="store_true", help="equip the hosts first; for disposable hosts")
    parser.add_argument("--repeat", type=int, default=7, help="runs of each module (%(default)s)")
    arguments = parser.parse_args()
    within_limits = [bench_filter()]
    if arguments.inventory:
        within_limits.append(bench_module(arguments))
    else:
        print("interface_info: not measured, since no --inventory was given.")
    return 0 if all(within_limits) else 1


def bench_filter() -> bool:
    """Find the shared network of a thousand hosts, each of which also has a decoy and ten networks of its own."""
    facts = {f"n{host_number}": {"interfaces": _interfaces(host_number)} for host_number in range(HOST_COUNT)}
    address_count = sum(len(interface["addresses"]) for host in facts.values() for interface in host["interfaces"])
    started_at = time.process_time()
    shared = find_shared(facts)
    cpu_seconds = time.process_time() - started_at
    print(
        f"shared_subnets: {HOST_COUNT} hosts, {address_count} addresses, {len(shared.rejected)} subnets rejected, "
        f"{len(shared.candidates)} shared: {cpu_seconds:.2f} s on one core (limit: {FILTER_LIMIT:g} s)"
    )
    return cpu_seconds < FILTER_LIMIT


def _interfaces(host_number: int) -> list[dict[str, Any]]:
    own_networks = [
        (f"eth{network_index}", f"11.{host_number // 250}.{host_number % 250}.{16 * network_index + 1}", 28)
        for network_index in range(10)
    ]
    shared_network = ("eno1", f"10.0.{host_number // 250}.{host_number % 250 + 1}", 16)
    return [_interface(*interface) for interface in (shared_network, ("docker0", "172.17.0.1", 16), *own_networks)]


def _interface(name: str, address: str, prefix_length: int) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "bridge" if name == "docker0" else "ethernet",
        "link_kind": None,
        "physical": name != "docker0",
        "state": "up",
        "mtu": 1500,
        "speed_mbps": 10_000,
        "members": [],
        "parent": None,
        "rdma": None,
        "addresses": [{"address": address, "prefix_length": prefix_length, "scope": "global", "flags": []}],
    }


def bench_module(arguments: argparse.Namespace) -> bool:
    """Print both times of each module and the ratios. Returns whether the ratio on the host is within the limit."""
    with tempfile.TemporaryDirectory() as directory:
        ansible = _PlayRunner(Path(directory), arguments.inventory, arguments.pattern)
        if arguments.as_gpu_server:
            ansible.run(EQUIP_TASKS)
        try:
            times_on_host = _time_on_hosts(ansible, arguments.repeat)
            task_seconds = _time_tasks(ansible, arguments.repeat)
        finally:
            if arguments.as_gpu_server:
                ansible.run(UNEQUIP_TASKS)
    elapsed_seconds = {module: times[0] for module, times in times_on_host.items()}
    cpu_seconds = {module: times[1] for module, times in times_on_host.items()}
    columns = {"on the host": elapsed_seconds, "processor time there": cpu_seconds, "whole task": task_seconds}
    rows = [
        {
            "module": module,
            **{title: f"{seconds_by_module[module]:.3f} s" for title, seconds_by_module in columns.items()},
        }
        for module in MODULES
    ]
    rows.append(
        {
            "module": "setup : interface_info",
            **{
                title: f"{seconds_by_module[SETUP] / seconds_by_module[INTERFACE_INFO]:.1f} : 1"
                for title, seconds_by_module in columns.items()
            },
        }
    )
    print(render_table(rows, [*rows[0]]))
    ratio = elapsed_seconds[SETUP] / elapsed_seconds[INTERFACE_INFO]
    print(
        f"interface_info: {ratio:.1f} times faster than setup on the host (limit: {MIN_SPEEDUP:g}). "
        f"Beyond what ping takes: setup {elapsed_seconds[SETUP] - elapsed_seconds[PING]:.3f} s, "
        f"ours {elapsed_seconds[INTERFACE_INFO] - elapsed_seconds[PING]:.3f} s."
    )
    return ratio >= MIN_SPEEDUP


class _PlayRunner:
    """A runner of plays on the inventory, which returns the results that the json callback prints."""

    def __init__(self, directory: Path, inventory: str, pattern: str) -> None:
        self.directory = directory
        self.inventory = inventory
        self.pattern = pattern

    def run(self, tasks: Sequence[dict[str, Any]], **environment: str) -> list[dict[str, Any]]:
        playbook = self.directory / "play.json"
        playbook.write_text(
            json.dumps([{"name": "Measure", "hosts": self.pattern, "gather_facts": False, "tasks": list(tasks)}])
        )
        completed = subprocess.run(
            [str(Path(sys.executable).parent / "ansible-playbook"), "-i", self.inventory, str(playbook)],
            env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json", **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        plays: list[dict[str, Any]] = json.loads(completed.stdout[completed.stdout.index("{") :])["plays"]
        return [task for play in plays for task in play["tasks"]]


def _time_on_hosts(ansible: _PlayRunner, repeat: int) -> dict[str, list[float]]:
    """Let Ansible leave the modules on the hosts, time them there, and remove them."""
    remote_directory = f"/tmp/gpumesh-bench-{uuid.uuid4().hex}"
    module_tasks = [{"name": module, module: {}} for module in MODULES]
    ansible.run(
        module_tasks,
        ANSIBLE_KEEP_REMOTE_FILES="1",
        ANSIBLE_PIPELINING="false",
        ANSIBLE_SSH_PIPELINING="false",
        ANSIBLE_REMOTE_TMP=remote_directory,
    )
    argv = ["python3", "-c", TIMING_PROGRAM, remote_directory, str(repeat)]
    timing_task = {"name": "Time them", _COMMAND_MODULE: {"argv": argv}, "throttle": 1}
    cleanup_task = {"name": "Clean up", "ansible.builtin.file": {"path": remote_directory, "state": "absent"}}
    timing_result, _cleaned = ansible.run([timing_task, cleanup_task])
    times_by_host = [json.loads(result["stdout"]) for result in timing_result["hosts"].values()]
    return {module: _best_times([host[module.rpartition(".")[2]] for host in times_by_host]) for module in MODULES}


def _best_times(runs_of_hosts: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return the minimum of both times on each host, and the median of these over the hosts."""
    best_by_host = [[min(times) for times in zip(*runs)] for runs in runs_of_hosts]
    return [median(times) for times in zip(*best_by_host)]


def _time_tasks(ansible: _PlayRunner, repeat: int) -> dict[str, float]:
    # The first round opens the connections and is not counted.
    rounds = [{"name": module, module: {}} for _round in range(repeat + 1) for module in MODULES]
    seconds_by_module: dict[str, list[float]] = {module: [] for module in MODULES}
    for task in ansible.run(rounds)[len(MODULES) :]:
        duration = task["task"]["duration"]
        elapsed = datetime.fromisoformat(duration["end"]) - datetime.fromisoformat(duration["start"])
        seconds_by_module[task["task"]["name"]].append(elapsed.total_seconds())
    return {module: min(elapsed) for module, elapsed in seconds_by_module.items()}


if __name__ == "__main__":
    sys.exit(main())
