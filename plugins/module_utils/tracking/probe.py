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

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited, processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import account
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking.settings import ACCOUNT, CHECKER

_EXPERIMENT = "gpumesh-check"
_VALUE = 0.25
_NOT_FOUND = 404
#: No answer has more bytes, whoever listens there.
_LARGEST = 1 << 20


class Client(NamedTuple):
    """The server, and the password of CHECKER; None if this host does not have it. ``timeout`` in seconds."""

    uri: str
    trust: str
    timeout: float
    password: Optional[str]

    def ask(self) -> None:
        """Check that the server is healthy. Raises HostStateError."""
        said = self._request("health", None)
        if said.strip() != b"OK":
            raise HostStateError(f"{self.uri}/health does not say OK.", "See journalctl -u gpumesh-tracking there.")

    def certificate_end(self) -> Optional[float]:
        """When the certificate of the server expires, in seconds since 1970; None without TLS. Raises HostStateError."""
        try:
            with contextlib.closing(self._connection()) as connection:
                connection.connect()
                found = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
        except OSError as failure:
            raise HostStateError(
                f"{self.uri} does not answer: {failure}.",
                "See the firewall, and 'systemctl status gpumesh-tracking' there.",
            ) from failure
        return None if found is None else float(ssl.cert_time_to_seconds(str(found["notAfter"])))

    def write_and_read(self) -> None:
        """Write a run with a point, read it back and delete it. Raises HostStateError.

        MLflow keeps deleted runs and experiments in its database until `mlflow gc` erases them.
        """
        experiment = self._experiment()
        now = int(time.time() * 1000)
        begun = {"experiment_id": experiment, "run_name": "check", "start_time": now}
        run = self._call("runs/create", begun)["run"]["info"]["run_id"]
        point = {"key": "check", "value": _VALUE, "timestamp": now, "step": 1}
        try:
            self._call("runs/log-batch", {"run_id": run, "metrics": [point]})
            read = self._call(f"runs/get?run_id={run}")["run"]["data"].get("metrics", [])
        except HostStateError:
            # The first error says more.
            with contextlib.suppress(HostStateError):
                self._end(run, "FAILED", now)
            raise
        self._end(run, "FINISHED", now)
        if [one.get("value") for one in read] != [_VALUE]:
            raise HostStateError(f"{self.uri}: the run that was written reads {read} back.", "See its PostgreSQL.")

    def _end(self, run: str, status: str, now: int) -> None:
        try:
            self._call("runs/update", {"run_id": run, "status": status, "end_time": now})
        finally:
            self._call("runs/delete", {"run_id": run})

    def _experiment(self) -> str:
        try:
            found = self._call(f"experiments/get-by-name?experiment_name={_EXPERIMENT}")["experiment"]
        except HostStateError as failure:
            if failure.details.get("status") != _NOT_FOUND:
                raise
            return str(self._call("experiments/create", {"name": _EXPERIMENT})["experiment_id"])
        number = str(found["experiment_id"])
        # A deleted experiment keeps its name, and accepts no runs.
        if found.get("lifecycle_stage") == "deleted":
            try:
                self._call("experiments/restore", {"experiment_id": number})
            except HostStateError as failure:
                # Another check has restored it meanwhile.
                if failure.details.get("status") != _NOT_FOUND:
                    raise
        return number

    def _call(self, path: str, body: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        return dict(json.loads(self._request(f"api/2.0/mlflow/{path}", body) or b"{}"))

    def _request(self, path: str, body: Optional[Mapping[str, Any]]) -> bytes:
        headers = {"Content-Type": "application/json"}
        if self.password is not None:
            login = base64.b64encode(f"{CHECKER}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        text = None if body is None else json.dumps(body)
        try:
            with contextlib.closing(self._connection()) as connection:
                if self.password is not None:
                    self._identify(connection)
                connection.request("GET" if text is None else "POST", f"/{path}", text, headers)
                answer = connection.getresponse()
                said = limited.read(answer, _LARGEST)
        except (OSError, ValueError, http.client.HTTPException) as failure:
            raise HostStateError(
                f"{self.uri} does not answer: {failure}.",
                "See the firewall, and 'systemctl status gpumesh-tracking' there.",
            ) from failure
        if said is None:
            raise HostStateError(
                f"{self.uri} answers more than {_LARGEST >> 10} KiB.", "Find out which program listens there."
            )
        if answer.status != 200:
            shown = said[:300].decode("utf-8", "replace")
            raise HostStateError(
                f"{self.uri}/{path} answers {answer.status}: {shown}.",
                "See journalctl -u gpumesh-tracking there.",
                status=answer.status,
            )
        return said

    def _identify(self, connection: http.client.HTTPConnection) -> None:
        """Refuse a listener that another account has started while the server was down. Raises HostStateError.

        A certificate identifies the server. Without one, the server's account must have the other end of this very
        connection, on this host. It is asked something first, since a connection that is not accepted yet has no owner.
        """
        if urllib.parse.urlsplit(self.uri).scheme == "https":
            return
        connection.request("GET", "/health")
        limited.read(connection.getresponse(), _LARGEST)
        # If this connection ends, the next request must not open another one.
        connection.auto_open = 0
        owner = None if connection.sock is None else peer_uid(connection.sock)
        if owner is None or owner != account(ACCOUNT).pw_uid:
            raise HostStateError(
                f"{self.uri} is not the tracking server: its process belongs to user {owner}, not to {ACCOUNT}."
                if owner is not None
                else f"{self.uri} is not the tracking server: it has closed the connection, or is not on this host.",
                "See which process has its port with 'ss -ltnp', and 'systemctl status gpumesh-tracking'.",
            )

    def _connection(self) -> http.client.HTTPConnection:
        where = urllib.parse.urlsplit(self.uri)
        if where.scheme != "https":
            return http.client.HTTPConnection(where.netloc, timeout=self.timeout)
        context = ssl.create_default_context(cafile=self.trust or None)
        return http.client.HTTPSConnection(where.netloc, timeout=self.timeout, context=context)


def peer_uid(connection: socket.socket) -> Optional[int]:
    """The user whose process has the other end of a TCP connection on this host; None if there is none."""
    here, there = connection.getsockname()[:2], connection.getpeername()[:2]
    for one in processes.tcp_sockets("/proc").values():
        ends = (one.local, one.port), (one.remote, one.remote_port)
        if one.state == processes.ESTABLISHED and ends == (there, here):
            return one.uid
    return None
