# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The prober against listeners on this machine: real ones, and ports that refuse, hang up or stay silent."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import listener, prober
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    LocalMember,
    PeerResult,
    ProbedPeer,
    RdmaEndpoint,
    ReachabilityLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.prober import Prober
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import lease, leased_process
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

HERE = "127.0.0.1"
NO_RDMA: RdmaEndpoint = {"device": "", "port": 1, "gid_index": None, "rate_gbps": None, "reason": "none"}


async def probe(peers: Sequence[ProbedPeer], token: str = "T0ken", payload: int = 0) -> list[PeerResult]:
    nowhere: Any = {"dev": None, "prefsrc": None, "gateway": None, "error": None}
    probing = Prober(LocalMember("n0", HERE, "lo"), token, ReachabilityLimits(0.5, payload), None)
    return await probing.probe_all(peers, dict.fromkeys([HERE], nowhere))


def peer(machine: str, ports: Sequence[int], state: str = "listening", udp: Sequence[int] = ()) -> ProbedPeer:
    return {
        "machine": machine,
        "address": HERE,
        "ports": [
            *({"port": port, "role": "named", "protocol": "tcp", "state": state} for port in ports),
            *({"port": port, "role": "ephemeral", "protocol": "udp", "state": "listening"} for port in udp),
        ],
        "rdma": False,
    }


def outcomes(peer_result: PeerResult) -> list[str]:
    return [port["outcome"] for port in peer_result["ports"]]


@asynccontextmanager
async def serving(number: int = 1) -> AsyncIterator[list[int]]:
    """A real listener on this number of ports."""
    run = uuid4().hex
    opened = [socket.create_server((HERE, 0)) for _port in range(number)]
    settings = listener.ListenerSettings(run, "T0ken", HERE, 1500, [], NO_RDMA)
    with leased_process.open_control_socket("listener", run) as control:
        for listener_socket in (control, *opened):
            listener_socket.setblocking(False)
        work = asyncio.ensure_future(listener.Listener(settings, lease.Lease(60, None, Tree())).serve(opened, control))
        yield [listener_socket.getsockname()[1] for listener_socket in opened]
        await asyncio.to_thread(leased_process.query_process, "listener", run, "stop", 5.0)
        await work


@asynccontextmanager
async def silent(number: int) -> AsyncIterator[list[int]]:
    """Ports that accept connections and say nothing."""
    opened = [socket.create_server((HERE, 0)) for _port in range(number)]
    yield [listener_socket.getsockname()[1] for listener_socket in opened]
    for listener_socket in opened:
        listener_socket.close()


def outcome(monkeypatch: pytest.MonkeyPatch, state: str, opens: bool) -> str:
    """The result for a port on which nothing listens at first; if it ``opens``, something does a moment later."""
    # The port opens, if at all, well before the second attempt.
    monkeypatch.setattr(prober, "_RETRY_DELAY", 5.0 if opens else 0.1)
    with socket.socket() as reserved:
        reserved.bind((HERE, 0))
        number = reserved.getsockname()[1]

    async def run() -> str:
        probing = asyncio.ensure_future(probe([peer("n1", [number], state)]))
        await asyncio.sleep(0.1)
        # The peer shows immediately that it does not know the protocol.
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), HERE, number) if opens else None
        ((peer_result,),) = [outcomes(result) for result in await probing]
        if server:
            server.close()
        return peer_result

    return asyncio.run(run())


def test_a_connection_that_a_busy_listener_refuses_is_attempted_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, "listening", opens=True) == "closed"


@pytest.mark.parametrize(("state", "opens"), [("listening", False), ("in_use", True)])
def test_repeated_or_foreign_refusal_is_reported_as_refused(
    monkeypatch: pytest.MonkeyPatch, state: str, opens: bool
) -> None:
    assert outcome(monkeypatch, state, opens) == "refused"


def test_wrong_proof_is_reported_as_stranger() -> None:
    async def run() -> list[PeerResult]:
        async with serving() as ports:
            return await probe([peer("n1", ports)], token="another")

    (peer_result,) = asyncio.run(run())
    assert outcomes(peer_result) == ["stranger"]


