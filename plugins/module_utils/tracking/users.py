# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow's users and their experiments. Run with the Python of the tracking server, as its account, with the passwords
on standard input.

In: {"url": ..., "artifacts": their root, "users": [{"name", "password" (null: no such user), "administrator"}],
"without": [users without an experiment]}.
Out: {"changed": [names], "experiments": [names]}.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, Callable, Dict, List, Sequence

#: The tag with the owner of an experiment, the permission of an owner, and the kind that MLflow shows first.
OWNER, _MANAGE, _KIND = "gpumesh.owner", "MANAGE", "custom_model_development"


def settle(store: Any, users: List[Dict[str, Any]]) -> List[str]:
    """Apply the users in MLflow's store. Returns the names of those that differ."""
    changed = []
    for user in users:
        name, password = user["name"], user["password"]
        known = store.has_user(name)
        if password is None:
            if known:
                changed.append(name)
                store.delete_user(name)
            continue
        right = known and store.authenticate_user(name, password)
        if right and bool(store.get_user(name).is_admin) == user["administrator"]:
            continue
        changed.append(name)
        if known:
            store.update_user(name, password=password, is_admin=user["administrator"])
        else:
            store.create_user(name, password, is_admin=user["administrator"])
    return changed


def settle_experiments(store: Any, tracking: Any, tag: Callable[[str, str], Any], without: Sequence[str]) -> List[str]:
    """Have the experiment of each user, whose owner may manage it. Returns the names of those that were changed.

    ``tag`` makes a tag of an experiment.
    """
    names = [user.username for user in store.list_users() if user.username not in without]
    managers: Dict[str, List[str]] = {}
    for name in names:
        for grant in store.list_experiment_permissions(name):
            if grant.permission == _MANAGE:
                managers.setdefault(str(grant.experiment_id), []).append(name)
    changed = []
    for name in names:
        found = tracking.get_experiment_by_name(name)
        own = managers.get(found.experiment_id, []) if found else []
        if found and name in own and found.tags.get(OWNER) == name:
            continue
        changed.append(name)
        if own not in ([], [name]):
            # Somebody has taken the name, and keeps what is in there.
            _rename(tracking, found, f"{name} (of {', '.join(own)}, {found.experiment_id})")
            found = None
        if found is None:
            number = tracking.create_experiment(name, tags=[tag("mlflow.experimentKind", _KIND), tag(OWNER, name)])
        else:
            number = found.experiment_id
            _tag(tracking, found, tag(OWNER, name))
        store.grant_user_permission(name, "experiment", number, _MANAGE)
    return changed


def _rename(tracking: Any, experiment: Any, name: str) -> None:
    _while_active(tracking, experiment, lambda: tracking.rename_experiment(experiment.experiment_id, name))


def _tag(tracking: Any, experiment: Any, tag: Any) -> None:
    _while_active(tracking, experiment, lambda: tracking.set_experiment_tag(experiment.experiment_id, tag))


def _while_active(tracking: Any, experiment: Any, change: Callable[[], Any]) -> None:
    """Change an experiment, also a deleted one, which stays deleted."""
    deleted = experiment.lifecycle_stage == "deleted"
    if deleted:
        tracking.restore_experiment(experiment.experiment_id)
    change()
    if deleted:
        tracking.delete_experiment(experiment.experiment_id)


def main() -> None:
    """The entry point of the program."""
    given = json.load(sys.stdin)
    store = importlib.import_module("mlflow.server.auth.sqlalchemy_store").SqlAlchemyStore()
    store.init_db(given["url"])
    changed = settle(store, given["users"])
    tracking = importlib.import_module("mlflow.store.tracking.sqlalchemy_store").SqlAlchemyStore(
        given["url"], given["artifacts"]
    )
    tag = importlib.import_module("mlflow.entities").ExperimentTag
    experiments = settle_experiments(store, tracking, tag, given["without"])
    sys.stdout.write("\n" + json.dumps({"changed": changed, "experiments": experiments}) + "\n")


if __name__ == "__main__":
    main()
