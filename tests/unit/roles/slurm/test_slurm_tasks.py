# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role slurm would do on new hosts, and the number of tasks on each of them."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import ROOT, AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.module_runs import write_programs
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_plays, run_tasks

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)


def run_check(folder: Path, entry: str = "main", **variables: object) -> AnsibleRun:
    """Run the role in check mode, on the members n1, the manager, and n2."""
    role = {"ansible.builtin.include_role": {"name": "gpumesh.cluster.slurm", "tasks_from": entry}}
    given = {"cluster_record": RECORD, **variables}
    return run_tasks(folder, {"n1": {}, "n2": {}}, given, [role], "--check", "--diff")


def recap(run: AnsibleRun, host: str) -> dict[str, int]:
    line = re.search(rf"^{host} +: (.*)$", run.output, re.MULTILINE)
    assert line, run.output
    return {name: int(count) for name, count in (pair.split("=") for pair in line.group(1).split())}


@pytest.fixture(name="fresh", scope="module")
def _fresh(tmp_path_factory: pytest.TempPathFactory) -> AnsibleRun:
    return run_check(tmp_path_factory.mktemp("fresh"), slurm_rest=True)


def test_check_mode_reports_the_planned_changes(fresh: AnsibleRun) -> None:
    assert fresh.exit_status == 0, fresh.output
    for file in ("node/slurmd.env", "slurm.conf"):
        assert f"+## {file}" in fresh.output
    assert "+slurmd" in fresh.output and "+slurmrestd" in fresh.output


def test_a_member_takes_part_in_few_tasks(fresh: AnsibleRun) -> None:
    # Two of them are Ansible's own, for the role.
    assert recap(fresh, "n2")["ok"] == 3, fresh.output
    # The queue, the controller's configuration, its services, and a node that has changed.
    assert recap(fresh, "n2")["skipped"] == 4, fresh.output
    assert recap(fresh, "n1")["ok"] == 6, fresh.output
    assert recap(fresh, "n1")["skipped"] == 3, fresh.output


def test_slurm_can_run_after_a_handover(tmp_path: Path) -> None:
    run = run_check(tmp_path, cluster_record=plan.commit(plan.hand_over(RECORD, "n2"), STAMP))
    assert run.exit_status == 0, run.output
    assert "Check whether the former manager has the queue" in run.flat_output
    _before, _task, configured = run.output.partition(
        "TASK [gpumesh.cluster.slurm : Write the controller's configuration]"
    )
    assert "skipping: [n1]" in configured.partition("TASK [")[0]
    assert "changed: [n2]" in configured.partition("TASK [")[0]


#: What Slurm shows of each node, None for a failing scontrol, and what is said about it.
NOT_READY = {
    "n2": ("", "It did not register with the controller on n1."),
    "n3": (
        "NodeName=n3 State=DOWN+NOT_RESPONDING Reason=Not responding [slurm@2026-11-20T20:31:00]",
        "Its state in Slurm is down not_responding (Not responding).",
    ),
    "n4": ("NodeName=n4 State=UNKNOWN", "Its state in Slurm is unknown (no reason was given)."),
    "n5": (None, "'scontrol show -o node' exited 1: "),
}


def test_a_node_that_does_not_become_ready_is_explained(tmp_path: Path) -> None:
    for name, (shown, _words) in NOT_READY.items():
        answer = "echo no controller >&2; exit 1" if shown is None else f"echo '{shown}'"
        script = f'[ "$1" = -V ] && echo slurm-wlm 22.05.8 && exit; {answer}'
        write_programs(tmp_path / name, {"scontrol": script})
    members = [{"machine": name, "address": f"10.0.0.{name[1]}", "interface": "eth0"} for name in ("n1", *NOT_READY)]
    play = {
        "hosts": ",".join(NOT_READY),
        "vars": {
            "cluster_record": plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {}, members, STAMP), STAMP),
            "slurm_ready_timeout": 2,
            # slurmd has just been started.
            "__slurm_run": {"changed": True, "redefined": False, "leftover": False, "slurm_node": True},
            "__slurm_nodes": {"nodes": [], "readiness": {}},
        },
        "tasks": [{"ansible.builtin.include_role": {"name": "gpumesh.cluster.slurm", "tasks_from": "settle"}}],
        "environment": {"PATH": f"{tmp_path}/{{{{ inventory_hostname }}}}:{os.environ['PATH']}"},
    }
    run = run_plays(tmp_path, {name: {} for name in ("n1", *NOT_READY)}, [play])
    assert run.exit_status == 2, run.output
    said = run.flat_output.partition("TASK [gpumesh.cluster.slurm : Explain why the node does not accept jobs]")[2]
    for name, (_shown, words) in NOT_READY.items():
        of_node = said.partition(f"{name}: The node does not accept jobs after 2 s. ")[2].partition("fatal:")[0]
        assert words in of_node, said
        assert f"See /var/log/slurm/slurmd.log on {name} and /var/log/slurm/slurmctld.log on n1." in of_node


