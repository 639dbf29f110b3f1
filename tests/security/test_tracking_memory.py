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
from ansible_collections.gpumesh.cluster.tests.support.mlflow_program import LOGIN, MEMORY, Server

#: MiB: what is sent, and by how much the server may grow meanwhile.
MUCH, LITTLE = 256, 96
_GATEWAY = "/gateway/x/mlflow/invocations"


@contextlib.contextmanager
def little_memory(mlflow: Server) -> Iterator[None]:
    before = mlflow.memory("VmRSS")
    yield
    assert mlflow.memory("VmHWM") - before < LITTLE
    assert mlflow.answers()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/signup"),
        ("POST", "/api/2.0/mlflow/runs/log-batch"),
        ("POST", "/health"),
        ("GET", "/"),
        ("POST", "/v1/traces"),
        ("POST", _GATEWAY),
        ("PUT", "/api/2.0/mlflow-artifacts/artifacts/1/x"),
        ("POST", "/api/2.0/mlflow-artifacts/artifacts/1/x"),
    ],
)
@pytest.mark.parametrize("login", [[], [f"Authorization: {LOGIN}x"], ["X-MLflow-Authorization: Basic eDp4"]])
def test_who_is_no_user_has_no_large_body(mlflow: Server, method: str, path: str, login: list[str]) -> None:
    with little_memory(mlflow):
        assert mlflow.send(path, MUCH, *login, method=method) == 401


@pytest.mark.parametrize(("size", "status"), [(1 << 20, b"401"), (1 << 40, b"413")])
def test_a_large_body_that_is_only_declared_is_refused_at_once(mlflow: Server, size: int, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", mlflow.port), timeout=300) as connection:
        connection.sendall(b"POST /signup HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        assert connection.recv(4096).split()[1] == status


def test_a_user_has_no_body_without_an_end(mlflow: Server) -> None:
    for path in ("/api/2.0/mlflow/runs/log-batch", "/v1/traces", _GATEWAY):
        with little_memory(mlflow):
            assert mlflow.send(path, MUCH, f"Authorization: {LOGIN}") == 413


def test_a_body_that_is_larger_than_it_looks_ends_with_the_memory_of_one_process(mlflow: Server) -> None:
    member = gzip.compress(bytes(64 << 20))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "X-Mlflow-Experiment-Id": "0"}
    status, _said = mlflow.ask("POST", "/v1/traces", member * (2 * MEMORY // 64), **headers)
    assert status >= 400 and mlflow.memory("VmHWM") < MEMORY + LITTLE
    assert mlflow.answers()


def test_large_artifacts_and_batches_of_metrics_are_stored(mlflow: Server) -> None:
    experiment = mlflow.call("experiments/create", {"name": "own"})["experiment_id"]
    info = mlflow.call("runs/create", {"experiment_id": experiment})["run"]["info"]
    points = [{"key": f"{'k' * 200}{number}", "value": 1.0, "timestamp": 1, "step": 1} for number in range(1000)]
    batch = {"run_id": info["run_id"], "metrics": points}
    assert len(json.dumps(batch)) > limits.MAX_ANONYMOUS_BYTES
    mlflow.call("runs/log-batch", batch)
    path = f"/api/2.0/mlflow-artifacts/artifacts/{info['artifact_uri'].partition(':/')[2]}/checkpoint"
    before = mlflow.memory("VmRSS")
    assert mlflow.send(path, MUCH, f"Authorization: {LOGIN}", method="PUT", whole=True) == 200
    assert mlflow.memory("VmRSS") - before < LITTLE
    connection = http.client.HTTPConnection("127.0.0.1", mlflow.port, timeout=300)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": LOGIN})
        answer, size = connection.getresponse(), 0
        while part := answer.read(1 << 20):
            size += len(part)
    assert (answer.status, size) == (200, MUCH << 20)
