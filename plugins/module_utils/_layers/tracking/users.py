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
OWNER_TAG, _MANAGE_PERMISSION, _EXPERIMENT_KIND = "gpumesh.owner", "MANAGE", "custom_model_development"
#: The maximum length of an error, and of each part of an experiment's new name, which MLflow's database limits to 256.
_MAX_NAME_LENGTH = 100
#: The experiment that MLflow creates in each database, which all users can read, and its tag with the identity of the
#: database. A restored database has another identity, so that gpumesh_track sends what it lacks.
DEFAULT_EXPERIMENT, IDENTITY_TAG = "Default", "gpumesh.database"


def ensure_users(store: Any, users: List[Dict[str, Any]]) -> List[str]:
    """Apply the users in MLflow's store. Returns the names of those that differ."""
    changed_names = []
    for user in users:
        user_name, password = user["name"], user["password"]
        user_exists = store.has_user(user_name)
        if password is None:
            if user_exists:
                changed_names.append(user_name)
                store.delete_user(user_name)
            continue
        password_matches = user_exists and store.authenticate_user(user_name, password)
        if password_matches and bool(store.get_user(user_name).is_admin) == user["administrator"]:
            continue
        changed_names.append(user_name)
        if user_exists:
            store.update_user(user_name, password=password, is_admin=user["administrator"])
        else:
            store.create_user(user_name, password, is_admin=user["administrator"])
    return changed_names


def ensure_experiments(
    store: Any,
    tracking: Any,
    make_tag: Callable[[str, str], Any],
    excluded_users: Sequence[str],
    error_class: Type[Exception],
) -> Tuple[List[str], Dict[str, str]]:
    """Ensure that each user has an experiment and may manage it.

    ``make_tag`` makes a tag of an experiment; ``error_class``: the class of MLflow's errors. Returns the names of users
    whose experiments were changed, and the errors of those that failed, which do not affect other users.
    """
    user_names = [user.username for user in store.list_users()]
    permissions_by_experiment: Dict[str, Dict[str, str]] = {}
    for user in user_names:
        for grant in store.list_experiment_permissions(user):
            permissions_by_experiment.setdefault(str(grant.experiment_id), {})[user] = grant.permission
    changed_names, errors_by_user = [], {}
    for user_name in user_names:
        if user_name in excluded_users:
            continue
        try:
            if _ensure_experiment(store, tracking, make_tag, user_name, permissions_by_experiment):
                changed_names.append(user_name)
        except error_class as failure:
            errors_by_user[user_name] = str(failure)[:_MAX_NAME_LENGTH]
    return changed_names, errors_by_user


def _ensure_experiment(
    store: Any,
    tracking: Any,
    make_tag: Callable[[str, str], Any],
    user_name: str,
    permissions_by_experiment: Dict[str, Dict[str, str]],
) -> bool:
    """Ensure that a user has an experiment and may manage it. Returns whether anything was changed.

    ``permissions_by_experiment``: the permissions of users by the ID of the experiment.
    """
    experiment = tracking.get_experiment_by_name(user_name)
    permissions = permissions_by_experiment.get(str(experiment.experiment_id), {}) if experiment else {}
    is_tagged, is_managed = (
        bool(experiment and experiment.tags.get(OWNER_TAG) == user_name),
        permissions.get(user_name) == _MANAGE_PERMISSION,
    )
    if is_tagged and is_managed:
        return False
    permitted_users = sorted(user for user in permissions if user != user_name)
    if experiment and (permitted_users or not (is_tagged or is_managed)):
        # Somebody else has made the experiment, or may still change its runs. It is kept, under a name that nobody can
        # guess and use as well.
        owner_description = (
            f"of {', '.join(permitted_users)}"[:_MAX_NAME_LENGTH] if permitted_users else "of another user"
        )
        _rename_experiment(
            tracking, experiment, f"{user_name[:_MAX_NAME_LENGTH]} ({owner_description}, {secrets.token_hex(4)})"
        )
        experiment = None
    if experiment is None:
        experiment_id = tracking.create_experiment(
            user_name, tags=[make_tag("mlflow.experimentKind", _EXPERIMENT_KIND), make_tag(OWNER_TAG, user_name)]
        )
    else:
        experiment_id = experiment.experiment_id
        _tag_experiment(tracking, experiment, make_tag(OWNER_TAG, user_name))
    store.grant_user_permission(user_name, "experiment", experiment_id, _MANAGE_PERMISSION)
    return True


