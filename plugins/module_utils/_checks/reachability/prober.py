# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connecting side of a member: all peers and all ports at once, with one result per peer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import struct
import time
from typing import Any, Awaitable, Dict, List, Optional, Sequence, Set, Tuple, TypeVar, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import (
    clock,
    path_mtu,
    protocol,
    sockets,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.listener import (
    receive_frame,
    send_frame,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    ClockDifference,
    ListenerPort,
    LocalMember,
    PathMtu,
    PayloadTransfer,
    PeerResult,
    PeerRoute,
    PortResult,
    ProbedPeer,
    ReachabilityLimits,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.payload import PayloadCache

#: The maximum number of connections waiting to be accepted, and of peers in conversation. The kernel handles the
#: former; the latter are few, so that no reply is late only because both hosts are busy with other sessions. Half of
#: the files that this host may open are for the former.
_MAX_CONNECTIONS = 800
_MAX_SESSIONS = 8
#: Seconds to wait for a peer that has accepted a connection: it is up, but may be busy.
_REPLY_TIMEOUT = 30.0
#: Transfers at a time: more would only slow each other down.
_MAX_TRANSFERS = 4
_CLOCK_SAMPLE_COUNT = 8
#: Seconds between connections to a real service of each peer: sshd drops those above a number at a time.
_SERVICE_SPACING = 0.02
#: Seconds after which a refused connection is attempted once more.
_RETRY_DELAY = 1.0
#: Seconds between two datagrams, and how often an unanswered one is sent while others are answered.
_DATAGRAM_INTERVAL = 0.5
_DATAGRAM_ATTEMPTS = 3

#: The errors of a host that itself has too many connections or too little memory.
_EXHAUSTED_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROUTE_ERRORS = (
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EACCES,
    errno.EPERM,
    errno.EADDRNOTAVAIL,
    errno.ENETDOWN,
)

_Answer = TypeVar("_Answer")


class ProbeSession:
    """An authenticated connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Dict[str, Any]) -> None:
        self.reader = reader
        self.writer = writer
        self.session_id = bytes.fromhex(protocol.read_text_field(welcome, "session", 16))
        self.seen_address = protocol.read_text_field(welcome, "seen")
        self.peer_mtu = protocol.read_integer_field(welcome, "mtu", 1 << 17) or None
        self.source_address = str(writer.get_extra_info("sockname")[0])
        self._last_number = 0

    def next_number(self) -> int:
        """A number for a datagram that has not been used before."""
        self._last_number += 1
        return self._last_number

    async def send_request(self, request_message: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        """Send a request. Returns the reply."""
        await send_frame(self.writer, request_message)
        return await receive_frame(self.reader, timeout)


class _PortAttempt:
    """The result of a port, and its session if there is one."""

    def __init__(
        self, port: ListenerPort, outcome: str, detail: str = "", session: Optional[ProbeSession] = None
    ) -> None:
        self.port_result: PortResult = {
            "port": port["port"],
            "role": port["role"],
            "protocol": port["protocol"],
            "outcome": outcome,
            "detail": detail,
        }
        self.probe_session = session


def _is_filtered(port_attempt: Optional[_PortAttempt]) -> bool:
    return port_attempt is not None and port_attempt.port_result["outcome"] == "filtered"


class Prober:
    """A run of this host against all peers. ``mtu`` is that of its interface, None if unknown."""

    def __init__(self, local_member: LocalMember, token: str, limits: ReachabilityLimits, mtu: Optional[int]) -> None:
        self._local_member = local_member
        self._run_token = token
        self._probe_limits = limits
        self._interface_mtu = mtu
        # Created inside the event loop: older Pythons bind them to the loop in which they are created.
        self._connection_slots = asyncio.Semaphore(max(1, min(_MAX_CONNECTIONS, sockets.raise_file_limit() // 2)))
        self._session_slots = asyncio.Semaphore(_MAX_SESSIONS)
        self._transfer_slots = asyncio.Semaphore(_MAX_TRANSFERS)
        self._payload_cache = PayloadCache()

    async def probe_all(self, peers: Sequence[ProbedPeer], routes: Dict[str, PeerRoute]) -> List[PeerResult]:
        """One result for each peer, in their order."""
        return list(
            await asyncio.gather(*(self._probe_peer(peer_index, peer, routes) for peer_index, peer in enumerate(peers)))
        )

    async def _probe_peer(
        self, peer_index: int, probed_peer: ProbedPeer, route_by_address: Dict[str, PeerRoute]
    ) -> PeerResult:
        tcp = [port for port in probed_peer["ports"] if port["protocol"] == "tcp" and port["state"] != "forbidden"]
        udp = [port for port in probed_peer["ports"] if port["protocol"] == "udp"]
        first_attempts = await self._reach_ports(peer_index, probed_peer["address"], tcp)
        async with self._session_slots:
            # The sessions are opened only now, since the peer drops connections that wait for long.
            listener_ports = [port for port, port_attempt in zip(tcp, first_attempts) if port_attempt is None]
            authenticated_ports = iter(
                await asyncio.gather(*(self._authenticate(probed_peer["address"], port) for port in listener_ports))
            )
            port_attempts = [port_attempt or next(authenticated_ports) for port_attempt in first_attempts]
            return await self._measure_peer(probed_peer, route_by_address[probed_peer["address"]], port_attempts, udp)

    async def _measure_peer(
        self,
        probed_peer: ProbedPeer,
        route: PeerRoute,
        port_attempts: Sequence[_PortAttempt],
        udp_ports: Sequence[ListenerPort],
    ) -> PeerResult:
        """The result for a peer; ``port_attempts`` are its TCP ports."""
        open_sessions = [
            port_attempt.probe_session for port_attempt in port_attempts if port_attempt.probe_session is not None
        ]
        peer_result: PeerResult = {
            "machine": probed_peer["machine"],
            "address": probed_peer["address"],
            "route": route,
            "macs": None,
            "ports": [port_attempt.port_result for port_attempt in port_attempts],
            "source": None,
            "seen": None,
            "clock": None,
            "path_mtu": None,
            "sent": None,
            "received": None,
            "finished": False,
        }
        if not open_sessions:
            reason = "no TCP session with the peer's listener"
            peer_result["ports"] += [_PortAttempt(port, "not_checked", reason).port_result for port in udp_ports]
            return peer_result
        session, *spare_sessions = open_sessions
        for port_attempt in spare_sessions:
            _abort_connection(port_attempt.writer)
        try:
            await self._run_measurements(session, probed_peer["address"], udp_ports, peer_result)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, protocol.ProtocolError):
            # The results so far are kept, and `finished` shows that they are incomplete.
            pass
        finally:
            _abort_connection(session.writer)
        return peer_result

    async def _reach_ports(
        self, peer_index: int, address: str, peer_ports: Sequence[ListenerPort]
    ) -> List[Optional[_PortAttempt]]:
        """The result of `_reach_port` for each port. A peer that is silent on all of its listener's gets another chance.

        WireGuard repeats a lost handshake after five seconds (REKEY_TIMEOUT), and holds the packets to the peer until then.
        """

        async def attempt(ports: Sequence[ListenerPort]) -> List[Optional[_PortAttempt]]:
            return list(await asyncio.gather(*(self._reach_port(peer_index, address, port) for port in ports)))

        attempts = await attempt(peer_ports)
        listener_indexes = [index for index, port in enumerate(peer_ports) if port["state"] == "listening"]
        if all(_is_filtered(attempts[index]) for index in listener_indexes):
            second_attempts = await attempt([peer_ports[index] for index in listener_indexes])
            for index, second_attempt in zip(listener_indexes, second_attempts):
                attempts[index] = second_attempt
        return attempts

    async def _reach_port(self, peer_index: int, address: str, peer_port: ListenerPort) -> Optional[_PortAttempt]:
        """Whether a port accepts connections; None if it does, and our listener has yet to prove itself there."""
        is_listener = peer_port["state"] == "listening"
        if not is_listener:
            await asyncio.sleep(peer_index * _SERVICE_SPACING)
        async with self._connection_slots:
            try:
                tcp = await (self._connect_with_retry if is_listener else self._connect_once)(
                    address, peer_port["port"]
                )
            except (OSError, asyncio.TimeoutError) as failure:
                return self._describe_failure(peer_port, failure)
        # Reset instead of closed, so that the service drops the connection immediately.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        tcp.close()
        return None if is_listener else _PortAttempt(peer_port, "connected")

    def _describe_failure(self, peer_port: ListenerPort, failure: BaseException) -> _PortAttempt:
        """The result for a port to which no connection could be established."""
        if isinstance(failure, asyncio.TimeoutError):
            return _PortAttempt(peer_port, "filtered", f"no answer within {self._probe_limits.step_timeout:g} s")
        number = failure.errno if isinstance(failure, OSError) else None
        reason = os.strerror(number or 0)
        if number in _EXHAUSTED_ERRORS:
            return _PortAttempt(
                peer_port,
                "not_checked",
                f"{self._local_member.own_machine} could not open another connection: {reason}",
            )
        if number == errno.ETIMEDOUT:
            return _PortAttempt(peer_port, "filtered", reason)
        return _PortAttempt(peer_port, "no_route" if number in _NO_ROUTE_ERRORS else "refused", reason)

    async def _connect_once(self, address: str, number: int) -> socket.socket:
        """Connect. Raises OSError, asyncio.TimeoutError."""
        tcp_socket = socket.socket(sockets.address_family(address), socket.SOCK_STREAM)
        tcp_socket.setblocking(False)
        try:
            connected = asyncio.get_running_loop().sock_connect(tcp_socket, (address, number))
            await asyncio.wait_for(connected, self._probe_limits.step_timeout)
        except (OSError, asyncio.TimeoutError):
            tcp_socket.close()
            raise
        return tcp_socket

    async def _connect_with_retry(self, address: str, port_number: int) -> socket.socket:
        """Connect to a port on which the peer listens, with a second attempt.

        A userspace tailscaled on a busy host may refuse one of many simultaneous connections.
        """
        try:
            return await self._connect_once(address, port_number)
        except ConnectionRefusedError:
            await asyncio.sleep(_RETRY_DELAY)
            return await self._connect_once(address, port_number)

    async def _authenticate(self, address: str, peer_port: ListenerPort) -> _PortAttempt:
        """Let both sides prove that they know the token, and echo a text."""
        try:
            reader, writer = await asyncio.open_connection(
                sock=await self._connect_with_retry(address, peer_port["port"])
            )
        except (OSError, asyncio.TimeoutError) as failure:
            return self._describe_failure(peer_port, failure)
        try:
            welcome = await self._handshake(reader, writer)
            return _PortAttempt(peer_port, "ok", session=ProbeSession(reader, writer, welcome))
        except protocol.StrangerError:
            _abort_connection(writer)
            return _PortAttempt(peer_port, "stranger", "the responder does not know the token of this run")
        except (protocol.ProtocolError, ValueError):
            _abort_connection(writer)
            return _PortAttempt(peer_port, "stranger", "the responder does not use this protocol")
        except asyncio.TimeoutError:
            _abort_connection(writer)
            return _PortAttempt(peer_port, "mute", "the connection was accepted, but nothing came back")
        except (OSError, asyncio.IncompleteReadError):
            _abort_connection(writer)
            return _PortAttempt(peer_port, "closed", "the connection was accepted and closed immediately")

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Dict[str, Any]:
        client_nonce, echo_text = protocol.make_nonce(), protocol.make_nonce()
        await send_frame(writer, {"gpumesh": protocol.PROTOCOL_VERSION, "nonce": client_nonce})
        server_nonce = protocol.read_text_field(await receive_frame(reader, _REPLY_TIMEOUT), "nonce")
        proof = protocol.compute_proof(self._run_token, "client", client_nonce, server_nonce)
        try:
            await send_frame(writer, {"proof": proof, "machine": self._local_member.own_machine, "echo": echo_text})
            welcome = await receive_frame(reader, _REPLY_TIMEOUT)
        except (asyncio.IncompleteReadError, ConnectionError) as failure:
            # A listener of another run hangs up on a proof that is wrong to it.
            raise protocol.StrangerError("the peer rejects the proof") from failure
        protocol.check_proof(
            self._run_token, "server", client_nonce, server_nonce, protocol.read_text_field(welcome, "proof")
        )
        if protocol.read_text_field(welcome, "echo") != echo_text:
            raise protocol.ProtocolError("a different text came back")
        return welcome

    async def _run_measurements(
        self, probe_session: ProbeSession, address: str, udp: Sequence[ListenerPort], peer_result: PeerResult
    ) -> None:
        peer_result["source"], peer_result["seen"] = probe_session.source_address, probe_session.seen_address
        peer_result["clock"] = await self._measure_clock(probe_session)
        ports, mtu = await self._test_udp(probe_session, address, udp)
        peer_result["ports"] += ports
        peer_result["path_mtu"] = mtu
        if self._probe_limits.payload_bytes:
            async with self._transfer_slots:
                sent = await self._send_payload(probe_session)
                whole = sent["outcome"] in ("ok", "corrupted")
                # The stream is in the middle of the payload after a stall: no other request can follow.
                received = await self._receive_payload(probe_session) if whole else self._unchecked_transfer()
            peer_result["sent"], peer_result["received"] = sent, received
            if received["outcome"] not in ("ok", "corrupted"):
                return
        await probe_session.send_request({"do": "done"}, _REPLY_TIMEOUT)
        peer_result["finished"] = True

    async def _measure_clock(self, probe_session: ProbeSession) -> ClockDifference:
        samples = []
        for _sample in range(_CLOCK_SAMPLE_COUNT):
            request_sent = time.time()
            time_reply = await probe_session.send_request({"do": "time"}, _REPLY_TIMEOUT)
            heard = time.time()
            moments = protocol.read_time_field(time_reply, "received"), protocol.read_time_field(time_reply, "sent")
            samples.append(clock.ClockSample(request_sent, moments[0], moments[1], heard))
        sample = clock.choose_sample(samples)
        kernel = sockets.read_kernel_rtt_ms(probe_session.writer.get_extra_info("socket"))
        return {
            "offset_s": round(sample.offset, 6),
            "rtt_ms": round(kernel if kernel is not None else max(0.0, sample.round_trip * 1000), 3),
        }

    async def _test_udp(
        self, probe_session: ProbeSession, peer_address: str, udp: Sequence[ListenerPort]
    ) -> Tuple[List[PortResult], Optional[PathMtu]]:
        """Test UDP on each port, and measure the path MTU over the first one that answers."""
        udp_channels = [_DatagramChannel(self._run_token, probe_session, peer_address, port) for port in udp]
        try:
            for udp_channel in udp_channels:
                await udp_channel.open()
            # A path on which not even this size passes is unusable.
            passed_exchanges = await asyncio.gather(
                *(udp_channel.exchange([(576, 576)], self._probe_limits.step_timeout) for udp_channel in udp_channels)
            )
            results = []
            for udp_channel, passed_exchange in zip(udp_channels, passed_exchanges):
                detail = "" if passed_exchange else f"no answer within {self._probe_limits.step_timeout:g} s"
                results.append(
                    _PortAttempt(udp_channel.peer_port, "ok" if passed_exchange else "filtered", detail).port_result
                )
            working_channels = [
                udp_channel for udp_channel, passed_exchange in zip(udp_channels, passed_exchanges) if passed_exchange
            ]
            mtu = (
                await self._measure_path_mtu(working_channels[0], probe_session, peer_address)
                if working_channels
                else None
            )
            return results, mtu
        finally:
            for udp_channel in udp_channels:
                udp_channel.close()

    async def _measure_path_mtu(
        self, udp_channel: _DatagramChannel, probe_session: ProbeSession, address: str
    ) -> PathMtu:
        smallest_packet = protocol.SMALLEST_PACKET
        # 65,535 bytes is the largest IP packet; a loopback interface claims one more.
        outbound_search = path_mtu.MtuSearch(576, min(self._interface_mtu or 1500, 65535))
        inbound_search = path_mtu.MtuSearch(576, min(probe_session.peer_mtu or 1500, 65535))
        while True:
            wanted_there, wanted_back = outbound_search.next_sizes(), inbound_search.next_sizes()
            if not wanted_there and not wanted_back:
                break
            # The packet of the other direction is small, so that only one direction is tested.
            size_pairs = [(size, smallest_packet) for size in wanted_there] + [
                (smallest_packet, size) for size in wanted_back
            ]
            # A small one is sent with them: as long as that is not answered, the large ones are undecided.
            passed_pairs = await udp_channel.exchange(
                [*size_pairs, (smallest_packet, smallest_packet)], self._probe_limits.step_timeout
            )
            outbound_search.record_results(
                {size for size, answer_size in passed_pairs if answer_size == smallest_packet}
            )
            inbound_search.record_results(
                {answer_size for size, answer_size in passed_pairs if size == smallest_packet}
            )
        return {
            "interface": self._interface_mtu,
            "peer_interface": probe_session.peer_mtu,
            "to_peer": outbound_search.largest_passed,
            "from_peer": inbound_search.largest_passed,
            "signalled": sockets.read_path_mtu(address),
        }

    def _unchecked_transfer(self) -> PayloadTransfer:
        detail = "the transfer in the other direction did not end"
        return {"outcome": "not_checked", "size": self._probe_limits.payload_bytes, "passed": 0, "detail": detail}

    async def _send_payload(self, probe_session: ProbeSession) -> PayloadTransfer:
        sent_payload = self._payload_cache.get_payload(self._probe_limits.payload_bytes)
        sent_bytes = 0
        try:
            await send_frame(probe_session.writer, {"do": "take", "size": self._probe_limits.payload_bytes})
            for piece in sent_payload.iterate_chunks():
                probe_session.writer.write(piece)
                await self._wait_for_progress(probe_session, probe_session.writer.drain())
                sent_bytes += len(piece)
            digest_reply = await self._wait_for_progress(
                probe_session, receive_frame(probe_session.reader, _REPLY_TIMEOUT)
            )
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as failure:
            return self._broken_transfer(sent_bytes, failure)
        return self._completed_transfer(digest_reply.get("sha256") == sent_payload.sha256)

    async def _receive_payload(self, probe_session: ProbeSession) -> PayloadTransfer:
        received_digest = hashlib.sha256()
        received_bytes = 0
        try:
            await send_frame(probe_session.writer, {"do": "give", "size": self._probe_limits.payload_bytes})
            while received_bytes < self._probe_limits.payload_bytes:
                chunk_size = min(self._probe_limits.payload_bytes - received_bytes, protocol.CHUNK_SIZE)
                payload_chunk = await asyncio.wait_for(probe_session.reader.read(chunk_size), _REPLY_TIMEOUT)
                if not payload_chunk:
                    raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
                received_digest.update(payload_chunk)
                received_bytes += len(payload_chunk)
            digest_reply = await receive_frame(probe_session.reader, _REPLY_TIMEOUT)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as failure:
            return self._broken_transfer(received_bytes, failure)
        return self._completed_transfer(digest_reply.get("sha256") == received_digest.hexdigest())

    async def _wait_for_progress(self, session: ProbeSession, step: Awaitable[_Answer]) -> _Answer:
        """Wait for a step as long as the network works; raises asyncio.TimeoutError if it does not.

        A busy peer is given time. A packet that the kernel has retransmitted repeatedly is lost.
        """
        task = asyncio.ensure_future(step)
        tcp = session.writer.get_extra_info("socket")
        waited = 0.0
        while True:
            finished_tasks, _pending = await asyncio.wait({task}, timeout=self._probe_limits.step_timeout)
            if finished_tasks:
                return task.result()
            waited += self._probe_limits.step_timeout
            if waited >= _REPLY_TIMEOUT or sockets.is_retransmitting(tcp):
                task.cancel()
                raise asyncio.TimeoutError

    def _completed_transfer(self, digests_match: bool) -> PayloadTransfer:
        size = self._probe_limits.payload_bytes
        return {"outcome": "ok" if digests_match else "corrupted", "size": size, "passed": size, "detail": ""}

    def _broken_transfer(self, passed_bytes: int, failure: BaseException) -> PayloadTransfer:
        stalled = isinstance(failure, asyncio.TimeoutError)
        return {
            "outcome": "stalled" if stalled else "broken",
            "size": self._probe_limits.payload_bytes,
            "passed": passed_bytes,
            "detail": "the transfer stalled" if stalled else "the connection broke",
        }


class _DatagramChannel(asyncio.DatagramProtocol):
    """Datagrams to one port of a peer, and the replies."""

    def __init__(self, token: str, session: ProbeSession, address: str, port: ListenerPort) -> None:
        self.peer_port = port
        self._run_token = token
        self._probe_session = session
        self._peer_address = address
        self._header_size = protocol.UDP_OVERHEAD[6 if ":" in address else 4]
        self._udp_transport: Optional[asyncio.DatagramTransport] = None
        #: The exchange of each number, and the exchanges that have been answered.
        self._sizes_by_number: Dict[int, Tuple[int, int]] = {}
        self._passed_sizes: Set[Tuple[int, int]] = set()
        self._arrival_event: Optional[asyncio.Event] = None

    async def open(self) -> None:
        """Open a connected socket, which receives only datagrams of the peer."""
        udp_socket = socket.socket(sockets.address_family(self._peer_address), socket.SOCK_DGRAM)
        try:
            udp_socket.setblocking(False)
            sockets.disable_fragmentation(udp_socket)
            udp_socket.connect((self._peer_address, self.peer_port["port"]))
            loop = asyncio.get_running_loop()
            self._arrival_event = asyncio.Event()
            await loop.create_datagram_endpoint(lambda: self, sock=udp_socket)
        except OSError:
            udp_socket.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        if self._udp_transport is not None:
            self._udp_transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The object is not an instance of the class before Python 3.12, but has its methods.
        self._udp_transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, _addr: Tuple[Any, ...]) -> None:
        try:
            answer_datagram = protocol.parse_datagram(self._run_token, data)
        except protocol.ProtocolError:
            return
        expected_sizes = self._sizes_by_number.get(answer_datagram.sequence_number)
        # A middlebox may truncate or pad: only a reply of the right length to a request of the right length counts.
        arrived = (answer_datagram.packet_size, len(data) + self._header_size)
        if (
            answer_datagram.session_id == self._probe_session.session_id
            and answer_datagram.datagram_kind == protocol.ANSWER_KIND
            and expected_sizes == arrived
        ):
            self._passed_sizes.add(arrived)
            if self._arrival_event is not None:
                self._arrival_event.set()

    async def exchange(self, size_pairs: Sequence[Tuple[int, int]], time_limit: float) -> Set[Tuple[int, int]]:
        """Send packets of the given sizes in bytes, (there, back). Returns those that passed both ways.

        The exchange ends when all have passed, when _DATAGRAM_ATTEMPTS more have been sent since the first one passed,
        or after ``time_limit`` seconds.
        """
        pending_pairs = set(size_pairs)
        # A size that passed before may be lost now, and vice versa: each round is judged separately.
        self._sizes_by_number.clear()
        self._passed_sizes.clear()
        event_loop = asyncio.get_running_loop()
        deadline = event_loop.time() + time_limit
        tries = 0
        while tries < _DATAGRAM_ATTEMPTS and event_loop.time() < deadline and not pending_pairs <= self._passed_sizes:
            if self._passed_sizes:
                tries += 1
            self._send_requests(sorted(pending_pairs - self._passed_sizes))
            until = event_loop.time() + _DATAGRAM_INTERVAL
            while not pending_pairs <= self._passed_sizes and self._arrival_event is not None:
                self._arrival_event.clear()
                remaining_seconds = until - event_loop.time()
                if remaining_seconds <= 0:
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrival_event.wait(), remaining_seconds)
        return pending_pairs & self._passed_sizes

    def _send_requests(self, size_pairs: Sequence[Tuple[int, int]]) -> None:
        for request_size, answer_size in size_pairs:
            number = self._probe_session.next_number()
            self._sizes_by_number[number] = (request_size, answer_size)
            request = protocol.Datagram(protocol.REQUEST_KIND, self._probe_session.session_id, number, answer_size)
            if self._udp_transport is not None:
                # A packet that does not fit the interface is lost, like one that does not fit the path.
                self._udp_transport.sendto(
                    protocol.pack_datagram(self._run_token, request, request_size - self._header_size)
                )


def _abort_connection(writer: asyncio.StreamWriter) -> None:
    """Close the connection at once, discarding unsent data."""
    writer.transport.abort()
