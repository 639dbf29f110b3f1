# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run PyTorch's profiler around some steps of each rank, for `gpumesh_run.progress()`. Needs only Python and PyTorch.

The first steps are not recorded, since they allocate memory and open connections. Then the ranks compare their clocks
with that of rank 0, each measures the path to the next rank, and the profiler warms up. After the last step, the clocks
are compared once more; the trace is compressed and copied in the background. Failures are logged, and do not affect the
program.

Clocks are compared as in NTP: rank 0 is queried for its time repeatedly. The fastest answer is used; its error is at
most half of its round-trip time.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import importlib
import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
import zlib
from typing import Any, Dict, List, Mapping, Optional, Tuple

#: Steps before the profiler starts, and steps in which it runs without recording.
SKIPPED = 5
WARM_UP = 2
#: Steps that are recorded by default.
_STEPS = 5
#: Rank 0 reports its time on one of these ports, derived from MASTER_PORT. They are ports of jobs, which the role
#: firewall closes to others, and differ from those of the agents of gpumesh-train.
_PORTS = range(15000, 25000)
_FURTHER = 3000
#: Queries of the time, and seconds to wait for another rank.
_QUESTIONS = 30
_PATIENCE = 5.0
#: Seconds for which data is sent to the next rank; bytes of one part, and the maximum.
_BULK = 0.2
_PART = 1 << 18
_LARGEST = 1 << 30
#: The prefix of the name of a trace event with the time of the node's clock.
ANCHOR = "gpumesh clock "

Place = Tuple[str, int]


class StrangerError(OSError):
    """Another program listens there."""


def clock_port(master_port: int) -> int:
    """The port on which rank 0 returns its time."""
    return _PORTS[(master_port + _FURTHER) % len(_PORTS)]


