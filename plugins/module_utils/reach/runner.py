# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement of throughput on one host: it waits for the common start, and then follows its timetable on its own."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach, lease, perftest, protocol
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.schedule import Slot
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import (
    Bandwidth,
    Peer,
    RdmaEnd,
    RdmaRate,
    Self,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: Seconds of a half round besides the measurement: to connect, to start iperf3, and to end.
_MARGIN = 3.0
#: Seconds for both programs of perftest to start and end; measuring the latency takes at most as long as the bandwidth.
_RDMA_MARGIN = 4.0
#: Seconds between two attempts to reach a server that is starting.
_RETRY_SECONDS = 0.3
#: Seconds between the common start and the first round, more than it takes for the start to reach all hosts.
_LEAD = 1.0
#: Seconds by which the first listener stops waiting for missing hosts before the others do.
_GATHER_MARGIN = 10.0
#: Seconds between two checks whether the results have been collected.
_CONTROL_SPACING = 0.2
_PIECE = bytes(1 << 20)


class Channel:
    """A session with a listener, without an event loop. Close it with ``with``."""

    def __init__(self, address: str, port: int, token: str, machine: str, timeout: float) -> None:
        """Raises OSError, StrangerError or ProtocolError."""
        self.socket = socket.create_connection((address, port), timeout)
        try:
            ours = protocol.nonce()
            theirs = protocol.text_of(self.ask({"gpumesh": protocol.VERSION, "nonce": ours}), "nonce")
            proof = protocol.proof(token, "client", ours, theirs)
            #: What the listener reported about this session.
            self.welcome = self.ask({"proof": proof, "machine": machine, "echo": ""})
            protocol.check_proof(token, "server", ours, theirs, protocol.text_of(self.welcome, "proof"))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_reason: object) -> None:
        self.socket.close()

    def ask(self, order: Mapping[str, Any]) -> Dict[str, Any]:
        """Send a request. Returns the reply."""
        self.socket.sendall(protocol.frame(order))
        return self.answer()

    def answer(self) -> Dict[str, Any]:
        """The next frame."""
        return protocol.parse_body(self._exactly(protocol.body_length(self._exactly(protocol.LENGTH_SIZE))))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the peer closed the connection")
            data += piece
        return data


def half_round(peers: Iterable[Peer], seconds: int) -> float:
    """The seconds for the measurements in one direction: by TCP, and by RDMA if two hosts can."""
    rdma = sum(peer["rdma"] for peer in peers) > 1
    return seconds + _MARGIN + (2 * seconds + _RDMA_MARGIN if rdma else 0.0)


def length(timetable: Sequence[Slot], half: float) -> float:
    """The seconds from the first round to the end of the last one in which this host takes part."""
    return (1 + max((slot.round for slot in timetable), default=0)) * 2 * half


def longest(timetable: Sequence[Slot], half: float, hosts: int) -> int:
    """The maximum seconds that a whole run takes."""
    return int(protocol.gather_seconds(hosts) + _GATHER_MARGIN + _LEAD + length(timetable, half)) + 10


