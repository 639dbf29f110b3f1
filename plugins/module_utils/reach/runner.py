# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement of throughput on one host: it waits for the common start, then keeps to its timetable by itself."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils import command
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach, protocol
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.schedule import Slot
from ansible_collections.gpumesh.cluster.plugins.module_utils.reach.shapes import Bandwidth, Peer, Self

#: Seconds of a half round beside the measurement itself: to connect, to start iperf3, to end.
_MARGIN = 3.0
#: Seconds between the common start and the first round, more than the start needs to reach everybody.
_LEAD = 1.0
#: Seconds that all hosts have to come to the start.
_GATHER_SECONDS = 70.0
_PIECE = bytes(1 << 20)


class Channel:
    """A session with a listener, without an event loop: here nothing else is to be done. Close it by ``with``."""

    def __init__(self, address: str, port: int, token: str, machine: str, timeout: float) -> None:
        """Raises OSError, StrangerError or ProtocolError."""
        self.socket = socket.create_connection((address, port), timeout)
        try:
            ours = protocol.nonce()
            theirs = protocol.text_of(self.ask({"gpumesh": protocol.VERSION, "nonce": ours}), "nonce")
            proof = protocol.proof(token, "client", ours, theirs)
            #: What the listener said of this session.
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
        """One order, one answer."""
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
                raise ConnectionError("the peer hung up")
            data += piece
        return data


def longest(timetable: Sequence[Slot], seconds: int) -> int:
    """Seconds that a whole run takes at most."""
    rounds = 1 + max((slot.round for slot in timetable), default=0)
    return int(_GATHER_SECONDS + _LEAD + rounds * 2 * (seconds + _MARGIN)) + 10


class Runner:
    """One host's part."""

    def __init__(
        self, own: Self, token: str, peers: Mapping[str, Peer], timetable: Sequence[Slot], seconds: int
    ) -> None:
        self._own = own
        self._token = token
        self._peers = peers
        self._timetable = timetable
        self._seconds = seconds
        self._measured: List[Bandwidth] = []
        self._through = threading.Event()

    def run(self, starter: str, control: socket.socket) -> None:
        """Until the results have been collected, or somebody on this host says stop."""
        threading.Thread(target=self._all, args=(starter,), daemon=True).start()
        control.setblocking(True)
        while True:
            connection, _address = control.accept()
            with connection:
                if not detach.may_ask(connection):
                    continue
                question = connection.makefile("rb").readline().strip()
                if question == b"collect":
                    self._through.wait()
                connection.sendall(json.dumps({"measured": self._measured}).encode())
                return

    def _all(self, starter: str) -> None:
        try:
            begin = self._await_start(starter)
        except (OSError, protocol.ProtocolError) as failure:
            reason = f"the start, which {starter} gives, did not come: {failure}"
            self._measured = [_failed(slot.peer, reason) for slot in self._timetable]
            self._through.set()
            return
        half = self._seconds + _MARGIN
        for slot in self._timetable:
            moment = begin + (2 * slot.round + slot.half) * half
            # A round that is late must not reach into the next one's time: then it is left out.
            time.sleep(max(0.0, moment - time.monotonic()))
            self._measured.append(self._measure(slot.peer, moment + half))
        self._through.set()

    def _await_start(self, starter: str) -> float:
        peer = self._peers[starter]
        with Channel(peer["address"], _port_of(peer), self._token, self._own.machine, _GATHER_SECONDS) as channel:
            channel.ask({"do": "ready", "hosts": len(self._peers)})
        return time.monotonic() + _LEAD

    def _measure(self, machine: str, end: float) -> Bandwidth:
        peer = self._peers[machine]
        left = end - time.monotonic()
        if left < self._seconds:
            return _failed(machine, "its time was over before it could begin")
        try:
            with Channel(peer["address"], _port_of(peer), self._token, self._own.machine, left) as channel:
                with_iperf3 = self._iperf3(channel, peer["address"], end)
                if with_iperf3 is not None:
                    return {"machine": machine, "gbps": with_iperf3, "method": "iperf3", "error": ""}
                gbps = self._send(channel, end)
                return {"machine": machine, "gbps": gbps, "method": "gpumesh", "error": ""}
        except (OSError, protocol.ProtocolError) as failure:
            return _failed(machine, str(failure) or type(failure).__name__)

    def _iperf3(self, channel: Channel, address: str, end: float) -> Optional[float]:
        """10^9 bits a second; None where one of the two has no iperf3 or it failed."""
        if command.find("iperf3") is None:
            return None
        port = protocol.number_of(channel.ask({"do": "iperf3"}), "port", 65535)
        if not port:
            return None
        argv = ["iperf3", "-c", address, "-p", str(port), "-t", str(self._seconds), "-J"]
        # The server is just starting.
        time.sleep(0.3)
        try:
            done = command.run(argv, timeout=max(1.0, end - time.monotonic() - 0.5), check=False)
        except CommandError:
            return None
        return parse_iperf3(done.stdout)

    def _send(self, channel: Channel, end: float) -> float:
        left = end - time.monotonic()
        if left < self._seconds:
            raise TimeoutError("its time was over before it could begin")
        channel.socket.settimeout(left)
        channel.ask({"do": "receive"})
        until = time.monotonic() + self._seconds
        while time.monotonic() < until:
            channel.socket.sendall(_PIECE)
        channel.socket.shutdown(socket.SHUT_WR)
        counted = channel.answer()
        size, seconds = protocol.number_of(counted, "size", 1 << 62), protocol.time_of(counted, "seconds")
        return round(size * 8 / seconds / 1e9, 3) if seconds > 0 else 0.0


def parse_iperf3(text: str) -> Optional[float]:
    """What the receiver got, in 10^9 bits a second, from ``iperf3 -J``; None where it did not measure."""
    try:
        bits = json.loads(text)["end"]["sum_received"]["bits_per_second"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return round(bits / 1e9, 3) if isinstance(bits, (int, float)) and not isinstance(bits, bool) else None


def _port_of(peer: Peer) -> int:
    """A port of the peer's listener. Raises ConnectionError."""
    for port in peer["ports"]:
        if port["protocol"] == "tcp" and port["state"] == "listening":
            return port["port"]
    raise ConnectionError(f"{peer['machine']} has no listener")


def _failed(machine: str, reason: str) -> Bandwidth:
    return {"machine": machine, "gbps": None, "method": "none", "error": reason}
