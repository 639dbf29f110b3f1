# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reboots of a cluster, with given results instead of the modules: their order, and where they stop."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.store import Store
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays

ROLE = ROOT / "roles" / "cluster"
#: Takes the next result for its host from a file; the last one stays.
ACTION = """
import json
import pathlib

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        module, host = self._task.args["module"], task_vars["inventory_hostname"]
        path = pathlib.Path(self._task.args["file"])
        told = json.loads(path.read_text())
        told["calls"].append([host, module, self._task.args["given"]])
        results = told["results"].get(host, {}).get(module) or [{}]
        result = results.pop(0) if len(results) > 1 else results[0]
        path.write_text(json.dumps(told, default=str))
        return {"changed": False, "msg": "", **result}
"""
REPLACED = (
    "gpumesh.cluster.cluster_drain",
    "gpumesh.cluster.node_health",
    "gpumesh.cluster.slurm_info",
    "gpumesh.cluster.slurm_node",
    "ansible.builtin.reboot",
)
PASS, NO_CLOCK = {"id": "health.disk", "status": "pass"}, {"id": "health.clock", "status": "fail", "reason": "no NTP"}
NO_VOLUME = {"id": "storage.mounts", "status": "fail", "reason": "/data is not mounted"}


def node(started: int | None, *flags: str) -> dict[str, Any]:
    return {"nodes": [{"name": "n", "slurmd_started": started, "flags": ["drain", *flags]}]}


WORKS: dict[str, list[dict[str, Any]]] = {
    "cluster_drain": [{"nodes": ["n"], "drained": ["n"], "left_alone": {}, "changed": True}],
    "node_health": [{"checks": [PASS, NO_CLOCK]}, {"checks": [NO_CLOCK, NO_VOLUME]}, {"checks": [PASS, NO_CLOCK]}],
    # As before the reboot, not known, not connected yet, and back.
    "slurm_info": [node(7), node(7), {"nodes": []}, node(None), node(9, "not_responding"), node(9)],
    "slurm_node": [{"left_alone": {}, "changed": True}],
}


