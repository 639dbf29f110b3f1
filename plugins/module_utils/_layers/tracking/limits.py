# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow with limits for the bodies of requests. The tracking server starts this app (``mlflow server --app-name``).

MLflow collects a whole body in memory before it checks the credentials. This app refuses a body without valid
credentials once it exceeds a few KiB, and limits all bodies of a user together to some MiB. Artifacts are not limited:
MLflow checks the credentials first, and writes them in parts.
"""

from __future__ import annotations

import importlib
import json
import re
from typing import Any, Awaitable, Callable, Dict, MutableMapping, Optional

#: The maximum bytes of a body without credentials, and of all bodies of a user at a time. MLflow accepts 1 MB of
#: metrics in a request.
MAX_ANONYMOUS_BYTES, MAX_BODY_BYTES = 64 << 10, 32 << 20
#: The paths whose bodies MLflow streams.
_STREAMED_PATH = re.compile(r"/(ajax-)?api/2\.0/mlflow-artifacts/artifacts/.*")
#: A path that all users, and nobody else, may request.
_CURRENT_USER_PATH = "/api/2.0/mlflow/users/current"
#: The headers with credentials. Programs that pass a key of their own on to a model use the first one.
_CREDENTIAL_HEADERS = (b"x-mlflow-authorization", b"authorization")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _RefusedError(Exception):
    """A request that is answered without MLflow."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class BodyLimits:
    """An ASGI app in front of MLflow's app."""

    def __init__(self, app: App) -> None:
        self._app = app
        #: The bytes of bodies in memory, by user.
        self._bytes_by_user: Dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_streamed = scope["type"] == "http" and scope["method"] == "PUT" and _STREAMED_PATH.fullmatch(scope["path"])
        if scope["type"] != "http" or is_streamed:
            await self._app(scope, receive, send)
            return
        body = _RequestBody(self, scope)
        try:
            body_bytes = await body.collect(receive)
            if body_bytes is not None:
                await self._app(scope, _replay_body(body_bytes, receive), send)
        except _RefusedError as refused:
            await _send_refusal(send, refused)
        finally:
            self.count_bytes(body.user_name, -body.counted_bytes)

    async def authenticated_user(self, scope: Scope) -> str:
        """Ask MLflow for the name of the user with the credentials of a request. Raises _RefusedError."""
        request_headers = dict(scope["headers"])
        credentials = next((request_headers[name] for name in _CREDENTIAL_HEADERS if request_headers.get(name)), b"")
        forwarded_headers = [(b"host", request_headers.get(b"host", b"")), (b"authorization", credentials)]
        user_request = {"path": _CURRENT_USER_PATH, "raw_path": _CURRENT_USER_PATH.encode(), "query_string": b""}
        status, response_body = 401, b""

        async def collect_response(message: Message) -> None:
            nonlocal status, response_body
            status = message.get("status", status)
            response_body += message.get("body", b"")

        if credentials:
            user_scope = {**scope, **user_request, "method": "GET", "headers": forwarded_headers, "state": {}}
            # Modules import this file to install it, on hosts where they have no use for asyncio.
            never_set = importlib.import_module("asyncio").Event()
            await self._app(user_scope, _replay_body(b"", never_set.wait), collect_response)
        if status >= 500:
            raise _RefusedError(503, "TEMPORARILY_UNAVAILABLE", "The credentials cannot be checked now.")
        if status != 200:
            message = f"Without the credentials of a user, a request may have only {MAX_ANONYMOUS_BYTES >> 10} KiB."
            raise _RefusedError(401, "UNAUTHENTICATED", message)
        return str(json.loads(response_body)["user"]["username"])

    def count_bytes(self, user: str, byte_count: int) -> None:
        """Count bytes of a user's bodies. Raises _RefusedError if there are too many."""
        user_total = self._bytes_by_user.get(user, 0) + byte_count
        if byte_count > 0 and user_total > MAX_BODY_BYTES:
            message = f"All requests of a user at a time may have {MAX_BODY_BYTES >> 20} MiB."
            raise _RefusedError(503, "REQUEST_LIMIT_EXCEEDED", message)
        if user_total:
            self._bytes_by_user[user] = user_total
        else:
            self._bytes_by_user.pop(user, None)


class _RequestBody:
    """The body of a request."""

    def __init__(self, limits: BodyLimits, scope: Scope) -> None:
        self._limits, self._scope = limits, scope
        #: The user whose credentials were checked, and the bytes that are counted for this user.
        self.user_name, self.counted_bytes = "", 0

    async def collect(self, receive: Receive) -> Optional[bytes]:
        """Receive the whole body; None if the client has disconnected. Raises _RefusedError."""
        declared_length = dict(self._scope["headers"]).get(b"content-length", b"")
        await self._accept(int(declared_length) if declared_length.isdigit() else 0)
        # A list would need hundreds of times the memory of parts of a single byte.
        body_bytes, more_body = bytearray(), True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body_bytes += message.get("body", b"")
            await self._accept(len(body_bytes))
            more_body = message.get("more_body", False)
        return bytes(body_bytes)

    async def _accept(self, body_size: int) -> None:
        """Accept a body that has this size so far. Raises _RefusedError."""
        if body_size > MAX_BODY_BYTES:
            raise _RefusedError(413, "INVALID_PARAMETER_VALUE", f"A request may have only {MAX_BODY_BYTES >> 20} MiB.")
        if body_size <= MAX_ANONYMOUS_BYTES:
            return
        if not self.user_name:
            self.user_name = await self._limits.authenticated_user(self._scope)
        if body_size > self.counted_bytes:
            self._limits.count_bytes(self.user_name, body_size - self.counted_bytes)
            self.counted_bytes = body_size


def _replay_body(body: bytes, receive_next: Callable[[], Awaitable[Any]]) -> Receive:
    """Return a function from which MLflow receives the body, and after that, what ``receive_next`` returns."""
    pending_messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return pending_messages.pop() if pending_messages else await receive_next()

    return receive


async def _send_refusal(send: Send, refusal: _RefusedError) -> None:
    body = json.dumps({"error_code": refusal.code, "message": refusal.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create_app() -> App:
    """Return MLflow's app for users with passwords, within the limits."""
    return BodyLimits(importlib.import_module("mlflow.server.auth").create_app())
