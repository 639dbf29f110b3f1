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

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import clock, path_mtu, protocol, sockets
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.listener import receive, send
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.payload import Payloads
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import (
    Clock,
    Limits,
    PathMtu,
    Peer,
    PeerResult,
    Port,
    PortResult,
    Route,
    Self,
    Transfer,
)

#: The maximum number of connections waiting to be accepted, and of peers in conversation. The kernel handles the former;
#: the latter are few, so that no reply is late only because both hosts are busy with other sessions. Half of the files
#: that this host may open are for the former.
_CONNECTIONS = 800
_SESSIONS = 8
#: Seconds to wait for a peer that has accepted a connection: it is up, but may be busy.
_PATIENCE = 30.0
#: Transfers at a time: more would only slow each other down.
_TRANSFERS = 4
_CLOCK_SAMPLES = 8
#: Seconds between connections to a real service of each peer: sshd drops those above a number at a time.
_SERVICE_SPACING = 0.02
#: Seconds after which a refused connection is attempted once more.
_AGAIN = 1.0
#: Seconds between two datagrams, and how often an unanswered one is sent while others are answered.
_SPACING = 0.5
_TRIES = 3

#: This host itself has too many connections or too little memory.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_WAY = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL, errno.ENETDOWN)

_Answer = TypeVar("_Answer")


