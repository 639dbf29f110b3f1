# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The names of endpoints: resolved all at once, with a time limit, and with any reply from a name server."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.mesh import interface

ENDPOINTS = [f"gw{number}.example.com:51820" for number in range(200)]


def patch_getaddrinfo(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def ask(_name: str, port: int, **_kind: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", ask)


def test_names_are_resolved_concurrently_within_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together = threading.Barrier(10)
    queried_names = iter(range(len(ENDPOINTS)))
    answer = threading.Event()

    def ask(name: str, port: int, **_kind: Any) -> list[Any]:
        if name.startswith("gw7."):
            answer.wait()
        # The first ten answers come when all ten are waited for.
        elif next(queried_names) < together.parties:
            together.wait(60)
        return [(socket.AF_INET, 0, 0, "", ("203.0.113.7", port))]

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    resolved = interface.resolve_endpoints(ENDPOINTS, time_limit=5.0)
    # Nobody has waited for it: it would hang for ever.
    answer.set()
    assert resolved.pop("gw7.example.com:51820") == ()
    assert set(resolved.values()) == {("203.0.113.7:51820",)}


def test_unusable_addresses_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    patch_getaddrinfo(monkeypatch, "127.0.0.1", "fe80::1%eth0", "203.0.113.7", "0.0.0.0")
    assert interface.resolve_endpoints(["gw.example.com:1"]) == {"gw.example.com:1": ("203.0.113.7:1",)}


def test_name_that_cannot_be_encoded_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*_arguments: Any, **_kind: Any) -> None:
        raise UnicodeError("label empty or too long")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert interface.resolve_endpoints(["gw.example.com:1"]) == {"gw.example.com:1": ()}
