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

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import run as health_run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState, Judgement
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


@pytest.mark.parametrize("name", ["two RTX 4090", "p6-b300.48xlarge"])
def test_a_port_that_becomes_active_later_is_not_left_to_nccl(name: str, tmp_path: Path) -> None:
    machine = machines.MACHINES[name]
    unused = machines.Card("mlx5_9", "ens9", machines.ROCE, 10, state=machines.DOWN)
    cards = [card for card in machine.cards if not card.is_bridge]
    machine = machine._replace(cards=[*cards, unused])
    conf = parse_conf(files.render_nccl_conf(host_settings(machine, machines.create_tree(tmp_path, machine))))
    assert "rdmap86s0:1" in conf["NCCL_IB_HCA"] if "p6" in name else conf["NCCL_IB_DISABLE"] == "1"


def judge_health(machine: machines.Machine, tree: Tree, drains: bool = False) -> Judgement:
    """health.rdma of the machine, as it was when its settings were written."""
    settings_path = Path(tree.path(files.SETTINGS_PATH.lstrip("/")))
    if not settings_path.exists():
        settings_path.parent.mkdir(parents=True)
        settings_path.write_text(json.dumps(host_settings(machine, tree)), encoding="utf-8")
    context = health_run.CheckContext(ExpectedState(drains=drains), tree, answer_with(machine))
    check = next(check for check in health_run.ALL_CHECKS if check.check_id == "health.rdma")
    return check.run_check(context)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("name", machines.MACHINES)
def test_health_raises_no_false_alarm(name: str, drains: bool, get_tree: Callable[[str], Tree]) -> None:
    machine = machines.MACHINES[name]
    judged = judge_health(machine, get_tree(name), drains)
    without_rdma = not any(card.device and not card.is_bridge for card in machine.cards)
    assert judged.status == ("skipped" if without_rdma else "pass"), judged


@pytest.mark.parametrize(
    ("name", "actual"),
    [
        ("DGX Spark, one cable to another machine", "4 at 200 Gbit/s; jobs use 1 of 4"),
        ("HGX H200, 8 rails, cluster on a management card", "8 at 400 Gbit/s, 1 at 25 Gbit/s; jobs use 8 of 9"),
        ("RoCE ports with link-local addresses only", "2 at 100 Gbit/s; jobs use none of 2"),
        ("DGX H100, a member at another site", "8 at 400 Gbit/s"),
    ],
)
def test_health_says_how_many_ports_jobs_use(name: str, actual: str, get_tree: Callable[[str], Tree]) -> None:
    assert judge_health(machines.MACHINES[name], get_tree(name)).actual == actual


def change_cards(machine: machines.Machine, **changed: machines.Card) -> machines.Machine:
    return machine._replace(cards=[changed.get(card.device, card) for card in machine.cards])


def judge_changed_health(
    name: str,
    device: str,
    tmp_path: Path,
    drains: bool = False,
    named: list[str] | None = None,
    peers: list[str] | None = None,
    **changed: Any,
) -> Judgement:
    """health.rdma of the machine after a port has changed. ``named``: the ports that jobs use, if they differ."""
    machine = machines.MACHINES[name]
    settings = host_settings(machine, machines.create_tree(tmp_path / "before", machine))
    settings["rdma"]["devices"] = named or settings["rdma"]["devices"]
    settings["rdma"]["peers"] = peers or settings["rdma"]["peers"]
    card = next(card for card in machine.cards if card.device == device)
    machine = change_cards(machine, **{device: card._replace(**changed)})
    tree = machines.create_tree(tmp_path / "after", machine)
    settings_path = tmp_path / "after/etc/gpumesh/job_environment.json"
    settings_path.parent.mkdir(parents=True)
    settings_path.write_text(json.dumps(settings), encoding="utf-8")
    return judge_health(machine, tree, drains)


SPARK, H200 = "DGX Spark, one cable to another machine", "HGX H200, 8 rails, cluster on a management card"


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize("address", ["", "169.254.3.7/16"])
def test_a_rail_without_an_address_is_a_failure(address: str, drains: bool, tmp_path: Path) -> None:
    judged = judge_changed_health(H200, "mlx5_3", tmp_path, drains, address=address)
    assert (judged.status, judged.actual, judged.required) == ("fail", "7 of 8", 8)
    assert judged.reason.endswith("mlx5_3:1 has no address that other members can reach.")


def test_a_rail_without_a_link_is_named_by_its_link(tmp_path: Path) -> None:
    judged = judge_changed_health(H200, "mlx5_3", tmp_path, state=machines.DOWN, rate=10)
    assert judged.status == "fail" and "mlx5_3:1 is not active" in judged.reason


def test_ports_of_other_networks_in_the_jobs_settings_are_a_failure(tmp_path: Path) -> None:
    """An earlier version named every active port: case 12, in which NCCL hangs."""
    named = ["roceP2p1s0f0:1", "roceP2p1s0f1:1", "rocep1s0f0:1", "rocep1s0f1:1"]
    judged = judge_changed_health(SPARK, "rocep1s0f0", tmp_path, named=named)
    assert (judged.status, judged.actual) == ("fail", "2 of 4")
    assert "roceP2p1s0f0:1 has no address" in judged.reason and "rocep1s0f1:1 has no address" in judged.reason


@pytest.mark.parametrize(("drains", "status"), [(False, "fail"), (True, "pass")])
def test_a_port_of_another_network_is_not_a_fault_of_the_node(drains: bool, status: str, tmp_path: Path) -> None:
    named = ["roceP2p1s0f1:1", "rocep1s0f0:1"]
    judged = judge_changed_health(SPARK, "rocep1s0f0", tmp_path, drains, named)
    assert judged.status == status
    assert ("rocep1s0f0:1 does not lead to the cluster's network" in judged.reason) == (status == "fail")


def test_a_slow_rail_is_still_a_failure(tmp_path: Path) -> None:
    judged = judge_changed_health(H200, "mlx5_3", tmp_path, rate=200)
    assert judged.reason == "mlx5_3:1 at 200 Gbit/s."


def test_ports_that_lead_to_no_other_member_need_no_address(tmp_path: Path) -> None:
    """The only host of a site, whose jobs with other hosts use no RDMA."""
    judged = judge_changed_health(H200, "mlx5_3", tmp_path, drains=True, peers=["n1"], address="")
    assert judged.status == "pass"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"interface": "eth0"}', '{"rdma": [], "variables": {}}'])
def test_health_without_settings_of_jobs_judges_the_ports_alone(text: str, tmp_path: Path) -> None:
    machine = machines.MACHINES[SPARK]
    tree = machines.create_tree(tmp_path, machine)
    settings_path = tmp_path / "etc/gpumesh/job_environment.json"
    settings_path.parent.mkdir(parents=True)
    settings_path.write_text(text, encoding="utf-8")
    assert judge_health(machine, tree).actual == "4 at 200 Gbit/s"


def test_ports_that_the_site_has_chosen_itself_are_not_judged(tmp_path: Path) -> None:
    machine = machines.MACHINES[SPARK]
    tree = machines.create_tree(tmp_path, machine)
    settings = {**host_settings(machine, tree), "variables": {"NCCL_IB_HCA": "mlx5"}}
    settings_path = tmp_path / "etc/gpumesh/job_environment.json"
    settings_path.parent.mkdir(parents=True)
    settings_path.write_text(json.dumps(settings), encoding="utf-8")
    assert judge_health(machine, tree).actual == "4 at 200 Gbit/s"
