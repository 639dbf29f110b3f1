# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""MLflow with limits for the bodies of requests. The tracking server starts this app (``mlflow server --app-name``).

MLflow collects a whole body in memory before it looks at the credentials. Here, a body without valid ones is refused once it
has more than a few KiB, and all bodies of a user together may have only some MiB. Artifacts have any size: MLflow checks the
credentials first, and writes them in parts.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from typing import Any, Awaitable, Callable, Dict, MutableMapping, Optional

#: Bytes: of a body without credentials, and of all bodies of a user at a time. MLflow accepts 1 MB of metrics in a request.
ANONYMOUS, LARGEST = 64 << 10, 32 << 20
#: What MLflow streams.
_STREAMED = re.compile(r"/(ajax-)?api/2\.0/mlflow-artifacts/artifacts/.*")
#: What any user may request, and only users.
_OWN_NAME = "/api/2.0/mlflow/users/current"
#: The headers with credentials. Programs that hand a key of their own on to a model use the first one.
_CREDENTIALS = (b"x-mlflow-authorization", b"authorization")

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


class Limits:
    """An ASGI app in front of MLflow's."""

    def __init__(self, app: App) -> None:
        self._app = app
        #: The bytes of the bodies of each user that are in memory.
        self._held: Dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        streamed = scope["type"] == "http" and scope["method"] == "PUT" and _STREAMED.fullmatch(scope["path"])
        if scope["type"] != "http" or streamed:
            await self._app(scope, receive, send)
            return
        body = _Body(self, scope)
        try:
            collected = await body.collect(receive)
            if collected is not None:
                await self._app(scope, _received(collected, receive), send)
        except _RefusedError as refused:
            await _answer(send, refused)
        finally:
            self.hold(body.user, -body.held)

    async def user(self, scope: Scope) -> str:
        """The name of the user with the credentials of a request, as MLflow says. Raises _RefusedError."""
        given = dict(scope["headers"])
        credentials = next((given[name] for name in _CREDENTIALS if given.get(name)), b"")
        headers = [(b"host", given.get(b"host", b"")), (b"authorization", credentials)]
        path = {"path": _OWN_NAME, "raw_path": _OWN_NAME.encode(), "query_string": b""}
        status, said = 401, b""

        async def keep(message: Message) -> None:
            nonlocal status, said
            status = message.get("status", status)
            said += message.get("body", b"")

        if credentials:
            request = {**scope, **path, "method": "GET", "headers": headers, "state": {}}
            await self._app(request, _received(b"", asyncio.Event().wait), keep)
        if status >= 500:
            raise _RefusedError(503, "TEMPORARILY_UNAVAILABLE", "The credentials cannot be checked now.")
        if status != 200:
            message = f"Without the credentials of a user, a request may have only {ANONYMOUS >> 10} KiB."
            raise _RefusedError(401, "UNAUTHENTICATED", message)
        return str(json.loads(said)["user"]["username"])

    def hold(self, user: str, size: int) -> None:
        """Count bytes of a user's bodies. Raises _RefusedError if there are too many."""
        total = self._held.get(user, 0) + size
        if size > 0 and total > LARGEST:
            message = f"All requests of a user at a time may have {LARGEST >> 20} MiB."
            raise _RefusedError(503, "REQUEST_LIMIT_EXCEEDED", message)
        if total:
            self._held[user] = total
        else:
            self._held.pop(user, None)


class _Body:
    """The body of a request."""

    def __init__(self, limits: Limits, scope: Scope) -> None:
        self._limits, self._scope = limits, scope
        #: The user whose credentials were checked, and the bytes that are counted as theirs.
        self.user, self.held = "", 0

    async def collect(self, receive: Receive) -> Optional[bytes]:
        """Receive all of it; None if the client has left. Raises _RefusedError."""
        declared = dict(self._scope["headers"]).get(b"content-length", b"")
        await self._accept(int(declared) if declared.isdigit() else 0)
        # Not a list: parts of a single byte would need hundreds of times their memory.
        collected, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            collected += message.get("body", b"")
            await self._accept(len(collected))
            more = message.get("more_body", False)
        return bytes(collected)

    async def _accept(self, size: int) -> None:
        """Accept a body of this size, so far. Raises _RefusedError."""
        if size > LARGEST:
            raise _RefusedError(413, "INVALID_PARAMETER_VALUE", f"A request may have only {LARGEST >> 20} MiB.")
        if size <= ANONYMOUS:
            return
        if not self.user:
            self.user = await self._limits.user(self._scope)
        if size > self.held:
            self._limits.hold(self.user, size - self.held)
            self.held = size


def _received(body: bytes, then: Callable[[], Awaitable[Any]]) -> Receive:
    """What MLflow receives: the body, and after that, what ``then`` returns."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return left.pop() if left else await then()

    return receive


async def _answer(send: Send, refused: _RefusedError) -> None:
    body = json.dumps({"error_code": refused.code, "message": refused.message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def create_app() -> App:
    """MLflow's app for users with passwords, within the limits."""
    return Limits(importlib.import_module("mlflow.server.auth").create_app())
