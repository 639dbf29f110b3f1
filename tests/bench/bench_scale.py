# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a second `site` for the controller and for what it sends, by the number of members.

    python tests/bench/bench_scale.py [MEMBERS ...] [--simulated MEMBERS ...]        # 3 12 48 --simulated 3 12 48 1000

Measured: for each size, starts light hosts of its own (containers without a service manager, with the packages
installed), makes them a cluster, runs `site` again, and removes them. What is sent is what the kernel counts for the
connections of ssh, which compresses. The hosts share the machine with the controller, so the elapsed time says more
about the machine.

Simulated: a play in which each member runs the action of each layer once, with the record of so many members. There are
no hosts: the connection counts what a host would be sent, modules included and not compressed, and answers as a host
does on which nothing has to change. Ansible is the real one, with a process for each task and host. So the figures
contain neither the other tasks of `site` nor ssh nor the checks, and only those of the same kind can be compared.

Prints the processor time of the controller, in total and per member, the bytes sent to a host, the elapsed time, and the
exponents of processor time and of all bytes between one size and the next: 1 is a cost that grows with the members, 2
one that grows with the pairs. Exits 1 if a run fails or changes something, or if an exponent exceeds its limit.

All containers share the kernel's neighbour table (gc_thresh3, 1024 by default), which overflows with 48 hosts that know
each other: it is enlarged while this runs.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from lab_hosts import BIN, ROOT, Lab, run_ansible
from unchanged_cluster import ANSWERS, build_record

MEASURED_SIZES = (3, 12, 48)
SIMULATED_SIZES = (3, 12, 48, 1000)
LARGEST_EXPONENT = 1.1
CLUSTER_SETTINGS = {"cluster_name": "bench", "mesh_backend": "wireguard"}


#: What a manager tells the members about its munge; none of it is a key.
MUNGE_MANAGER = {"fingerprint": "0" * 64, "content": "AAAA", "credential": "MUNGE:AAAA:", "clock_ahead": 0.0}
#: A connection of ssh to a host, with the bytes that were sent over it.
SOCKET_PATTERN = re.compile(r"(\S+:\d+)\s+(\S+):22\s.*\bbytes_sent:(\d+)")


class RunCost(NamedTuple):
    """The cost of one run, in seconds and in the bytes sent to all hosts."""

    member_count: int
    cpu_seconds: float
    elapsed_seconds: float
    sent_bytes: int


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


def count_sent_bytes(subnet: ipaddress.IPv4Network) -> dict[tuple[str, str], int]:
    """Return the bytes that have been sent to hosts in the subnet over each open connection of ssh."""
    argv = ["ss", "-tniOH", "state", "established", "dst", str(subnet), "dport", "=", ":22"]
    output = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    return {(match[1], match[2]): int(match[3]) for match in SOCKET_PATTERN.finditer(output)}


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
        cpu_before, sent_before = children_cpu_seconds(), count_sent_bytes(subnet)
        second_run = lab.run_playbook("gpumesh.cluster.site", *settings)
        cpu_seconds, sent_after = children_cpu_seconds() - cpu_before, count_sent_bytes(subnet)
        sent_bytes = sum(count - sent_before.get(connection, 0) for connection, count in sent_after.items())
        cost = RunCost(member_count, cpu_seconds, second_run.seconds, sent_bytes)
    finally:
        lab_playbook("down", description)
    if second_run.exit_status != 0:
        print(second_run.output)
        return None
    if any(second_run.changed.values()):
        print(f"{member_count} members: the second run changed {second_run.changed}")
        return None
    if len({address for _port, address in sent_after}) != member_count or not sent_before.keys() <= sent_after.keys():
        print(f"{member_count} members: a connection was closed, so what was sent over it is not known")
        return None
    return cost


def describe_simulated_plays() -> list[dict[str, object]]:
    """Return the plays that set the record, as `site` does, and run the action of each layer."""
    find_members = {"name": "gpumesh.cluster.cluster", "tasks_from": "members_only", "rolespec_validate": False}
    munge_options = {"record": "cluster_record", "manager": MUNGE_MANAGER}
    layers = ("mesh", "names", "firewall", "storage", "ssh_trust", "job_environment", "munge", "session", "slurm")
    tasks: list[dict[str, object]] = [
        {f"gpumesh.cluster.{layer}": munge_options if layer == "munge" else {"record": "cluster_record"}}
        for layer in (*layers, "train", "tracking")
    ]
    return [{"hosts": "all", "gather_facts": False, "tasks": [{"ansible.builtin.import_role": find_members}, *tasks]}]


