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

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import (
    perftest,
    protocol,
    sockets,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import RdmaEndpoint
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.payload import PayloadCache
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command, lease, leased_process

#: Seconds in which a stranger must authenticate, and after which a silent session is closed. Long, since a prober may
#: be busy with other peers.
_HANDSHAKE_TIMEOUT = 120.0
_IDLE_TIMEOUT = 120.0
#: Sessions at a time, so that strangers cannot use up this host's memory or files.
_MAX_SESSIONS = 4096
#: Datagrams that a session may send.
_MAX_DATAGRAMS = 4096
#: The maximum seconds that a measurement of throughput may take.
_MEASUREMENT_SECONDS = 120.0

StreamPair = Tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ListenerSettings(NamedTuple):
    """The settings of a listener.

    It ends after the `done` of all ``visitors``; if there are none, after its lifetime.
    """

    run_id: str
    token: str
    listen_address: str
    interface_mtu: int
    visitors: Sequence[str]
    rdma_endpoint: RdmaEndpoint


async def receive_frame(reader: asyncio.StreamReader, timeout: float) -> Dict[str, Any]:
    """The next frame. Raises ProtocolError, asyncio.TimeoutError, asyncio.IncompleteReadError, ConnectionError."""

    async def read_frame() -> bytes:
        return await reader.readexactly(protocol.parse_body_length(await reader.readexactly(protocol.LENGTH_SIZE)))

    return protocol.parse_body(await asyncio.wait_for(read_frame(), timeout))


async def send_frame(writer: asyncio.StreamWriter, message: Dict[str, Any]) -> None:
    """Write one frame."""
    writer.write(protocol.encode_frame(message))
    await writer.drain()


class Listener:
    """The open ports of a member."""

    def __init__(self, settings: ListenerSettings, term: lease.Lease) -> None:
        self._listener_settings = settings
        self._process_lease = term
        self._expected_visitors: Set[str] = set(settings.visitors)
        self._refused_count = 0
        self._session_count = 0
        #: The numbers received in each active session; a repeated one is a replay.
        self._numbers_by_session: Dict[bytes, Set[int]] = {}
        self._payload_cache = PayloadCache()
        self._tcp_ports: List[int] = []
        self._ready_writers: List[asyncio.StreamWriter] = []
        self._end_event: Optional[asyncio.Event] = None
        self._servers: List[asyncio.AbstractServer] = []
        self._transports: List[asyncio.BaseTransport] = []
        self._gather_timer: Optional[asyncio.TimerHandle] = None

    async def serve(self, opened: Sequence[socket.socket], control_socket: socket.socket) -> None:
        """Run until a process on this host sends stop, or the last expected visitor is done."""
        event_loop = asyncio.get_running_loop()
        self._end_event = asyncio.Event()
        sockets.raise_file_limit()
        for listening_socket in opened:
            if listening_socket.type == socket.SOCK_STREAM:
                self._tcp_ports.append(listening_socket.getsockname()[1])
                self._servers.append(await asyncio.start_server(self._handle_visitor, sock=listening_socket))
            else:
                transport, _protocol = await event_loop.create_datagram_endpoint(
                    lambda: _DatagramResponder(self._listener_settings.token, self._numbers_by_session),
                    sock=listening_socket,
                )
                self._transports.append(transport)
        await asyncio.start_unix_server(self._handle_control, sock=control_socket)
        await self._end_event.wait()
        # The last replies, to `done` and `stop`, may still be in transit.
        await asyncio.sleep(0.2)

    async def _handle_control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not leased_process.is_authorized(writer.get_extra_info("socket")):
                return
            question = leased_process.parse_request(await asyncio.wait_for(reader.readline(), _HANDSHAKE_TIMEOUT))
            must_end = question.command == "stop" or (
                question.command == "replace" and self._process_lease.yields_to(question.ssh_connection)
            )
            if must_end and self._end_event is not None:
                await self._close_ports()
                self._end_event.set()
            state = {"refused": self._refused_count, "left": len(self._expected_visitors), "ports": self._tcp_ports}
            writer.write(json.dumps(state).encode())
        except (asyncio.TimeoutError, ConnectionError):
            return
        finally:
            writer.close()

    async def _close_ports(self) -> None:
        """Close the ports now, since the process that requested the end may need them immediately."""
        for server in self._servers:
            server.close()
        for transport in self._transports:
            transport.close()
        # A transport closes its socket in the next iteration of the loop.
        await asyncio.sleep(0)

    async def _handle_visitor(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session_id = os.urandom(8)
        if self._session_count >= _MAX_SESSIONS:
            writer.transport.abort()
            return
        self._session_count += 1
        try:
            machine = await asyncio.wait_for(self._handshake((reader, writer), session_id), _HANDSHAKE_TIMEOUT)
            while await self._handle_command((reader, writer), machine):
                continue
        except protocol.ProtocolError:
            self._refused_count += 1
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError):
            # The peer hung up or fell silent, which its own side has to judge.
            pass
        finally:
            self._session_count -= 1
            self._numbers_by_session.pop(session_id, None)
            with contextlib.suppress(OSError):
                writer.close()

    async def _handshake(self, stream: StreamPair, session_id: bytes) -> str:
        reader, writer = stream
        hello = await receive_frame(reader, _HANDSHAKE_TIMEOUT)
        if hello.get("gpumesh") != protocol.PROTOCOL_VERSION:
            raise protocol.ProtocolError("the first frame does not follow this protocol")
        client_nonce, server_nonce = protocol.read_text_field(hello, "nonce"), protocol.make_nonce()
        await send_frame(writer, {"nonce": server_nonce})
        client_claim = await receive_frame(reader, _HANDSHAKE_TIMEOUT)
        protocol.check_proof(
            self._listener_settings.token,
            "client",
            client_nonce,
            server_nonce,
            protocol.read_text_field(client_claim, "proof"),
        )
        # The session exists before the reply: the first datagram may arrive before this side continues.
        self._numbers_by_session[session_id] = set()
        await send_frame(
            writer,
            {
                "proof": protocol.compute_proof(self._listener_settings.token, "server", client_nonce, server_nonce),
                "echo": protocol.read_text_field(client_claim, "echo"),
                "seen": writer.get_extra_info("peername")[0],
                "session": session_id.hex(),
                "mtu": self._listener_settings.interface_mtu,
            },
        )
        return protocol.read_text_field(client_claim, "machine")

    async def _handle_command(self, stream: StreamPair, visiting_machine: str) -> bool:
        """Carry out the next request. Returns False when the session is over."""
        reader, writer = stream
        request = await receive_frame(reader, _IDLE_TIMEOUT)
        self._process_lease.renew()
        received = time.time()
        command = request.get("do")
        if command == "time":
            await send_frame(writer, {"received": received, "sent": time.time()})
        elif command == "take":
            await self._take_payload(stream, protocol.read_integer_field(request, "size", protocol.PAYLOAD_LIMIT))
        elif command == "give":
            await self._give_payload(stream, protocol.read_integer_field(request, "size", protocol.PAYLOAD_LIMIT))
        elif command == "done":
            await self._finish_visitor(writer, visiting_machine)
            return False
        elif command == "ready":
            await self._await_start(stream, protocol.read_integer_field(request, "hosts", _MAX_SESSIONS))
            return False
        elif command == "receive":
            await self._measure_throughput(stream, protocol.read_text_field(request, "end", 64).encode())
            return False
        elif command == "iperf3":
            await send_frame(writer, {"port": _start_iperf3(self._listener_settings.listen_address)})
        elif command in perftest.PROGRAM_BY_MEASUREMENT:
            seconds = protocol.read_integer_field(request, "seconds", int(_MEASUREMENT_SECONDS))
            await send_frame(writer, {"port": _start_perftest(command, self._listener_settings, seconds)})
        else:
            raise protocol.ProtocolError("unknown command")
        return True

    async def _take_payload(self, stream: StreamPair, payload_size: int) -> None:
        reader, writer = stream
        payload_digest = hashlib.sha256()
        remaining_bytes = payload_size
        while remaining_bytes:
            payload_chunk = await asyncio.wait_for(
                reader.read(min(remaining_bytes, protocol.CHUNK_SIZE)), _IDLE_TIMEOUT
            )
            if not payload_chunk:
                raise ConnectionError("the connection was closed during a payload")
            payload_digest.update(payload_chunk)
            remaining_bytes -= len(payload_chunk)
        await send_frame(writer, {"sha256": payload_digest.hexdigest(), "size": payload_size})

    async def _give_payload(self, stream: StreamPair, size: int) -> None:
        writer = stream[1]
        payload = self._payload_cache.get_payload(size)
        for piece in payload.iterate_chunks():
            writer.write(piece)
            await asyncio.wait_for(writer.drain(), _IDLE_TIMEOUT)
        await send_frame(writer, {"sha256": payload.sha256})

    async def _finish_visitor(self, writer: asyncio.StreamWriter, machine: str) -> None:
        last = self._expected_visitors == {machine}
        self._expected_visitors.discard(machine)
        await send_frame(writer, {"left": len(self._expected_visitors)})
        if last and self._end_event is not None:
            self._end_event.set()

    async def _await_start(self, stream: StreamPair, host_count: int) -> None:
        """Keep this peer waiting until all have connected, so that their clocks need not agree."""
        reader, writer = stream
        self._ready_writers.append(writer)
        loop = asyncio.get_running_loop()
        if len(self._ready_writers) >= host_count:
            self._start_all()
        elif self._gather_timer is None:
            self._gather_timer = loop.call_later(protocol.gather_seconds(host_count), self._start_all)
        # The visitor hangs up when it has the reply.
        await asyncio.wait_for(reader.read(1), protocol.gather_seconds(host_count) + _HANDSHAKE_TIMEOUT)

    def _start_all(self) -> None:
        if self._gather_timer is not None:
            self._gather_timer.cancel()
            self._gather_timer = None
        for writer in self._ready_writers:
            with contextlib.suppress(OSError):
                writer.write(protocol.encode_frame({"go": True}))
        self._ready_writers = []

    async def _measure_throughput(self, stream: StreamPair, end_marker: bytes) -> None:
        """Pass the socket to a thread that only reads, since the event loop would be the bottleneck."""
        writer = stream[1]
        transport = writer.transport
        if isinstance(transport, asyncio.ReadTransport):
            transport.pause_reading()
        raw = writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(raw.fileno())) as duplicate_socket:
            loop = asyncio.get_running_loop()
            await asyncio.wait_for(
                loop.run_in_executor(None, _receive_until_marker, duplicate_socket, end_marker), _MEASUREMENT_SECONDS
            )