class Runner:
    """The part of one host."""

    def __init__(
        self,
        own: Self,
        token: str,
        peers: Mapping[str, Peer],
        timetable: Sequence[Slot],
        seconds: int,
        rdma: RdmaEnd,
        term: lease.Lease,
    ) -> None:
        self._own = own
        self._term = term
        self._rdma_end = rdma
        self._token = token
        self._peers = peers
        self._timetable = timetable
        self._seconds = seconds
        self._measured: List[Bandwidth] = []
        self._through = threading.Event()
        self._collected = threading.Event()

    def run(self, starter: str, control: socket.socket) -> None:
        """Run until the results have been collected, or a process on this host sends stop."""
        threading.Thread(target=self._all, args=(starter,), daemon=True).start()
        control.settimeout(_CONTROL_SPACING)
        while not self._collected.is_set():
            try:
                connection, _address = control.accept()
            except socket.timeout:
                continue
            connection.setblocking(True)
            if not self._goes_on(connection):
                return

    def _goes_on(self, connection: socket.socket) -> bool:
        """Answer a request.

        Returns False after the last one. The collector waits, and other requests may come meanwhile.
        """
        if not detach.may_ask(connection):
            connection.close()
            return True
        question = detach.parse_question(connection.makefile("rb").readline())
        if question.what == "collect":
            self._term.follow(question.connection)
            threading.Thread(target=self._hand_over, args=(connection,), daemon=True).start()
            return True
        ends = question.what == "stop" or (question.what == "replace" and self._term.yields_to(question.connection))
        with connection:
            connection.sendall(json.dumps({"measured": self._measured}).encode())
        return not ends

    def _hand_over(self, connection: socket.socket) -> None:
        self._through.wait()
        with connection, contextlib.suppress(OSError):
            connection.sendall(json.dumps({"measured": self._measured}).encode())
        self._collected.set()

    def _all(self, starter: str) -> None:
        half = half_round(self._peers.values(), self._seconds)
        try:
            begin = self._await_start(starter)
            self._keep_to_timetable(begin, half)
        except (OSError, protocol.ProtocolError) as failure:
            begin = time.monotonic()
            reason = f"{starter} did not start the measurement: {failure}"
            self._measured = [_failed(slot.peer, reason) for slot in self._timetable]
        # The collecting task stops the listener next, to which other hosts may still be sending.
        time.sleep(max(0.0, begin + length(self._timetable, half) - time.monotonic()))
        self._through.set()

    def _keep_to_timetable(self, begin: float, half: float) -> None:
        for slot in self._timetable:
            moment = begin + (2 * slot.round + slot.half) * half
            # A late round must not overlap the next one, so it is skipped.
            time.sleep(max(0.0, moment - time.monotonic()))
            measured = self._measure(slot.peer, moment + self._seconds + _MARGIN)
            measured["rdma"] = self.rdma(slot.peer, moment + half)
            self._measured.append(measured)

    def _await_start(self, starter: str) -> float:
        peer = self._peers[starter]
        patience = protocol.gather_seconds(len(self._peers)) + _GATHER_MARGIN
        with Channel(peer["address"], _port_of(peer), self._token, self._own.machine, patience) as channel:
            channel.ask({"do": "ready", "hosts": len(self._peers)})
        return time.monotonic() + _LEAD

    def _measure(self, machine: str, end: float) -> Bandwidth:
        peer = self._peers[machine]
        left = end - time.monotonic()
        if left < self._seconds:
            return _failed(machine, "its time had ended before it could start")
        try:
            with Channel(peer["address"], _port_of(peer), self._token, self._own.machine, left) as channel:
                with_iperf3 = self._iperf3(channel, peer["address"], end)
                if with_iperf3 is not None:
                    return _made(machine, with_iperf3, "iperf3")
                return _made(machine, self._send(channel, end), "gpumesh")
        except (OSError, protocol.ProtocolError) as failure:
            return _failed(machine, str(failure) or type(failure).__name__)

    def _iperf3(self, channel: Channel, address: str, end: float) -> Optional[float]:
        """The throughput in 10^9 bit/s; None if iperf3 is missing on either side, or failed."""
        if command.find("iperf3") is None:
            return None
        port = protocol.number_of(channel.ask({"do": "iperf3"}), "port", 65535)
        if not port:
            return None
        argv = ["iperf3", "-c", address, "-p", str(port), "-t", str(self._seconds), "-J"]
        # The server is still starting.
        time.sleep(0.3)
        try:
            done = command.run(argv, timeout=max(1.0, end - time.monotonic() - 0.5), check=False)
        except CommandError:
            return None
        return parse_iperf3(done.stdout)

    def rdma(self, machine: str, end: float) -> RdmaRate:
        """Measure RDMA if both ends support it."""
        peer, measured = self._peers[machine], _no_rdma()
        if not (peer["rdma"] and self._rdma_end["device"]):
            return measured
        try:
            left = max(1.0, end - time.monotonic())
            with Channel(peer["address"], _port_of(peer), self._token, self._own.machine, left) as channel:
                said = self._perftest(channel, peer, "bandwidth", end)
                measured["gbps"] = perftest.parse_bandwidth(said)
                if measured["gbps"] is not None:
                    said = self._perftest(channel, peer, "latency", end)
                    measured["latency_us"] = perftest.parse_latency(said)
                if measured["latency_us"] is None:
                    measured["error"] = perftest.parse_failure(said)
        except (OSError, protocol.ProtocolError, CommandError) as failure:
            measured["error"] = str(failure) or type(failure).__name__
        return measured

    def _perftest(self, channel: Channel, peer: Peer, what: str, end: float) -> str:
        """The client's output. Raises ConnectionError, CommandError or ProtocolError."""
        port = protocol.number_of(channel.ask({"do": what, "seconds": self._seconds}), "port", 65535)
        if not port:
            raise ConnectionError(f"{peer['machine']} could not start {perftest.PROGRAMS[what]}")
        argv = perftest.command(what, self._rdma_end, port, self._seconds, peer["address"])
        while True:
            done = command.run(argv, timeout=max(1.0, end - time.monotonic() - 0.5), check=False)
            said = f"{done.stderr}\n{done.stdout}"
            # The server is still starting, and opens its device before it listens.
            if not perftest.refused(said) or time.monotonic() + 1.0 > end:
                return said
            time.sleep(_RETRY_SECONDS)

    def _send(self, channel: Channel, end: float) -> float:
        left = end - time.monotonic()
        if left < self._seconds:
            raise TimeoutError("its time had ended before it could start")
        channel.socket.settimeout(left)
        marker = secrets.token_hex(32)
        channel.ask({"do": "receive", "end": marker})
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            channel.socket.sendall(_PIECE)
        channel.socket.sendall(marker.encode())
        counted = channel.answer()
        size, seconds = protocol.number_of(counted, "size", 1 << 62), protocol.time_of(counted, "seconds")
        return round(size * 8 / seconds / 1e9, 3) if seconds > 0 else 0.0


def parse_iperf3(text: str) -> Optional[float]:
    """The received throughput in 10^9 bits per second, from ``iperf3 -J``; None if it was not measured."""
    try:
        bits = from_json(text)["end"]["sum_received"]["bits_per_second"]
        return None if isinstance(bits, bool) else round(float(bits) / 1e9, 3)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _port_of(peer: Peer) -> int:
    """A port of the peer's listener. Raises ConnectionError."""
    for port in peer["ports"]:
        if port["protocol"] == "tcp" and port["state"] == "listening":
            return port["port"]
    raise ConnectionError(f"{peer['machine']} has no listener")


def _failed(machine: str, reason: str) -> Bandwidth:
    return {"machine": machine, "gbps": None, "method": "none", "error": reason, "rdma": _no_rdma()}


def _made(machine: str, gbps: float, method: str) -> Bandwidth:
    return {"machine": machine, "gbps": gbps, "method": method, "error": "", "rdma": _no_rdma()}


def _no_rdma() -> RdmaRate:
    return {"gbps": None, "latency_us": None, "error": ""}
