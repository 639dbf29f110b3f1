# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Connections of the prober to ports of this machine that refuse the first one."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import prober
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.prober import Prober


def outcome(monkeypatch: pytest.MonkeyPatch, state: str, opens: bool) -> str:
    """The result for a port on which nothing listens at first; if it ``opens``, something does a moment later."""
    monkeypatch.setattr(prober, "_AGAIN", 0.3)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        number = reserved.getsockname()[1]

    async def probe() -> str:
        limits = cast(Any, type("Limits", (), {"timeout": 5.0}))
        probing = asyncio.ensure_future(
            Prober(cast(Any, None), "", limits, None)._port(
                0, "127.0.0.1", cast(Any, {"port": number, "role": "service", "protocol": "tcp", "state": state})
            )
        )
        await asyncio.sleep(0.1)
        # It shows immediately that it does not know the protocol.
        server = (
            await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", number) if opens else None
        )
        found = await probing
        if server:
            server.close()
        return found.result["outcome"]

    return asyncio.run(probe())


def test_a_connection_that_a_busy_listener_refuses_is_attempted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, "listening", opens=True) == "closed"


@pytest.mark.parametrize(("state", "opens"), [("listening", False), ("in_use", True)])
def test_what_is_refused_for_good_or_is_not_ours_is_refused(
    monkeypatch: pytest.MonkeyPatch, state: str, opens: bool
) -> None:
    assert outcome(monkeypatch, state, opens) == "refused"
