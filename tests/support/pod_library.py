# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The library of a pod, compiled on this machine, and a stand-in for tailscaled: a SOCKS5 proxy and an API for whois."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIBRARY_SOURCE = ROOT / "roles" / "mesh" / "files" / "gpumesh-pod.c"
#: The addresses of this pod and of another member.
POD_ADDRESS, MEMBER_ADDRESS = "100.64.0.9", "100.64.0.2"
NOBODY_UID = 65534
#: Seconds of a connection.
CONNECT_TIMEOUT = 6


class FakeProxyDaemon:
    """tailscaled as the programs of a pod see it. ``requested``: the destinations that were requested from the proxy."""

    def __init__(self, directory: Path) -> None:
        self.api_socket = directory / "tailscaled.sock"
        self.requested: list[tuple[str, int]] = []
        #: The member whose connection is forwarded, by its port on 127.0.0.1; None stands for all ports.
        self.member_by_port: dict[int | None, str] = {}
        #: The number of questions so far, and of those that come before the daemon notes whose a connection is.
        self.question_count = self.early_question_count = 0
        #: How many requests it rejects after a while, as for a tunnel that is not up yet.
        self.slow_request_count = 0
        #: The proxy's reply to a request; empty for one that never replies.
        self.proxy_reply = bytes([5, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        self._proxy = socket.create_server(("127.0.0.2", 0))
        self.port = self._proxy.getsockname()[1]
        self._api_listener = socket.socket(socket.AF_UNIX)
        self._api_listener.bind(str(self.api_socket))
        self.api_socket.chmod(0o666)
        self._api_listener.listen()
        threading.Thread(target=self._serve, args=(self._proxy, self._relay_connection), daemon=True).start()
        threading.Thread(target=self._serve, args=(self._api_listener, self._answer_whois), daemon=True).start()

    def close(self) -> None:
        for listener in (self._proxy, self._api_listener):
            # Closing alone does not interrupt an accept() in another thread.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def open_forwarded(self, port: int) -> socket.socket:
        """Connect to a port of this pod as tailscaled does, and record whose connection it is."""
        client = socket.create_connection(("127.0.0.1", port))
        self.member_by_port[client.getsockname()[1]] = MEMBER_ADDRESS
        return client

    @staticmethod
    def _serve(listener: socket.socket, handler: Callable[[socket.socket], None]) -> None:
        while True:
            try:
                client, _address = listener.accept()
            except OSError:
                return
            threading.Thread(target=handler, args=(client,), daemon=True).start()

    def _relay_connection(self, client: socket.socket) -> None:
        """Send hello, then echo everything that arrives."""
        with suppress(OSError), client:
            assert client.recv(3) == bytes([5, 1, 0])
            client.sendall(bytes([5, 0]))
            request = client.recv(10)
            self.requested.append((socket.inet_ntoa(request[4:8]), int.from_bytes(request[8:], "big")))
            if not self.proxy_reply:
                client.recv(1)
                return
            if self.slow_request_count:
                self.slow_request_count -= 1
                time.sleep(1.2)
                client.sendall(bytes([5, 1, 0, 1, 0, 0, 0, 0, 0, 0]))
                return
            if self.proxy_reply[1] != 0:
                client.sendall(self.proxy_reply)
                return
            # The first data of the other end arrives in the same packet.
            client.sendall(self.proxy_reply + b"hello")
            while data := client.recv(4096):
                client.sendall(data)

    def _answer_whois(self, client: socket.socket) -> None:
        with client:
            line = client.recv(4096).decode().splitlines()[0]
            port = int(line.split()[1].rpartition(":")[2])
            member = self.member_by_port.get(port) or self.member_by_port.get(None)
            self.question_count += 1
            if not member or self.question_count <= self.early_question_count:
                client.sendall(b"HTTP/1.0 404 Not Found\r\n\r\nno match for IP:port\n")
                return
            # A name that its owner has chosen to look like an address.
            node = {"Name": '"Addresses":["100.64.0.66/32"]', "Addresses": ["fd7a:115c:a1e0::2/128", f"{member}/32"]}
            body = json.dumps({"Node": node}, indent="\t")
            client.sendall(f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}".encode())


class PodProgramRunner:
    """A runner of programs with the library."""

    def __init__(self, library: Path, daemon: FakeProxyDaemon) -> None:
        self.library, self.daemon = library, daemon

    def start_program(self, program: str, *arguments: object, uid: int | None = None) -> subprocess.Popen[str]:
        """Start a Python ``program``, in which ``socket``, ``sys``, ``time``, ``OWN`` (the address of the pod) and
        ``MEMBER`` are defined.
        """
        preamble = f"import socket, sys, time\nOWN, MEMBER = {POD_ADDRESS!r}, {MEMBER_ADDRESS!r}\n"
        return subprocess.Popen(
            ["/usr/bin/python3", "-u", "-c", preamble + program, *map(str, arguments)],
            env={**os.environ, "LD_PRELOAD": str(self.library)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            user=uid,
        )

    def run_program(self, program: str, *arguments: object) -> list[str]:
        """Run a program. Returns the lines that it prints."""
        with self.start_program(program, *arguments) as process:
            output, _none = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output.splitlines()


def build_library(directory: Path, port: int, *extra_flags: str) -> Path:
    """Compile the library as on a pod, with one wait for a late member, and limits that a busy machine keeps:
    CONNECT_TIMEOUT for a connection, and a second for a refusal of the proxy or a missing response.
    """
    library = directory / "pod.so"
    text_macros = {
        "MESH_ADDRESS": POD_ADDRESS,
        "MESH_SUBNET": "100.64.0.0",
        "MESH_INTERFACE": "tailscale0",
        "PROXY_ADDRESS": "127.0.0.2",
        "API_SOCKET": str(directory / "tailscaled.sock"),
    }
    number_macros = {
        "MESH_PREFIX": 10,
        "PROXY_PORT": port,
        "LIMIT_MS": CONNECT_TIMEOUT * 1000,
        "PROXY_MS": 1000,
        "DAEMON_UID": os.getuid(),
    }
    number_macros |= {"SETTLE_MS": 3000, "SPARE_MS": 3_600_000}
    macro_flags = [f'-D{name}="{value}"' for name, value in text_macros.items()]
    macro_flags += [f"-D{name}={value}" for name, value in number_macros.items()]
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    subprocess.run(
        ["cc", *flags, *macro_flags, *extra_flags, "-o", str(library), str(LIBRARY_SOURCE), "-ldl"], check=True
    )
    return library
