# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounting in MariaDB: which changes are made, in which order, and what is left alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from action_runs import Played, play

from ansible_collections.gpumesh.cluster.plugins.action import slurm_accounting, slurm_state
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import plan

STAMP = plan.Stamp("2026-11-20T20:31:00Z", "alice")
MEMBERS = [{"machine": f"n{n}", "address": f"10.0.0.{n}", "interface": "eth0"} for n in (1, 2)]
RECORD = plan.commit(plan.create("0" * 32, "lab", "10.0.0.0/24", "n1", {"backend": "none"}, MEMBERS, STAMP), STAMP)
HANDED_OVER = plan.commit(plan.hand_over(RECORD, "n2"), STAMP)
SOCKET = "/run/mysqld/mysqld.sock"
HERE = {"inventory_hostname": "n1", "ansible_facts": {"pkg_mgr": "apt"}}
SAME, CHANGED = {"changed": False}, {"changed": True}
OURS = ["information_schema", "mysql", "performance_schema", "sys", "slurm_acct_db"]


def answers(database: bool = False, others: Sequence[str] = (), there: Sequence[bool] = ()) -> dict[str, Any]:
    """The results of the modules.

    ``database``: it has to be created; ``others``: other databases; ``there``: whether the database's folder and the
    configuration of slurmdbd exist.
    """
    run = {"changed": False, "missing": [], "socket": SOCKET, "database": database}
    return {
        "gpumesh.cluster.slurm": [run],
        "community.mysql.mysql_user": [CHANGED],
        "community.mysql.mysql_db": [CHANGED],
        "community.mysql.mysql_info": [{"changed": False, "databases": {name: {} for name in [*OURS, *others]}}],
        "gpumesh.cluster.slurm_database": [CHANGED],
        "gpumesh.cluster.slurm_state": [{"changed": True, "kept": "/var/lib/slurm/slurmctld.1"}],
        "gpumesh.cluster.daemon": [CHANGED, SAME, SAME, SAME, CHANGED],
        "ansible.builtin.file": [CHANGED],
        "ansible.builtin.stat": [{"changed": False, "stat": {"exists": one}} for one in there],
    }


def account(state: str, check_mode: bool = False, **given: Any) -> Played:
    return play(slurm_accounting.ActionModule, {"state": state}, answers(**given), HERE, check_mode)


def words(played: Played) -> list[tuple[str, str]]:
    """The modules that ran, each with its state."""
    return [(name.rpartition(".")[2], str(given.get("state", ""))) for name, given in played.ran]


def given(played: Played, module: str) -> Mapping[str, Any]:
    (found,) = [arguments for name, arguments in played.ran if name.endswith(f".{module}")]
    return found


def test_the_database_comes_after_its_account_and_before_what_is_loaded() -> None:
    made = account("present", database=True)
    assert words(made) == [("slurm", "stored"), ("mysql_user", ""), ("mysql_db", ""), ("slurm_database", "loaded")]
    assert given(made, "mysql_user")["priv"] == "slurm_acct_db.*:ALL"
    assert given(made, "mysql_user")["plugin"] == "unix_socket" and "password" not in given(made, "mysql_user")
    assert {one.get("login_unix_socket", one.get("socket", SOCKET)) for _name, one in made.ran} == {SOCKET}
    assert made.result["changed"]


def test_what_is_there_stays_as_it_is() -> None:
    steady = account("present")
    assert words(steady) == [("slurm", "stored")] and not steady.result["changed"]


def test_in_check_mode_nothing_is_carried() -> None:
    assert ("slurm_database", "loaded") not in words(account("present", check_mode=True, database=True))
    assert words(account("saved", check_mode=True)) == [("slurm", "stored")]


def test_mariadb_stays_for_those_who_have_something_in_it() -> None:
    for others, stopped in (([], True), (["wiki"], False)):
        for state in ("stopped", "absent"):
            done = words(account(state, others=others))
            assert (("daemon", "absent") in done) == stopped
            assert (("mysql_db", "absent") in done) == (state == "absent")
            # An interrupted run may have stopped it already.
            assert done[0] == ("slurm", "stored")


def test_mariadb_is_installed_where_it_is_missing() -> None:
    said = answers()
    said["gpumesh.cluster.slurm"].insert(0, {"changed": False, "missing": ["mariadbd"]})
    said["ansible.builtin.apt"] = [CHANGED]
    played = play(slurm_accounting.ActionModule, {}, said, HERE)
    assert given(played, "apt")["name"] == ["slurmdbd", "mariadb-server", "python3-pymysql"]
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
def test_a_queue_goes_after_its_daemons_and_its_accounting(
    keep: bool, there: list[bool], accounting: list[str]
) -> None:
    arguments = {"state": "retired", "keep": keep}
    played = play(slurm_state.ActionModule, arguments, answers(there=there), HERE)
    ran = [(name, state) for name, state in words(played) if name != "stat"]
    assert ran[:4] == [("daemon", "absent")] * 4
    assert [one["name"] for name, one in played.ran if name.endswith(".daemon")][:4] == [
        "stunnel@gpumesh-rest",
        "slurmrestd",
        "slurmctld",
        "slurmdbd",
    ]
    stopped = [("daemon", "absent")] if accounting else []
    assert [state for _name, state in ran[4 : 4 + len(accounting)]] == accounting
    assert ran[4 + len(accounting) :] == [*stopped, ("file", "absent"), ("slurm_state", "retired")]
    assert given(played, "slurm_state") == {"state": "retired", "keep": keep}
    assert played.result["kept"] == "/var/lib/slurm/slurmctld.1"


def test_a_manager_hands_nothing_over_to_itself() -> None:
    """The variables of a hand-over may be given again, when the queue has moved."""
    here = {**HERE, "inventory_hostname": "n2", "groups": {"all": ["n1", "n2"]}}
    found = {"changed": False, "used": False, "marker": None, "node": True}
    for handing, former in (("n2", "n1"), ("n1", "n1"), ("", "n1")):
        arguments = {"record": HANDED_OVER, "state": "inspected", "handing": handing}
        played = play(slurm_state.ActionModule, arguments, {"gpumesh.cluster.slurm_state": [found]}, here)
        assert played.result["succession"]["former"] == former
