# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys of MLflow's gateway, read by somebody who has a copy of its database."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings, users
from ansible_collections.gpumesh.cluster.tests.support import mlflow_program
from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import Server

KEY = "key-of-a-provider"
#: Without MLflow's variable, KEKManager has the published passphrase.
READ = """
import json, os, sys
from mlflow.exceptions import MlflowException
from mlflow.store.tracking.dbmodels.models import SqlGatewaySecret
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from mlflow.utils.crypto import KEKManager, _decrypt_secret
url, made = json.load(sys.stdin)
store = SqlAlchemyStore(url, "mlflow-artifacts:/")
if made:
    store.create_gateway_secret(made, {"api_key": "key-of-a-provider"})
found = {}
with store.ManagedSessionMaker(read_only=False) as session:
    for one in session.query(SqlGatewaySecret).all():
        given = one.encrypted_value, one.wrapped_dek, KEKManager(), one.secret_id, one.secret_name
        try:
            found[one.secret_name] = json.dumps(_decrypt_secret(*given))
        except MlflowException:
            found[one.secret_name] = None
print(json.dumps(found))
"""
PASSPHRASE = "MLFLOW_CRYPTO_KEK_PASSPHRASE"


def read(url: str, made: str = "", **variables: str) -> Any:
    return mlflow_program.run(READ, [url, made], **variables)


def test_a_copy_of_the_database_tells_no_key(mlflow: Server) -> None:
    given = {"secret_name": "own", "secret_value": {"api_key": KEY}, "provider": "openai"}
    mlflow.call("gateway/secrets/create", given, "3.0")
    assert read(mlflow.database) == {"own": None}
    passphrase = Path(settings.PASSPHRASE).read_text(encoding="ascii")
    assert KEY in read(mlflow.database, **{PASSPHRASE: passphrase})["own"]


def test_a_key_of_an_earlier_version_is_encrypted_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mlflow.db"
    assert KEY in read(url, "former")["former"]
    read(url, "elsewhere", **{PASSPHRASE: "of another host"})
    given = {
        "url": url,
        "artifacts": "mlflow-artifacts:/",
        "users": [],
        "without": [],
        "passphrase": "own passphrase",
        "database": "7",
    }
    assert [mlflow_program.run(inspect.getsource(users), given)["encrypted"] for _run in range(2)] == [True, False]
    assert read(url) == {"former": None, "elsewhere": None}
    assert KEY in read(url, **{PASSPHRASE: "own passphrase"})["former"]
    assert KEY in read(url, **{PASSPHRASE: "of another host"})["elsewhere"]
