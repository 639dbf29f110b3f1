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

from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import limits

STREAMED = "/api/2.0/mlflow-artifacts/artifacts/1/x"
BATCH = "/api/2.0/mlflow/runs/log-batch"
ALICE, BOB, STRANGER = (("authorization", name) for name in ("alice", "bob", "stranger"))
MEDIUM = limits.ANONYMOUS + 1


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
        self.limits = limits.Limits(self.app)
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


def test_a_small_body_needs_no_user_and_none_is_looked_for() -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.ANONYMOUS) == 200
        assert client.app.bodies == [limits.ANONYMOUS] and not client.app.checked

    run(test)


@pytest.mark.parametrize("login", [[], [STRANGER], [("x-mlflow-authorization", "stranger"), ALICE]])
def test_a_larger_body_needs_a_user(login: list[tuple[str, str]]) -> None:
    async def test(client: Client) -> None:
        assert await client.ask(100 << 20, *login) == 401
        assert client.taken <= 2 << 20
        assert await client.ask(0, ("content-length", str(MEDIUM)), *login) == 401
        assert client.app.bodies == []

    run(test)


@pytest.mark.parametrize("login", [ALICE, ("x-mlflow-authorization", "alice")])
def test_a_user_may_have_one_up_to_a_limit(login: tuple[str, str]) -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.LARGEST, login) == 200
        assert client.app.bodies == [limits.LARGEST] and client.app.checked == 1
        client.taken = 0
        assert await client.ask(100 << 20, login) == 413
        assert client.taken <= limits.LARGEST + (1 << 20)
        assert await client.ask(0, ("content-length", str(limits.LARGEST + 1)), login) == 413

    run(test)


def test_all_bodies_of_a_user_together_have_a_limit_until_they_are_answered() -> None:
    async def test(client: Client) -> None:
        client.app.ready.clear()
        first = asyncio.create_task(client.ask(limits.LARGEST, ALICE))
        await client.app.arrived.wait()
        assert await client.ask(MEDIUM, ALICE) == 503
        others = [asyncio.create_task(client.ask(size, login)) for size, login in ((MEDIUM, BOB), (10, ALICE))]
        client.app.ready.set()
        assert await asyncio.gather(first, *others) == [200] * 3
        assert await client.ask(limits.LARGEST, ALICE) == 200

    run(test)


def test_who_leaves_before_the_end_gets_nothing_done_and_keeps_no_memory() -> None:
    async def test(client: Client) -> None:
        assert await client.ask(limits.LARGEST, ALICE, leaves=True) == 0
        assert client.app.bodies == []
        assert await client.ask(limits.LARGEST, ALICE) == 200

    run(test)


def test_credentials_that_cannot_be_checked_now_are_not_said_to_be_wrong() -> None:
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
def test_artifacts_have_any_size(method: str, path: str, status: int) -> None:
    async def test(client: Client) -> None:
        size = limits.LARGEST * 2
        assert await client.ask(size, ALICE, path=path, method=method) == status
        assert client.app.bodies == ([size] if status == 200 else [])

    run(test)


def test_a_start_of_the_server_is_handed_on() -> None:
    async def test(client: Client) -> None:
        seen = []

        async def app(scope: Any, _receive: Any, _send: Any) -> None:
            seen.append(scope["type"])

        await limits.Limits(app)({"type": "lifespan"}, client.ask, client.ask)  # type: ignore[arg-type]
        assert seen == ["lifespan"]

    run(test)
