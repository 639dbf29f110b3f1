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

FEW, MANY = 10, 1000
FOLDER, PORT = "/root/bench-slurm", "26817"

_Value = TypeVar("_Value")


def timed(work: Callable[[], _Value], runs: int = 1) -> tuple[float, _Value]:
    """Return the minimum duration of several runs in seconds, and the result of the last one."""
    best = float("inf")
    for _run in range(runs):
        start = time.perf_counter()
        value = work()
        best = min(best, time.perf_counter() - start)
    return best, value


def inside(container: str, *argv: str, stdin: str | None = None, check: bool = True) -> str:
    """Run a command in the container with the configuration of this benchmark. Returns its stdout."""
    command = ["docker", "exec", "-i", "-e", f"SLURM_CONF={FOLDER}/slurm.conf", container, *argv]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)
    if check and done.returncode:
        sys.exit(f"{container}: {' '.join(argv)[:200]}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
    return done.stdout


def request(machine: str, address: str) -> config.SlurmRequest:
    """Return the request of a member of a cluster whose controller is this container."""
    return config.SlurmRequest(
        cluster="bench",
        controller="127.0.0.1",
        machine=machine,
        address=address,
        serve=machine == "n1",
        accounting=False,
        max_nodes=MANY + FEW,
        task_prolog="",
        health_check="",
        health_check_interval=300,
        prolog="",
        epilog="",
        state_folder=f"{FOLDER}/state",
        spool_folder=f"{FOLDER}/spool",
        log_folder=FOLDER,
        settings={"SlurmctldPort": PORT, "SlurmUser": "root", "SlurmctldPidFile": f"{FOLDER}/pid"},
        partitions={"cluster": {"Nodes": "ALL", "Default": True}},
        nodesets={},
        cgroup={},
        gres={},
        node={"CPUs": 128, "Boards": 1, "SocketsPerBoard": 2, "CoresPerSocket": 64, "ThreadsPerCore": 1},
    )


def members(count: int) -> list[config.SlurmConfigFiles]:
    """Create every file of this many members."""
    host = SlurmHost((24, 11, 5), CgroupSupport("none", ()), None, 2_000_000, 128, "n1")
    return [
        config.build_config_files(request(f"n{number}", f"10.{number >> 8}.{number & 255}.1"), host, FOLDER)
        for number in range(1, count + 1)
    ]


def start(container: str, hostname: str) -> None:
    """Write the files, start the controller, and wait until it answers."""
    inside(container, "mkdir", "-p", f"{FOLDER}/node", f"{FOLDER}/state", f"{FOLDER}/spool")
    first = members(1)[0]
    for name, text in {**first.served_files, **first.node_files}.items():
        inside(container, "tee", f"{FOLDER}/{name}", stdin=text.replace("=n1(", f"={hostname}("))
    inside(container, "slurmctld", "-c", "-f", f"{FOLDER}/slurm.conf")
    deadline = time.monotonic() + 60
    while " is UP" not in inside(container, "scontrol", "ping", check=False):
        if time.monotonic() > deadline:
            sys.exit(f"The controller does not answer; see {FOLDER}/slurmctld.log in {container}.")
        time.sleep(0.05)


def register(container: str, made: list[config.SlurmConfigFiles], first: int) -> None:
    """Register nodes with the controller by their definitions, in one process."""
    lines = [
        f"create nodename=n{number} {documents.definition} state=CLOUD"
        for number, documents in enumerate(made, start=first)
    ]
    inside(container, "scontrol", stdin="\n".join([*lines, "quit", ""]))


def main() -> int:
    """Measure, and print the results. Returns 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--container", default="gpumesh-lab-n1", help="a running container that has slurmctld and munge"
    )
    container = parser.parse_args().container

    few_files, _few = timed(lambda: members(FEW), 5)
    many_files, made = timed(lambda: members(MANY), 3)
    same = all(documents.served_files == made[0].served_files for documents in made)

    hostname = inside(container, "hostname", "-s").strip()
    release = parse_version(inside(container, "slurmctld", "-V"))
    try:
        starting, _started = timed(lambda: start(container, hostname))
        few_nodes, _few = timed(lambda: register(container, made[:FEW], 1))
        many_nodes, _many = timed(lambda: register(container, made[FEW:], FEW + 1))
        as_json = release >= (23, 2, 0)
        asking = ("scontrol", "show", "node", "--json") if as_json else ("scontrol", "show", "-o", "node")
        asked, answer = timed(lambda: inside(container, *asking), 3)
        parse = show.parse_nodes_json if as_json else show.parse_nodes_text
        reading, nodes = timed(lambda: parse(answer), 3)
    finally:
        inside(container, "sh", "-c", f"kill $(cat {FOLDER}/pid); sleep 1; rm -rf {FOLDER}", check=False)

    rows = [
        ["files", f"{few_files * 1e3:.1f} ms", f"{many_files * 1e3:.1f} ms", f"{many_files / few_files:.0f}"],
        ["register", f"{few_nodes:.2f} s", f"{many_nodes:.2f} s", f"{many_nodes / few_nodes:.0f}"],
        ["ask", "", f"{asked:.2f} s", ""],
        ["read", "", f"{reading * 1e3:.0f} ms", ""],
    ]
    print(render_table(rows, ["", f"{FEW} nodes", f"{MANY} nodes", "ratio"]))
    print(
        f"slurmctld {'.'.join(map(str, release))} answered {starting:.2f} s after its start and knows {len(nodes)} nodes."
    )
    print(f"The served files of {MANY} members are {'identical' if same else 'DIFFERENT'}.")
    right = {node["name"] for node in nodes} == {f"n{number}" for number in range(1, MANY + 1)}
    return 0 if right and same and all(node["cpus"] == 128 for node in nodes) else 1


if __name__ == "__main__":
    sys.exit(main())
