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
from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import MlflowServer

PROVIDER_KEY = "key-of-a-provider"
#: The passphrase of an earlier version, and of somebody who has only the database: without MLflow's variable,
#: KEKManager has the published one.
NO_PASSPHRASE = ""
#: A program that creates keys, each with a passphrase, and reads all keys with each of some passphrases.
READ_PROGRAM = """
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


def read_keys(
    url: str, *passphrases: str, passphrase_by_name: Mapping[str, str] | None = None
) -> list[dict[str, bool]]:
    """Return which keys can be read with each of these passphrases."""
    texts_by_passphrase = mlflow_program.run_program(READ_PROGRAM, [url, passphrase_by_name or {}, passphrases])
    return [
        {name: text is not None and PROVIDER_KEY in text for name, text in texts_by_name.items()}
        for texts_by_name in texts_by_passphrase
    ]


def test_database_copy_reveals_no_key(mlflow: MlflowServer) -> None:
    secret_request = {"secret_name": "own", "secret_value": {"api_key": PROVIDER_KEY}, "provider": "openai"}
    mlflow.call_api("gateway/secrets/create", secret_request, "3.0")
    assert read_keys(mlflow.database, NO_PASSPHRASE, mlflow.passphrase) == [{"own": False}, {"own": True}]


def test_key_of_an_earlier_version_is_reencrypted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mlflow.db"
    passphrase_by_name = {"former": NO_PASSPHRASE, "elsewhere": "of another host"}
    before = [{"former": True, "elsewhere": False}, {"former": False, "elsewhere": True}]
    assert read_keys(url, *passphrase_by_name.values(), passphrase_by_name=passphrase_by_name) == before
    program_input = {
        "url": url,
        "artifacts": "mlflow-artifacts:/",
        "users": [],
        "without": [],
        "passphrase": "own passphrase",
        "database": "7",
    }
    assert [mlflow_program.run_program(inspect.getsource(users), program_input)["encrypted"] for _run in range(2)] == [
        True,
        False,
    ]
    assert read_keys(url, NO_PASSPHRASE, "own passphrase", "of another host") == [
        {"former": False, "elsewhere": False},
        {"former": True, "elsewhere": False},
        {"former": False, "elsewhere": True},
    ]