def test_silent_peers_do_not_delay_other_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "_MAX_SESSIONS", 2)
    monkeypatch.setattr(prober, "_REPLY_TIMEOUT", 0.4)
    monkeypatch.setattr(listener, "_HANDSHAKE_TIMEOUT", 0.6)

    async def run() -> list[PeerResult]:
        async with silent(35) as mute, serving(7) as ports:
            peers = [peer(f"m{number}", mute[7 * number : 7 * number + 7]) for number in range(5)]
            return await probe([*peers, peer("n1", ports)])

    *mute, sound = asyncio.run(run())
    assert {listener_socket for peer_result in mute for listener_socket in outcomes(peer_result)} == {"mute"}
    assert (set(outcomes(sound)), sound["finished"]) == ({"ok"}, True)


def test_sessions_do_not_expire_while_other_peers_wait_for_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prober, "_MAX_SESSIONS", 2)
    monkeypatch.setattr(listener, "_IDLE_TIMEOUT", 0.8)

    async def run() -> list[PeerResult]:
        with socket.socket(type=socket.SOCK_DGRAM) as deaf:
            deaf.bind((HERE, 0))
            async with serving() as ports:
                return await probe(
                    [peer(f"n{listener_socket}", ports, udp=[deaf.getsockname()[1]]) for listener_socket in range(8)]
                )

    peer_result = asyncio.run(run())
    assert [outcomes(listener_socket) for listener_socket in peer_result] == [["ok", "filtered"]] * 8
    assert [listener_socket["finished"] for listener_socket in peer_result] == [True] * 8


@pytest.mark.parametrize(("silent_attempts", "expected"), [(1, ["ok", "ok"]), (2, ["filtered", "filtered"])])
def test_a_peer_is_attempted_again_whose_handshake_was_lost(
    monkeypatch: pytest.MonkeyPatch, silent_attempts: int, expected: list[str]
) -> None:
    connect_once, attempts_by_port = Prober._connect_once, Counter[int]()

    async def connect(self: Prober, address: str, port: int) -> socket.socket:
        attempts_by_port[port] += 1
        if attempts_by_port[port] <= silent_attempts:
            raise asyncio.TimeoutError
        return await connect_once(self, address, port)

    async def run() -> PeerResult:
        async with serving(2) as ports:
            (peer_result,) = await probe([peer("n1", ports)])
            return peer_result

    monkeypatch.setattr(Prober, "_connect_once", connect)
    assert outcomes(asyncio.run(run())) == expected


def test_a_port_that_is_filtered_beside_another_is_attempted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_once, attempts = Prober._connect_once, []

    async def run() -> PeerResult:
        async with serving(2) as ports:

            async def connect(self: Prober, address: str, port: int) -> socket.socket:
                attempts.append(port)
                if port == ports[1]:
                    raise asyncio.TimeoutError
                return await connect_once(self, address, port)

            monkeypatch.setattr(Prober, "_connect_once", connect)
            (peer_result,) = await probe([peer("n1", ports)])
            assert attempts.count(ports[1]) == 1
            return peer_result

    assert outcomes(asyncio.run(run())) == ["ok", "filtered"]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_exhausted_resources_are_attributed_to_the_probing_host(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    async def refuse(_self: Prober, _address: str, _port: int) -> socket.socket:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Prober, "_connect_once", refuse)
    (peer_result,) = asyncio.run(probe([peer("n1", [1])]))
    assert outcomes(peer_result) == ["not_checked"]
    assert "n0" in peer_result["ports"][0]["detail"]
    assert os.strerror(number) in peer_result["ports"][0]["detail"]


def test_few_open_files_are_enough_for_many_ports() -> None:
    code = (
        "import asyncio, sys\n"
        "from ansible_collections.gpumesh.cluster.tests.unit.module_utils._checks.reachability.test_prober import outcomes, peer, probe\n"
        "(found,) = asyncio.run(probe([peer('n1', [int(sys.argv[1])] * 300, 'service')]))\n"
        "print(set(outcomes(found)))\n"
    )
    with socket.create_server((HERE, 0), backlog=1024) as service:
        argv = ["prlimit", "--nofile=64:64", sys.executable, "-c", code, str(service.getsockname()[1])]
        result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "{'connected'}", result.stderr
