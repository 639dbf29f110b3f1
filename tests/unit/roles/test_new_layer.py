# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A new layer in a copy of the collection: a few files of its own, and a line in each of two others."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import registry

ROOT = Path(__file__).resolve().parents[3]
LAYERS = [layer.name for layer in registry.LAYERS]
LICENSE = "".join((ROOT / "plugins" / "lookup" / "layers.py").read_text(encoding="utf-8").splitlines(True)[:3])

CONTROLLER = """
from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.layer import SCHEDULER, Layer, Ports

LAYER = Layer(
    "scratch",
    SCHEDULER,
    options=("scratch_path",),
    desired_parameters=lambda record, machine, options: {"cluster": record["name"], "path": options["scratch_path"]},
    connects=True,
    ports=lambda record, options: Ports(tcp=["4711"]),
    title="Scratch",
    describe=lambda record: "local disks",
)
"""
HOST = """
from __future__ import annotations

import os
from typing import Any, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import LayerDifferences


def find_differences(run: Runner, params: Mapping[str, Any]) -> LayerDifferences:
    missing = [] if os.path.isdir(params["path"]) else [params["path"] + " is missing"]
    return LayerDifferences(missing, bool(missing))
"""
SPECIFICATION = {
    "argument_specs": {
        "main": {"options": {"scratch_path": {"type": "path", "default": "/scratch"}, "scratch_size": {"type": "int"}}},
        "leave": {"options": {}},
    }
}
#: What goes through all layers, with the new one. The record is that of a cluster of n1 and n2.
PROGRAM = """
import json, sys
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import drift as host_drift
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import verdict
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster import drift, overview
from ansible_collections.gpumesh.cluster.tests.support.action_runs import play_action
from ansible_collections.gpumesh.cluster.plugins.action import firewall, layer_info, role_options

stamp = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
members = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
record = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, members, stamp), stamp)
host = {"inventory_hostname": "n1", "ansible_play_batch": ["n1"], "scratch_path": sys.argv[1]}
asked = play_action(layer_info.ActionModule, {"record": record}, {"gpumesh.cluster.layer_info": [{"drift": {}}]}, host)
(_module, options), = asked.module_calls
drifts = host_drift.compare_modules(None, {"scratch": options["modules"]["scratch"]}).drift
states = {"n1": {"host": {**asked.result, "munge_key": "a", "drift": drifts}}}
ports = play_action(
    firewall.ActionModule, {"record": record}, {"gpumesh.cluster.firewall": [{"changed": False, "tools": True}]}, host
)
wrong = play_action(role_options.ActionModule, {"roles": ["scratch"]}, {}, {**host, "scratch_size": "wide"})
sections = verdict._summarise_sections(record, [{"id": "scratch.space", "status": "pass"}])
print(json.dumps({
    "should have": asked.result["layers"],
    "drift": drift.compare_member(record, "n1", states),
    "without connections": drift.compare_member(record, "n1", {"n1": {"host": {**states["n1"]["host"], "userspace_only": True}}}),
    "ports": ports.module_calls[0][1]["tcp_ports"],
    "options": wrong.result.get("invalid"),
    "section": [section for section in sections if section["id"] == "scratch"],
}))
"""


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the collection in which all roles only say their name, with the layer `scratch`."""
    root = tmp_path_factory.mktemp("collections") / "ansible_collections" / "gpumesh" / "cluster"
    for name in ("plugins", "roles", "playbooks", "meta"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tests").mkdir()
    shutil.copytree(
        ROOT / "tests" / "support", root / "tests" / "support", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "tests" / "__init__.py", root / "tests" / "__init__.py")
    (root / "plugins" / "plugin_utils" / "_layers" / "scratch.py").write_text(LICENSE + CONTROLLER, encoding="utf-8")
    (root / "plugins" / "module_utils" / "_layers" / "scratch.py").write_text(LICENSE + HOST, encoding="utf-8")
    (root / "roles" / "scratch" / "tasks").mkdir(parents=True)
    (root / "roles" / "scratch" / "meta").mkdir()
    (root / "roles" / "scratch" / "meta" / "argument_specs.yml").write_text(json.dumps(SPECIFICATION), encoding="utf-8")
    add_line(
        root / "plugins" / "plugin_utils" / "_layers" / "registry.py", "    train.LAYER,\n", "    scratch.LAYER,\n"
    )
    add_line(root / "plugins" / "plugin_utils" / "_layers" / "registry.py", "    munge,\n", "    scratch,\n")
    readers = root / "plugins" / "module_utils" / "_layers" / "drift.py"
    add_line(readers, '    "train": install.find_differences,\n', '    "scratch": scratch.find_differences,\n')
    imported = "from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import mounts\n"
    add_line(readers, imported, imported.replace("_layers.storage import mounts", "_layers import scratch"))
    for layer in (*LAYERS, "scratch"):
        for entry in ("main", "leave"):
            tasks = [
                {"name": "Say", "ansible.builtin.debug": {"msg": f"<{entry} {layer} on {{{{ inventory_hostname }}}}>"}}
            ]
            (root / "roles" / layer / "tasks" / f"{entry}.yml").write_text(json.dumps(tasks), encoding="utf-8")
    for action, result in (
        ("cluster_info", "{}"),
        ("host_owner", '{"member": True, "foreign_claims": task_vars["others"]}'),
    ):
        (root / "plugins" / "action" / f"{action}.py").write_text(
            "from ansible.plugins.action import ActionBase\n\n\nclass ActionModule(ActionBase):\n"
            f"    def run(self, tmp=None, task_vars=None):\n        return {result}\n",
            encoding="utf-8",
        )
    return root


def add_line(path: Path, after: str, line: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(after) == 1
    path.write_text(text.replace(after, after + line), encoding="utf-8")


def run_with(collection: Path, command: Sequence[str], folder: Path) -> str:
    """Run a program that finds the copy of the collection, and return its output."""
    paths = {"ANSIBLE_COLLECTIONS_PATH": str(collection.parents[2]), "PYTHONPATH": str(collection.parents[2])}
    completed = subprocess.run(
        command, env={**os.environ, **paths}, cwd=folder, check=False, capture_output=True, text=True, timeout=300
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def run_playbook(
    collection: Path, folder: Path, plays: Sequence[Mapping[str, Any]], hosts: Mapping[str, Any]
) -> list[str]:
    """Run plays on hosts that are all this machine. Return what the roles said on n2, in their order."""
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    (folder / "hosts.json").write_text(json.dumps({"all": {"vars": local, "hosts": hosts}}), encoding="utf-8")
    (folder / "play.yml").write_text(json.dumps(plays), encoding="utf-8")
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "hosts.json", "play.yml"]
    return re.findall(r"<(\w+ \w+) on n2>", run_with(collection, command, folder))


def first_play(**facts: Any) -> dict[str, Any]:
    """A play after which the playbooks in `layers` know the members."""
    record = {"cluster_record": {"name": "lab", "generation": 1, "id": "0" * 32}, "site_plan": False}
    handed_on = {"cluster_play_members": ["n1", "n2"], "cluster_play_nodes": ["n2"]}
    tasks = [
        {"ansible.builtin.set_fact": {**record, **facts}},
        {"ansible.builtin.set_fact": handed_on, "delegate_to": "localhost", "delegate_facts": True, "run_once": True},
    ]
    return {"hosts": "all", "gather_facts": False, "tasks": tasks}


def test_the_layer_is_set_up_after_the_others(collection: Path, tmp_path: Path) -> None:
    layers = collection / "playbooks" / "layers"
    plays = [
        first_play(),
        *({"ansible.builtin.import_playbook": str(layers / f"{name}.yml")} for name in ("base", "scheduler")),
    ]
    assert run_playbook(collection, tmp_path, plays, {"n1": {}, "n2": {}}) == [
        f"main {layer}" for layer in [*LAYERS, "scratch"]
    ]


def test_a_member_without_connections_does_not_change_the_order_of_another(collection: Path, tmp_path: Path) -> None:
    """With fewer layers it is ready first, and Ansible orders included roles as they are reported first."""
    base = str(collection / "playbooks" / "layers" / "base.yml")
    plays = [first_play(cluster_userspace_only=["n1"]), {"ansible.builtin.import_playbook": base}]
    expected = [f"main {layer.name}" for layer in registry.LAYERS if layer.stage != "scheduler"]
    assert run_playbook(collection, tmp_path, plays, {"n1": {}, "n2": {}}) == expected


@pytest.mark.parametrize("others", [[], ["munge", "slurm"]])
def test_the_layer_leaves_a_machine(collection: Path, tmp_path: Path, others: list[str]) -> None:
    role = {"name": "gpumesh.cluster.cluster", "tasks_from": "clean_up", "rolespec_validate": False}
    clean_up = {"ansible.builtin.include_role": role, "vars": {"cluster_keep_record": True}}
    play = {"hosts": "n2", "gather_facts": False, "tasks": [clean_up]}
    said = run_playbook(collection, tmp_path, [first_play(others=others), play], {"n1": {}, "n2": {}})
    own = [layer for layer in registry.leave_order() if layer.claim not in others]
    assert said == ["leave scratch", *(f"leave {layer.name}" for layer in own)]


def test_the_layer_is_seen_wherever_there_are_layers(collection: Path, tmp_path: Path) -> None:
    seen = json.loads(run_with(collection, [sys.executable, "-c", PROGRAM, str(tmp_path / "gone")], tmp_path))
    assert seen["should have"][-1] == "scratch"
    assert seen["drift"] == {"scratch": "not set up"}
    assert seen["without connections"] == {}
    assert "4711" in seen["ports"]
    assert "scratch_size" in str(seen["options"])
    (section,) = seen["section"]
    assert (section["title"], section["detail"], section["status"]) == ("Scratch", "local disks", "pass")