READY, DOWN = {"ready": True}, {"ready": False}
SETTLING = ("Apply changes to the node", "Register the current definition of the node, or withdraw it")
#: What the module returns, and the controller's node of that name if it has one; and which steps follow. The last one
#: waits until the node is ready.
STEPS: dict[str, tuple[dict[str, Any], dict[str, Any] | None, tuple[bool, bool, bool]]] = {
    "a node that is ready": ({"slurm_node": True}, READY, (False, False, True)),
    "a node that is down": ({"slurm_node": True}, DOWN, (True, False, True)),
    "a node with another definition": ({"slurm_node": True, "redefined": True}, READY, (True, True, True)),
    "a node that the controller has lost": ({"slurm_node": True}, None, (True, True, True)),
    "a node that has just been started": ({"slurm_node": True, "changed": True}, None, (True, False, True)),
    "a member without jobs": ({"slurm_node": False}, None, (False, False, False)),
    "a member without jobs, set up": ({"slurm_node": False, "changed": True}, None, (False, False, False)),
    "a node that is to run no jobs": ({"slurm_node": False, "redefined": True}, READY, (True, True, False)),
    # The machine was installed again meanwhile, and only the controller remembers its node.
    "a node of which nothing is left": ({"slurm_node": False, "changed": True}, DOWN, (True, True, False)),
}


def test_nodes_register_and_what_runs_no_jobs_is_withdrawn(tmp_path: Path) -> None:
    role = ROOT / "roles" / "slurm"
    main, settle = (
        yaml.safe_load((role / "tasks" / f"{name}.yml").read_text(encoding="utf-8")) for name in ("main", "settle")
    )
    steps = {task["name"]: task["when"] for task in [*main, *settle] if "when" in task}
    tasks = [
        {
            "name": name,
            "ansible.builtin.debug": {"msg": f"{{{{ inventory_hostname }}}}: step {number}"},
            "when": steps[name],
        }
        for number, name in enumerate((*SETTLING, "Wait until the node is ready"))
    ]
    hosts = {
        name: {
            "__slurm_run": {"changed": False, "redefined": False, "leftover": False, **result},
            "__slurm_nodes": {"readiness": {"another": True, **({name: node["ready"]} if node else {})}},
        }
        for name, (result, node, _steps) in STEPS.items()
    }
    variables = yaml.safe_load((role / "vars" / "main.yml").read_text(encoding="utf-8"))
    run = run_tasks(tmp_path, hosts, variables, tasks)
    assert run.exit_status == 0, run.output
    for name, (_result, _node, expected) in STEPS.items():
        assert tuple(f"{name}: step {number}" in run.output for number in range(3)) == expected, name


def test_a_withdrawal_that_was_interrupted_and_given_up_ends(tmp_path: Path) -> None:
    """A node that somebody else has drained stays so."""
    settle = yaml.safe_load((ROOT / "roles" / "slurm" / "tasks" / "settle.yml").read_text(encoding="utf-8"))
    (wait,) = [task for task in settle if task["name"] == "Wait until the node is ready"]
    (condition,) = [task["when"] for task in wait["block"] if task["name"].startswith("Return a node to service")]
    reasons = {"withdrawn": "gpumesh: is to run no jobs", "theirs": "is to run no jobs", "in service": ""}
    hosts = {
        name: {"__slurm_nodes": {"nodes": [{"name": name, "reason": reason}, {"name": "another", "reason": reason}]}}
        for name, reason in reasons.items()
    }
    done = run_tasks(
        tmp_path,
        {**hosts, "unknown": hosts["withdrawn"]},
        {},
        [{"ansible.builtin.debug": {"msg": "{{ inventory_hostname }} resumes"}, "when": condition}],
    )
    assert {name for name in (*hosts, "unknown") if f"{name} resumes" in done.output} == {"withdrawn"}, done.output


def test_hosts_without_slurm_can_be_removed(tmp_path: Path) -> None:
    run = run_check(tmp_path, entry="leave")
    assert run.exit_status == 0, run.output
