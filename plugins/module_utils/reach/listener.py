# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The listener of a member. It answers only peers that prove to know the token of the run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import socket
import subprocess
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach, lease, perftest, protocol, sockets
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.payload import Payloads
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import RdmaEnd

#: Seconds in which a stranger must authenticate, and after which a silent session is closed. Long, since a prober may
#: be busy with other peers.
_HANDSHAKE_SECONDS = 120.0
_IDLE_SECONDS = 120.0
#: Sessions at a time, so that strangers cannot use up this host's memory or files.
_SESSIONS = 4096
#: Datagrams that a session may send.
_DATAGRAMS = 4096
#: The maximum seconds that a measurement of throughput may take.
_MEASUREMENT_SECONDS = 120.0

Stream = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Settings(NamedTuple):
    """The settings of a listener.

    It ends after the `done` of all ``visitors``; if there are none, after its lifetime.
    """

    run: str
    token: str
    address: str
    mtu: int
    visitors: Sequence[str]
    rdma: RdmaEnd


async def receive(reader: asyncio.StreamReader, timeout: float) -> Dict[str, Any]:
    """The next frame. Raises ProtocolError, asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError."""

    async def whole() -> bytes:
        return await reader.readexactly(protocol.body_length(await reader.readexactly(protocol.LENGTH_SIZE)))

    return protocol.parse_body(await asyncio.wait_for(whole(), timeout))


async def send(writer: asyncio.StreamWriter, message: Dict[str, Any]) -> None:
    """Write one frame."""
    writer.write(protocol.frame(message))
    await writer.drain()


