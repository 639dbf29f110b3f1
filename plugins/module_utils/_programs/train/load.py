# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure the load of a node: whether ranks get processors, and the round-trip times to the other nodes.

The kernel counts for each thread how long it was ready to run and waited for a processor, because other threads had
them or because of a limit. The value of a rank is the share of time for which its longest waiting thread has waited.

The path to another node is timed with a TCP handshake with its agent. The kernel there answers on its own, so a busy
node does not look like a slow network. Agents of the same attempt listen on the same port.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from statistics import median
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.stragglers import EVALUATION_INTERVAL

#: The number of nodes that an agent times, handshakes with each of them, seconds between these, and the timeout of one.
_MAX_PEERS = 8
_HANDSHAKES_PER_PEER = 3
_HANDSHAKE_INTERVAL = 0.3
_HANDSHAKE_TIMEOUT = 2.0


class CpuWait:
    """The time that threads have waited for a processor."""

    def __init__(self) -> None:
        self._previous_delays: Dict[int, int] = {}
        self._measured_at = 0.0

    def wait_shares(self, pids_by_rank: Mapping[int, Sequence[int]], now: float) -> Dict[int, float]:
        """Return the share of time since the last call for which the longest waiting thread has waited, by rank.

        ``pids_by_rank``: the processes of each rank. Ranks that had no thread at the last call are omitted.
        """
        elapsed, self._measured_at = now - self._measured_at, now
        previous_delays, self._previous_delays = self._previous_delays, {}
        shares_by_rank: Dict[int, float] = {}
        for rank, pids in pids_by_rank.items():
            delays_by_thread = {thread: delay for pid in pids for thread, delay in processes.run_delays(pid).items()}
            self._previous_delays.update(delays_by_thread)
            wait_times = [
                delay - previous_delays[thread]
                for thread, delay in delays_by_thread.items()
                if thread in previous_delays
            ]
            if wait_times:
                shares_by_rank[rank] = min(1.0, round(max(wait_times) / 1e9 / elapsed, 3))
        return shares_by_rank


class HandshakeListener:
    """Let the agents of other nodes time a handshake, without sending or reading anything."""

    def __init__(self, address: str, port: int) -> None:
        self._server_socket: Optional[socket.socket] = None
        # If the port is in use, only the measurement is lost.
        with contextlib.suppress(OSError):
            self._server_socket = socket.create_server((address, port), family=_address_family(address), backlog=64)
            threading.Thread(target=self._serve, args=(self._server_socket,), daemon=True).start()

    def _serve(self, server_socket: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                server_socket.accept()[0].close()

    def close(self) -> None:
        """Stop accepting connections."""
        if self._server_socket is not None:
            with contextlib.suppress(OSError):
                self._server_socket.shutdown(socket.SHUT_RDWR)
            self._server_socket.close()


def _address_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def time_handshake(address: str, port: int) -> Optional[float]:
    """Return the milliseconds of one handshake; None if the peer does not answer."""
    started_at = time.perf_counter()
    try:
        connection = socket.create_connection((address, port), _HANDSHAKE_TIMEOUT)
    except OSError:
        return None
    elapsed = time.perf_counter() - started_at
    connection.close()
    return elapsed * 1000


def choose_peers(nodes: Sequence[str], node: str) -> List[str]:
    """Return the nodes that follow in the list, which wraps around: all other nodes in a small run."""
    own_index = list(nodes).index(node)
    return [*nodes[own_index + 1 :], *nodes[:own_index]][:_MAX_PEERS]


class LoadMonitor:
    """Measure every few seconds in a thread. ``process_groups``: the process group of each rank."""

    def __init__(self, process_groups: Mapping[int, int], peer_addresses: Mapping[str, str], port: int) -> None:
        self._process_groups = process_groups
        self._peer_addresses = peer_addresses
        self._port = port
        self._cpu_wait = CpuWait()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._latest_sample: Optional[Dict[str, Any]] = None
        threading.Thread(target=self._measure_repeatedly, daemon=True).start()

    def _measure_repeatedly(self) -> None:
        while not self._closing.wait(EVALUATION_INTERVAL):
            pids_by_group = processes.members_by_group(set(self._process_groups.values()))
            wait_shares = self._cpu_wait.wait_shares(
                {rank: pids_by_group[group] for rank, group in self._process_groups.items()}, time.monotonic()
            )
            round_trips = self._measure_round_trips()
            with self._lock:
                self._latest_sample = {"held": wait_shares, "trips": round_trips}

    def _measure_round_trips(self) -> Dict[str, float]:
        """Return the median time of several handshakes with each node that responds, since traffic varies."""
        times_by_node: Dict[str, List[float]] = {}
        unreachable_nodes = set()
        for _attempt in range(_HANDSHAKES_PER_PEER):
            for node, address in self._peer_addresses.items():
                round_trip = None if node in unreachable_nodes else time_handshake(address, self._port)
                if round_trip is None:
                    unreachable_nodes.add(node)
                else:
                    times_by_node.setdefault(node, []).append(round_trip)
            self._closing.wait(_HANDSHAKE_INTERVAL)
        return {
            node: round(median(handshake_times), 3)
            for node, handshake_times in times_by_node.items()
            if node not in unreachable_nodes
        }

    def take_sample(self) -> Optional[Dict[str, Any]]:
        """Return the measurements, once."""
        with self._lock:
            latest_sample, self._latest_sample = self._latest_sample, None
        return latest_sample

    def close(self) -> None:
        """Stop measuring."""
        self._closing.set()
