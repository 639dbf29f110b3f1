# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run PyTorch's profiler around some steps of each rank, for `gpumesh_run.progress()`. Needs only Python and PyTorch.

The first steps are not recorded, since they allocate memory and open connections. Then the ranks compare their clocks
with that of rank 0, each measures the path to the next rank, and the profiler warms up. After the last step, the clocks
are compared once more; the trace is compressed and copied in the background. Failures are logged, and do not affect the
program.

Clocks are compared as in NTP: rank 0 is queried for its time repeatedly. The fastest answer is used, whose error is at
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
SKIPPED_STEPS = 5
WARM_UP_STEPS = 2
#: Steps that are recorded by default.
_DEFAULT_STEPS = 5
#: Rank 0 reports its time on one of these ports, derived from MASTER_PORT. The role firewall closes these ports of jobs
#: to other machines. The shift avoids the ports of the agents of gpumesh-train.
_CLOCK_PORTS = range(15000, 25000)
_PORT_SHIFT = 3000
#: The number of queries of the time, and seconds to wait for another rank.
_CLOCK_QUERIES = 30
_PEER_TIMEOUT = 5.0
#: Seconds for which data is sent to the next rank, the bytes of one chunk, and the maximum number of bytes.
_TRANSFER_SECONDS = 0.2
_CHUNK_BYTES = 1 << 18
_MAX_TRANSFER_BYTES = 1 << 30
#: The directory of a profile if none is requested.
_DEFAULT_DIRECTORY = "profile"
#: The maximum number of bytes of a line, and of connections beyond those of the other ranks.
_MAX_LINE_BYTES = 256
_EXTRA_CONNECTIONS = 64
#: The file with the key of the recording, and its length in hexadecimal digits.
_KEY_FILE = "key"
_KEY_DIGITS = 64
#: The prefix of the name of a trace event with the time of the node's clock.
CLOCK_EVENT_PREFIX = "gpumesh clock "

SocketAddress = Tuple[str, int]


class ForeignPeerError(OSError):
    """A peer that does not know the key of this recording."""


def clock_port(master_port: int) -> int:
    """Return the port on which rank 0 reports its time."""
    return _CLOCK_PORTS[(master_port + _PORT_SHIFT) % len(_CLOCK_PORTS)]