def rotate_keys(tracking: Any, passphrase: str) -> bool:
    """Encrypt the keys of the gateway that an earlier version has left with MLflow's published passphrase.

    Returns whether there were any. A key that another host has encrypted can be read only there.
    """
    crypto = importlib.import_module("mlflow.utils.crypto")
    secret_model = importlib.import_module("mlflow.store.tracking.dbmodels.models").SqlGatewaySecret
    error_class = importlib.import_module("mlflow.exceptions").MlflowException
    is_changed = False
    with tracking.ManagedSessionMaker(read_only=False) as session:
        gateway_secrets = session.query(secret_model).all()
        # A manager is slow to create, so there are none without secrets.
        key_managers = [
            crypto.KEKManager(phrase) for phrase in (crypto.DEFAULT_KEK_PASSPHRASE, passphrase) if gateway_secrets
        ]
        for secret in gateway_secrets:
            try:
                rotated_secret = crypto.rotate_secret_encryption(
                    secret.encrypted_value, secret.wrapped_dek, *key_managers
                )
            except error_class:
                continue
            secret.wrapped_dek = rotated_secret.wrapped_dek
            is_changed = True
    return is_changed


def ensure_identity(tracking: Any, make_tag: Callable[[str, str], Any], identity: str) -> bool:
    """Show the identity of the database to all users. Returns whether it has changed."""
    experiment = tracking.get_experiment_by_name(DEFAULT_EXPERIMENT)
    if experiment is None:
        tracking.create_experiment(DEFAULT_EXPERIMENT, tags=[make_tag(IDENTITY_TAG, identity)])
    elif experiment.tags.get(IDENTITY_TAG) != identity:
        _tag_experiment(tracking, experiment, make_tag(IDENTITY_TAG, identity))
    else:
        return False
    return True


def _rename_experiment(tracking: Any, experiment: Any, name: str) -> None:
    _while_active(tracking, experiment, lambda: tracking.rename_experiment(experiment.experiment_id, name))


def _tag_experiment(tracking: Any, experiment: Any, tag: Any) -> None:
    _while_active(tracking, experiment, lambda: tracking.set_experiment_tag(experiment.experiment_id, tag))


def _while_active(tracking: Any, experiment: Any, apply_change: Callable[[], Any]) -> None:
    """Change an experiment, even a deleted one, which stays deleted."""
    was_deleted = experiment.lifecycle_stage == "deleted"
    if was_deleted:
        tracking.restore_experiment(experiment.experiment_id)
    apply_change()
    if was_deleted:
        tracking.delete_experiment(experiment.experiment_id)


def main() -> None:
    """Run the program."""
    program_input = json.load(sys.stdin)
    store = importlib.import_module("mlflow.server.auth.sqlalchemy_store").SqlAlchemyStore()
    store.init_db(program_input["url"])
    changed_users = ensure_users(store, program_input["users"])
    tracking = importlib.import_module("mlflow.store.tracking.sqlalchemy_store").SqlAlchemyStore(
        program_input["url"], program_input["artifacts"]
    )
    make_tag = importlib.import_module("mlflow.entities").ExperimentTag
    error_class = importlib.import_module("mlflow.exceptions").MlflowException
    changed_experiments, errors_by_user = ensure_experiments(
        store, tracking, make_tag, program_input["without"], error_class
    )
    program_output = {
        "changed": changed_users,
        "experiments": changed_experiments,
        "failed": errors_by_user,
        "encrypted": rotate_keys(tracking, program_input["passphrase"]),
        "database": ensure_identity(tracking, make_tag, program_input["database"]),
    }
    sys.stdout.write("\n" + json.dumps(program_output) + "\n")


if __name__ == "__main__":
    main()
