# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order in which the role slurm moves a queue and runs daemons, with given results instead of Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.tests.support.given_results import replace_actions
from ansible_collections.gpumesh.cluster.tests.support.lab_hosts import AnsibleRun
from ansible_collections.gpumesh.cluster.tests.support.role_runs import run_tasks

MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2, 3)]
STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
FIRST = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
#: n2 is the manager, n1 was it before, and n3 is the first host of the play.
RECORD = plan.commit(plan.hand_over(FIRST, "n2"), STAMP)
HOSTS: dict[str, dict[str, Any]] = {"n3": {}, "n1": {}, "n2": {}}
#: Instead of the actions that change a host. Writes down the host, the action and its state, and returns what is given.
STUB = """
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        given = self._task.args
        name = self._task.action.rpartition(".")[2]
        host = self._task.delegate_to or task_vars["inventory_hostname"]
        step = " ".join([host, name, given.get("state", "present")] + [str(given[key]) for key in ("part", "restart",
                        "keep") if key in given])
        with open(task_vars["log"], "a", encoding="utf-8") as stream:
            stream.write(step + chr(10))
        results = self._templar.template(task_vars["results"])
        return {"changed": False, **results.get(step, results.get(f"{name} {given.get('state', 'present')}", {}))}
"""


def list_nodes(*names: str) -> dict[str, Any]:
    """What the controller says of nodes that accept jobs."""
    return {"nodes": [{"name": name, "ready": True} for name in names], "readiness": dict.fromkeys(names, True)}


CONTINUE_DECISION = {"action": "continue", "query": "", "retire": "", "tenures": []}
QUEUE = {"in_use": False, "marker": None, "is_node": True, "slurm_version": None}
RESULTS: dict[str, dict[str, Any]] = {
    "slurm configured": {"reload": "none"},
    "slurm present": {"redefined": False, "leftover": False, "slurm_node": True},
    "slurm_info present": list_nodes(*HOSTS),
    "slurm_state packed": {"parts": 2, "checksum": "c"},
    "slurm_state_info present": {"content": "part"},
    "slurm_state imported": {"files": []},
}
NODES = {f"{host} slurm present" for host in HOSTS}


