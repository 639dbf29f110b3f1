# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment that follows from the network cards of known machines, which is in the table machines.txt."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import known_machines as machines
import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import files, host

ROOT = Path(__file__).parents[5]
TABLE = Path(__file__).with_name("machines.txt")


def load_prolog() -> Any:
    spec = importlib.util.spec_from_file_location("task_prolog", ROOT / "roles/job_environment/files/task_prolog.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prolog = load_prolog()


def job_settings(machine: machines.Machine) -> dict[str, Any]:
    """What the controller sends."""
    interface, address = machine.cluster
    own_address = ipaddress.ip_interface(address).ip
    members = {"n1": str(own_address), "n2": str(own_address + 1)}
    peers = ["n1"] if machine.is_split else [*members]
    return {
        "cluster": "lab",
        "members": members,
        "interface": interface,
        "port_range": [15000, 24999],
        "reserved_ports": [],
        "dialects": [],
        "rdma": {"devices": [], "peers": peers, "plugin_peers": peers},
        "variables": {},
    }


def answer_with(machine: machines.Machine) -> Any:
    return lambda *_args, **_options: CommandResult(0, machines.print_addresses(machine), "")


def host_settings(machine: machines.Machine, tree: Tree) -> dict[str, Any]:
    """The content of job_environment.json on the machine."""
    settings = job_settings(machine)
    return files.add_rdma_devices(settings, host.read_job_host(answer_with(machine), tree, settings), rdma_enabled=True)


def parse_conf(text: str) -> dict[str, str]:
    """The variables that NCCL reads (setEnvFile in its param.cc): # only in the first column, the first = separates."""
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#") and "=" in line)


def job_variables(settings: dict[str, Any]) -> dict[str, str]:
    """What the task prolog sets for communication libraries in a job of all members."""
    read = prolog.Settings(json.dumps(settings))
    nodes = [prolog.Node(name, address, 0, 1, 1) for name, address in read.members.items()]
    world = prolog.World(1, 0, nodes, 0, len(nodes), 0, 0, nodes[0].address, False)
    found: dict[str, str] = prolog.network_variables(world, read.interface, read.rdma)
    return found


def describe_environment(machine: machines.Machine, tree: Tree) -> str:
    settings = host_settings(machine, tree)
    conf, variables = parse_conf(files.render_nccl_conf(settings)), job_variables(settings)
    lines = []
    for name in sorted({*conf, *variables}):
        value = variables.get(name, conf.get(name))
        where = "" if name not in conf else "conf only" if name not in variables else "conf"
        if name in variables and name in conf and conf[name] != value:
            where = f"conf has {conf[name]}"
        lines.append(f"  {name:28}{value:12}  {where}".rstrip())
    return "\n".join(lines)


def read_table() -> dict[str, str]:
    blocks = [block.partition("\n") for block in TABLE.read_text(encoding="utf-8").split("\n\n")[1:]]
    return {name: lines.rstrip("\n") for name, _newline, lines in blocks}


@pytest.fixture(name="get_tree", scope="module")
def _get_tree(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tree]:
    """The files of a machine by its name, which are only written once."""
    return cache(
        lambda name: machines.create_tree(tmp_path_factory.mktemp("machine") / "root", machines.MACHINES[name])
    )


@pytest.mark.parametrize("name", machines.MACHINES)
def test_environment_of_a_machine(name: str, get_tree: Callable[[str], Tree]) -> None:
    assert describe_environment(machines.MACHINES[name], get_tree(name)) == read_table()[name]


def test_the_table_has_no_other_machine() -> None:
    assert read_table().keys() == machines.MACHINES.keys()


@pytest.mark.parametrize("name", machines.MACHINES)
def test_each_variable_has_its_reason(name: str, get_tree: Callable[[str], Tree]) -> None:
    lines = files.render_nccl_conf(host_settings(machines.MACHINES[name], get_tree(name))).splitlines()
    assert [line[0] for line in lines] == ["#", "N"] * (len(lines) // 2)
    # To NCCL before it knew comments, these would have been variables.
    assert not [line for line in lines if line.startswith("#") and "=" in line]
    # NCCL reads at most 1023 characters of a line, and of a value.
    assert max(map(len, lines)) < 1023
