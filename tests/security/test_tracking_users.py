# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of MLflow prepares experiments with the names of users who are added later, in MLflow's own stores."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import users
from ansible_collections.gpumesh.cluster.tests.support import mlflow_program

#: The permissions are what MLflow grants to the creator, and what the creator may then set.
ATTACK_PROGRAM = """
import json, sys
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore as Users
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Experiments
url, attacks = json.load(sys.stdin)
known, experiments = Users(), Experiments(url, "mlflow-artifacts:/")
known.init_db(url)
known.create_user("mallory", "password-of-mallory")
made = {}
for victim, permission in attacks.items():
    made[victim] = experiments.create_experiment(victim)
    known.grant_user_permission("mallory", "experiment", made[victim], "MANAGE")
    if permission:
        known.grant_user_permission("mallory", "experiment", made[victim], permission)
    else:
        known.delete_experiment_permission(made[victim], "mallory")
    # The name that an earlier version would give it.
    experiments.create_experiment(f"{victim} (of mallory, {made[victim]})")
print(json.dumps(made))
"""
STATE_PROGRAM = """
import json, sys
from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore as Users
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Experiments
url, names = json.load(sys.stdin)
known, experiments = Users(), Experiments(url, "mlflow-artifacts:/")
known.init_db(url)
found = {}
for name in names:
    one = experiments.get_experiment_by_name(name)
    grants = {
        user.username: grant.permission
        for user in known.list_users()
        for grant in known.list_experiment_permissions(user.username)
        if one and grant.experiment_id == one.experiment_id
    }
    found[name] = [one and one.experiment_id, grants]
print(json.dumps([found, [one.name for one in experiments.search_experiments()]]))
"""


def settle_users(url: str, *names: str) -> Any:
    desired_users = [{"name": name, "password": f"password-of-{name}", "administrator": False} for name in names]
    program_input = {
        "url": url,
        "artifacts": "mlflow-artifacts:/",
        "users": desired_users,
        "without": [],
        "passphrase": "x",
        "database": "7",
    }
    return mlflow_program.run_program(inspect.getsource(users), program_input)


def test_no_permission_remains_on_experiments_of_later_users(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mlflow.db"
    attacks = {"bob": "MANAGE", "carol": "EDIT", "dave": "READ", "erin": "DENY", "frank": None}
    experiment_ids = mlflow_program.run_program(ATTACK_PROGRAM, [url, attacks])
    settle_result = settle_users(url, *attacks)
    assert settle_result["failed"] == {} and set(attacks) <= set(settle_result["experiments"])
    state_by_user, names = mlflow_program.run_program(STATE_PROGRAM, [url, list(attacks)])
    for victim, permission in attacks.items():
        experiment_id, grants = state_by_user[victim]
        assert experiment_id not in (None, experiment_ids[victim]) and grants == {victim: "MANAGE"}, victim
        owner = "mallory" if permission else "another user"
        assert any(
            re.fullmatch(rf"{victim} \(of {owner}, [0-9a-f]{{8}}\)", experiment_name) for experiment_name in names
        )
    assert settle_users(url, *attacks)["experiments"] == []
