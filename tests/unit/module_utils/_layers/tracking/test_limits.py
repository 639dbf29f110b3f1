# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits for the bodies of requests, in front of an app that collects them. tests/security has MLflow behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import limits

STREAMED = "/api/2.0/mlflow-artifacts/artifacts/1/x"
BATCH = "/api/2.0/mlflow/runs/log-batch"
ALICE, BOB, STRANGER = (("authorization", name) for name in ("alice", "bob", "stranger"))
MEDIUM = limits.MAX_ANONYMOUS_BYTES + 1


class App:
    """Stands in for MLflow: knows two users, and collects bodies. ``ready``: until when a request is in progress."""

    def __init__(self) -> None:
        self.bodies: list[int] = []
        self.checked = 0
        self.broken = False
        self.ready = asyncio.Event()
        self.ready.set()
        self.arrived = asyncio.Event()

    async def __call__(self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Any) -> None:
        name = dict(scope["headers"]).get(b"authorization", b"").decode()
        status, body = 200, b""
        if scope["path"].endswith("/users/current"):
            self.checked += 1
            status = 500 if self.broken else 200 if name in ("alice", "bob") else 401
            body = json.dumps({"user": {"username": name}}).encode()
        more, size = True, 0
        while more:
            message = await receive()
            size += len(message.get("body", b""))
            more = message.get("more_body", False)
        if not scope["path"].endswith("/users/current"):
            self.bodies.append(size)
            self.arrived.set()
            await self.ready.wait()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": body[:9], "more_body": True})
        await send({"type": "http.response.body", "body": body[9:]})


class Client:
    """Sends requests to the app."""

    def __init__(self) -> None:
        self.app = App()
        self.limits = limits.BodyLimits(self.app)
        self.taken = 0

    async def ask(
        self, size: int, *headers: tuple[str, str], path: str = BATCH, method: str = "POST", **more: Any
    ) -> int:
        """Send a body of this size. Returns the status, 0 if there is no response. ``leaves``: without the end of it."""
        part = more.get("part", 1 << 20)
        parts = iter([*([part] * (size // part)), size % part])
        found = [0]

        async def receive() -> Any:
            length = next(parts, None)
            if length is None:
                return {"type": "http.disconnect"}
            self.taken += length
            last = length != part and not more.get("leaves")
            return {"type": "http.request", "body": bytes(length), "more_body": not last}

        async def send(message: Any) -> None:
            found.append(message.get("status", 0))

        given = [(name.encode(), value.encode()) for name, value in headers]
        scope = {"type": "http", "method": method, "path": path, "headers": given}
        await self.limits(scope, receive, send)
        return max(found)


def run(test: Callable[[Client], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(test(Client()), 60)

    asyncio.run(within())


def test_small_body_is_forwarded_without_authentication() -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.MAX_ANONYMOUS_BYTES) == 200
        assert client.app.bodies == [limits.MAX_ANONYMOUS_BYTES] and not client.app.checked

    run(test)


@pytest.mark.parametrize("login", [[], [STRANGER], [("x-mlflow-authorization", "stranger"), ALICE]])
def test_larger_body_requires_authentication(login: list[tuple[str, str]]) -> None:
    async def test(client: Client) -> None:
        assert await client.ask(100 << 20, *login) == 401
        assert client.taken <= 2 << 20
        assert await client.ask(0, ("content-length", str(MEDIUM)), *login) == 401
        assert client.app.bodies == []

    run(test)


@pytest.mark.parametrize("login", [ALICE, ("x-mlflow-authorization", "alice")])
def test_body_of_a_user_is_limited(login: tuple[str, str]) -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.MAX_BODY_BYTES, login) == 200
        assert client.app.bodies == [limits.MAX_BODY_BYTES] and client.app.checked == 1
        client.taken = 0
        assert await client.ask(100 << 20, login) == 413
        assert client.taken <= limits.MAX_BODY_BYTES + (1 << 20)
        assert await client.ask(0, ("content-length", str(limits.MAX_BODY_BYTES + 1)), login) == 413

    run(test)


def test_total_size_of_concurrent_bodies_is_limited() -> None:
    async def test(client: Client) -> None:
        client.app.ready.clear()
        first = asyncio.create_task(client.ask(limits.MAX_BODY_BYTES, ALICE))
        await client.app.arrived.wait()
        assert await client.ask(MEDIUM, ALICE) == 503
        others = [asyncio.create_task(client.ask(size, login)) for size, login in ((MEDIUM, BOB), (10, ALICE))]
        client.app.ready.set()
        assert await asyncio.gather(first, *others) == [200] * 3
        assert await client.ask(limits.MAX_BODY_BYTES, ALICE) == 200

    run(test)


def test_disconnected_client_releases_its_memory() -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.MAX_BODY_BYTES, ALICE, leaves=True) == 0
        assert client.app.bodies == []
        assert await client.ask(limits.MAX_BODY_BYTES, ALICE) == 200

    run(test)


def test_failed_credential_check_is_temporary() -> None:
    async def test(client: Client) -> None:
        client.app.broken = True
        assert await client.ask(MEDIUM, ALICE) == 503

    run(test)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", STREAMED, 200),
        ("PUT", f"/ajax-{STREAMED[1:]}", 200),
        ("POST", STREAMED, 413),
        ("PUT", f"/x{STREAMED}", 413),
        # MLflow has no such route.
        ("PUT", f"{STREAMED}\nx", 413),
    ],
)
def test_artifact_uploads_are_not_limited(method: str, path: str, status: int) -> None:
    async def test(client: Client) -> None:
        size = limits.MAX_BODY_BYTES * 2
        assert await client.ask(size, ALICE, path=path, method=method) == status
        assert client.app.bodies == ([size] if status == 200 else [])

    run(test)


def test_lifespan_events_are_forwarded() -> None:
    async def test(client: Client) -> None:
        seen = []

        async def app(scope: Any, _receive: Any, _send: Any) -> None:
            seen.append(scope["type"])

        await limits.BodyLimits(app)({"type": "lifespan"}, client.ask, client.ask)  # type: ignore[arg-type]
        assert seen == ["lifespan"]

    run(test)
