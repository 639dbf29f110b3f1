# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of MLflow's gateway, read by somebody who has a copy of its database."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import users
from ansible_collections.gpumesh.cluster.tests.support import mlflow_program
from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import Server

KEY = "key-of-a-provider"
#: The passphrase of an earlier version, and of somebody who has only the database: without MLflow's variable,
#: KEKManager has the published one.
NONE = ""
#: A program that creates keys, each with a passphrase, and reads all keys with each of some passphrases.
READ = """
import json, os, sys
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.dbmodels.models import SqlGatewaySecret
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.crypto import KEKManager, _decrypt_secret
url, made, passphrases = json.load(sys.stdin)
store = SqlAlchemyStore(url, "mlflow-artifacts:/")
def use(passphrase):
    os.environ.pop("MLFLOW_CRYPTO_KEK_PASSPHRASE", None)
    if passphrase:
        os.environ["MLFLOW_CRYPTO_KEK_PASSPHRASE"] = passphrase
for name, passphrase in made.items():
    use(passphrase)
    store.create_gateway_secret(name, {"api_key": "key-of-a-provider"})
found = []
with store.ManagedSessionMaker(read_only=False) as session:
    for passphrase in passphrases:
        use(passphrase)
        found.append({})
        for one in session.query(SqlGatewaySecret).all():
            given = one.encrypted_value, one.wrapped_dek, KEKManager(), one.secret_id, one.secret_name
            try:
                found[-1][one.secret_name] = json.dumps(_decrypt_secret(*given))
            except MlflowException:
                found[-1][one.secret_name] = None
print(json.dumps(found))
"""


def read(url: str, *passphrases: str, made: Mapping[str, str] | None = None) -> list[dict[str, bool]]:
    """Return which keys can be read with each of these passphrases."""
    found = mlflow_program.run(READ, [url, made or {}, passphrases])
    return [{name: text is not None and KEY in text for name, text in one.items()} for one in found]


def test_a_copy_of_the_database_tells_no_key(mlflow: Server) -> None:
    given = {"secret_name": "own", "secret_value": {"api_key": KEY}, "provider": "openai"}
    mlflow.call("gateway/secrets/create", given, "3.0")
    assert read(mlflow.database, NONE, mlflow.passphrase) == [{"own": False}, {"own": True}]


def test_a_key_of_an_earlier_version_is_encrypted_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mlflow.db"
    made = {"former": NONE, "elsewhere": "of another host"}
    before = [{"former": True, "elsewhere": False}, {"former": False, "elsewhere": True}]
    assert read(url, *made.values(), made=made) == before
    given = {
        "url": url,
        "artifacts": "mlflow-artifacts:/",
        "users": [],
        "without": [],
        "passphrase": "own passphrase",
        "database": "7",
    }
    assert [mlflow_program.run(inspect.getsource(users), given)["encrypted"] for _run in range(2)] == [True, False]
    assert read(url, NONE, "own passphrase", "of another host") == [
        {"former": False, "elsewhere": False},
        {"former": True, "elsewhere": False},
        {"former": False, "elsewhere": True},
    ]
