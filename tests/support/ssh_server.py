# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A real SSH server on a port of 127.0.0.1 that no other process can get meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

SSHD_PATH = shutil.which("sshd", path="/usr/sbin:/usr/bin")


class SshServer:
    """The listener is this process's own from the first moment, and each connection gets an ``sshd -i``.

    A server that binds a port which was only looked up can lose it to another process, whose clients then wait for a
    server that never speaks. Clients need not wait for this one to start.
    """

    def __init__(self, config: Path) -> None:
        """Accept logins according to the configuration, whose Port and ListenAddress are not used."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self._config = config
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[subprocess.Popen[bytes]] = []
        self._accept_thread = threading.Thread(target=self._accept_connections)
        self._accept_thread.start()
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> SshServer:
        return self

    def __exit__(self, *_failure: object) -> None:
        # The shutdown ends the accept of the thread.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accept_thread.join()
        self._listener.close()
        for process in self._connections:
            process.terminate()
            process.wait()

    def _accept_connections(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _peer = self._listener.accept()
                with connection:
                    command = [str(SSHD_PATH), "-i", "-e", "-f", str(self._config)]
                    self._connections.append(
                        subprocess.Popen(command, stdin=connection, stdout=connection, stderr=subprocess.DEVNULL)
                    )
