# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow's users, their experiments, and the keys of its gateway.

Run with the Python of the tracking server, as its account, with the passwords on standard input.

In: {"url": ..., "artifacts": their root, "users": [{"name", "password" (null: no such user), "administrator"}],
"without": [users without an experiment], "passphrase": that of the gateway's keys, "database": its identity}.
Out: {"changed": [names], "experiments": [names], "failed": {name: why there is no experiment},
"encrypted": whether keys were encrypted again, "database": whether it has another identity than before}.
"""

from __future__ import annotations

import importlib
import json
import secrets
import sys
from typing import Any, Callable, Dict, List, Sequence, Tuple, Type

#: The tag with the owner of an experiment, the permission of an owner, and the kind that MLflow shows first.
OWNER, _MANAGE, _KIND = "gpumesh.owner", "MANAGE", "custom_model_development"
#: Characters of a part of an experiment's new name, which MLflow's database limits to 256, and of an error.
_LONGEST = 100
#: The experiment that MLflow makes in each database, which all users can read, and its tag with the identity of the
#: database. A restored one has another identity, so that gpumesh_track sends what it lacks.
DEFAULT, IDENTITY = "Default", "gpumesh.database"


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


def settle_experiments(
    store: Any, tracking: Any, tag: Callable[[str, str], Any], without: Sequence[str], error: Type[Exception]
) -> Tuple[List[str], Dict[str, str]]:
    """Have the experiment of each user, whose owner may manage it.

    ``tag`` makes a tag of an experiment; ``error``: what MLflow raises. Returns the names of those that were changed, and
    the errors of those that failed, which keep nobody else from an experiment.
    """
    users = [user.username for user in store.list_users()]
    granted: Dict[str, Dict[str, str]] = {}
    for user in users:
        for grant in store.list_experiment_permissions(user):
            granted.setdefault(str(grant.experiment_id), {})[user] = grant.permission
    changed, failed = [], {}
    for name in users:
        if name in without:
            continue
        try:
            if _settle_experiment(store, tracking, tag, name, granted):
                changed.append(name)
        except error as failure:
            failed[name] = str(failure)[:_LONGEST]
    return changed, failed


def _settle_experiment(
    store: Any, tracking: Any, tag: Callable[[str, str], Any], name: str, granted: Dict[str, Dict[str, str]]
) -> bool:
    """Have the experiment of a user. Returns whether anything was changed.

    ``granted``: the permissions of users by the ID of the experiment.
    """
    found = tracking.get_experiment_by_name(name)
    permissions = granted.get(str(found.experiment_id), {}) if found else {}
    tagged, managed = bool(found and found.tags.get(OWNER) == name), permissions.get(name) == _MANAGE
    if tagged and managed:
        return False
    others = sorted(user for user in permissions if user != name)
    if found and (others or not (tagged or managed)):
        # Somebody else has made it, or may still change what is in there. It is kept, under a name that nobody can guess
        # and take as well.
        listed = f"of {', '.join(others)}"[:_LONGEST] if others else "of another user"
        _rename(tracking, found, f"{name[:_LONGEST]} ({listed}, {secrets.token_hex(4)})")
        found = None
    if found is None:
        number = tracking.create_experiment(name, tags=[tag("mlflow.experimentKind", _KIND), tag(OWNER, name)])
    else:
        number = found.experiment_id
        _tag(tracking, found, tag(OWNER, name))
    store.grant_user_permission(name, "experiment", number, _MANAGE)
    return True


def settle_keys(tracking: Any, passphrase: str) -> bool:
    """Encrypt the keys of the gateway that an earlier version has left with MLflow's published passphrase.

    Returns whether there were any. Those that another host has encrypted can be read only there.
    """
    crypto = importlib.import_module("mlflow.utils.crypto")
    kind = importlib.import_module("mlflow.store.tracking.dbmodels.models").SqlGatewaySecret
    error = importlib.import_module("mlflow.exceptions").MlflowException
    changed = False
    with tracking.ManagedSessionMaker(read_only=False) as session:
        found = session.query(kind).all()
        # It takes a while to make one.
        managers = [crypto.KEKManager(word) for word in (crypto.DEFAULT_KEK_PASSPHRASE, passphrase) if found]
        for one in found:
            try:
                rotated = crypto.rotate_secret_encryption(one.encrypted_value, one.wrapped_dek, *managers)
            except error:
                continue
            one.wrapped_dek = rotated.wrapped_dek
            changed = True
    return changed


def settle_identity(tracking: Any, tag: Callable[[str, str], Any], identity: str) -> bool:
    """Show the identity of the database to all users. Returns whether it was another one."""
    found = tracking.get_experiment_by_name(DEFAULT)
    if found is None:
        tracking.create_experiment(DEFAULT, tags=[tag(IDENTITY, identity)])
    elif found.tags.get(IDENTITY) != identity:
        _tag(tracking, found, tag(IDENTITY, identity))
    else:
        return False
    return True


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
    error = importlib.import_module("mlflow.exceptions").MlflowException
    experiments, failed = settle_experiments(store, tracking, tag, given["without"], error)
    said = {
        "changed": changed,
        "experiments": experiments,
        "failed": failed,
        "encrypted": settle_keys(tracking, given["passphrase"]),
        "database": settle_identity(tracking, tag, given["database"]),
    }
    sys.stdout.write("\n" + json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
