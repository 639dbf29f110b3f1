# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A background process that has a member's lock on a volume while another tries to get it, and ends in any case."""

from __future__ import annotations

import json
import socket

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import leased_process
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import probe

#: The time limit for a response. The process takes the lock first, which requires the volume's server.
_RESPONSE_TIMEOUT = 15.0


def start_lock_owner(mount_point: str, run_id: str, machine: str, volume: str, lease_seconds: int) -> str:
    """Take the lock and hold it.

    Returns why that failed, or an empty string. Raises HostStateError after a time limit.
    """
    listening_socket = leased_process.open_control_socket(_socket_purpose(volume, machine), run_id)
    try:
        leased_process.run_leased(
            lambda: _run_lock_owner(listening_socket, mount_point, run_id, machine),
            leased_process.new_lease(lease_seconds),
            [listening_socket.fileno()],
        )
    finally:
        # The process has its own copy.
        listening_socket.close()
    return _ask_lock_owner(volume, run_id, machine, "state")


def explain_lost_lock(volume: str, run_id: str, machine: str) -> str:
    """Return why the process does not hold the lock, or an empty string if it does."""
    try:
        return _ask_lock_owner(volume, run_id, machine, "state")
    except HostStateError as failure:
        return failure.message.rstrip(".")


def end_lock_owner(volume: str, run_id: str, machine: str) -> None:
    """End the process, if there is one."""
    _ask_lock_owner(volume, run_id, machine, "end")


def _ask_lock_owner(volume: str, run_id: str, machine: str, question: str) -> str:
    response = leased_process.query_process(_socket_purpose(volume, machine), run_id, question, _RESPONSE_TIMEOUT)
    return "the process that held it has died" if response is None else str(response["trouble"])


def _run_lock_owner(listening_socket: socket.socket, mount_point: str, run_id: str, machine: str) -> None:
    held_lock = probe.hold_lock(mount_point, run_id, machine)
    question = ""
    while question != "end":
        connection, _address = listening_socket.accept()
        with connection:
            if leased_process.is_authorized(connection):
                question = leased_process.parse_request(connection.recv(64)).command
                if question == "end":
                    # Before the answer: an NFS client keeps a file that is removed while it is open.
                    held_lock.close()
                connection.sendall(json.dumps({"trouble": held_lock.trouble}).encode())


def _socket_purpose(volume: str, machine: str) -> str:
    # Members may be containers that share their host's network, and with it the names of sockets.
    return f"lock of {machine} on {volume}"