def simulate_run(member_count: int, directory: Path) -> RunCost | None:
    """Return the cost of the simulated run; None, with the output printed, if it fails or changes something."""
    folder = directory / f"simulated-{member_count}"
    folder.mkdir()
    record = build_record(member_count)
    variables = {
        "ansible_connection": "canned",
        "ansible_pipelining": True,
        "ansible_python_interpreter": "/usr/bin/python3",
        "cluster_record": record,
        "session_enabled": True,
    }
    inventory = {"all": {"vars": variables, "hosts": {member["machine"]: {} for member in record["members"]}}}
    (folder / "answers.json").write_text(json.dumps(ANSWERS))
    (folder / "hosts.json").write_text(json.dumps(inventory))
    (folder / "play.yml").write_text(json.dumps(describe_simulated_plays()))
    os.environ.update(
        GPUMESH_CANNED=str(folder), ANSIBLE_CONNECTION_PLUGINS=str(ROOT / "tests" / "support" / "connection")
    )
    cpu_before = children_cpu_seconds()
    run = run_ansible("ansible-playbook", "-i", str(folder / "hosts.json"), str(folder / "play.yml"))
    cpu_seconds = children_cpu_seconds() - cpu_before
    if run.exit_status != 0 or len(run.changed) != member_count or any(run.changed.values()):
        print(run.failure_report)
        return None
    sent_bytes = sum(int(line.split()[2]) for line in (folder / "sent").read_text().splitlines())
    return RunCost(member_count, cpu_seconds, run.seconds, sent_bytes)


def growth_exponent(smaller: float, larger: float, ratio: float) -> float:
    """Return the power of the number of members with which a cost has grown."""
    return math.log(larger / smaller) / math.log(ratio)


def print_costs(kind: str, sizes: Sequence[int], measure: Callable[[int], RunCost | None]) -> bool:
    """Print one line per size. Returns whether all runs succeeded, and no exponent exceeds its limit."""
    previous_cost, is_good = None, True
    for member_count in sorted(sizes):
        cost = measure(member_count)
        if cost is None:
            return False
        exponents = ""
        if previous_cost is not None:
            ratio = cost.member_count / previous_cost.member_count
            growth_exponents = (
                growth_exponent(previous_cost.cpu_seconds, cost.cpu_seconds, ratio),
                growth_exponent(previous_cost.sent_bytes, cost.sent_bytes, ratio),
            )
            is_good = is_good and max(growth_exponents) <= LARGEST_EXPONENT
            exponents = f"{growth_exponents[0]:.2f} {growth_exponents[1]:.2f}"
        print(
            f"{kind:>9} {member_count:>7} {cost.cpu_seconds:>8.1f} s {cost.cpu_seconds / member_count:>7.2f} s"
            f" {cost.sent_bytes / member_count:>12,.0f} {cost.elapsed_seconds:>6.1f} s {exponents:>10}",
            flush=True,
        )
        previous_cost = cost
    return is_good


def main() -> int:
    """Print one line per size."""
    parser = argparse.ArgumentParser(description="Cost of a second site by the number of members")
    parser.add_argument("members", nargs="*", type=int, help="sizes that are measured on hosts; none without any")
    parser.add_argument("--simulated", nargs="+", type=int, help="sizes that are simulated, without hosts")
    parser.add_argument(
        "--subnet", type=ipaddress.IPv4Network, default="10.86.0.0/24", help="subnet for the addresses of the hosts"
    )
    arguments = parser.parse_args()
    is_default = not (arguments.members or arguments.simulated)
    # The hosts are removed with it, also when it is terminated.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("told to end"))
    # Connections stay open between the runs, so that the kernel's counts last.
    os.environ["ANSIBLE_SSH_ARGS"] = "-C -o ControlMaster=auto -o ControlPersist=900s"
    print("measured: a second site on containers, bytes as ssh compresses them; exponents: processor, bytes")
    print("simulated: the actions of the layers without hosts, which answer that nothing has to change")
    print(f"limit of the exponents: {LARGEST_EXPONENT}")
    print(
        f"{'':>9} {'members':>7} {'processor':>10} {'a member':>9} {'bytes a host':>12} {'clock':>8} {'exponents':>10}"
    )
    with tempfile.TemporaryDirectory() as directory_name:
        directory = Path(directory_name)

        def measure(member_count: int) -> RunCost | None:
            with enlarge_neighbour_tables(member_count):
                return measure_second_run(member_count, arguments.subnet, directory)

        simulated_sizes = SIMULATED_SIZES if is_default else arguments.simulated or ()
        is_good = print_costs("simulated", simulated_sizes, lambda member_count: simulate_run(member_count, directory))
        measured_sizes = MEASURED_SIZES if is_default else arguments.members
        is_good = print_costs("measured", measured_sizes, measure) and is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
