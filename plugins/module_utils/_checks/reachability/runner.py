# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The measurement of throughput on one host: it waits for the common start, and then follows its own timetable."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import threading
import time
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import perftest, protocol
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import (
    LocalMember,
    ProbedPeer,
    RdmaEndpoint,
    RdmaRate,
    ThroughputResult,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.schedule import SendSlot
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command, lease, leased_process
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

#: Seconds of a half round besides the measurement: to connect, to start iperf3, and to end.
_CONNECT_MARGIN = 3.0
#: Seconds for both programs of perftest to start and end; measuring the latency takes at most as long as the bandwidth.
_RDMA_MARGIN = 4.0
#: Seconds between two attempts to reach a server that is starting.
_RETRY_SECONDS = 0.3
#: Seconds between the common start and the first round, more than it takes for the start to reach all hosts.
_START_DELAY = 1.0
#: Seconds by which the first listener stops waiting for missing hosts before the others do.
_GATHER_MARGIN = 10.0
#: Seconds between two checks whether the results have been collected.
_CONTROL_INTERVAL = 0.2
_ZERO_CHUNK = bytes(1 << 20)


class ListenerChannel:
    """A session with a listener, without an event loop. Close it with ``with``."""

    def __init__(self, address: str, port: int, token: str, machine: str, timeout: float) -> None:
        """Open a session. Raises OSError, StrangerError or ProtocolError."""
        self.tcp_socket = socket.create_connection((address, port), timeout)
        try:
            client_nonce = protocol.make_nonce()
            server_nonce = protocol.read_text_field(
                self.send_request({"gpumesh": protocol.PROTOCOL_VERSION, "nonce": client_nonce}), "nonce"
            )
            proof = protocol.compute_proof(token, "client", client_nonce, server_nonce)
            #: The listener's report about this session.
            self.welcome_message = self.send_request({"proof": proof, "machine": machine, "echo": ""})
            protocol.check_proof(
                token, "server", client_nonce, server_nonce, protocol.read_text_field(self.welcome_message, "proof")
            )
        except BaseException:
            self.tcp_socket.close()
            raise

    def __enter__(self) -> ListenerChannel:
        return self

    def __exit__(self, *_reason: object) -> None:
        self.tcp_socket.close()

    def send_request(self, request_message: Mapping[str, Any]) -> Dict[str, Any]:
        """Send a request. Returns the reply."""
        self.tcp_socket.sendall(protocol.encode_frame(request_message))
        return self.receive_reply()

    def receive_reply(self) -> Dict[str, Any]:
        """The next frame."""
        return protocol.parse_body(
            self._receive_exactly(protocol.parse_body_length(self._receive_exactly(protocol.LENGTH_SIZE)))
        )

    def _receive_exactly(self, size: int) -> bytes:
        received_bytes = b""
        while len(received_bytes) < size:
            piece = self.tcp_socket.recv(size - len(received_bytes))
            if not piece:
                raise ConnectionError("the peer closed the connection")
            received_bytes += piece
        return received_bytes


def half_round_seconds(peers: Iterable[ProbedPeer], seconds: int) -> float:
    """The seconds for the measurements in one direction: by TCP, and by RDMA if two hosts can."""
    rdma = sum(peer["rdma"] for peer in peers) > 1
    return seconds + _CONNECT_MARGIN + (2 * seconds + _RDMA_MARGIN if rdma else 0.0)


def total_seconds(timetable: Sequence[SendSlot], half_seconds: float) -> float:
    """The seconds from the first round to the end of the last one in which this host takes part."""
    return (1 + max((slot.round for slot in timetable), default=0)) * 2 * half_seconds


def max_run_seconds(timetable: Sequence[SendSlot], half_seconds: float, hosts: int) -> int:
    """The maximum seconds that a whole run takes."""
    return (
        int(protocol.gather_seconds(hosts) + _GATHER_MARGIN + _START_DELAY + total_seconds(timetable, half_seconds))
        + 10
    )


class ThroughputRunner:
    """The measurement of throughput on one host."""

    def __init__(
        self,
        local_member: LocalMember,
        token: str,
        peer_by_machine: Mapping[str, ProbedPeer],
        send_slots: Sequence[SendSlot],
        measured_seconds: int,
        rdma: RdmaEndpoint,
        term: lease.Lease,
    ) -> None:
        self._local_member = local_member
        self._process_lease = term
        self._rdma_endpoint = rdma
        self._run_token = token
        self._peer_by_machine = peer_by_machine
        self._send_slots = send_slots
        self._measured_seconds = measured_seconds
        self._throughput_results: List[ThroughputResult] = []
        self._finished_event = threading.Event()
        self._collected_event = threading.Event()

    def run(self, starter: str, control: socket.socket) -> None:
        """Run until the results have been collected, or a process on this host sends stop."""
        threading.Thread(target=self._measure_all, args=(starter,), daemon=True).start()
        control.settimeout(_CONTROL_INTERVAL)
        while not self._collected_event.is_set():
            try:
                connection, _address = control.accept()
            except socket.timeout:
                continue
            connection.setblocking(True)
            if not self._handle_request(connection):
                return

    def _handle_request(self, client_socket: socket.socket) -> bool:
        """Answer a request.

        Returns False after the last one. The collector waits, and other requests may come meanwhile.
        """
        if not leased_process.is_authorized(client_socket):
            client_socket.close()
            return True
        question = leased_process.parse_request(client_socket.makefile("rb").readline())
        if question.command == "collect":
            self._process_lease.follow(question.ssh_connection)
            threading.Thread(target=self._send_results, args=(client_socket,), daemon=True).start()
            return True
        must_end = question.command == "stop" or (
            question.command == "replace" and self._process_lease.yields_to(question.ssh_connection)
        )
        with client_socket:
            client_socket.sendall(json.dumps({"measured": self._throughput_results}).encode())
        return not must_end

    def _send_results(self, connection: socket.socket) -> None:
        self._finished_event.wait()
        with connection, contextlib.suppress(OSError):
            connection.sendall(json.dumps({"measured": self._throughput_results}).encode())
        self._collected_event.set()

    def _measure_all(self, starter: str) -> None:
        half_seconds = half_round_seconds(self._peer_by_machine.values(), self._measured_seconds)
        try:
            started_at = self._wait_for_start(starter)
            self._follow_timetable(started_at, half_seconds)
        except (OSError, protocol.ProtocolError) as failure:
            started_at = time.monotonic()
            reason = f"{starter} did not start the measurement: {failure}"
            self._throughput_results = [_failed_result(slot.peer, reason) for slot in self._send_slots]
        # The collecting task stops the listener next, to which other hosts may still be sending.
        time.sleep(max(0.0, started_at + total_seconds(self._send_slots, half_seconds) - time.monotonic()))
        self._finished_event.set()

    def _follow_timetable(self, started_at: float, half_seconds: float) -> None:
        for slot in self._send_slots:
            moment = started_at + (2 * slot.round + slot.half) * half_seconds
            # A late round must not overlap the next one, so it is skipped.
            time.sleep(max(0.0, moment - time.monotonic()))
            measured = self._measure_peer(slot.peer, moment + self._measured_seconds + _CONNECT_MARGIN)
            measured["rdma"] = self.measure_rdma(slot.peer, moment + half_seconds)
            self._throughput_results.append(measured)

    def _wait_for_start(self, starter: str) -> float:
        peer = self._peer_by_machine[starter]
        patience = protocol.gather_seconds(len(self._peer_by_machine)) + _GATHER_MARGIN
        with ListenerChannel(
            peer["address"], _find_listener_port(peer), self._run_token, self._local_member.own_machine, patience
        ) as channel:
            channel.send_request({"do": "ready", "hosts": len(self._peer_by_machine)})
        return time.monotonic() + _START_DELAY

    def _measure_peer(self, machine: str, slot_end: float) -> ThroughputResult:
        peer = self._peer_by_machine[machine]
        remaining_seconds = slot_end - time.monotonic()
        if remaining_seconds < self._measured_seconds:
            return _failed_result(machine, "its time was over before it could start")
        try:
            with ListenerChannel(
                peer["address"],
                _find_listener_port(peer),
                self._run_token,
                self._local_member.own_machine,
                remaining_seconds,
            ) as channel:
                with_iperf3 = self._measure_iperf3(channel, peer["address"], slot_end)
                if with_iperf3 is not None:
                    return _measured_result(machine, with_iperf3, "iperf3")
                return _measured_result(machine, self._send_stream(channel, slot_end), "gpumesh")
        except (OSError, protocol.ProtocolError) as failure:
            return _failed_result(machine, str(failure) or type(failure).__name__)

    def _measure_iperf3(self, channel: ListenerChannel, address: str, slot_end: float) -> Optional[float]:
        """The throughput in 10^9 bit/s; None if iperf3 is missing on either side, or failed."""
        if command.find_program("iperf3") is None:
            return None
        port = protocol.read_integer_field(channel.send_request({"do": "iperf3"}), "port", 65535)
        if not port:
            return None
        client_arguments = ["iperf3", "-c", address, "-p", str(port), "-t", str(self._measured_seconds), "-J"]
        # The server is still starting.
        time.sleep(0.3)
        try:
            client_result = command.run(
                client_arguments, timeout=max(1.0, slot_end - time.monotonic() - 0.5), check=False
            )
        except CommandError:
            return None
        return parse_iperf3(client_result.stdout)

    def measure_rdma(self, machine: str, slot_end: float) -> RdmaRate:
        """Measure RDMA if both ends support it."""
        measured_peer, rdma_rate = self._peer_by_machine[machine], _empty_rdma_rate()
        if not (measured_peer["rdma"] and self._rdma_endpoint["device"]):
            return rdma_rate
        try:
            remaining_seconds = max(1.0, slot_end - time.monotonic())
            with ListenerChannel(
                measured_peer["address"],
                _find_listener_port(measured_peer),
                self._run_token,
                self._local_member.own_machine,
                remaining_seconds,
            ) as channel:
                client_output = self._run_perftest(channel, measured_peer, "bandwidth", slot_end)
                rdma_rate["gbps"] = perftest.parse_bandwidth(client_output)
                if rdma_rate["gbps"] is not None:
                    client_output = self._run_perftest(channel, measured_peer, "latency", slot_end)
                    rdma_rate["latency_us"] = perftest.parse_latency(client_output)
                if rdma_rate["latency_us"] is None:
                    rdma_rate["error"] = perftest.parse_failure(client_output)
        except (OSError, protocol.ProtocolError, CommandError) as failure:
            rdma_rate["error"] = str(failure) or type(failure).__name__
        return rdma_rate

    def _run_perftest(self, channel: ListenerChannel, peer: ProbedPeer, measurement: str, slot_end: float) -> str:
        """The client's output. Raises ConnectionError, CommandError or ProtocolError."""
        port = protocol.read_integer_field(
            channel.send_request({"do": measurement, "seconds": self._measured_seconds}), "port", 65535
        )
        if not port:
            raise ConnectionError(f"{peer['machine']} could not start {perftest.PROGRAM_BY_MEASUREMENT[measurement]}")
        client_arguments = perftest.build_command(
            measurement, self._rdma_endpoint, port, self._measured_seconds, peer["address"]
        )
        while True:
            client_result = command.run(
                client_arguments, timeout=max(1.0, slot_end - time.monotonic() - 0.5), check=False
            )
            client_output = f"{client_result.stderr}\n{client_result.stdout}"
            # The server is still starting, and opens its device before it listens.
            if not perftest.is_refused(client_output) or time.monotonic() + 1.0 > slot_end:
                return client_output
            time.sleep(_RETRY_SECONDS)

    def _send_stream(self, channel: ListenerChannel, slot_end: float) -> float:
        remaining_seconds = slot_end - time.monotonic()
        if remaining_seconds < self._measured_seconds:
            raise TimeoutError("its time was over before it could start")
        channel.tcp_socket.settimeout(remaining_seconds)
        marker = secrets.token_hex(32)
        channel.send_request({"do": "receive", "end": marker})
        until = time.monotonic() + self._measured_seconds
        while time.monotonic() < until:
            channel.tcp_socket.sendall(_ZERO_CHUNK)
        channel.tcp_socket.sendall(marker.encode())
        byte_counts = channel.receive_reply()
        size, seconds = (
            protocol.read_integer_field(byte_counts, "size", 1 << 62),
            protocol.read_time_field(byte_counts, "seconds"),
        )
        return round(size * 8 / seconds / 1e9, 3) if seconds > 0 else 0.0


def parse_iperf3(json_text: str) -> Optional[float]:
    """The received throughput in 10^9 bits per second, from ``iperf3 -J``; None if it was not measured."""
    try:
        bits = parse_json(json_text)["end"]["sum_received"]["bits_per_second"]
        return None if isinstance(bits, bool) else round(float(bits) / 1e9, 3)
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def _find_listener_port(peer: ProbedPeer) -> int:
    """A port of the peer's listener. Raises ConnectionError."""
    for port in peer["ports"]:
        if port["protocol"] == "tcp" and port["state"] == "listening":
            return port["port"]
    raise ConnectionError(f"{peer['machine']} has no listener")


def _failed_result(machine: str, reason: str) -> ThroughputResult:
    return {"machine": machine, "gbps": None, "method": "none", "error": reason, "rdma": _empty_rdma_rate()}


def _measured_result(machine: str, gbps: float, method: str) -> ThroughputResult:
    return {"machine": machine, "gbps": gbps, "method": method, "error": "", "rdma": _empty_rdma_rate()}


def _empty_rdma_rate() -> RdmaRate:
    return {"gbps": None, "latency_us": None, "error": ""}