def write_key(profile_directory: str) -> str:
    """Create the key of a recording, which replaces the key of an earlier one. Raises OSError."""
    key = secrets.token_hex(_KEY_DIGITS // 2)
    os.makedirs(profile_directory, exist_ok=True)
    draft_path = os.path.join(profile_directory, f".{_KEY_FILE}.{secrets.token_hex(6)}")
    with open(
        os.open(draft_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="ascii"
    ) as key_stream:
        key_stream.write(key)
    os.replace(draft_path, os.path.join(profile_directory, _KEY_FILE))
    return key


def read_key(profile_directory: str) -> str:
    """Read the key that rank 0 has written. Raises OSError, also if others can read the key or may have written it."""
    key_path = os.path.join(profile_directory, _KEY_FILE)
    key_fd = os.open(key_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(key_fd, encoding="ascii", errors="replace") as key_stream:
        file_status = os.fstat(key_fd)
        # An NFS server may map root to another account, which then owns the directory as well.
        trusted_owners = (os.geteuid(), os.stat(profile_directory).st_uid)
        if (
            not stat.S_ISREG(file_status.st_mode)
            or file_status.st_mode & 0o077
            or file_status.st_uid not in trusted_owners
        ):
            raise ForeignPeerError(f"{key_path} is not a file that only its user can read and write")
        return key_stream.read(_KEY_DIGITS)


def _read_line(stream: Any) -> bytes:
    """Read one line of limited length. Raises EOFError for a longer one and at the end."""
    line: bytes = stream.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise EOFError("the other side sent no complete line")
    return line.strip()


def _proof(key: str, side: str, *nonces: bytes) -> bytes:
    """Return the proof that ``side``, client or server, knows the key.

    The proof includes the side, so that a peer cannot send it back.
    """
    signed_bytes = b"\n".join((side.encode(), *nonces))
    return hmac.new(key.encode(), signed_bytes, hashlib.sha256).hexdigest().encode()


def _send_line(stream: Any, *fields: bytes) -> None:
    stream.write(b" ".join(fields) + b"\n")
    stream.flush()


class ClockServer(threading.Thread):
    """Report the time, the addresses of other ranks, the arrival of data, and the ID of the recording.

    The server stops when as many ranks as it expects have left.
    """

    def __init__(
        self,
        listen_address: SocketAddress,
        visitor_count: int,
        key: str,
        recording_id: str = "",
        allowed_nodes: Sequence[str] = (),
        rank_count: int = 2,
    ) -> None:
        """Listen. ``allowed_nodes``: the nodes of the run; empty accepts connections from anywhere. Raises OSError."""
        super().__init__(daemon=True)
        self._key = key
        self._recording_id = recording_id
        self._allowed_nodes = allowed_nodes
        self._rank_count = rank_count
        address_family = socket.AF_INET6 if ":" in listen_address[0] else socket.AF_INET
        self._socket = socket.create_server(listen_address, family=address_family, backlog=128)
        self.address: SocketAddress = self._socket.getsockname()[:2]
        self._visitor_count = visitor_count
        self._rank_addresses: Dict[int, SocketAddress] = {}
        self._departed_ranks: Set[int] = set()
        self._connection_slots = threading.Semaphore(rank_count + _EXTRA_CONNECTIONS)
        self.start()

    def run(self) -> None:
        """Serve each rank that connects, in a thread of its own."""
        node_addresses = resolve_nodes(self._allowed_nodes)
        accepted_addresses = node_addresses | {self.address[0]} if node_addresses else node_addresses
        with contextlib.suppress(OSError):
            while True:
                connection, peer = self._socket.accept()
                # An IPv6 address may have a scope.
                peer_address = str(peer[0]).partition("%")[0]
                if (
                    accepted_addresses and peer_address not in accepted_addresses
                ) or not self._connection_slots.acquire(blocking=False):
                    connection.close()
                    continue
                threading.Thread(target=self._serve, args=(connection, peer_address), daemon=True).start()

    def _serve(self, connection: socket.socket, peer_address: str) -> None:
        try:
            with contextlib.suppress(OSError, ValueError, IndexError, EOFError), connection:
                connection.settimeout(_PEER_TIMEOUT)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection.makefile("rwb") as stream:
                    self._verify(stream)
                    connection.settimeout(None)
                    while True:
                        _send_line(stream, self._answer(_read_line(stream).split(), peer_address, stream).encode())
        finally:
            self._connection_slots.release()

    def _verify(self, stream: Any) -> None:
        """Check that the peer knows the key, and prove it in turn. Raises ForeignPeerError."""
        own_nonce = secrets.token_hex(16).encode()
        _send_line(stream, own_nonce)
        peer_nonce, peer_proof = _read_line(stream).split()
        if not hmac.compare_digest(peer_proof, _proof(self._key, "client", own_nonce, peer_nonce)):
            raise ForeignPeerError
        _send_line(stream, _proof(self._key, "server", own_nonce, peer_nonce))

    def _answer(self, request_fields: List[bytes], peer_address: str, stream: Any) -> str:
        if request_fields[0] == b"time":
            return str(time.time_ns())
        if request_fields[0] == b"recording":
            return self._recording_id
        if request_fields[0] == b"here":
            self._rank_addresses[self._parse_rank(request_fields[1])] = (peer_address, int(request_fields[2]))
        elif request_fields[0] == b"where":
            host, port = self._rank_addresses.get(int(request_fields[1]), ("", 0))
            return f"{host} {port}" if port else ""
        elif request_fields[0] == b"bulk":
            remaining_bytes = int(request_fields[1])
            while remaining_bytes > 0:
                chunk = stream.read(min(remaining_bytes, _CHUNK_BYTES))
                if not chunk:
                    raise EOFError
                remaining_bytes -= len(chunk)
        elif request_fields[0] == b"bye":
            self._departed_ranks.add(self._parse_rank(request_fields[1]))
            if len(self._departed_ranks) == self._visitor_count:
                self.close()
        return ""

    def _parse_rank(self, raw_rank: bytes) -> int:
        rank = int(raw_rank)
        if not 0 <= rank < self._rank_count:
            raise ValueError
        return rank

    def close(self) -> None:
        """Stop listening."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def resolve_nodes(node_names: Sequence[str]) -> FrozenSet[str]:
    """Return the addresses of nodes; empty if a node has none here, since the others then prove nothing."""
    addresses: Set[str] = set()
    for node_name in node_names:
        try:
            addresses.update(
                str(address_entry[4][0])
                for address_entry in socket.getaddrinfo(node_name, None, type=socket.SOCK_STREAM)
            )
        except (OSError, UnicodeError):
            return frozenset()
    return frozenset(addresses)


class PeerConnection:
    """A connection to the server of another rank."""

    def __init__(self, server_address: SocketAddress, key: str) -> None:
        """Wait for the server. Only a server that knows the key is sent requests. Raises OSError."""
        deadline = time.monotonic() + _PEER_TIMEOUT
        while True:
            try:
                self._socket = socket.create_connection(server_address, _PEER_TIMEOUT)
                break
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream: Any = self._socket.makefile("rwb")
        own_nonce = secrets.token_hex(16).encode()
        try:
            peer_nonce = _read_line(self._stream)
            _send_line(self._stream, own_nonce, _proof(key, "client", peer_nonce, own_nonce))
            peer_verified = hmac.compare_digest(_read_line(self._stream), _proof(key, "server", peer_nonce, own_nonce))
        except (OSError, EOFError):
            peer_verified = False
        if not peer_verified:
            self.close()
            raise ForeignPeerError(
                f"the process that listens at {server_address[0]} port {server_address[1]} does not belong to this run"
            )

    @property
    def own_address(self) -> str:
        """The address of this rank, as seen by the other one."""
        return str(self._socket.getsockname()[0])

    def ask(self, request: str) -> str:
        """Send a request, and return the response. Raises OSError."""
        _send_line(self._stream, request.encode())
        return self._read_response()

    def _read_response(self) -> str:
        try:
            return _read_line(self._stream).decode("ascii")
        except EOFError as failure:
            raise ConnectionResetError(str(failure)) from failure

    def measure_clock(self) -> Dict[str, int]:
        """Measure by how much the peer's clock is ahead of ours, with the error, in nanoseconds."""
        best_sample: Optional[Tuple[int, int, int]] = None
        for _query in range(_CLOCK_QUERIES):
            sent_at = time.time_ns()
            peer_time = int(self.ask("time"))
            received_at = time.time_ns()
            if best_sample is None or received_at - sent_at < best_sample[0]:
                best_sample = (received_at - sent_at, peer_time, sent_at)
        round_trip, peer_time, sent_at = best_sample or (0, 0, 0)
        return {
            "at": sent_at + round_trip // 2,
            "ahead": peer_time - sent_at - round_trip // 2,
            "error": round_trip // 2,
        }

    def measure_link(self) -> Dict[str, float]:
        """Measure the round-trip time in milliseconds, and the rate of data sent to the peer in Mbit/s."""
        round_trips = []
        for _query in range(_CLOCK_QUERIES):
            started_at = time.perf_counter()
            self.ask("time")
            round_trips.append(time.perf_counter() - started_at)
        transfer_size, elapsed, rate_mbits = _CHUNK_BYTES, 0.0, 0.0
        # The size grows until a transfer takes long enough to be measured.
        while elapsed < _TRANSFER_SECONDS and transfer_size <= _MAX_TRANSFER_BYTES:
            started_at = time.perf_counter()
            self._stream.write(f"bulk {transfer_size}\n".encode())
            for _part in range(transfer_size // _CHUNK_BYTES):
                self._stream.write(bytes(_CHUNK_BYTES))
            self._stream.flush()
            self._read_response()
            elapsed = time.perf_counter() - started_at
            rate_mbits = transfer_size * 8 / elapsed / 1e6
            transfer_size *= min(max(int(_TRANSFER_SECONDS * 1.5 / elapsed), 2), 16)
        return {"ms": min(round_trips) * 1000, "mbits": rate_mbits}

    def close(self) -> None:
        """Close the connection, without raising anything."""
        with contextlib.suppress(OSError):
            self._stream.close()
            self._socket.close()


class Neighbours:
    """The clocks and the links of the ranks, except those that cannot be measured."""

    def __init__(self, rank: int, rank_count: int, environment: Mapping[str, str]) -> None:
        self._rank, self._rank_count = rank, rank_count
        self._clock_address = (
            environment.get("MASTER_ADDR", ""),
            clock_port(_parse_number(environment.get("MASTER_PORT"), 0)),
        )
        self._profile_directory = environment.get("GPUMESH_PROFILE_DIR") or _DEFAULT_DIRECTORY
        self._run_nodes = [
            node_name for node_name in environment.get("GPUMESH_PROFILE_NODES", "").split(",") if node_name
        ]
        self._key = ""
        self._server: Optional[ClockServer] = None
        self._clock_peer: Optional[PeerConnection] = None
        #: The ID that tells apart the recordings of a directory. Rank 0 generates it; ranks that cannot ask for it have
        #: none.
        self.recording = "" if rank else secrets.token_hex(8)
        self.clocks: List[Dict[str, int]] = []
        self.links: List[Dict[str, Any]] = []

    def open(self) -> None:
        """Start the server of rank 0, long before the other ranks connect."""
        if self._can_measure and self._rank == 0:
            with self._report_failures():
                self._key = write_key(self._profile_directory)
                self._server = ClockServer(
                    self._clock_address,
                    self._rank_count - 1,
                    self._key,
                    self.recording,
                    self._run_nodes,
                    self._rank_count,
                )

    @property
    def _can_measure(self) -> bool:
        return self._rank_count > 1 and bool(self._clock_address[0])

    @contextlib.contextmanager
    def _report_failures(self) -> Any:
        try:
            yield
        except (OSError, ValueError) as failure:
            say(f"rank {self._rank}: clocks and links are not measured: {failure}")

    def measure(self) -> None:
        """Measure the clock and the link to the next rank, before the profiled steps."""
        if not self._can_measure:
            return
        with self._report_failures():
            if self._clock_peer is None:
                self._key = self._key or self._wait_for_key()
                self._clock_peer = PeerConnection(self._clock_address, self._key)
            if self._rank:
                self.recording = self._clock_peer.ask("recording")
            self._record_clock()
            if self._server is None:
                self._server = ClockServer(
                    (self._clock_peer.own_address, 0), 0, self._key, "", self._run_nodes, self._rank_count
                )
            self._clock_peer.ask(f"here {self._rank} {self._server.address[1]}")
            next_rank = (self._rank + 1) % self._rank_count
            next_address = self._find_rank(next_rank)
            if next_address is not None:
                next_peer = PeerConnection(next_address, self._key)
                self.links.append({"to": next_rank, **next_peer.measure_link()})
                next_peer.close()

    def _wait_for_key(self) -> str:
        """Read the key, which rank 0 has written long before, but which a volume may show later. Raises OSError."""
        deadline = time.monotonic() + _PEER_TIMEOUT
        while True:
            try:
                return read_key(self._profile_directory)
            except FileNotFoundError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def _find_rank(self, rank: int) -> Optional[SocketAddress]:
        deadline = time.monotonic() + _PEER_TIMEOUT
        while self._clock_peer is not None and time.monotonic() < deadline:
            address_fields = self._clock_peer.ask(f"where {rank}").split()
            if address_fields:
                return address_fields[0], int(address_fields[1])
            time.sleep(0.02)
        return None

    def _record_clock(self) -> None:
        if self._rank and self._clock_peer is not None:
            self.clocks.append(self._clock_peer.measure_clock())

    def close(self) -> None:
        """Measure the clock once more, after the profiled steps."""
        if self._clock_peer is None:
            return
        with self._report_failures():
            self._record_clock()
            if self._rank:
                self._clock_peer.ask(f"bye {self._rank}")
        self._clock_peer.close()
        if self._rank and self._server is not None:
            self._server.close()


class Recorder:
    """Record some steps of a rank."""

    def __init__(self, step_count: int, profile_directory: str, environment: Mapping[str, str]) -> None:
        self._step_count = step_count
        self._profile_directory = profile_directory
        self._environment = environment
        self._rank = _parse_number(environment.get("RANK") or environment.get("SLURM_PROCID"), 0)
        self._rank_count = _parse_number(environment.get("WORLD_SIZE") or environment.get("SLURM_NTASKS"), 1)
        self._neighbours = Neighbours(self._rank, self._rank_count, environment)
        self._completed_steps = 0
        self._last_step: Optional[int] = None
        self._first_recorded = 0
        self._profiler: Any = None
        self._trace_path = ""
        self._finished = False
        atexit.register(self._explain_missing)

    def step(self, number: int) -> None:
        """Process a step that the program has completed."""
        if self._finished or number == self._last_step:
            return
        self._last_step = number
        self._completed_steps += 1
        try:
            self._advance(number)
        except (ImportError, AttributeError, OSError, RuntimeError) as failure:
            self._finished, self._profiler = True, None
            say(f"rank {self._rank}: no profile: {failure}")

    def _advance(self, step_number: int) -> None:
        if self._completed_steps == 1:
            self._neighbours.open()
        if self._completed_steps == SKIPPED_STEPS:
            self._neighbours.measure()
            self._first_recorded = step_number + 1 + WARM_UP_STEPS
            self._profiler = self._create_profiler()
            self._profiler.start()
        elif self._profiler is not None:
            self._profiler.step()
        if self._completed_steps == SKIPPED_STEPS + WARM_UP_STEPS:
            with importlib.import_module("torch.profiler").record_function(f"{CLOCK_EVENT_PREFIX}{time.time_ns()}"):
                pass
        if self._completed_steps == SKIPPED_STEPS + WARM_UP_STEPS + self._step_count:
            self._finish()

    def _create_profiler(self) -> Any:
        torch = importlib.import_module("torch")
        profiler_module = importlib.import_module("torch.profiler")
        activities = [profiler_module.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler_module.ProfilerActivity.CUDA)
        schedule = profiler_module.schedule(wait=0, warmup=WARM_UP_STEPS, active=self._step_count, repeat=1)
        return profiler_module.profile(activities=activities, schedule=schedule, on_trace_ready=self._export)

    def _export(self, profiler: Any) -> None:
        trace_fd, trace_path = tempfile.mkstemp(prefix="gpumesh-profile-", suffix=".json")
        os.close(trace_fd)
        profiler.export_chrome_trace(trace_path)
        self._trace_path = trace_path

    def _finish(self) -> None:
        self._finished = True
        self._profiler.stop()
        self._profiler = None
        self._neighbours.close()
        # The program does not wait for this thread, but Python does at exit.
        threading.Thread(target=self._save_trace, args=(self._trace_path,), name="gpumesh-profile").start()

    def _save_trace(self, trace_path: str) -> None:
        """Copy the trace to the volume, and then its description, whose existence shows that the trace is complete."""
        base_name = f"rank-{self._rank}"
        rank_metadata = {
            "rank": self._rank,
            "ranks": self._rank_count,
            "node": self._environment.get("SLURMD_NODENAME") or os.uname().nodename,
            "run": self._environment.get("GPUMESH_RUN", ""),
            "recording": self._neighbours.recording,
            "trace": f"{base_name}.trace.json.gz",
            # Versions of PyTorch differ in the number of the first step in a trace.
            "first": self._first_recorded,
            "clocks": self._neighbours.clocks,
            "links": self._neighbours.links,
        }
        try:
            os.makedirs(self._profile_directory, exist_ok=True)
            target_path = os.path.join(self._profile_directory, f"{base_name}.trace.json.gz")
            with open(trace_path, "rb") as trace_stream, gzip.open(
                f"{target_path}.new", "wb", compresslevel=1
            ) as compressed_stream:
                shutil.copyfileobj(trace_stream, compressed_stream, 1 << 20)
            os.replace(f"{target_path}.new", target_path)
            metadata_path = os.path.join(self._profile_directory, f"{base_name}.json")
            with open(f"{metadata_path}.new", "w", encoding="utf-8") as metadata_stream:
                json.dump(rank_metadata, metadata_stream)
            os.replace(f"{metadata_path}.new", metadata_path)
            say(f"rank {self._rank}: {target_path}")
        except OSError as failure:
            say(f"rank {self._rank}: the profile cannot be saved: {failure}")
        finally:
            with contextlib.suppress(OSError):
                os.unlink(trace_path)

    def _explain_missing(self) -> None:
        needed_steps = SKIPPED_STEPS + WARM_UP_STEPS + self._step_count
        if not self._finished:
            say(
                f"rank {self._rank}: no profile: it needs {needed_steps} steps, and the program has made {self._completed_steps}"
            )


def recorder() -> Recorder:
    """Return the recorder that the environment of the rank requests."""
    step_count = _parse_number(os.environ.get("GPUMESH_PROFILE", "").partition(":")[2], _DEFAULT_STEPS)
    return Recorder(step_count, os.environ.get("GPUMESH_PROFILE_DIR") or _DEFAULT_DIRECTORY, os.environ)


def _parse_number(raw_number: Optional[str], default_number: int) -> int:
    """Parse the number in a variable, or return a default, since an invalid number must not stop the program."""
    return int(raw_number) if raw_number and raw_number.isascii() and raw_number.isdigit() else default_number


def say(message: str) -> None:
    """Print to the log of the rank, without characters that control a terminal."""
    printable_text = "".join(
        character if unicodedata.category(character)[0] != "C" else "\ufffd" for character in message
    )
    sys.stderr.write(f"gpumesh_profile: {printable_text}\n")
    sys.stderr.flush()