@pytest.fixture(name="collection")
def _collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This collection, with the stub in place of some of its actions."""
    replace_actions(
        tmp_path, monkeypatch, ("slurm", "slurm_state", "slurm_state_info", "slurm_info", "slurm_node"), STUB
    )
    return tmp_path


def run(folder: Path, results: dict[str, Any], *options: str, **variables: Any) -> tuple[AnsibleRun, list[str]]:
    """Run the role, and return what happened on which host."""
    log = folder / "log"
    log.unlink(missing_ok=True)
    given = {"cluster_record": RECORD, "log": str(log), "results": {**RESULTS, **results}, **variables}
    role = {"ansible.builtin.import_role": {"name": "gpumesh.cluster.slurm"}}
    done = run_tasks(folder, HOSTS, given, [role], *options)
    return done, log.read_text(encoding="utf-8").splitlines()


def test_a_manager_with_the_current_queue_continues(collection: Path) -> None:
    done, steps = run(collection, {"n2 slurm_state_info present": {**QUEUE, "handover": CONTINUE_DECISION}})
    assert done.exit_status == 0, done.output
    assert steps[:3] == ["n2 slurm_state_info present", "n2 slurm configured", "n2 slurm served False"]
    assert set(steps[3:-1]) == NODES
    assert steps[-1] == "n2 slurm_info present"


@pytest.mark.parametrize("reload", ["none", "reconfigure", "restart"])
def test_a_controller_is_restarted_if_its_settings_require_it(collection: Path, reload: str) -> None:
    going = {"n2 slurm_state_info present": {**QUEUE, "handover": CONTINUE_DECISION}}
    steps = run(collection, {**going, "slurm configured": {"reload": reload}})[1]
    assert f"n2 slurm served {reload == 'restart'}" in steps


def test_a_new_queue_is_marked_before_the_controller_starts(collection: Path) -> None:
    marking = {"action": "mark", "query": "", "retire": "keep", "tenures": [1]}
    known = {"n2 slurm_state_info present": {**QUEUE, "handover": marking}}
    done, steps = run(collection, known)
    assert done.exit_status == 0, done.output
    assert steps[:6] == [
        "n2 slurm_state_info present",
        "n2 slurm configured",
        "n2 slurm_state retired True",
        "n2 slurm_state marked",
        "n2 slurm configured",
        "n2 slurm served False",
    ]
    assert set(steps[6:-1]) == NODES
    # The settings that it needs to restart for are those that were written first.
    restarting = {
        **known,
        "slurm configured": {
            "reload": "{{ 'restart' if lookup('ansible.builtin.file', log).count('configured') == 1 else 'none' }}"
        },
    }
    assert "n2 slurm served True" in run(collection, restarting)[1]


def test_a_later_playbook_does_not_restart_for_files_of_an_earlier_one(collection: Path) -> None:
    """What a task has registered outlasts a playbook."""
    going = {"n2 slurm_state_info present": {**QUEUE, "handover": CONTINUE_DECISION}}
    assert "n2 slurm served False" in run(collection, going, __slurm_prepared={"reload": "restart"})[1]


def test_a_queue_is_handed_over_before_the_controller_starts(collection: Path) -> None:
    results = {
        "n2 slurm_state_info present": {**QUEUE, "handover": {**CONTINUE_DECISION, "query": "n1"}},
        "n1 slurm_state_info present": {
            **QUEUE,
            "handover": {"action": "take_over", "query": "", "retire": "", "tenures": [1, 2]},
        },
    }
    done, steps = run(collection, results, slurm_former_manager="n1")
    assert done.exit_status == 0, done.output
    assert steps[:11] == [
        "n2 slurm_state_info present",
        "n1 slurm_state_info present",
        "n2 slurm configured",
        "n1 slurm_state packed",
        "n1 slurm_state_info present 0",
        "n2 slurm_state imported 0",
        "n1 slurm_state_info present 1",
        "n2 slurm_state imported 1",
        "n2 slurm_state marked",
        "n2 slurm configured",
        "n2 slurm served False",
    ]
    checked, steps = run(collection, results, "--check", slurm_former_manager="n1")
    assert checked.exit_status == 0, checked.output
    assert steps[:4] == [
        "n2 slurm_state_info present",
        "n1 slurm_state_info present",
        "n2 slurm configured",
        "n2 slurm served False",
    ]


@pytest.mark.parametrize("options", [[], ["--limit", "n3,n1"]], ids=["all", "without the manager"])
def test_no_host_changes_while_the_queue_is_elsewhere(collection: Path, options: list[str]) -> None:
    results = {
        "n2 slurm_state_info present": {**QUEUE, "handover": {**CONTINUE_DECISION, "query": "n1"}},
        "n1 slurm_state_info present": {"failed": True, "msg": "The hand-over was interrupted."},
    }
    done, steps = run(collection, results, *options)
    assert done.exit_status == 2
    assert "The hand-over was interrupted." in done.flat_output
    assert steps == ["n2 slurm_state_info present", "n1 slurm_state_info present"]


@pytest.mark.parametrize("started", [False, True], ids=["it ran before", "it has just started"])
def test_a_node_that_the_controller_lost_registers_again(collection: Path, started: bool) -> None:
    """slurmd registers when it starts. The controller may have lost its power a moment later."""
    results = {
        "n2 slurm_state_info present": {**QUEUE, "handover": CONTINUE_DECISION},
        "slurm_info present": list_nodes("n1", "n2"),
        "n3 slurm present": {**RESULTS["slurm present"], "changed": started},
    }
    done, steps = run(collection, results, slurm_ready_timeout=2)
    assert "n3: The node does not accept jobs after 2 s." in done.flat_output, done.output
    assert steps.count("n3 slurm present") == (1 if started else 2)
    assert steps.count("n1 slurm present") == 1


def test_a_node_that_is_to_run_no_jobs_is_deleted_before_slurmd_stops(collection: Path) -> None:
    """A controller that does not delete it, since it has jobs, ends the run while slurmd still runs."""
    without_jobs = {**RESULTS["slurm present"], "slurm_node": False}
    results = {
        "n2 slurm_state_info present": {**QUEUE, "handover": CONTINUE_DECISION},
        "n1 slurm present": {**without_jobs, "redefined": True},
        # The controller does not know it.
        "n3 slurm present": without_jobs,
        "slurm_info present": list_nodes("n1", "n2"),
    }
    done, steps = run(collection, results)
    assert done.exit_status == 0, done.output
    deleted = steps.index("n2 slurm_node absent")
    assert "n1 slurm present" in steps[:deleted] and steps[deleted + 1 :] == ["n1 slurm present"]
    assert steps.count("n3 slurm present") == 1
    busy = {**results, "n2 slurm_node absent": {"failed": True, "msg": "n1 has jobs"}}
    refused, steps = run(collection, busy)
    assert refused.exit_status == 2 and steps.count("n1 slurm present") == 1