def _receive_until_marker(tcp_socket: socket.socket, end_marker: bytes) -> None:
    """Read up to ``end_marker``, or to the end of the stream: some proxies do not forward a half close."""
    tcp_socket.settimeout(_HANDSHAKE_TIMEOUT)
    tcp_socket.sendall(protocol.encode_frame({"ready": True}))
    receive_buffer = bytearray(1 << 20)
    received_bytes = tcp_socket.recv_into(receive_buffer)
    started_at = time.monotonic()
    # The first piece came before the clock was started, so it does not count.
    total = 0
    last = bytes(receive_buffer[:received_bytes])[-len(end_marker) :]
    while received_bytes and last != end_marker:
        received_bytes = tcp_socket.recv_into(receive_buffer)
        total += received_bytes
        last = (last + bytes(receive_buffer[max(0, received_bytes - len(end_marker)) : received_bytes]))[
            -len(end_marker) :
        ]
    tcp_socket.sendall(protocol.encode_frame({"size": total, "seconds": time.monotonic() - started_at}))


def _start_iperf3(address: str) -> int:
    """Start an iperf3 that serves one client and ends. Returns its port; 0 if it is not installed."""
    port = _find_free_port(address)
    return port if _start_server(["iperf3", "-s", "-1", "-B", address, "-p", str(port)]) else 0


