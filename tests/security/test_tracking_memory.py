# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that would fill the memory of the tracking server's host."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import limits
from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import CHECKER_LOGIN, MEMORY_MIB, MlflowServer

#: MiB: what is sent, and by how much the server may grow meanwhile.
BODY_MIB, MAX_GROWTH_MIB = 256, 96
_GATEWAY_PATH = "/gateway/x/mlflow/invocations"


@contextlib.contextmanager
def assert_little_growth(mlflow: MlflowServer) -> Iterator[None]:
    before = mlflow.read_memory("VmRSS")
    yield
    assert mlflow.read_memory("VmHWM") - before < MAX_GROWTH_MIB
    assert mlflow.is_responding()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/signup"),
        ("POST", "/api/2.0/mlflow/runs/log-batch"),
        ("POST", "/health"),
        ("GET", "/"),
        ("POST", "/v1/traces"),
        ("POST", _GATEWAY_PATH),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/x"),
        ("POST", "/api/2.0/mlflow-artifacts/artifacts/1/x"),
    ],
)
@pytest.mark.parametrize("login", [[], [f"Authorization: {CHECKER_LOGIN}x"], ["X-MLflow-Authorization: Basic eDp4"]])
def test_unknown_user_cannot_send_a_large_body(mlflow: MlflowServer, method: str, path: str, login: list[str]) -> None:
    with assert_little_growth(mlflow):
        assert mlflow.send_body(path, BODY_MIB, *login, method=method) == 401


@pytest.mark.parametrize(("size", "status"), [(1 << 20, b"401"), (1 << 40, b"413")])
def test_declared_large_body_is_rejected_at_once(mlflow: MlflowServer, size: int, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", mlflow.port), timeout=300) as connection:
        connection.sendall(b"POST /signup HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        assert connection.recv(4096).split()[1] == status


def test_user_cannot_send_an_endless_body(mlflow: MlflowServer) -> None:
    for path in ("/api/2.0/mlflow/runs/log-batch", "/v1/traces", _GATEWAY_PATH):
        with assert_little_growth(mlflow):
            assert mlflow.send_body(path, BODY_MIB, f"Authorization: {CHECKER_LOGIN}") == 413


def test_compressed_body_is_limited_to_one_process(mlflow: MlflowServer) -> None:
    member = gzip.compress(bytes(64 << 20))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "X-Mlflow-Experiment-Id": "0"}
    status, _body = mlflow.request("POST", "/v1/traces", member * (2 * MEMORY_MIB // 64), **headers)
    assert status >= 400 and mlflow.read_memory("VmHWM") < MEMORY_MIB + MAX_GROWTH_MIB
    assert mlflow.is_responding()


def test_large_artifacts_and_batches_of_metrics_are_stored(mlflow: MlflowServer) -> None:
    experiment = mlflow.call_api("experiments/create", {"name": "own"})["experiment_id"]
    info = mlflow.call_api("runs/create", {"experiment_id": experiment})["run"]["info"]
    points = [{"key": f"{'k' * 200}{number}", "value": 1.0, "timestamp": 1, "step": 1} for number in range(1000)]
    batch = {"run_id": info["run_id"], "metrics": points}
    assert len(json.dumps(batch)) > limits.MAX_ANONYMOUS_BYTES
    mlflow.call_api("runs/log-batch", batch)
    path = f"/api/2.0/mlflow-artifacts/artifacts/{info['artifact_uri'].partition(':/')[2]}/checkpoint"
    before = mlflow.read_memory("VmRSS")
    assert (
        mlflow.send_body(path, BODY_MIB, f"Authorization: {CHECKER_LOGIN}", method="PUT", send_everything=True) == 200
    )
    assert mlflow.read_memory("VmRSS") - before < MAX_GROWTH_MIB
    connection = http.client.HTTPConnection("127.0.0.1", mlflow.port, timeout=300)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": CHECKER_LOGIN})
        response, size = connection.getresponse(), 0
        while chunk := response.read(1 << 20):
            size += len(chunk)
    assert (response.status, size) == (200, BODY_MIB << 20)