def replaced(tasks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tasks, with the modules replaced."""
    found = []
    for task in tasks:
        changed = {key: replaced(value) if key in ("block", "rescue") else value for key, value in task.items()}
        for action in set(REPLACED) & set(task):
            given = {"file": "{{ told_file }}", "module": action.split(".")[-1]}
            changed["stub"] = {**given, "given": changed.pop(action)}
        if "delay" in changed:
            changed["delay"] = 0
        found.append(changed)
    return found


def reboot(
    folder: Path, results: Mapping[str, Mapping[str, Any]], *options: str, **own: Any
) -> tuple[AnsibleRun, list[list[Any]]]:
    """Run the play that reboots, for n2, n3 and the manager n1. Returns the run, and the calls of modules."""
    (folder / "action_plugins").mkdir()
    (folder / "action_plugins" / "stub.py").write_text(ACTION, encoding="utf-8")
    told = folder / "told.json"
    told.write_text(json.dumps({"calls": [], "results": results}), encoding="utf-8")
    _first, play = yaml.safe_load((ROOT / "playbooks" / "reboot.yml").read_text(encoding="utf-8"))
    role_vars = yaml.safe_load((ROLE / "vars" / "main.yml").read_text(encoding="utf-8"))
    tasks = yaml.safe_load((ROLE / "tasks" / "reboot_node.yml").read_text(encoding="utf-8"))
    order = {"cluster_play_reboots": ["n2", "n3", "n1"]}
    plays = [
        {
            "hosts": "all",
            "tasks": [
                {
                    "ansible.builtin.set_fact": order,
                    "run_once": True,
                    "delegate_to": "localhost",
                    "delegate_facts": True,
                }
            ],
        },
        {
            **play,
            "become": False,
            "tasks": replaced(tasks),
            "vars": {
                **role_vars,
                "cluster_record": {"manager": "n1"},
                "__cluster_reboot": {"timeout": 60},
                "told_file": str(told),
                **own,
            },
        },
    ]
    run = run_plays(folder, {name: {} for name in ("n1", "n2", "n3")}, plays, None, *options)
    return run, json.loads(told.read_text(encoding="utf-8"))["calls"]


def test_one_machine_is_rebooted_after_the_other(tmp_path: Path) -> None:
    run, calls = reboot(tmp_path, dict.fromkeys(("n1", "n2", "n3"), WORKS))
    assert run.exit_status == 0, run.output
    steps = [(host, module) for host, module, _given in calls]
    assert list(dict.fromkeys(host for host, _module in steps)) == ["n2", "n3", "n1"]
    assert [module for host, module in steps if host == "n2"] == [
        *("cluster_drain", "node_health", "slurm_info", "reboot", "node_health", "node_health"),
        *(["slurm_info"] * 5),
        "slurm_node",
    ]
    given = {(host, module): arguments for host, module, arguments in calls}
    drained = {"record": "cluster_record", "machines": ["n3"], "purpose": "reboot"}
    assert given["n3", "cluster_drain"] == drained
    assert given["n3", "slurm_node"] == {"name": ["n"], "state": "idle", "wait": 300}


@pytest.mark.parametrize(
    ("module", "results", "said"),
    [
        ("reboot", [{"failed": True, "msg": "Timed out waiting"}], "(Reboot the machine): Timed out waiting."),
        (
            "node_health",
            [{"checks": [PASS]}, {"checks": [NO_VOLUME]}],
            "(Wait until the layers are back): new faults: /data is not mounted.",
        ),
        ("slurm_info", [node(7)], "(Wait until the node has registered again): not within 60 s."),
    ],
)
def test_a_machine_that_does_not_come_back_stays_drained_and_ends_the_run(
    tmp_path: Path, module: str, results: list[Any], said: str
) -> None:
    run, calls = reboot(tmp_path, {"n2": WORKS, "n3": {**WORKS, module: results}, "n1": WORKS})
    assert run.exit_status != 0
    assert f"n3 is not back as it was {said}" in run.flat_output, run.output
    assert "Its node stays drained. Once it works: scontrol update nodename=n3 state=resume." in run.flat_output
    assert "Not rebooted: n1. To continue with them, run this again with --limit n1." in run.flat_output
    assert ("n3", "slurm_node") not in {(host, module) for host, module, _given in calls}
    assert "n1" not in {host for host, _module, _given in calls}


def test_a_machine_whose_jobs_do_not_end_ends_the_run_before_its_reboot(tmp_path: Path) -> None:
    late = {"failed": True, "msg": "After 60 s: n2 still has jobs."}
    run, calls = reboot(tmp_path, {"n2": {**WORKS, "cluster_drain": [late]}})
    assert run.exit_status != 0
    assert [(host, module) for host, module, _given in calls] == [("n2", "cluster_drain")]


def test_a_machine_without_a_node_is_rebooted(tmp_path: Path) -> None:
    """Without Slurm, or if it is not a node of it."""
    no_node = {**WORKS, "cluster_drain": [{"nodes": [], "drained": [], "left_alone": {}}]}
    run, calls = reboot(tmp_path, dict.fromkeys(("n1", "n2", "n3"), no_node), cluster_userspace_only=["n3"])
    assert run.exit_status == 0, run.output
    steps = [(host, module) for host, module, _given in calls]
    assert [module for host, module in steps if host == "n2"] == [
        *("cluster_drain", "node_health", "reboot", "node_health", "node_health")
    ]
    assert [module for host, module in steps if host == "n3"] == ["cluster_drain", "reboot"]


def test_a_node_that_others_have_drained_is_named(tmp_path: Path) -> None:
    kept = {**WORKS, "slurm_node": [{"left_alone": {"n2": "replacing the fan"}}]}
    run, _calls = reboot(tmp_path, {"n1": WORKS, "n2": kept, "n3": WORKS})
    assert run.exit_status == 0, run.output
    assert "n2 stays out of service, since others have drained it: replacing the fan" in run.flat_output


def test_a_node_that_was_out_of_service_before_is_named_and_not_resumed(tmp_path: Path) -> None:
    kept = {**WORKS, "cluster_drain": [{"nodes": ["n"], "drained": [], "left_alone": {"n2": "bad PSU"}}]}
    run, calls = reboot(tmp_path, {"n1": WORKS, "n2": kept, "n3": WORKS})
    assert run.exit_status == 0, run.output
    assert "n2 stays out of service, since others have drained it: bad PSU" in run.flat_output
    assert ("n2", "reboot") in {(host, module) for host, module, _given in calls}
    assert ("n2", "slurm_node") not in {(host, module) for host, module, _given in calls}


def test_a_machine_that_is_not_rebooted_accepts_jobs_again(tmp_path: Path) -> None:
    broken = {**WORKS, "node_health": [{"failed": True, "msg": "no Python"}]}
    run, calls = reboot(tmp_path, {"n1": WORKS, "n2": broken, "n3": WORKS})
    assert run.exit_status != 0
    assert "n2 was not rebooted (Check the health of the machine): no Python" in run.flat_output, run.output
    assert "stays drained" not in run.flat_output
    assert [module for _host, module, _given in calls] == ["cluster_drain", "node_health", "slurm_node"]


def test_check_mode_waits_for_nothing(tmp_path: Path) -> None:
    """The modules say what they would do, and nothing is asked again until it has changed."""
    run, calls = reboot(tmp_path, dict.fromkeys(("n1", "n2", "n3"), WORKS), "--check")
    assert run.exit_status == 0, run.output
    asked = ["cluster_drain", "slurm_info", "reboot", "slurm_node"]
    assert [(host, module) for host, module, _given in calls] == [
        (host, module) for host in ("n2", "n3", "n1") for module in asked
    ]


STAMP = plan.ChangeStamp("2026-11-22T07:00:00Z", "alice@desk")
MACHINES = ("n1", "n2", "n3")
ENTRIES = [{"machine": name, "address": f"10.77.0.{n}", "interface": "eth0"} for n, name in enumerate(MACHINES, 1)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {}, ENTRIES, STAMP), STAMP)
#: All hosts are this machine, so each has a folder of its own.
RECORDS = {"path": "{{ playbook_dir }}/{{ item.machine | default(inventory_hostname) }}"}


@pytest.mark.parametrize(
    ("down", "options", "said"),
    [
        (["n3"], [], "n3: unreachable or failed, as shown above. Nothing has been rebooted."),
        (["n1"], ["--limit", "n2,n3"], "The manager n1 does not answer, so no node can be drained."),
        # Whether this machine is a container or not.
        ([], ["--limit", "n2"], "(No machine can be rebooted. n2 is |n2 is the machine that runs Ansible)"),
    ],
)
def test_nothing_is_rebooted_if_not_all_can_be(tmp_path: Path, down: list[str], options: list[str], said: str) -> None:
    for name in MACHINES:
        (tmp_path / name).mkdir(mode=0o700)
        Store(str(tmp_path / name), "lab").write(RECORD)
    first, later = yaml.safe_load((ROOT / "playbooks" / "reboot.yml").read_text(encoding="utf-8"))
    play = {
        **first,
        "hosts": "cluster",
        "become": False,
        "vars": {"cluster_name": "lab", "cluster_manager": "n1"},
        "module_defaults": {"gpumesh.cluster.cluster_info": RECORDS, "gpumesh.cluster.host_owner": RECORDS},
    }
    nothing_listens = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {name: nothing_listens if name in down else {} for name in MACHINES}
    reached = {**later, "become": False, "tasks": [{"ansible.builtin.debug": {"msg": "rebooted"}}]}
    run = run_plays(tmp_path, hosts, [play, reached], {"cluster": MACHINES}, *options)
    assert run.exit_status not in (0, 1), run.output
    assert re.search(said, run.flat_output), run.output
    assert "Reboot one machine after the other" not in run.output
