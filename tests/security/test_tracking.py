# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The clients of the tracking server in front of another listener, while the server is down: it gets no password, and
its responses are limited, and only text.
"""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import server_certificate, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import server, settings
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.probe import TrackingClient
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import gpumesh_track
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import tracking
from ansible_collections.gpumesh.cluster.tests.support import certificates

EVIL = "\x1b]0;pwned\x07\x1b[2J\u202e"
LARGE_SIZE = 256 << 20


class SquatterHandler(http.server.BaseHTTPRequestHandler):
    """A handler that refuses with control characters, or responds without an end."""

    endless = False

    def _respond(self) -> None:
        body = f'{{"error_code": "X", "message": "{EVIL}"}}'.encode()
        self.send_response(200 if self.endless else 400)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            for _chunk_number in range((LARGE_SIZE >> 16) if self.endless else 1):
                self.wfile.write(b" " * (1 << 16) if self.endless else body)

    do_GET = do_POST = _respond  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Not in the output of the tests."""


@pytest.fixture
def squatter(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    monkeypatch.setattr(SquatterHandler, "endless", request.param)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SquatterHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextlib.contextmanager
def assert_little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LARGE_SIZE // 2
    finally:
        tracemalloc.stop()


def create_sender(directory: Path, uri: str) -> gpumesh_track.Sender:
    (directory / "points.jsonl").write_text('{"points": [["loss", 1.0, 1, 1]]}\n', encoding="ascii")
    return gpumesh_track.Sender(str(directory), {"MLFLOW_TRACKING_URI": uri, "HOME": str(directory)})


@pytest.mark.parametrize("squatter", [True], indirect=True)
def test_endless_response(squatter: str, tmp_path: Path) -> None:
    with assert_little_memory(), pytest.raises(gpumesh_track.UnreachableError):
        create_sender(tmp_path, squatter).send()
    with assert_little_memory(), pytest.raises(HostStateError, match="more than"):
        TrackingClient(squatter, "", 30, None).check_health()


@pytest.mark.parametrize("squatter", [False], indirect=True)
def test_response_is_printable(
    squatter: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_sender(tmp_path, squatter)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", squatter)
    assert gpumesh_track.main([str(tmp_path)]) == 1
    error_output = capsys.readouterr().err
    assert "pwned" in error_output and printable(error_output) == error_output


STAMP = plan.ChangeStamp("2026-11-20T20:31:00Z", "alice")
RECORD_MEMBERS = [{"machine": "n1", "address": "10.77.0.1", "interface": "lo"}]
#: The settings of a user who tracks experiments and sets nothing else.
DEFAULT_SETTINGS = {
    "tracking_state": "present",
    "tracking_server": "",
    "tracking_port": 0,
    "tracking_volume": "",
    "tracking_tls": None,
    "tracking_certificate_file": "",
}


class PasswordListener(http.server.BaseHTTPRequestHandler):
    """A handler that keeps the passwords that it gets, and responds as a server that knows the user."""

    passwords: list[str] = []

    def _respond(self) -> None:
        self.passwords += filter(None, [self.headers["Authorization"]])
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(401)
        self.end_headers()

    do_GET = do_POST = _respond  # noqa: N815

    def log_message(self, *_arguments: object) -> None:
        """Not in the output of the tests."""


@contextlib.contextmanager
def start_listener(files: tuple[str, str] | None, port: int) -> Iterator[list[str]]:
    """Start a listener on the server's port, with the given certificate and key. Yields the passwords that it gets."""
    PasswordListener.passwords = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), PasswordListener) as listener:
        if files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            listener.socket = context.wrap_socket(listener.socket, server_side=True)
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield PasswordListener.passwords
        listener.shutdown()


@pytest.fixture(name="jobs")
def _jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the variables of the jobs of a cluster with the default settings, whose server is down."""
    with socket.create_server(("127.0.0.1", 0)) as free_socket:
        port = free_socket.getsockname()[1]
    record = plan.create("0" * 32, "lab", "10.77.0.0/24", "n1", {"backend": "none"}, RECORD_MEMBERS, STAMP)
    record_with_tracking: Any = plan.set_storage(
        plan.commit(record, STAMP), [{"name": "shared", "mount_point": "/mnt/shared"}]
    ).record
    tracking_settings = tracking.changed_settings(record_with_tracking, DEFAULT_SETTINGS, start=True)
    assert tracking_settings is not None
    record_with_tracking = plan.set_tracking(record_with_tracking, {**tracking_settings, "port": port}).record
    monkeypatch.setattr(tracking, "server_address", lambda _record, _tracking: "127.0.0.1")
    monkeypatch.setattr(settings, "FOLDER", str(tmp_path))
    monkeypatch.setattr(settings, "trust_path", lambda name: f"{tmp_path}/tracking-ca-{name}.crt")
    tracking_server = settings.TrackingServer.from_params(
        tracking.desired_parameters(record_with_tracking, "n1", makes_certificate=True)
    )
    # Another user creates one just like it.
    server_certificate.ensure_certificate(run, tracking_server.identity)
    for path in tracking_server.identity.current_pair:
        Path(path).rename(Path(path).with_stem("squatter"))
    certificates_text = server_certificate.ensure_certificate(run, tracking_server.identity)
    record_with_tracking = plan.set_tracking(record_with_tracking, {"certificates": certificates_text}).record
    for trust_file in server.trust_files(
        server.parse_request(
            {**tracking.desired_parameters(record_with_tracking, "n1"), **service.ServicePaths()._asdict()}
        )
    ):
        Path(trust_file.path).write_text(trust_file.content, encoding="ascii")
    return {**tracking.job_variables(record_with_tracking), "HOME": str(tmp_path)}


@pytest.mark.skipif(certificates.OPENSSL_MISSING, reason="not checked: there is no openssl")
def test_listener_in_place_of_the_server_gets_no_password(jobs: dict[str, str], tmp_path: Path) -> None:
    """The listener has no certificate, one of its own for the same names, or is the server itself."""
    port = int(jobs["MLFLOW_TRACKING_URI"].rpartition(":")[2])
    server_files = server_certificate.current_pair(str(tmp_path))
    squatter_files = str(tmp_path / "squatter.crt"), str(tmp_path / "squatter.key")
    environment = {**jobs, "MLFLOW_TRACKING_USERNAME": "alice", "MLFLOW_TRACKING_PASSWORD": "secret-of-alice"}
    (tmp_path / "points.jsonl").write_text('{"points": [["loss", 1.0, 1, 1]]}\n', encoding="ascii")
    for files in (None, squatter_files, server_files):
        with start_listener(files, port) as passwords:
            with pytest.raises(gpumesh_track.UnreachableError if files != server_files else Exception):
                gpumesh_track.Sender(str(tmp_path), environment).send()
            with pytest.raises(HostStateError):
                TrackingClient(
                    jobs["MLFLOW_TRACKING_URI"], jobs["MLFLOW_TRACKING_SERVER_CERT_PATH"], 30, "secret"
                ).check_health()
            # The server gets them, which shows that there was something to get.
            assert bool(passwords) == (files == server_files), files
