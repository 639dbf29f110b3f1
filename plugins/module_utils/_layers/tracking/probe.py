# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a run to the tracking server and read it back, through MLflow's API."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import time
import urllib.parse
from typing import Any, Dict, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read, processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import require_account
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking.settings import ACCOUNT, CHECKER_NAME

_EXPERIMENT_NAME = "gpumesh-check"
_METRIC_VALUE = 0.25
_NOT_FOUND = 404
#: The maximum bytes of a response that are read, whoever listens on the port.
_MAX_RESPONSE_BYTES = 1 << 20


class TrackingClient(NamedTuple):
    """A client of the server. ``password``: that of CHECKER_NAME; None if this host does not have it. ``timeout``: in
    seconds."""

    uri: str
    trust_path: str
    timeout: float
    password: Optional[str]

    def check_health(self) -> None:
        """Check that the server is healthy. Raises HostStateError."""
        health_text = self._request("health", None)
        if health_text.strip() != b"OK":
            raise HostStateError(f"{self.uri}/health does not return OK.", "See journalctl -u gpumesh-tracking there.")

    def certificate_expiry(self) -> Optional[float]:
        """Return the time at which the server's certificate expires; None without TLS. Raises HostStateError."""
        try:
            with contextlib.closing(self._open_connection()) as connection:
                connection.connect()
                certificate = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
        except OSError as failure:
            raise HostStateError(
                f"{self.uri} does not answer: {failure}.",
                "See the firewall, and 'systemctl status gpumesh-tracking' there.",
            ) from failure
        return None if certificate is None else float(ssl.cert_time_to_seconds(str(certificate["notAfter"])))

    def write_and_read(self) -> None:
        """Write a run with a point, read it back and delete it. Raises HostStateError.

        MLflow keeps deleted runs and experiments in its database until `mlflow gc` erases them.
        """
        experiment_id = self._get_experiment()
        now_ms = int(time.time() * 1000)
        run_request = {"experiment_id": experiment_id, "run_name": "check", "start_time": now_ms}
        run_id = self._call_api("runs/create", run_request)["run"]["info"]["run_id"]
        metric_point = {"key": "check", "value": _METRIC_VALUE, "timestamp": now_ms, "step": 1}
        try:
            self._call_api("runs/log-batch", {"run_id": run_id, "metrics": [metric_point]})
            stored_metrics = self._call_api(f"runs/get?run_id={run_id}")["run"]["data"].get("metrics", [])
        except HostStateError:
            # The first error is the relevant one.
            with contextlib.suppress(HostStateError):
                self._finish_run(run_id, "FAILED", now_ms)
            raise
        self._finish_run(run_id, "FINISHED", now_ms)
        if [metric.get("value") for metric in stored_metrics] != [_METRIC_VALUE]:
            raise HostStateError(
                f"{self.uri}: the metrics of the run that was written are {stored_metrics}.",
                "See the log of its PostgreSQL.",
            )

    def _finish_run(self, run_id: str, run_status: str, end_time: int) -> None:
        try:
            self._call_api("runs/update", {"run_id": run_id, "status": run_status, "end_time": end_time})
        finally:
            self._call_api("runs/delete", {"run_id": run_id})

    def _get_experiment(self) -> str:
        try:
            experiment = self._call_api(f"experiments/get-by-name?experiment_name={_EXPERIMENT_NAME}")["experiment"]
        except HostStateError as failure:
            if failure.details.get("status") != _NOT_FOUND:
                raise
            return str(self._call_api("experiments/create", {"name": _EXPERIMENT_NAME})["experiment_id"])
        experiment_id = str(experiment["experiment_id"])
        # A deleted experiment keeps its name, and accepts no runs.
        if experiment.get("lifecycle_stage") == "deleted":
            try:
                self._call_api("experiments/restore", {"experiment_id": experiment_id})
            except HostStateError as failure:
                # Another check has restored the experiment in the meantime.
                if failure.details.get("status") != _NOT_FOUND:
                    raise
        return experiment_id

    def _call_api(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        return dict(json.loads(self._request(f"api/2.0/mlflow/{path}", body) or b"{}"))

    def _request(self, path: str, body: Optional[Mapping[str, Any]]) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.password is not None:
            encoded_login = base64.b64encode(f"{CHECKER_NAME}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {encoded_login}"
        request_body = None if body is None else json.dumps(body)
        try:
            with contextlib.closing(self._open_connection()) as connection:
                if self.password is not None:
                    self._verify_listener(connection)
                connection.request("GET" if request_body is None else "POST", f"/{path}", request_body, headers)
                response = connection.getresponse()
                response_body = bounded_read.read(response, _MAX_RESPONSE_BYTES)
        except (OSError, ValueError, http.client.HTTPException) as failure:
            raise HostStateError(
                f"{self.uri} does not answer: {failure}.",
                "See the firewall, and 'systemctl status gpumesh-tracking' there.",
            ) from failure
        if response_body is None:
            raise HostStateError(
                f"{self.uri} returns more than {_MAX_RESPONSE_BYTES >> 10} KiB.",
                "Find out which program listens there.",
            )
        if response.status != 200:
            excerpt = response_body[:300].decode("utf-8", "replace")
            raise HostStateError(
                f"{self.uri}/{path} returned {response.status}: {excerpt}.",
                "See journalctl -u gpumesh-tracking there.",
                status=response.status,
            )
        return response_body

    def _verify_listener(self, connection: http.client.HTTPConnection) -> None:
        """Refuse a listener that another account has started while the server was down. Raises HostStateError.

        A certificate identifies the server. Without one, the server's account must own the other end of this very
        connection, on this host. A request is sent first, since a connection that is not accepted yet has no owner.
        """
        if urllib.parse.urlsplit(self.uri).scheme == "https":
            return
        connection.request("GET", "/health")
        bounded_read.read(connection.getresponse(), _MAX_RESPONSE_BYTES)
        # The next request must not open another connection if this one ends.
        connection.auto_open = 0
        owner_uid = None if connection.sock is None else peer_uid(connection.sock)
        if owner_uid is None or owner_uid != require_account(ACCOUNT).pw_uid:
            raise HostStateError(
                f"{self.uri} is not the tracking server: its process belongs to user {owner_uid}, not to {ACCOUNT}."
                if owner_uid is not None
                else f"{self.uri} is not the tracking server: it has closed the connection, or is not on this host.",
                "See which process has its port with 'ss -ltnp', and 'systemctl status gpumesh-tracking'.",
            )

    def _open_connection(self) -> http.client.HTTPConnection:
        url_parts = urllib.parse.urlsplit(self.uri)
        if url_parts.scheme != "https":
            return http.client.HTTPConnection(url_parts.netloc, timeout=self.timeout)
        ssl_context = ssl.create_default_context(cafile=self.trust_path or None)
        return http.client.HTTPSConnection(url_parts.netloc, timeout=self.timeout, context=ssl_context)


def peer_uid(connection: socket.socket) -> Optional[int]:
    """Return the user whose process has the other end of a TCP connection on this host; None if there is none."""
    local_end, remote_end = connection.getsockname()[:2], connection.getpeername()[:2]
    for tcp_socket in processes.read_tcp_sockets("/proc").values():
        socket_ends = (
            (tcp_socket.local_address, tcp_socket.local_port),
            (tcp_socket.remote_address, tcp_socket.remote_port),
        )
        if tcp_socket.state == processes.ESTABLISHED and socket_ends == (remote_end, local_end):
            return tcp_socket.owner_uid
    return None
