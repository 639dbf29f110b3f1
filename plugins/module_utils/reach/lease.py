# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How long a detached process may run: up to its lifetime, but not for long without its controller.

All that a host sees of the controller is the server process of its SSH connection, an ancestor of each module. It ends
with the controller, but also if the controller opens a new connection for each task. So its end alone does not end the
lease; it does if, in addition, no module has come for a part of the lifetime.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import whole_number

#: The programs that serve a connection: OpenSSH, with a separate program since 9.8, and Dropbear.
_SERVERS = ("sshd", "sshd-session", "dropbear")
#: The part of the lifetime that remains when the connection has ended.
_PART = 4
#: Seconds between two checks.
_SPACING = 1.0


class Process(NamedTuple):
    """A process. Its ID may be reused, but not with the same start time, in clock ticks since the boot."""

    number: int
    started: int


class _Stat(NamedTuple):
    name: str
    parent: int
    started: int


def _parse_stat(text: Optional[str]) -> Optional[_Stat]:
    """Parse /proc/NUMBER/stat. The name in brackets may contain any character."""
    opened, closed = (text or "").find("("), (text or "").rfind(")")
    fields = (text or "")[closed + 1 :].split()
    # A zombie no longer holds anything.
    if opened < 0 or closed < opened or len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    parent, started = whole_number(fields[1]), whole_number(fields[19])
    if parent is None or started is None:
        return None
    return _Stat((text or "")[opened + 1 : closed], parent, started)


def connection_of(tree: Tree, number: int) -> Optional[Process]:
    """The nearest ancestor of a process that serves an SSH connection; None if it was started in another way."""
    while number > 1:
        stat = _parse_stat(tree.read("proc", str(number), "stat"))
        if stat is None:
            return None
        if stat.name in _SERVERS:
            return Process(number, stat.started)
        number = stat.parent
    return None


def as_text(process: Optional[Process]) -> str:
    """The process as words in the line of a request."""
    return f"{process.number} {process.started}" if process else ""


def from_text(text: str) -> Optional[Process]:
    """The reverse of ``as_text``; None for anything else."""
    numbers = [whole_number(field) for field in text.split()]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        return None
    return Process(numbers[0], numbers[1])


class Lease:
    """What keeps a detached process alive. Without a known connection, only the lifetime, which the kernel enforces."""

    def __init__(self, lifetime: int, connection: Optional[Process], tree: Tree) -> None:
        self.lifetime = lifetime
        self._connection = connection
        self._tree = tree
        self._renewed = time.monotonic()

    def renew(self) -> None:
        """Record that a module of this run has come."""
        self._renewed = time.monotonic()

    def follow(self, connection: Optional[Process]) -> None:
        """Record that a later module of the same run has come through ``connection``."""
        self._connection = connection or self._connection
        self.renew()

    def yields_to(self, connection: Optional[Process]) -> bool:
        """Whether a run that comes through ``connection`` may end this one.

        The same connection means the same controller, which performs one task after the other. Another connection that
        still exists belongs to another controller at work.
        """
        return self._connection is None or self._connection == connection or not self._connected()

    def is_over(self) -> bool:
        """Whether the controller is gone."""
        if self._connection is None:
            return False
        if self._connected():
            self.renew()
        return time.monotonic() - self._renewed >= self.lifetime / _PART

    def wait(self) -> None:
        """Wait until the lease is over."""
        while not self.is_over():
            time.sleep(_SPACING)

    def _connected(self) -> bool:
        if self._connection is None:
            return False
        stat = _parse_stat(self._tree.read("proc", str(self._connection.number), "stat"))
        return stat is not None and stat.started == self._connection.started
