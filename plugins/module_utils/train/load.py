# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent measures besides its ranks: whether they get processors, and the round-trip times to the other nodes.

The kernel counts for each thread how long it was ready to run and waited for a processor, because others had them or
because of a limit. The value of a rank is the share of its thread that waited longest.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import processes
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.pace import LOOK

#: The number of nodes that an agent times; handshakes with each of them; seconds between these; the timeout of one.
_PEERS = 8
_TIMES = 3
_SPACING = 0.3
_PATIENCE = 2.0


class Held:
    """The time that threads have waited for a processor."""

    def __init__(self) -> None:
        self._before: Dict[int, int] = {}
        self._at = 0.0

    def shares(self, groups: Mapping[int, Sequence[int]], now: float) -> Dict[int, float]:
        """The share of time since the last call for which a rank's longest waiting thread has waited, by rank.

        ``groups``: the processes of each rank. Ranks that had no thread at the last call are omitted.
        """
        passed, self._at = now - self._at, now
        before, self._before = self._before, {}
        found: Dict[int, float] = {}
        for rank, pids in groups.items():
            delays = {thread: delay for pid in pids for thread, delay in processes.run_delays(pid).items()}
            self._before.update(delays)
            waited = [delay - before[thread] for thread, delay in delays.items() if thread in before]
            if waited:
                found[rank] = min(1.0, round(max(waited) / 1e9 / passed, 3))
        return found


class Listener:
    """Lets the agents of other nodes time a handshake. Sends nothing and reads nothing."""

    def __init__(self, address: str, port: int) -> None:
        self._socket: Optional[socket.socket] = None
        # If the port is in use, only the measurement is lost.
        with contextlib.suppress(OSError):
            self._socket = socket.create_server((address, port), family=_family(address), backlog=64)
            threading.Thread(target=self._serve, args=(self._socket,), daemon=True).start()

    def _serve(self, listening: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                listening.accept()[0].close()

    def close(self) -> None:
        """Stop accepting connections."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def trip(address: str, port: int) -> Optional[float]:
    """The milliseconds of one handshake; None if the other side does not answer."""
    begun = time.perf_counter()
    try:
        connection = socket.create_connection((address, port), _PATIENCE)
    except OSError:
        return None
    took = time.perf_counter() - begun
    connection.close()
    return took * 1000


def peers(nodes: Sequence[str], node: str) -> List[str]:
    """The nodes that follow in the list, around its end: all of them in a small run."""
    place = list(nodes).index(node)
    return [*nodes[place + 1 :], *nodes[:place]][:_PEERS]


class Load:
    """Measures every few seconds in a thread. ``groups``: the process group of each rank."""

    def __init__(self, groups: Mapping[int, int], addresses: Mapping[str, str], port: int) -> None:
        self._groups = groups
        self._addresses = addresses
        self._port = port
        self._held = Held()
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._found: Optional[Dict[str, Any]] = None
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while not self._over.wait(LOOK):
            pids = processes.groups(set(self._groups.values()))
            held = self._held.shares({rank: pids[group] for rank, group in self._groups.items()}, time.monotonic())
            trips = self._trips()
            with self._lock:
                self._found = {"held": held, "trips": trips}

    def _trips(self) -> Dict[str, float]:
        """The median of several handshakes with each node that responds, since traffic varies."""
        took: Dict[str, List[float]] = {}
        away = set()
        for _time in range(_TIMES):
            for node, address in self._addresses.items():
                one = None if node in away else trip(address, self._port)
                if one is None:
                    away.add(node)
                else:
                    took.setdefault(node, []).append(one)
            self._over.wait(_SPACING)
        return {node: round(median(times), 3) for node, times in took.items() if node not in away}

    def take(self) -> Optional[Dict[str, Any]]:
        """Return the measurements, once."""
        with self._lock:
            found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Stop measuring."""
        self._over.set()
