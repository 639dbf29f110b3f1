# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounting in MariaDB: which changes are made, in which order, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from action_runs import ActionRun, play_action

from ansible_collections.gpumesh.cluster.plugins.action import slurm_accounting, slurm_state, slurm_state_info
from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan

STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
HANDED_OVER = plan.commit(plan.hand_over(RECORD, "n2"), STAMP)
SOCKET = "/run/mysqld/mysqld.sock"
HOST_VARIABLES = {"inventory_hostname": "n1", "ansible_facts": {"pkg_mgr": "apt"}}
SAME, CHANGED = {"changed": False}, {"changed": True}
OWN_DATABASES = ["information_schema", "mysql", "performance_schema", "sys", "slurm_acct_db"]


def module_results(database: bool = False, others: Sequence[str] = (), there: Sequence[bool] = ()) -> dict[str, Any]:
    """The results of the modules.

    ``database``: it has to be created; ``others``: other databases; ``there``: whether the database's folder and the
    configuration of slurmdbd exist.
    """
    run = {"changed": False, "missing": [], "outdated": [], "socket": SOCKET, "database": database}
    return {
        "gpumesh.cluster.slurm": [run],
        "community.mysql.mysql_user": [CHANGED],
        "community.mysql.mysql_db": [CHANGED],
        "community.mysql.mysql_info": [
            {"changed": False, "databases": {name: {} for name in [*OWN_DATABASES, *others]}}
        ],
        "gpumesh.cluster.slurm_database": [CHANGED],
        "gpumesh.cluster.slurm_state": [{"changed": True, "moved_to": "/var/lib/slurm/slurmctld.1"}],
        "gpumesh.cluster.daemon": [CHANGED, SAME, SAME, SAME, CHANGED],
        "ansible.builtin.file": [CHANGED],
        "ansible.builtin.stat": [{"changed": False, "stat": {"exists": one}} for one in there],
    }


def run_accounting(state: str, check_mode: bool = False, **options: Any) -> ActionRun:
    return play_action(
        slurm_accounting.ActionModule, {"state": state}, module_results(**options), HOST_VARIABLES, check_mode
    )


def modules_with_states(played: ActionRun) -> list[tuple[str, str]]:
    """The modules that ran, each with its state."""
    return [(name.rpartition(".")[2], str(given.get("state", ""))) for name, given in played.module_calls]


def arguments_of(played: ActionRun, module: str) -> Mapping[str, Any]:
    (found,) = [arguments for name, arguments in played.module_calls if name.endswith(f".{module}")]
    return found


def test_the_account_is_created_before_the_database_is_created_and_loaded() -> None:
    made = run_accounting("present", database=True)
    assert modules_with_states(made) == [
        ("slurm", "stored"),
        ("mysql_user", ""),
        ("mysql_db", ""),
        ("slurm_database", "loaded"),
    ]
    assert arguments_of(made, "mysql_user")["priv"] == "slurm_acct_db.*:ALL"
    assert arguments_of(made, "mysql_user")["plugin"] == "unix_socket" and "password" not in arguments_of(
        made, "mysql_user"
    )
    assert {one.get("login_unix_socket", one.get("socket", SOCKET)) for _name, one in made.module_calls} == {SOCKET}
    assert made.result["changed"]


def test_an_existing_database_is_unchanged() -> None:
    steady = run_accounting("present")
    assert modules_with_states(steady) == [("slurm", "stored")] and not steady.result["changed"]


def test_check_mode_loads_and_saves_nothing() -> None:
    assert ("slurm_database", "loaded") not in modules_with_states(
        run_accounting("present", check_mode=True, database=True)
    )
    assert modules_with_states(run_accounting("saved", check_mode=True)) == [("slurm", "stored")]


def test_mariadb_is_kept_if_it_has_other_databases() -> None:
    for others, stopped in (([], True), (["wiki"], False)):
        for state in ("stopped", "absent"):
            done = modules_with_states(run_accounting(state, others=others))
            assert (("daemon", "absent") in done) == stopped
            assert (("mysql_db", "absent") in done) == (state == "absent")
            # An interrupted run may have stopped it already.
            assert done[0] == ("slurm", "stored")


def test_a_missing_mariadb_is_installed() -> None:
    said = module_results()
    said["gpumesh.cluster.slurm"].insert(0, {"changed": False, "missing": ["mariadbd"]})
    said["ansible.builtin.apt"] = [CHANGED]
    played = play_action(slurm_accounting.ActionModule, {}, said, HOST_VARIABLES)
    assert arguments_of(played, "apt")["name"] == ["slurmdbd", "mariadb-server", "python3-pymysql"]
    assert played.result["changed"]


@pytest.mark.parametrize(
    ("keep", "there", "accounting"),
    [
        (True, [True, True], ["stored", "saved", "absent", "absent", ""]),
        # An interrupted run has deleted the database, but not its account.
        (True, [False, True], ["stored", "absent", "absent", ""]),
        (False, [True, True], ["stored", "absent", "absent", ""]),
        (True, [False, False], []),
    ],
)
def test_a_queue_is_retired_after_its_daemons_and_its_accounting(
    keep: bool, there: list[bool], accounting: list[str]
) -> None:
    arguments = {"state": "retired", "keep": keep}
    played = play_action(slurm_state.ActionModule, arguments, module_results(there=there), HOST_VARIABLES)
    ran = [(name, state) for name, state in modules_with_states(played) if name != "stat"]
    assert ran[:4] == [("daemon", "absent")] * 4
    assert [one["name"] for name, one in played.module_calls if name.endswith(".daemon")][:4] == [
        "stunnel@gpumesh-rest",
        "slurmrestd",
        "slurmctld",
        "slurmdbd",
    ]
    stopped = [("daemon", "absent")] if accounting else []
    assert [state for _name, state in ran[4 : 4 + len(accounting)]] == accounting
    assert ran[4 + len(accounting) :] == [*stopped, ("file", "absent"), ("slurm_state", "retired")]
    assert arguments_of(played, "slurm_state") == {"state": "retired", "keep": keep}
    assert played.result["moved_to"] == "/var/lib/slurm/slurmctld.1"


def test_a_handover_to_the_manager_itself_is_ignored() -> None:
    """The variables of a hand-over may be given again, when the queue has moved."""
    here = {**HOST_VARIABLES, "inventory_hostname": "n2", "groups": {"all": ["n1", "n2"]}}
    found = {"changed": False, "in_use": False, "marker": None, "is_node": True}
    for former_manager, query in (("n2", "n1"), ("n1", "n1"), ("", "n1")):
        played = play_action(
            slurm_state_info.ActionModule,
            {"record": HANDED_OVER},
            {"gpumesh.cluster.slurm_state_info": [found]},
            {**here, "slurm_former_manager": former_manager},
        )
        assert played.result["handover"]["query"] == query
