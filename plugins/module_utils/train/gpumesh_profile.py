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

Both sides of a connection prove that they can read the key of the recording, a file that rank 0 writes into the
directory of the profile and only its user can read. Until then, a peer can send two short lines, and after that only
lines of limited length.
"""

from __future__ import annotations

import atexit
import contextlib
import gzip
import hashlib
import hmac
import importlib
import json
import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
import unicodedata
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

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
#: The directory of a profile if none is requested.
_FOLDER = "profile"
#: The maximum number of bytes of a line, and of connections beyond those of the other ranks.
_LINE = 256
_SURPLUS = 64
#: The file with the key of the recording, and its length in hexadecimal digits.
_KEY = "key"
_KEY_DIGITS = 64
#: The prefix of the name of a trace event with the time of the node's clock.
ANCHOR = "gpumesh clock "

Place = Tuple[str, int]


class StrangerError(OSError):
    """The other side does not know the key of this recording."""


def clock_port(master_port: int) -> int:
    """The port on which rank 0 returns its time."""
    return _PORTS[(master_port + _FURTHER) % len(_PORTS)]


def write_key(folder: str) -> str:
    """Make the key of a recording, which replaces that of an earlier one. Raises OSError."""
    key = secrets.token_hex(_KEY_DIGITS // 2)
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{_KEY}.{secrets.token_hex(6)}")
    with open(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="ascii"
    ) as text:
        text.write(key)
    os.replace(draft, os.path.join(folder, _KEY))
    return key


def read_key(folder: str) -> str:
    """The key that rank 0 has written. Raises OSError, also if others can read the key or may have written it."""
    path = os.path.join(folder, _KEY)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, encoding="ascii", errors="replace") as text:
        about = os.fstat(descriptor)
        # A server of NFS may map root to another account, which then owns the directory as well.
        owners = (os.geteuid(), os.stat(folder).st_uid)
        if not stat.S_ISREG(about.st_mode) or about.st_mode & 0o077 or about.st_uid not in owners:
            raise StrangerError(f"{path} is not a file that only its user can read and write")
        return text.read(_KEY_DIGITS)


def _read_line(stream: Any) -> bytes:
    """One line of limited length. Raises EOFError for a longer one and at the end."""
    line: bytes = stream.readline(_LINE)
    if not line.endswith(b"\n"):
        raise EOFError("the other side sent no complete line")
    return line.strip()


def _proof(key: str, side: str, *nonces: bytes) -> bytes:
    """The proof that ``side``, client or server, knows the key. It includes the side, so it cannot be sent back."""
    text = b"\n".join((side.encode(), *nonces))
    return hmac.new(key.encode(), text, hashlib.sha256).hexdigest().encode()


def _exchange(stream: Any, *words: bytes) -> None:
    stream.write(b" ".join(words) + b"\n")
    stream.flush()


class Server(threading.Thread):
    """Reports the time, the addresses of other ranks, how much data has arrived, and what identifies the recording.

    Ends when all ``visitors`` are done.
    """

    def __init__(
        self, place: Place, visitors: int, key: str, recording: str = "", nodes: Sequence[str] = (), ranks: int = 2
    ) -> None:
        """``nodes``: those of the run; empty accepts connections from everywhere. Raises OSError."""
        super().__init__(daemon=True)
        self._key = key
        self._recording = recording
        self._nodes = nodes
        self._ranks = ranks
        family = socket.AF_INET6 if ":" in place[0] else socket.AF_INET
        self._socket = socket.create_server(place, family=family, backlog=128)
        self.place: Place = self._socket.getsockname()[:2]
        self._visitors = visitors
        self._places: Dict[int, Place] = {}
        self._gone: Set[int] = set()
        self._slots = threading.Semaphore(ranks + _SURPLUS)
        self.start()

    def run(self) -> None:
        """Serve each rank that connects in a thread."""
        nodes = addresses_of(self._nodes)
        accepted = nodes | {self.place[0]} if nodes else nodes
        with contextlib.suppress(OSError):
            while True:
                connection, peer = self._socket.accept()
                # An address of IPv6 may have a scope.
                address = str(peer[0]).partition("%")[0]
                if (accepted and address not in accepted) or not self._slots.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._serve, args=(connection, address), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError, ValueError, IndexError, EOFError), connection:
                connection.settimeout(_PATIENCE)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection.makefile("rwb") as stream:
                    self._verify(stream)
                    connection.settimeout(None)
                    while True:
                        _exchange(stream, self._answer(_read_line(stream).split(), peer, stream).encode())
        finally:
            self._slots.release()

    def _verify(self, stream: Any) -> None:
        """Raises StrangerError for a peer that does not know the key."""
        own = secrets.token_hex(16).encode()
        _exchange(stream, own)
        theirs, proof = _read_line(stream).split()
        if not hmac.compare_digest(proof, _proof(self._key, "client", own, theirs)):
            raise StrangerError
        _exchange(stream, _proof(self._key, "server", own, theirs))

    def _answer(self, words: List[bytes], peer: str, stream: Any) -> str:
        if words[0] == b"time":
            return str(time.time_ns())
        if words[0] == b"recording":
            return self._recording
        if words[0] == b"here":
            self._places[self._rank(words[1])] = (peer, int(words[2]))
        elif words[0] == b"where":
            host, port = self._places.get(int(words[1]), ("", 0))
            return f"{host} {port}" if port else ""
        elif words[0] == b"bulk":
            left = int(words[1])
            while left > 0:
                part = stream.read(min(left, _PART))
                if not part:
                    raise EOFError
                left -= len(part)
        elif words[0] == b"bye":
            self._gone.add(self._rank(words[1]))
            if len(self._gone) == self._visitors:
                self.close()
        return ""

    def _rank(self, word: bytes) -> int:
        rank = int(word)
        if not 0 <= rank < self._ranks:
            raise ValueError
        return rank

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def addresses_of(nodes: Sequence[str]) -> FrozenSet[str]:
    """The addresses of nodes; empty if that of one is not known here, since nothing can be concluded from the others."""
    found: Set[str] = set()
    for node in nodes:
        try:
            found.update(str(one[4][0]) for one in socket.getaddrinfo(node, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            return frozenset()
    return frozenset(found)


class Peer:
    """A connection to the server of another rank."""

    def __init__(self, place: Place, key: str) -> None:
        """Wait for the server. Only one that knows the key is asked anything. Raises OSError."""
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
        own = secrets.token_hex(16).encode()
        try:
            theirs = _read_line(self._stream)
            _exchange(self._stream, own, _proof(key, "client", theirs, own))
            known = hmac.compare_digest(_read_line(self._stream), _proof(key, "server", theirs, own))
        except (OSError, EOFError):
            known = False
        if not known:
            self.close()
            raise StrangerError(f"the process that listens at {place[0]} port {place[1]} does not belong to this run")

    @property
    def own_address(self) -> str:
        """The address of this rank, as seen by the other one."""
        return str(self._socket.getsockname()[0])

    def ask(self, words: str) -> str:
        """Raises OSError."""
        _exchange(self._stream, words.encode())
        return self._line()

    def _line(self) -> str:
        try:
            return _read_line(self._stream).decode("ascii")
        except EOFError as failure:
            raise ConnectionResetError(str(failure)) from failure

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
            self._line()
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
        self._folder = variables.get("GPUMESH_PROFILE_DIR") or _FOLDER
        self._nodes = [name for name in variables.get("GPUMESH_PROFILE_NODES", "").split(",") if name]
        self._key = ""
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
                self._key = write_key(self._folder)
                self._server = Server(self._first, self._ranks - 1, self._key, self.recording, self._nodes, self._ranks)

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
                self._key = self._key or self._wait_for_key()
                self._peer = Peer(self._first, self._key)
            if self._rank:
                self.recording = self._peer.ask("recording")
            self._note_clock()
            if self._server is None:
                self._server = Server((self._peer.own_address, 0), 0, self._key, "", self._nodes, self._ranks)
            self._peer.ask(f"here {self._rank} {self._server.place[1]}")
            follower = (self._rank + 1) % self._ranks
            place = self._find(follower)
            if place is not None:
                other = Peer(place, self._key)
                self.links.append({"to": follower, **other.link()})
                other.close()

    def _wait_for_key(self) -> str:
        """Rank 0 has written it long before, but other nodes may see it on the volume only later. Raises OSError."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return read_key(self._folder)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

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
                self._peer.ask(f"bye {self._rank}")
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
    return Recorder(steps, os.environ.get("GPUMESH_PROFILE_DIR") or _FOLDER, os.environ)


def _number(text: Optional[str], otherwise: int) -> int:
    """The number in a variable. A program must not fail because of an invalid one."""
    return int(text) if text and text.isascii() and text.isdigit() else otherwise


def say(words: str) -> None:
    """Print to the log of the rank, without what would control a terminal."""
    shown = "".join(letter if unicodedata.category(letter)[0] != "C" else "\ufffd" for letter in words)
    sys.stderr.write(f"gpumesh_profile: {shown}\n")
    sys.stderr.flush()
