# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A process that holds a member's lock on a volume while others try to get it, and ends in any case."""

from __future__ import annotations

import json
import socket

from ansible_collections.gpumesh.cluster.plugins.module_utils.reach import detach
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import probe

#: Seconds for the process to answer: it takes the lock first, which requires the volume's server.
_ANSWER_SECONDS = 15.0


def start(mount_point: str, run: str, machine: str, volume: str, lifetime: int) -> str:
    """Take the lock and hold it.

    Returns why that failed, or an empty string. Raises HostStateError after a time limit.
    """
    control = detach.control_socket(_purpose(volume, machine), run)
    try:
        detach.detach(lambda: _keep(control, mount_point, run, machine), detach.new_lease(lifetime), [control.fileno()])
    finally:
        # The process has its own copy.
        control.close()
    return _ask(volume, run, machine, "state")


def release(volume: str, run: str, machine: str) -> str:
    """Release the lock. Returns why it was not held, or an empty string."""
    return _ask(volume, run, machine, "release")


def _ask(volume: str, run: str, machine: str, question: str) -> str:
    answer = detach.ask(_purpose(volume, machine), run, question, _ANSWER_SECONDS)
    return "the process that held it has died" if answer is None else str(answer["trouble"])


def _keep(control: socket.socket, mount_point: str, run: str, machine: str) -> None:
    trouble = probe.hold(mount_point, run, machine)
    question = ""
    while question != "release":
        connection, _address = control.accept()
        with connection:
            if detach.may_ask(connection):
                question = detach.parse_question(connection.recv(64)).what
                connection.sendall(json.dumps({"trouble": trouble}).encode())


def _purpose(volume: str, machine: str) -> str:
    # Members may be containers that share their host's network, and with it the names of sockets.
    return f"lock of {machine} on {volume}"