class Listener:
    """All open ports of a member."""

    def __init__(self, settings: Settings, term: lease.Lease) -> None:
        self._settings = settings
        self._term = term
        self._expected: Set[str] = set(settings.visitors)
        self._refused = 0
        self._open = 0
        #: The numbers received in each active session; a repeated one is a replay.
        self._numbers: Dict[bytes, Set[int]] = {}
        self._payloads = Payloads()
        self._ports: List[int] = []
        self._ready: List[asyncio.StreamWriter] = []
        self._end: Optional[asyncio.Event] = None
        self._servers: List[asyncio.AbstractServer] = []
        self._transports: List[asyncio.BaseTransport] = []
        self._gathering: Optional[asyncio.TimerHandle] = None

    async def serve(self, opened: Sequence[socket.socket], control: socket.socket) -> None:
        """Run until a process on this host sends stop, or the last expected visitor is done."""
        loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        sockets.raise_file_limit()
        for one in opened:
            if one.type == socket.SOCK_STREAM:
                self._ports.append(one.getsockname()[1])
                self._servers.append(await asyncio.start_server(self._visitor, sock=one))
            else:
                transport, _protocol = await loop.create_datagram_endpoint(
                    lambda: _Datagrams(self._settings.token, self._numbers), sock=one
                )
                self._transports.append(transport)
        await asyncio.start_unix_server(self._asked, sock=control)
        await self._end.wait()
        # The last replies, to `done` and `stop`, may still be in transit.
        await asyncio.sleep(0.2)

    async def _asked(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not detach.may_ask(writer.get_extra_info("socket")):
                return
            question = detach.parse_question(await asyncio.wait_for(reader.readline(), _HANDSHAKE_SECONDS))
            ends = question.what == "stop" or (question.what == "replace" and self._term.yields_to(question.connection))
            if ends and self._end is not None:
                await self._close_ports()
                self._end.set()
            state = {"refused": self._refused, "left": len(self._expected), "ports": self._ports}
            writer.write(json.dumps(state).encode())
        except (asyncio.TimeoutError, ConnectionError):
            return
        finally:
            writer.close()

    async def _close_ports(self) -> None:
        """The process that requested the end may need the ports immediately."""
        for server in self._servers:
            server.close()
        for transport in self._transports:
            transport.close()
        # A transport closes its socket in the next iteration of the loop.
        await asyncio.sleep(0)

    async def _visitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = os.urandom(8)
        if self._open >= _SESSIONS:
            writer.transport.abort()
            return
        self._open += 1
        try:
            machine = await asyncio.wait_for(self._handshake((reader, writer), session), _HANDSHAKE_SECONDS)
            while await self._command((reader, writer), machine):
                continue
        except protocol.ProtocolError:
            self._refused += 1
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            # The peer hung up or fell silent, which its own side has to judge.
            pass
        finally:
            self._open -= 1
            self._numbers.pop(session, None)
            with contextlib.suppress(OSError):
                writer.close()

    async def _handshake(self, stream: Stream, session: bytes) -> str:
        reader, writer = stream
        hello = await receive(reader, _HANDSHAKE_SECONDS)
        if hello.get("gpumesh") != protocol.VERSION:
            raise protocol.ProtocolError("the first frame is not of this protocol")
        theirs, ours = protocol.text_of(hello, "nonce"), protocol.nonce()
        await send(writer, {"nonce": ours})
        claim = await receive(reader, _HANDSHAKE_SECONDS)
        protocol.check_proof(self._settings.token, "client", theirs, ours, protocol.text_of(claim, "proof"))
        # Before the reply: the first datagram may arrive before this side continues.
        self._numbers[session] = set()
        await send(
            writer,
            {
                "proof": protocol.proof(self._settings.token, "server", theirs, ours),
                "echo": protocol.text_of(claim, "echo"),
                "seen": writer.get_extra_info("peername")[0],
                "session": session.hex(),
                "mtu": self._settings.mtu,
            },
        )
        return protocol.text_of(claim, "machine")

    async def _command(self, stream: Stream, machine: str) -> bool:
        """Carry out the next request. Returns False when the session is over."""
        reader, writer = stream
        order = await receive(reader, _IDLE_SECONDS)
        self._term.renew()
        received = time.time()
        what = order.get("do")
        if what == "time":
            await send(writer, {"received": received, "sent": time.time()})
        elif what == "take":
            await self._take(stream, protocol.number_of(order, "size", protocol.PAYLOAD_LIMIT))
        elif what == "give":
            await self._give(stream, protocol.number_of(order, "size", protocol.PAYLOAD_LIMIT))
        elif what == "done":
            await self._done(writer, machine)
            return False
        elif what == "ready":
            await self._gather(stream, protocol.number_of(order, "hosts", _SESSIONS))
            return False
        elif what == "receive":
            await self._measure(stream, protocol.text_of(order, "end", 64).encode())
            return False
        elif what == "iperf3":
            await send(writer, {"port": _start_iperf3(self._settings.address)})
        elif what in perftest.PROGRAMS:
            seconds = protocol.number_of(order, "seconds", int(_MEASUREMENT_SECONDS))
            await send(writer, {"port": _start_perftest(what, self._settings, seconds)})
        else:
            raise protocol.ProtocolError("unknown command")
        return True

    async def _take(self, stream: Stream, size: int) -> None:
        reader, writer = stream
        digest = hashlib.sha256()
        left = size
        while left:
            data = await asyncio.wait_for(reader.read(min(left, protocol.CHUNK)), _IDLE_SECONDS)
            if not data:
                raise ConnectionError("the connection was closed during a payload")
            digest.update(data)
            left -= len(data)
        await send(writer, {"sha256": digest.hexdigest(), "size": size})

    async def _give(self, stream: Stream, size: int) -> None:
        writer = stream[1]
        payload = self._payloads.of(size)
        for piece in payload.pieces():
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), _IDLE_SECONDS)
        await send(writer, {"sha256": payload.sha256})

    async def _done(self, writer: asyncio.StreamWriter, machine: str) -> None:
        last = self._expected == {machine}
        self._expected.discard(machine)
        await send(writer, {"left": len(self._expected)})
        if last and self._end is not None:
            self._end.set()

    async def _gather(self, stream: Stream, hosts: int) -> None:
        """Hold this peer back until all have come, so that their clocks need not agree."""
        reader, writer = stream
        self._ready.append(writer)
        loop = asyncio.get_running_loop()
        if len(self._ready) >= hosts:
            self._start()
        elif self._gathering is None:
            self._gathering = loop.call_later(protocol.gather_seconds(hosts), self._start)
        # The visitor hangs up when it has the reply.
        await asyncio.wait_for(reader.read(1), protocol.gather_seconds(hosts) + _HANDSHAKE_SECONDS)

    def _start(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        for writer in self._ready:
            with contextlib.suppress(OSError):
                writer.write(protocol.frame({"go": True}))
        self._ready = []

    async def _measure(self, stream: Stream, end: bytes) -> None:
        """Leave the socket to a thread that only reads, since the event loop would be the bottleneck."""
        writer = stream[1]
        transport = writer.transport
        if isinstance(transport, asyncio.ReadTransport):
            transport.pause_reading()
        raw = writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(raw.fileno())) as own:
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(loop.run_in_executor(None, _drain, own, end), _MEASUREMENT_SECONDS)


