# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Does slurmctld handle a thousand nodes with the files that we write, and what does an additional node cost?

    python tests/bench/bench_slurm.py --container gpumesh-lab-n1

In a container of the lab that has Slurm, a second controller is started with our slurm.conf on other ports and in its
own directory. Nodes are registered as slurmd does, but without the processes: `scontrol create` with the same
definition (without GPUs, which only slurmd can report). Prints the times

files      to create every file for 10 and for 1,000 members: no file names a node, so they do not grow
start      of the controller, until it answers
register   to register 10 and 1,000 nodes
read       to query all nodes and read the answer

Times on a busy machine are noisy: use the ratios, and the best of several runs. Exits 1 if slurmctld does not know all
nodes, or if the files grow with the members.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import config, show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import (
    CgroupSupport,
    SlurmHost,
    parse_version,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import render_table

SMALL_SIZE, LARGE_SIZE = 10, 1000
BENCH_DIRECTORY, CONTROLLER_PORT = "/root/bench-slurm", "26817"

_Value = TypeVar("_Value")


def best_time(work: Callable[[], _Value], run_count: int = 1) -> tuple[float, _Value]:
    """Return the minimum duration of several runs in seconds, and the result of the last one."""
    best = float("inf")
    for _run in range(run_count):
        started_at = time.perf_counter()
        value = work()
        best = min(best, time.perf_counter() - started_at)
    return best, value


def run_in_container(container: str, *argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Run a command in the container with the configuration of this benchmark. Returns its stdout."""
    command = ["docker", "exec", "-i", "-e", f"SLURM_CONF={BENCH_DIRECTORY}/slurm.conf", container, *argv]
    completed = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)
    if check and completed.returncode:
        sys.exit(f"{container}: {' '.join(argv)[:200]}: exit {completed.returncode}: {completed.stderr.strip()[-800:]}")
    return completed.stdout


def create_request(machine: str, address: str) -> config.SlurmRequest:
    """Return the request of a member of a cluster whose controller is this container."""
    return config.SlurmRequest(
        cluster="bench",
        controller="127.0.0.1",
        machine=machine,
        address=address,
        serve=machine == "n1",
        accounting=False,
        max_nodes=LARGE_SIZE + SMALL_SIZE,
        task_prolog="",
        health_check="",
        health_check_interval=300,
        prolog="",
        epilog="",
        state_folder=f"{BENCH_DIRECTORY}/state",
        spool_folder=f"{BENCH_DIRECTORY}/spool",
        log_folder=BENCH_DIRECTORY,
        settings={"SlurmctldPort": CONTROLLER_PORT, "SlurmUser": "root", "SlurmctldPidFile": f"{BENCH_DIRECTORY}/pid"},
        partitions={"cluster": {"Nodes": "ALL", "Default": True}},
        nodesets={},
        cgroup={},
        gres={},
        node={"CPUs": 128, "Boards": 1, "SocketsPerBoard": 2, "CoresPerSocket": 64, "ThreadsPerCore": 1},
    )


def create_documents(member_count: int) -> list[config.SlurmConfigFiles]:
    """Create every file of this many members."""
    host = SlurmHost((24, 11, 5), CgroupSupport("none", ()), None, 2_000_000, 128, "n1")
    return [
        config.build_config_files(
            create_request(f"n{number}", f"10.{number >> 8}.{number & 255}.1"), host, BENCH_DIRECTORY
        )
        for number in range(1, member_count + 1)
    ]


def start_controller(container: str, hostname: str) -> None:
    """Write the files, start the controller, and wait until it answers."""
    run_in_container(
        container, "mkdir", "-p", f"{BENCH_DIRECTORY}/node", f"{BENCH_DIRECTORY}/state", f"{BENCH_DIRECTORY}/spool"
    )
    manager_documents = create_documents(1)[0]
    for name, text in {**manager_documents.served_files, **manager_documents.node_files}.items():
        run_in_container(container, "tee", f"{BENCH_DIRECTORY}/{name}", stdin=text.replace("=n1(", f"={hostname}("))
    run_in_container(container, "slurmctld", "-c", "-f", f"{BENCH_DIRECTORY}/slurm.conf")
    deadline = time.monotonic() + 60
    while " is UP" not in run_in_container(container, "scontrol", "ping", check=False):
        if time.monotonic() > deadline:
            sys.exit(f"The controller does not answer; see {BENCH_DIRECTORY}/slurmctld.log in {container}.")
        time.sleep(0.05)


def register_nodes(container: str, documents_by_node: list[config.SlurmConfigFiles], first_number: int) -> None:
    """Register nodes with the controller by their definitions, in one process."""
    lines = [
        f"create nodename=n{number} {documents.definition} state=CLOUD"
        for number, documents in enumerate(documents_by_node, start=first_number)
    ]
    run_in_container(container, "scontrol", stdin="\n".join([*lines, "quit", ""]))


def main() -> int:
    """Measure, and print the results. Returns 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--container", default="gpumesh-lab-n1", help="a running container that has slurmctld and munge"
    )
    container = parser.parse_args().container

    few_files_seconds, _few = best_time(lambda: create_documents(SMALL_SIZE), 5)
    many_files_seconds, many_documents = best_time(lambda: create_documents(LARGE_SIZE), 3)
    served_identical = all(documents.served_files == many_documents[0].served_files for documents in many_documents)

    hostname = run_in_container(container, "hostname", "-s").strip()
    release = parse_version(run_in_container(container, "slurmctld", "-V"))
    try:
        start_seconds, _started = best_time(lambda: start_controller(container, hostname))
        few_nodes_seconds, _few = best_time(lambda: register_nodes(container, many_documents[:SMALL_SIZE], 1))
        many_nodes_seconds, _many = best_time(
            lambda: register_nodes(container, many_documents[SMALL_SIZE:], SMALL_SIZE + 1)
        )
        as_json = release >= (23, 2, 0)
        query_command = ("scontrol", "show", "node", "--json") if as_json else ("scontrol", "show", "-o", "node")
        query_seconds, query_output = best_time(lambda: run_in_container(container, *query_command), 3)
        parse = show.parse_nodes_json if as_json else show.parse_nodes_text
        parse_seconds, nodes = best_time(lambda: parse(query_output), 3)
    finally:
        run_in_container(
            container, "sh", "-c", f"kill $(cat {BENCH_DIRECTORY}/pid); sleep 1; rm -rf {BENCH_DIRECTORY}", check=False
        )

    rows = [
        [
            "files",
            f"{few_files_seconds * 1e3:.1f} ms",
            f"{many_files_seconds * 1e3:.1f} ms",
            f"{many_files_seconds / few_files_seconds:.0f}",
        ],
        [
            "register",
            f"{few_nodes_seconds:.2f} s",
            f"{many_nodes_seconds:.2f} s",
            f"{many_nodes_seconds / few_nodes_seconds:.0f}",
        ],
        ["ask", "", f"{query_seconds:.2f} s", ""],
        ["read", "", f"{parse_seconds * 1e3:.0f} ms", ""],
    ]
    print(render_table(rows, ["", f"{SMALL_SIZE} nodes", f"{LARGE_SIZE} nodes", "ratio"]))
    print(
        f"slurmctld {'.'.join(map(str, release))} answered {start_seconds:.2f} s after its start and knows {len(nodes)} nodes."
    )
    print(f"The served files of {LARGE_SIZE} members are {'identical' if served_identical else 'DIFFERENT'}.")
    nodes_complete = {node["name"] for node in nodes} == {f"n{number}" for number in range(1, LARGE_SIZE + 1)}
    return 0 if nodes_complete and served_identical and all(node["cpus"] == 128 for node in nodes) else 1


if __name__ == "__main__":
    sys.exit(main())