class Session:
    """An authenticated connection to a listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, welcome: Dict[str, Any]) -> None:
        self.reader = reader
        self.writer = writer
        self.identity = bytes.fromhex(protocol.text_of(welcome, "session", 16))
        self.seen = protocol.text_of(welcome, "seen")
        self.peer_mtu = protocol.number_of(welcome, "mtu", 1 << 17) or None
        self.source = str(writer.get_extra_info("sockname")[0])
        self._number = 0

    def next_number(self) -> int:
        """A number for a datagram that has not been used before."""
        self._number += 1
        return self._number

    async def ask(self, order: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        """Send a request. Returns the reply."""
        await send(self.writer, order)
        return await receive(self.reader, timeout)


class _Port:
    """The result of a port, and its session if there is one."""

    def __init__(self, port: Port, outcome: str, detail: str = "", session: Optional[Session] = None) -> None:
        self.result: PortResult = {
            "port": port["port"],
            "role": port["role"],
            "protocol": port["protocol"],
            "outcome": outcome,
            "detail": detail,
        }
        self.session = session


class Prober:
    """A run of this host against all peers. ``mtu`` is that of its interface, None if unknown."""

    def __init__(self, own: Self, token: str, limits: Limits, mtu: Optional[int]) -> None:
        self._own = own
        self._token = token
        self._limits = limits
        self._mtu = mtu
        # Created inside the event loop: older Pythons bind them to the loop in which they are created.
        self._connections = asyncio.Semaphore(max(1, min(_CONNECTIONS, sockets.raise_file_limit() // 2)))
        self._sessions = asyncio.Semaphore(_SESSIONS)
        self._transfers = asyncio.Semaphore(_TRANSFERS)
        self._payloads = Payloads()

    async def all(self, peers: Sequence[Peer], routes: Dict[str, Route]) -> List[PeerResult]:
        """One result for each peer, in their order."""
        return list(await asyncio.gather(*(self._peer(place, peer, routes) for place, peer in enumerate(peers))))

    async def _peer(self, place: int, peer: Peer, routes: Dict[str, Route]) -> PeerResult:
        tcp = [port for port in peer["ports"] if port["protocol"] == "tcp" and port["state"] != "forbidden"]
        udp = [port for port in peer["ports"] if port["protocol"] == "udp"]
        reached = await asyncio.gather(*(self._reach(place, peer["address"], port) for port in tcp))
        async with self._sessions:
            # Only now, since the peer drops connections that wait for long.
            ours = [port for port, found in zip(tcp, reached) if found is None]
            proven = iter(await asyncio.gather(*(self._prove(peer["address"], port) for port in ours)))
            tried = [found or next(proven) for found in reached]
            return await self._measure(peer, routes[peer["address"]], tried, udp)

    async def _measure(self, peer: Peer, route: Route, tried: Sequence[_Port], udp: Sequence[Port]) -> PeerResult:
        """The result for a peer; ``tried`` are its TCP ports."""
        sessions = [one.session for one in tried if one.session is not None]
        result: PeerResult = {
            "machine": peer["machine"],
            "address": peer["address"],
            "route": route,
            "macs": None,
            "ports": [one.result for one in tried],
            "source": None,
            "seen": None,
            "clock": None,
            "path_mtu": None,
            "sent": None,
            "received": None,
            "finished": False,
        }
        if not sessions:
            reason = "no TCP session with the peer's listener"
            result["ports"] += [_Port(port, "not_checked", reason).result for port in udp]
            return result
        session, *spare = sessions
        for one in spare:
            _hang_up(one.writer)
        try:
            await self._converse(session, peer["address"], udp, result)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, protocol.ProtocolError):
            # The results so far are kept, and `finished` shows that they are incomplete.
            pass
        finally:
            _hang_up(session.writer)
        return result

    async def _reach(self, place: int, address: str, port: Port) -> Optional[_Port]:
        """Whether a port accepts connections; None if it does, and our listener has yet to prove itself there."""
        ours = port["state"] == "listening"
        if not ours:
            await asyncio.sleep(place * _SERVICE_SPACING)
        async with self._connections:
            try:
                tcp = await (self._connect_again if ours else self._connect)(address, port["port"])
            except (OSError, asyncio.TimeoutError) as failure:
                return self._unreached(port, failure)
        # Reset instead of closed, so that the service drops the connection immediately.
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        tcp.close()
        return None if ours else _Port(port, "connected")

    def _unreached(self, port: Port, failure: BaseException) -> _Port:
        """The result for a port to which no connection could be established."""
        if isinstance(failure, asyncio.TimeoutError):
            return _Port(port, "filtered", f"no answer within {self._limits.timeout:g} s")
        number = failure.errno if isinstance(failure, OSError) else None
        reason = os.strerror(number or 0)
        if number in _EXHAUSTED:
            return _Port(port, "not_checked", f"{self._own.machine} could not open another connection: {reason}")
        if number == errno.ETIMEDOUT:
            return _Port(port, "filtered", reason)
        return _Port(port, "no_route" if number in _NO_WAY else "refused", reason)

    async def _connect(self, address: str, number: int) -> socket.socket:
        """Raises OSError, asyncio.TimeoutError."""
        tcp = socket.socket(sockets.family_of(address), socket.SOCK_STREAM)
        tcp.setblocking(False)
        try:
            connected = asyncio.get_running_loop().sock_connect(tcp, (address, number))
            await asyncio.wait_for(connected, self._limits.timeout)
        except (OSError, asyncio.TimeoutError):
            tcp.close()
            raise
        return tcp

    async def _connect_again(self, address: str, number: int) -> socket.socket:
        """The same for a port on which the peer listens, with a second attempt.

        A userspace tailscaled on a busy host may refuse one of many simultaneous connections.
        """
        try:
            return await self._connect(address, number)
        except ConnectionRefusedError:
            await asyncio.sleep(_AGAIN)
            return await self._connect(address, number)

    async def _prove(self, address: str, port: Port) -> _Port:
        """Let both sides prove that they know the token, and echo a text."""
        try:
            reader, writer = await asyncio.open_connection(sock=await self._connect_again(address, port["port"]))
        except (OSError, asyncio.TimeoutError) as failure:
            return self._unreached(port, failure)
        try:
            welcome = await self._handshake(reader, writer)
            return _Port(port, "ok", session=Session(reader, writer, welcome))
        except protocol.StrangerError:
            _hang_up(writer)
            return _Port(port, "stranger", "the responder does not know the token of this run")
        except (protocol.ProtocolError, ValueError):
            _hang_up(writer)
            return _Port(port, "stranger", "the responder does not use this protocol")
        except asyncio.TimeoutError:
            _hang_up(writer)
            return _Port(port, "mute", "the connection was accepted, but nothing came back")
        except (OSError, asyncio.IncompleteReadError):
            _hang_up(writer)
            return _Port(port, "closed", "the connection was accepted and closed immediately")

    async def _handshake(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Dict[str, Any]:
        ours, text = protocol.nonce(), protocol.nonce()
        await send(writer, {"gpumesh": protocol.VERSION, "nonce": ours})
        theirs = protocol.text_of(await receive(reader, _PATIENCE), "nonce")
        proof = protocol.proof(self._token, "client", ours, theirs)
        try:
            await send(writer, {"proof": proof, "machine": self._own.machine, "echo": text})
            welcome = await receive(reader, _PATIENCE)
        except (asyncio.IncompleteReadError, ConnectionError) as failure:
            # A listener of another run hangs up on a proof that is wrong to it.
            raise protocol.StrangerError("the peer rejects the proof") from failure
        protocol.check_proof(self._token, "server", ours, theirs, protocol.text_of(welcome, "proof"))
        if protocol.text_of(welcome, "echo") != text:
            raise protocol.ProtocolError("a different text came back")
        return welcome

    async def _converse(self, session: Session, address: str, udp: Sequence[Port], result: PeerResult) -> None:
        result["source"], result["seen"] = session.source, session.seen
        result["clock"] = await self._clock(session)
        ports, mtu = await self._datagrams(session, address, udp)
        result["ports"] += ports
        result["path_mtu"] = mtu
        if self._limits.payload:
            async with self._transfers:
                sent = await self._send_payload(session)
                whole = sent["outcome"] in ("ok", "corrupted")
                # After a stall, the stream is in the middle of the payload: no other request can follow.
                received = await self._receive_payload(session) if whole else self._unchecked()
            result["sent"], result["received"] = sent, received
            if received["outcome"] not in ("ok", "corrupted"):
                return
        await session.ask({"do": "done"}, _PATIENCE)
        result["finished"] = True

    async def _clock(self, session: Session) -> Clock:
        samples = []
        for _sample in range(_CLOCK_SAMPLES):
            asked = time.time()
            answer = await session.ask({"do": "time"}, _PATIENCE)
            heard = time.time()
            moments = protocol.time_of(answer, "received"), protocol.time_of(answer, "sent")
            samples.append(clock.Sample(asked, moments[0], moments[1], heard))
        sample = clock.best(samples)
        kernel = sockets.kernel_rtt_ms(session.writer.get_extra_info("socket"))
        return {
            "offset_s": round(sample.offset, 6),
            "rtt_ms": round(kernel if kernel is not None else max(0.0, sample.round_trip * 1000), 3),
        }

    async def _datagrams(
        self, session: Session, address: str, udp: Sequence[Port]
    ) -> Tuple[List[PortResult], Optional[PathMtu]]:
        """Test UDP on each port, and measure the path MTU over the first one that answers."""
        lines = [_Line(self._token, session, address, port) for port in udp]
        try:
            for line in lines:
                await line.open()
            # A path on which not even this size passes is unusable.
            answered = await asyncio.gather(*(line.exchange([(576, 576)], self._limits.timeout) for line in lines))
            results = []
            for line, got in zip(lines, answered):
                detail = "" if got else f"no answer within {self._limits.timeout:g} s"
                results.append(_Port(line.port, "ok" if got else "filtered", detail).result)
            good = [line for line, got in zip(lines, answered) if got]
            mtu = await self._path_mtu(good[0], session, address) if good else None
            return results, mtu
        finally:
            for line in lines:
                line.close()

    async def _path_mtu(self, line: _Line, session: Session, address: str) -> PathMtu:
        smallest = protocol.SMALLEST
        # 65,535 bytes is the largest IP packet; a loopback interface claims one more.
        there = path_mtu.Search(576, min(self._mtu or 1500, 65535))
        back = path_mtu.Search(576, min(session.peer_mtu or 1500, 65535))
        while True:
            wanted_there, wanted_back = there.sizes(), back.sizes()
            if not wanted_there and not wanted_back:
                break
            # To test one direction, the packet of the other one is small.
            exchanges = [(size, smallest) for size in wanted_there] + [(smallest, size) for size in wanted_back]
            # A small one is sent with them: as long as that is not answered, the large ones are undecided.
            passed = await line.exchange([*exchanges, (smallest, smallest)], self._limits.timeout)
            there.learn({size for size, answer in passed if answer == smallest})
            back.learn({answer for size, answer in passed if size == smallest})
        return {
            "interface": self._mtu,
            "peer_interface": session.peer_mtu,
            "to_peer": there.found,
            "from_peer": back.found,
            "signalled": sockets.known_path_mtu(address),
        }

    def _unchecked(self) -> Transfer:
        detail = "the transfer in the other direction did not end"
        return {"outcome": "not_checked", "size": self._limits.payload, "passed": 0, "detail": detail}

    async def _send_payload(self, session: Session) -> Transfer:
        payload = self._payloads.of(self._limits.payload)
        passed = 0
        try:
            await send(session.writer, {"do": "take", "size": self._limits.payload})
            for piece in payload.pieces():
                session.writer.write(piece)
                await self._moving(session, session.writer.drain())
                passed += len(piece)
            answer = await self._moving(session, receive(session.reader, _PATIENCE))
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as failure:
            return self._broken(passed, failure)
        return self._whole(answer.get("sha256") == payload.sha256)

    async def _receive_payload(self, session: Session) -> Transfer:
        digest = hashlib.sha256()
        passed = 0
        try:
            await send(session.writer, {"do": "give", "size": self._limits.payload})
            while passed < self._limits.payload:
                wanted = min(self._limits.payload - passed, protocol.CHUNK)
                data = await asyncio.wait_for(session.reader.read(wanted), _PATIENCE)
                if not data:
                    raise ConnectionResetError(errno.ECONNRESET, "the peer closed the connection")
                digest.update(data)
                passed += len(data)
            answer = await receive(session.reader, _PATIENCE)
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as failure:
            return self._broken(passed, failure)
        return self._whole(answer.get("sha256") == digest.hexdigest())

    async def _moving(self, session: Session, step: Awaitable[_Answer]) -> _Answer:
        """Wait for a step as long as the network works; raises asyncio.TimeoutError if it does not.

        A busy peer is given time. A packet that the kernel has retransmitted repeatedly is lost.
        """
        task = asyncio.ensure_future(step)
        tcp = session.writer.get_extra_info("socket")
        waited = 0.0
        while True:
            done, _pending = await asyncio.wait({task}, timeout=self._limits.timeout)
            if done:
                return task.result()
            waited += self._limits.timeout
            if waited >= _PATIENCE or sockets.is_retransmitting(tcp):
                task.cancel()
                raise asyncio.TimeoutError

    def _whole(self, same: bool) -> Transfer:
        size = self._limits.payload
        return {"outcome": "ok" if same else "corrupted", "size": size, "passed": size, "detail": ""}

    def _broken(self, passed: int, failure: BaseException) -> Transfer:
        stalled = isinstance(failure, asyncio.TimeoutError)
        return {
            "outcome": "stalled" if stalled else "broken",
            "size": self._limits.payload,
            "passed": passed,
            "detail": "the transfer stalled" if stalled else "the connection broke",
        }


class _Line(asyncio.DatagramProtocol):
    """Datagrams to one port of a peer, and the replies."""

    def __init__(self, token: str, session: Session, address: str, port: Port) -> None:
        self.port = port
        self._token = token
        self._session = session
        self._address = address
        self._overhead = protocol.UDP_OVERHEAD[6 if ":" in address else 4]
        self._transport: Optional[asyncio.DatagramTransport] = None
        #: The exchange of each number, and the exchanges that have been answered.
        self._waiting: Dict[int, Tuple[int, int]] = {}
        self._passed: Set[Tuple[int, int]] = set()
        self._arrival: Optional[asyncio.Event] = None

    async def open(self) -> None:
        """Open a connected socket, which receives only datagrams of the peer."""
        udp = socket.socket(sockets.family_of(self._address), socket.SOCK_DGRAM)
        try:
            udp.setblocking(False)
            sockets.dont_fragment(udp)
            udp.connect((self._address, self.port["port"]))
            loop = asyncio.get_running_loop()
            self._arrival = asyncio.Event()
            await loop.create_datagram_endpoint(lambda: self, sock=udp)
        except OSError:
            udp.close()
            raise

    def close(self) -> None:
        """Close the socket."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Before Python 3.12, the object is not an instance of the class, but has its methods.
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, _addr: Tuple[Any, ...]) -> None:
        try:
            answer = protocol.parse_datagram(self._token, data)
        except protocol.ProtocolError:
            return
        wanted = self._waiting.get(answer.number)
        # A middlebox may truncate or pad: only a reply of the right length to a request of the right length counts.
        arrived = (answer.size, len(data) + self._overhead)
        if answer.session == self._session.identity and answer.kind == protocol.ANSWER and wanted == arrived:
            self._passed.add(arrived)
            if self._arrival is not None:
                self._arrival.set()

    async def exchange(self, exchanges: Sequence[Tuple[int, int]], seconds: float) -> Set[Tuple[int, int]]:
        """Send packets of the given sizes in bytes, (there, back). Returns those that passed both ways.

        Ends when all have passed, when _TRIES more have been sent since the first one passed, or after ``seconds``.
        """
        wanted = set(exchanges)
        # A size that passed before may be lost now, and vice versa: each round is judged separately.
        self._waiting.clear()
        self._passed.clear()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        tries = 0
        while tries < _TRIES and loop.time() < end and not wanted <= self._passed:
            if self._passed:
                tries += 1
            self._send(sorted(wanted - self._passed))
            until = loop.time() + _SPACING
            while not wanted <= self._passed and self._arrival is not None:
                self._arrival.clear()
                left = until - loop.time()
                if left <= 0:
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrival.wait(), left)
        return wanted & self._passed

    def _send(self, exchanges: Sequence[Tuple[int, int]]) -> None:
        for there, back in exchanges:
            number = self._session.next_number()
            self._waiting[number] = (there, back)
            request = protocol.Datagram(protocol.REQUEST, self._session.identity, number, back)
            if self._transport is not None:
                # A packet that does not fit the interface is lost, like one that does not fit the path.
                self._transport.sendto(protocol.pack_datagram(self._token, request, there - self._overhead))


def _hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection at once, discarding unsent data."""
    writer.transport.abort()