def _drain(tcp: socket.socket, end: bytes) -> None:
    """Read up to ``end``, or to the end of the stream: some proxies do not forward the closing of only one direction."""
    tcp.settimeout(_HANDSHAKE_SECONDS)
    tcp.sendall(protocol.frame({"ready": True}))
    buffer = bytearray(1 << 20)
    size = tcp.recv_into(buffer)
    begin = time.monotonic()
    # The first piece came before the clock was started, so it does not count.
    total = 0
    last = bytes(buffer[:size])[-len(end) :]
    while size and last != end:
        size = tcp.recv_into(buffer)
        total += size
        last = (last + bytes(buffer[max(0, size - len(end)) : size]))[-len(end) :]
    tcp.sendall(protocol.frame({"size": total, "seconds": time.monotonic() - begin}))


def _start_iperf3(address: str) -> int:
    """Start an iperf3 that serves one client and ends. Returns its port; 0 if it is not installed."""
    port = _free_port(address)
    return port if _serve(["iperf3", "-s", "-1", "-B", address, "-p", str(port)]) else 0


def _start_perftest(what: str, settings: Settings, seconds: int) -> int:
    """Start a program of perftest that serves one client and ends. Returns its port; 0 if it is not installed."""
    if not settings.rdma["device"]:
        return 0
    port = _free_port(settings.address)
    return port if _serve(perftest.command(what, settings.rdma, port, seconds)) else 0


def _free_port(address: str) -> int:
    with socket.socket(sockets.family_of(address), socket.SOCK_STREAM) as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


def _serve(argv: Sequence[str]) -> bool:
    """Start a server; False if it is not installed. It must end even if no peer connects and this process is killed."""
    program, limiter = command.find(argv[0]), command.find("timeout")
    if program is None or limiter is None:
        return False
    command.Process(
        [limiter, "60", program, *argv[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return True


class _Datagrams(asyncio.DatagramProtocol):
    """Answers requests of active sessions with datagrams of the requested size."""

    def __init__(self, token: str, numbers: Dict[bytes, Set[int]]) -> None:
        self._token = token
        self._numbers = numbers
        self._transport: Optional[asyncio.DatagramTransport] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Before Python 3.12, the object is not an instance of the class, but has its methods.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Tuple[Any, ...]) -> None:
        try:
            request = protocol.parse_datagram(self._token, data)
        except protocol.ProtocolError:
            return
        seen = self._numbers.get(request.session)
        if self._transport is None or request.kind != protocol.REQUEST or seen is None or request.number in seen:
            return
        if len(seen) >= _DATAGRAMS or request.size < protocol.SMALLEST:
            return
        seen.add(request.number)
        overhead = protocol.UDP_OVERHEAD[6 if ":" in addr[0] else 4]
        answer = request._replace(kind=protocol.ANSWER, size=len(data) + overhead)
        # A datagram that does not fit the interface is lost, like one that does not fit the path: error_received
        # ignores it.
        self._transport.sendto(protocol.pack_datagram(self._token, answer, request.size - overhead), addr)


def run(settings: Settings, opened: Sequence[socket.socket], control: socket.socket, term: lease.Lease) -> None:
    """Run a listener, in a process of its own."""
    asyncio.run(Listener(settings, term).serve(opened, control))