def _start_perftest(measurement: str, settings: ListenerSettings, seconds: int) -> int:
    """Start a program of perftest that serves one client and ends. Returns its port; 0 if it is not installed."""
    if not settings.rdma_endpoint["device"]:
        return 0
    port = _find_free_port(settings.listen_address)
    return port if _start_server(perftest.build_command(measurement, settings.rdma_endpoint, port, seconds)) else 0


def _find_free_port(address: str) -> int:
    with socket.socket(sockets.address_family(address), socket.SOCK_STREAM) as free:
        free.bind((address, 0))
        return int(free.getsockname()[1])


def _start_server(arguments: Sequence[str]) -> bool:
    """Start a server; False if it is not installed. It must end even if no peer connects and this process is killed."""
    program, limiter = command.find_program(arguments[0]), command.find_program("timeout")
    if program is None or limiter is None:
        return False
    command.ChildProcess(
        [limiter, "60", program, *arguments[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return True


class _DatagramResponder(asyncio.DatagramProtocol):
    """Answers requests of active sessions with datagrams of the requested size."""

    def __init__(self, token: str, numbers: Dict[bytes, Set[int]]) -> None:
        self._run_token = token
        self._numbers_by_session = numbers
        self._udp_transport: Optional[asyncio.DatagramTransport] = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The object is not an instance of the class before Python 3.12, but has its methods.
        self._udp_transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Tuple[Any, ...]) -> None:
        try:
            request_datagram = protocol.parse_datagram(self._run_token, data)
        except protocol.ProtocolError:
            return
        seen_numbers = self._numbers_by_session.get(request_datagram.session_id)
        if (
            self._udp_transport is None
            or request_datagram.datagram_kind != protocol.REQUEST_KIND
            or seen_numbers is None
            or request_datagram.sequence_number in seen_numbers
        ):
            return
        if len(seen_numbers) >= _MAX_DATAGRAMS or request_datagram.packet_size < protocol.SMALLEST_PACKET:
            return
        seen_numbers.add(request_datagram.sequence_number)
        overhead = protocol.UDP_OVERHEAD[6 if ":" in addr[0] else 4]
        answer_datagram = request_datagram._replace(
            datagram_kind=protocol.ANSWER_KIND, packet_size=len(data) + overhead
        )
        # A datagram that does not fit the interface is lost, like one that does not fit the path: error_received
        # ignores it.
        self._udp_transport.sendto(
            protocol.pack_datagram(self._run_token, answer_datagram, request_datagram.packet_size - overhead), addr
        )


def run_listener(
    settings: ListenerSettings, opened: Sequence[socket.socket], control: socket.socket, term: lease.Lease
) -> None:
    """Run a listener, in a process of its own."""
    asyncio.run(Listener(settings, term).serve(opened, control))
