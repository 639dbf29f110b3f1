# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests that would fill the memory of the tracking server's host. MLflow is started as on a host, with another database
and one process.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import limits, settings
from ansible_collections.gpumesh.cluster.tests.support import mlflow_program

PASSWORD = "password-of-the-checker"
#: MiB: what is sent, by how much the server may grow meanwhile, and what a process may have in these tests.
MUCH, LITTLE, MEMORY = 256, 96, 1024
#: Seconds, generously: MLflow starts, and answers.
START, PATIENCE = 600.0, 300.0
_GATEWAY = "/gateway/x/mlflow/invocations"


class Server:
    """A running MLflow."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        for name in ("LIBRARY", "FOLDER", "HOME", "SCRATCH"):
            (folder / name.lower()).mkdir(mode=0o700)
            monkeypatch.setattr(settings, name, str(folder / name.lower()))
        for name in ("AUTHENTICATION", "SECRET"):
            monkeypatch.setattr(settings, name, str(folder / "folder" / name.lower()))
        monkeypatch.setattr(settings, "ALLOWED", str(folder / "scratch" / "allowed"))
        monkeypatch.setattr(settings, "CONFINE", settings.confine.__file__)
        own = settings.Server("lab", "localhost", "127.0.0.1", self.port, False, str(folder), 875)
        Path(own.artifacts).mkdir(parents=True)
        given, ours = settings.database_url(5432), f"sqlite:///{folder}/scratch/mlflow.db"
        for path, text in (
            (settings.SECRET, "secret-of-the-forms"),
            (settings.AUTHENTICATION, settings.authentication(5432, PASSWORD).replace(given, ours)),
        ):
            Path(path).write_text(text, encoding="ascii")
        environment = str(Path(mlflow_program.python()).parent.parent)
        # Where MLflow is installed on hosts, so that the environment stays as it is.
        packages = folder / "packages"
        for path, text in settings.plugin(environment, "3").items():
            copy = packages / path.partition("/site-packages/")[2]
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        program = settings.program(own, environment, 5432).replace(given, ours)
        program = re.sub(r"--workers=\d+", "--workers=1", re.sub(r"--memory=\d+", f"--memory={MEMORY}", program))
        program = program.replace("exec ", f"export PYTHONPATH={packages}\nexec ").replace(
            "--read=", f"--read={packages} --read=", 1
        )
        self._log = folder / "log"
        with self._log.open("wb") as log:
            argv = ["sh", "-c", program]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)

    def wait(self) -> None:
        end = time.monotonic() + START
        while not self.answers():
            assert time.monotonic() < end and self._process.poll() is None, self._log.read_text()
            time.sleep(0.5)

    def answers(self) -> bool:
        try:
            return self.ask("GET", "/api/2.0/mlflow/users/current")[0] == 200
        except OSError:
            return False

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """The status and the content of the response to a user."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Authorization": LOGIN, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        status, said = self.ask("POST", f"/api/2.0/mlflow/{path}", json.dumps(body), **headers)
        assert status == 200, said
        return dict(json.loads(said))

    def memory(self, field: str) -> int:
        """The MiB of the largest process now (VmRSS), or at most until now (VmHWM)."""
        found = [0]
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                if os.getpgid(int(status.parent.name)) == self._process.pid:
                    found += [int(size) >> 10 for size in re.findall(rf"{field}:\s+(\d+) kB", status.read_text())]
        return max(found)

    def send(self, path: str, *headers: str, method: str = "POST", size: int = MUCH, whole: bool = False) -> int:
        """Send a body of so many MiB in chunks, until there is a response. Returns its status."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall("".join(f"{line}\r\n" for line in [*head, ""]).encode())
            part = b"%x\r\n%s\r\n" % (1 << 20, os.urandom(1 << 20))
            for _part in range(size):
                if not whole and select.select([connection], [], [], 0)[0]:
                    break
                connection.sendall(part)
            else:
                connection.sendall(b"0\r\n\r\n")
            return int(connection.recv(4096).split()[1])


LOGIN = "Basic " + base64.b64encode(f"{settings.CHECKER}:{PASSWORD}".encode()).decode()


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Server(tmp_path_factory.mktemp("server"), monkeypatch)
        try:
            made.wait()
            yield made
        finally:
            made.stop()


@contextlib.contextmanager
def little_memory(server: Server) -> Iterator[None]:
    before = server.memory("VmRSS")
    yield
    assert server.memory("VmHWM") - before < LITTLE
    assert server.answers()


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
def test_who_is_no_user_has_no_large_body(server: Server, method: str, path: str, login: list[str]) -> None:
    with little_memory(server):
        assert server.send(path, *login, method=method) == 401


@pytest.mark.parametrize(("size", "status"), [(1 << 20, b"401"), (1 << 40, b"413")])
def test_a_large_body_that_is_only_declared_is_refused_at_once(server: Server, size: int, status: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(b"POST /signup HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size)
        assert connection.recv(4096).split()[1] == status


def test_a_user_has_no_body_without_an_end(server: Server) -> None:
    for path in ("/api/2.0/mlflow/runs/log-batch", "/v1/traces", _GATEWAY):
        with little_memory(server):
            assert server.send(path, f"Authorization: {LOGIN}") == 413


def test_a_body_that_is_larger_than_it_looks_ends_with_the_memory_of_one_process(server: Server) -> None:
    member = gzip.compress(bytes(64 << 20))
    headers = {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip", "X-Mlflow-Experiment-Id": "0"}
    status, _said = server.ask("POST", "/v1/traces", member * (2 * MEMORY // 64), **headers)
    assert status >= 400 and server.memory("VmHWM") < MEMORY + LITTLE
    assert server.answers()


def test_large_artifacts_and_batches_of_metrics_are_stored(server: Server) -> None:
    experiment = server.call("experiments/create", {"name": "own"})["experiment_id"]
    info = server.call("runs/create", {"experiment_id": experiment})["run"]["info"]
    points = [{"key": f"{'k' * 200}{number}", "value": 1.0, "timestamp": 1, "step": 1} for number in range(1000)]
    batch = {"run_id": info["run_id"], "metrics": points}
    assert len(json.dumps(batch)) > limits.ANONYMOUS
    server.call("runs/log-batch", batch)
    path = f"/api/2.0/mlflow-artifacts/artifacts/{info['artifact_uri'].partition(':/')[2]}/checkpoint"
    before = server.memory("VmRSS")
    assert server.send(path, f"Authorization: {LOGIN}", method="PUT", whole=True) == 200
    assert server.memory("VmRSS") - before < LITTLE
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": LOGIN})
        answer, size = connection.getresponse(), 0
        while part := answer.read(1 << 20):
            size += len(part)
    assert (answer.status, size) == (200, MUCH << 20)
