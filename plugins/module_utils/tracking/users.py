# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow's users. Run with the Python of the tracking server, as its account, with the passwords on standard input.

In: {"url": ..., "users": [{"name", "password" (null: no such user), "administrator"}]}.
Out: {"changed": [names]}.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any, Dict, List


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


def main() -> None:
    """The entry point of the program."""
    given = json.load(sys.stdin)
    store = importlib.import_module("mlflow.server.auth.sqlalchemy_store").SqlAlchemyStore()
    store.init_db(given["url"])
    sys.stdout.write("\n" + json.dumps({"changed": settle(store, given["users"])}) + "\n")


if __name__ == "__main__":
    main()
