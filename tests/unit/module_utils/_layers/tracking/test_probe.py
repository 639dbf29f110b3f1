# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The run of the check: it ends and is deleted whatever happens, and so may its experiment have been."""

from __future__ import annotations

import http.server
import json
import os
import pwd
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.server_certificate import expiry_time
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import probe
from ansible_collections.gpumesh.cluster.tests.support import certificates


class Server:
    """Stands in for MLflow. ``failing``: requests that it cannot answer. ``stage``: of the experiment, if there is one."""

    def __init__(self, stage: str = "active", *failing: str) -> None:
        self.stage, self.failing = stage, failing
        self.asked: list[str] = []
        self.status, self.run = "RUNNING", "none"

    def answer(self, path: str, body: Mapping[str, Any] | None) -> bytes:
        name = path.removeprefix("api/2.0/mlflow/").partition("?")[0]
        self.asked.append(name)
        if name in self.failing:
            raise HostStateError(f"{name} returned 500", status=500)
        return json.dumps(getattr(self, name.replace("/", "_").replace("-", "_"))(body)).encode()

    def experiments_get_by_name(self, _body: object) -> dict[str, Any]:
        if not self.stage:
            raise HostStateError("none", status=404)
        return {"experiment": {"experiment_id": "7", "lifecycle_stage": self.stage}}

    def experiments_restore(self, _body: object) -> dict[str, Any]:
        if self.stage != "deleted":
            raise HostStateError("none", status=404)
        self.stage = "active"
        return {}

    def experiments_create(self, _body: object) -> dict[str, Any]:
        self.stage = "active"
        return {"experiment_id": "7"}

    def runs_create(self, _body: object) -> dict[str, Any]:
        if self.stage != "active":
            raise HostStateError("must be in the 'active' state", status=400)
        self.run = "active"
        return {"run": {"info": {"run_id": "r"}}}

    def runs_log_batch(self, _body: object) -> dict[str, Any]:
        return {}

    def runs_get(self, _body: object) -> dict[str, Any]:
        return {"run": {"data": {"metrics": [{"value": 0.25}]}}}

    def runs_update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self.status = body["status"]
        return {}

    def runs_delete(self, _body: object) -> dict[str, Any]:
        self.run = "deleted"
        return {}


def run_check(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setattr(probe.TrackingClient, "_request", server.answer)
    probe.TrackingClient("http://10.0.0.1:5000", "", 1, "a-password").write_and_read()


@pytest.mark.parametrize(
    ("stage", "also"),
    [("active", None), ("", "experiments/create"), ("deleted", "experiments/restore")],
)
def test_run_is_finished_and_deleted(monkeypatch: pytest.MonkeyPatch, stage: str, also: str | None) -> None:
    server = Server(stage)
    run_check(monkeypatch, server)
    assert (server.status, server.run) == ("FINISHED", "deleted")
    more = {"experiments/create", "experiments/restore"} & set(server.asked)
    assert more == ({also} if also else set())


def test_concurrent_restore_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("deleted")
    plain = server.experiments_restore

    def restore(body: object) -> dict[str, Any]:
        server.stage = "active"
        return plain(body)

    monkeypatch.setattr(server, "experiments_restore", restore)
    run_check(monkeypatch, server)
    assert server.run == "deleted"


@pytest.mark.parametrize("failing", ["runs/log-batch", "runs/get", "runs/update"])
def test_failed_run_is_deleted(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    server = Server("active", failing)
    with pytest.raises(HostStateError, match=f"{failing} returned 500"):
        run_check(monkeypatch, server)
    assert server.run == "deleted"
    assert server.status == ("RUNNING" if failing == "runs/update" else "FAILED")


def test_first_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostStateError, match="log-batch returned 500"):
        run_check(monkeypatch, Server("active", "runs/log-batch", "runs/update", "runs/delete"))


@pytest.mark.parametrize("failing", ["experiments/get-by-name", "experiments/restore"])
def test_experiment_errors_are_raised(monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    with pytest.raises(HostStateError, match=f"{failing} returned 500"):
        run_check(monkeypatch, Server("deleted", failing))


class Listener(http.server.BaseHTTPRequestHandler):
    """A server that says what MLflow says, and remembers the logins."""

    protocol_version = "HTTP/1.1"
    logins: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.logins += [self.headers["Authorization"]] if "Authorization" in self.headers else []
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture(name="listener")
def _listener() -> Iterator[tuple[str, list[str]]]:
    logins: list[str] = []
    handler = type("Own", (Listener,), {"logins": logins})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", logins
    server.shutdown()
    server.server_close()


def test_password_is_sent_only_to_the_server_account(
    monkeypatch: pytest.MonkeyPatch, listener: tuple[str, list[str]]
) -> None:
    uri, logins = listener
    server = probe.TrackingClient(uri, "", 10, "a-password")
    other = next(one for one in pwd.getpwall() if one.pw_uid != os.geteuid())
    monkeypatch.setattr(probe, "ACCOUNT", other.pw_name)
    with pytest.raises(HostStateError, match=f"is not the tracking server: its process belongs to user {os.geteuid()}"):
        server.check_health()
    assert not logins
    monkeypatch.setattr(probe, "ACCOUNT", pwd.getpwuid(os.geteuid()).pw_name)
    server.check_health()
    assert logins == ["Basic Z3B1bWVzaDphLXBhc3N3b3Jk"]
    # Other members send no password.
    monkeypatch.setattr(probe, "ACCOUNT", other.pw_name)
    server._replace(password=None).check_health()
    assert len(logins) == 1


def test_closed_connection_is_not_reopened_with_the_password(
    monkeypatch: pytest.MonkeyPatch, listener: tuple[str, list[str]]
) -> None:
    """Otherwise, a listener that takes the port meanwhile would get it."""
    uri, logins = listener
    monkeypatch.setattr(probe, "ACCOUNT", pwd.getpwuid(os.geteuid()).pw_name)
    monkeypatch.setattr(Listener, "protocol_version", "HTTP/1.0")
    with pytest.raises(HostStateError, match="it has closed the connection, or is not on this host"):
        probe.TrackingClient(uri, "", 10, "a-password").check_health()
    assert not logins


@pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
def test_certificate_expiry_is_read_from_the_connection(tmp_path: Path, listener: tuple[str, list[str]]) -> None:
    made, key = certificates.create_self_signed(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    with http.server.HTTPServer(("127.0.0.1", 0), Listener) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        uri = f"https://localhost:{server.server_port}"
        end = probe.TrackingClient(uri, str(made), 30, None).certificate_expiry()
        with pytest.raises(HostStateError, match="does not answer"):
            probe.TrackingClient(uri, "", 30, None).certificate_expiry()
        server.shutdown()
    assert end == expiry_time(made.read_text())
    assert probe.TrackingClient(listener[0], "", 30, None).certificate_expiry() is None
