# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Limit how long a background process may run: up to its lifetime, but not for long without its controller.

The only trace of the controller on a host is the server process of its SSH connection, an ancestor of each module. It
ends with the controller, but also if the controller opens a new connection for each task. So its end alone does not end
the lease; it does if, in addition, no module has run for a part of the lifetime.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_whole_number

#: The programs that serve a connection: OpenSSH, with a separate program since 9.8, and Dropbear.
_SSH_SERVERS = ("sshd", "sshd-session", "dropbear")
#: The part of the lifetime that remains when the connection has ended.
_REMAINING_PART = 4
#: Seconds between two checks.
_CHECK_INTERVAL = 1.0


class ProcessIdentity(NamedTuple):
    """A process. Its ID may be reused, but not with the same start time, in clock ticks since the boot."""

    process_id: int
    start_ticks: int


class _ProcessStat(NamedTuple):
    program_name: str
    parent_pid: int
    start_ticks: int


def _parse_stat(stat_text: Optional[str]) -> Optional[_ProcessStat]:
    """Parse /proc/NUMBER/stat. The name in brackets may contain any character."""
    name_start, name_end = (stat_text or "").find("("), (stat_text or "").rfind(")")
    fields = (stat_text or "")[name_end + 1 :].split()
    # A zombie no longer has anything open.
    if name_start < 0 or name_end < name_start or len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    parent, started = parse_whole_number(fields[1]), parse_whole_number(fields[19])
    if parent is None or started is None:
        return None
    return _ProcessStat((stat_text or "")[name_start + 1 : name_end], parent, started)


def find_connection(tree: Tree, process_id: int) -> Optional[ProcessIdentity]:
    """The nearest ancestor of a process that serves an SSH connection; None if it was started in another way."""
    while process_id > 1:
        stat = _parse_stat(tree.read("proc", str(process_id), "stat"))
        if stat is None:
            return None
        if stat.program_name in _SSH_SERVERS:
            return ProcessIdentity(process_id, stat.start_ticks)
        process_id = stat.parent_pid
    return None


def format_process(process: Optional[ProcessIdentity]) -> str:
    """Format the process for the line of a request."""
    return f"{process.process_id} {process.start_ticks}" if process else ""


def parse_process(process_text: str) -> Optional[ProcessIdentity]:
    """Parse the result of ``format_process``; None for anything else."""
    numbers = [parse_whole_number(field) for field in process_text.split()]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return ProcessIdentity(numbers[0], numbers[1])


class Lease:
    """The lease of a background process. Without a known connection, only the kernel's limit of its lifetime counts."""

    def __init__(self, lifetime: int, ssh_connection: Optional[ProcessIdentity], tree: Tree) -> None:
        self.lifetime_seconds = lifetime
        self._ssh_connection = ssh_connection
        self._host_tree = tree
        self._renewed_at = time.monotonic()

    def renew(self) -> None:
        """Record that a module of this run has connected."""
        self._renewed_at = time.monotonic()

    def follow(self, ssh_connection: Optional[ProcessIdentity]) -> None:
        """Record that a later module of the same run uses ``ssh_connection``."""
        self._ssh_connection = ssh_connection or self._ssh_connection
        self.renew()

    def yields_to(self, ssh_connection: Optional[ProcessIdentity]) -> bool:
        """Whether a run that comes through ``ssh_connection`` may end this one.

        The same connection means the same controller, which performs one task after the other. Another connection that
        still exists belongs to another controller at work.
        """
        return self._ssh_connection is None or self._ssh_connection == ssh_connection or not self._is_connected()

    def is_over(self) -> bool:
        """Whether the controller is gone."""
        if self._ssh_connection is None:
            return False
        if self._is_connected():
            self.renew()
        return time.monotonic() - self._renewed_at >= self.lifetime_seconds / _REMAINING_PART

    def wait_until_over(self) -> None:
        """Wait until the lease is over."""
        while not self.is_over():
            time.sleep(_CHECK_INTERVAL)

    def _is_connected(self) -> bool:
        if self._ssh_connection is None:
            return False
        stat = _parse_stat(self._host_tree.read("proc", str(self._ssh_connection.process_id), "stat"))
        return stat is not None and stat.start_ticks == self._ssh_connection.start_ticks