class Server(threading.Thread):
    """Reports the time, the addresses of other ranks, how much data has arrived, and what identifies the recording.

    Ends when all ``visitors`` are done.
    """

    def __init__(self, place: Place, visitors: int, greeting: str, recording: str = "") -> None:
        """``greeting``: identifies the server to ranks of this run. Raises OSError if it cannot listen on the port."""
        super().__init__(daemon=True)
        self._greeting = greeting
        self._recording = recording
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._socket = socket.create_server(place, family=family, backlog=128)
        self.place: Place = self._socket.getsockname()[:2]
        self._visitors = visitors
        self._places: Dict[int, Place] = {}
        self.start()

    def run(self) -> None:
        """Serve each rank that connects in a thread."""
        with contextlib.suppress(OSError):
            while True:
                connection, peer = self._socket.accept()
                threading.Thread(target=self._serve, args=(connection, str(peer[0])), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError, ValueError, IndexError, EOFError), connection, connection.makefile(
            "rwb"
        ) as stream:
            stream.write(f"{self._greeting}\n".encode())
            stream.flush()
            for line in stream:
                answer = self._answer(line.split(), peer, stream)
                stream.write(f"{answer}\n".encode())
                stream.flush()

    def _answer(self, words: List[bytes], peer: str, stream: Any) -> str:
        if words[0] == b"time":
            return str(time.time_ns())
        if words[0] == b"recording":
            return self._recording
        if words[0] == b"here":
            self._places[int(words[1])] = (peer, int(words[2]))
        elif words[0] == b"where":
            host, port = self._places.get(int(words[1]), ("", 0))
            return f"{host} {port}" if port else ""
        elif words[0] == b"bulk":
            left = int(words[1])
            while left:
                part = stream.read(min(left, _PART))
                if not part:
                    raise EOFError
                left -= len(part)
        elif words[0] == b"bye":
            self._visitors -= 1
            if not self._visitors:
                self.close()
        return ""

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Peer:
    """A connection to the server of another rank."""

    def __init__(self, place: Place, greeting: str) -> None:
        """Wait for the server. Nothing is sent to a server with a different greeting. Raises OSError."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._socket = socket.create_connection(place, _PATIENCE)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream: Any = self._socket.makefile("rwb")
        if self._stream.readline(256).decode("ascii", "replace").strip() != greeting:
            self.close()
            raise StrangerError(f"the process that listens at {place[0]} port {place[1]} does not belong to this run")

    @property
    def own_address(self) -> str:
        """The address of this rank, as seen by the other one."""
        return str(self._socket.getsockname()[0])

    def ask(self, words: str) -> str:
        """Raises OSError."""
        self._stream.write(f"{words}\n".encode())
        self._stream.flush()
        return str(self._stream.readline().decode("ascii").strip())

    def clock(self) -> Dict[str, int]:
        """By how much its clock is ahead of ours, and the error, in nanoseconds."""
        best: Optional[Tuple[int, int, int]] = None
        for _question in range(_QUESTIONS):
            before = time.time_ns()
            theirs = int(self.ask("time"))
            after = time.time_ns()
            if best is None or after - before < best[0]:
                best = (after - before, theirs, before)
        took, theirs, before = best or (0, 0, 0)
        return {"at": before + took // 2, "ahead": theirs - before - took // 2, "error": took // 2}

    def link(self) -> Dict[str, float]:
        """The round-trip time in milliseconds, and the rate of data sent to it in Mbit/s."""
        times = []
        for _question in range(_QUESTIONS):
            begun = time.perf_counter()
            self.ask("time")
            times.append(time.perf_counter() - begun)
        size, took, speed = _PART, 0.0, 0.0
        # Until it takes long enough to measure.
        while took < _BULK and size <= _LARGEST:
            begun = time.perf_counter()
            self._stream.write(f"bulk {size}\n".encode())
            for _part in range(size // _PART):
                self._stream.write(bytes(_PART))
            self._stream.flush()
            self._stream.readline()
            took = time.perf_counter() - begun
            speed = size * 8 / took / 1e6
            size *= min(max(int(_BULK * 1.5 / took), 2), 16)
        return {"ms": min(times) * 1000, "mbits": speed}

    def close(self) -> None:
        """Close the connection. Raises nothing."""
        with contextlib.suppress(OSError):
            self._stream.close()
            self._socket.close()


class Neighbours:
    """The clocks and the links of the ranks, except those that cannot be measured."""

    def __init__(self, rank: int, ranks: int, variables: Mapping[str, str]) -> None:
        self._rank, self._ranks = rank, ranks
        self._first = (variables.get("MASTER_ADDR", ""), clock_port(_number(variables.get("MASTER_PORT"), 0)))
        self._greeting = f"gpumesh {zlib.crc32(variables.get('GPUMESH_PROFILE_DIR', '').encode())}"
        self._server: Optional[Server] = None
        self._peer: Optional[Peer] = None
        #: Tells apart the recordings of a directory. Rank 0 makes it up; empty on ranks that cannot ask for it.
        self.recording = "" if rank else secrets.token_hex(8)
        self.clocks: List[Dict[str, int]] = []
        self.links: List[Dict[str, Any]] = []

    def open(self) -> None:
        """Rank 0 starts its server long before the others connect."""
        if self._able and self._rank == 0:
            with self._telling():
                self._server = Server(self._first, self._ranks - 1, self._greeting, self.recording)

    @property
    def _able(self) -> bool:
        return self._ranks > 1 and bool(self._first[0])

    @contextlib.contextmanager
    def _telling(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as failure:
            say(f"rank {self._rank}: clocks and links are not measured: {failure}")

    def measure(self) -> None:
        """Measure the clock and the link to the next rank, before the profiled steps."""
        if not self._able:
            return
        with self._telling():
            if self._peer is None:
                self._peer = Peer(self._first, self._greeting)
            if self._rank:
                self.recording = self._peer.ask("recording")
            self._note_clock()
            if self._server is None:
                self._server = Server((self._peer.own_address, 0), 0, self._greeting)
            self._peer.ask(f"here {self._rank} {self._server.place[1]}")
            follower = (self._rank + 1) % self._ranks
            place = self._find(follower)
            if place is not None:
                other = Peer(place, self._greeting)
                self.links.append({"to": follower, **other.link()})
                other.close()

    def _find(self, rank: int) -> Optional[Place]:
        deadline = time.monotonic() + _PATIENCE
        while self._peer is not None and time.monotonic() < deadline:
            words = self._peer.ask(f"where {rank}").split()
            if words:
                return words[0], int(words[1])
            time.sleep(0.02)
        return None

    def _note_clock(self) -> None:
        if self._rank and self._peer is not None:
            self.clocks.append(self._peer.clock())

    def close(self) -> None:
        """Measure the clock once more, after the profiled steps."""
        if self._peer is None:
            return
        with self._telling():
            self._note_clock()
            if self._rank:
                self._peer.ask("bye")
        self._peer.close()
        if self._rank and self._server is not None:
            self._server.close()


class Recorder:
    """Records some steps of a rank. ``steps``: their number."""

    def __init__(self, steps: int, folder: str, variables: Mapping[str, str]) -> None:
        self._steps = steps
        self._folder = folder
        self._variables = variables
        self._rank = _number(variables.get("RANK") or variables.get("SLURM_PROCID"), 0)
        self._ranks = _number(variables.get("WORLD_SIZE") or variables.get("SLURM_NTASKS"), 1)
        self._neighbours = Neighbours(self._rank, self._ranks, variables)
        self._made = 0
        self._last: Optional[int] = None
        self._first = 0
        self._profiler: Any = None
        self._exported = ""
        self._over = False
        atexit.register(self._explain)

    def step(self, number: int) -> None:
        """Called when the program has completed a step."""
        if self._over or number == self._last:
            return
        self._last = number
        self._made += 1
        try:
            self._advance(number)
        except (ImportError, AttributeError, OSError, RuntimeError) as failure:
            self._over, self._profiler = True, None
            say(f"rank {self._rank}: no profile: {failure}")

    def _advance(self, number: int) -> None:
        if self._made == 1:
            self._neighbours.open()
        if self._made == SKIPPED:
            self._neighbours.measure()
            self._first = number + 1 + WARM_UP
            self._profiler = self._made_profiler()
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.step()
        if self._made == SKIPPED + WARM_UP:
            with importlib.import_module("torch.profiler").record_function(f"{ANCHOR}{time.time_ns()}"):
                pass
        if self._made == SKIPPED + WARM_UP + self._steps:
            self._finish()

    def _made_profiler(self) -> Any:
        torch = importlib.import_module("torch")
        profiler = importlib.import_module("torch.profiler")
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        schedule = profiler.schedule(wait=0, warmup=WARM_UP, active=self._steps, repeat=1)
        return profiler.profile(activities=activities, schedule=schedule, on_trace_ready=self._export)

    def _export(self, profiler: Any) -> None:
        descriptor, path = tempfile.mkstemp(prefix="gpumesh-profile-", suffix=".json")
        os.close(descriptor)
        profiler.export_chrome_trace(path)
        self._exported = path

    def _finish(self) -> None:
        self._over = True
        self._profiler.stop()
        self._profiler = None
        self._neighbours.close()
        # The program does not wait for it, but Python does at exit.
        threading.Thread(target=self._keep, args=(self._exported,), name="gpumesh-profile").start()

    def _keep(self, path: str) -> None:
        """Copy the trace to the volume, and then its description, whose existence shows that the trace is complete."""
        name = f"rank-{self._rank}"
        about = {
            "rank": self._rank,
            "ranks": self._ranks,
            "node": self._variables.get("SLURMD_NODENAME") or os.uname().nodename,
            "run": self._variables.get("GPUMESH_RUN", ""),
            "recording": self._neighbours.recording,
            "trace": f"{name}.trace.json.gz",
            # Versions of PyTorch do not agree on the number of the first step in a trace.
            "first": self._first,
            "clocks": self._neighbours.clocks,
            "links": self._neighbours.links,
        }
        try:
            os.makedirs(self._folder, exist_ok=True)
            target = os.path.join(self._folder, f"{name}.trace.json.gz")
            with open(path, "rb") as source, gzip.open(f"{target}.new", "wb", compresslevel=1) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
            os.replace(f"{target}.new", target)
            described = os.path.join(self._folder, f"{name}.json")
            with open(f"{described}.new", "w", encoding="utf-8") as text:
                json.dump(about, text)
            os.replace(f"{described}.new", described)
            say(f"rank {self._rank}: {target}")
        except OSError as failure:
            say(f"rank {self._rank}: the profile cannot be saved: {failure}")
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _explain(self) -> None:
        needed = SKIPPED + WARM_UP + self._steps
        if not self._over:
            say(f"rank {self._rank}: no profile: it needs {needed} steps, and the program has made {self._made}")


def recorder() -> Recorder:
    """The recorder that the environment of the rank requests."""
    steps = _number(os.environ.get("GPUMESH_PROFILE", "").partition(":")[2], _STEPS)
    return Recorder(steps, os.environ.get("GPUMESH_PROFILE_DIR") or "profile", os.environ)


def _number(text: Optional[str], otherwise: int) -> int:
    """The number in a variable. A program must not fail because of an invalid one."""
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def say(words: str) -> None:
    """Print to the log of the rank."""
    sys.stderr.write(f"gpumesh_profile: {words}\n")
    sys.stderr.flush()
