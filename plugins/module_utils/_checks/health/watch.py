# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watch the kernel log, and have the node looked at once it tells of a fault, instead of at slurmd's next check.

A quiet log costs nothing: the process sleeps until the kernel wakes it. It does not judge the node itself. It runs the
same program as slurmd does, as a process of its own, so that the repeated reading, the limit of drained nodes and the
reasons are the same, and a check that hangs does not stay in here.

Source: the kernel's Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from typing import Callable, Collection, NoReturn, Optional, Set

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import hardware_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.kernel_faults import FaultLog
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import WATCHED_LOG
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.cli import print_line
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import kernel_log
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import read_ports

#: Seconds in which a fault writes the rest of its messages, and in which several nodes notice a common cause.
_SETTLE_SECONDS = 3.0
#: Seconds from the begin of a look to that of the next one.
_LOOK_INTERVAL = 30.0
#: The attempts if a look cannot be made, such as while the controller is away. slurmd's next check follows anyway.
_MAX_ATTEMPTS = 3
_LOOK_TIMEOUT = 120.0
_KILL_SECONDS = 5.0
#: Seconds in which the records of a storm are gathered.
_BATCH_SECONDS = 0.5
#: Seconds between two attempts to open a log that cannot be read.
_REOPEN_SECONDS = 300.0
#: The exit statuses of a look at a fit and at an unfit node.
_LOOK_STATUSES = (0, 1)


class LookSchedule:
    """When to look next. The times are in seconds of one clock."""

    def __init__(self) -> None:
        self._due_at: Optional[float] = None
        self._earliest = float("-inf")
        self._attempt_count = 0

    def request_look(self, now: float) -> None:
        """The log tells something new."""
        self._attempt_count = 0
        if self._due_at is None:
            self._due_at = max(now + _SETTLE_SECONDS, self._earliest)

    def seconds_left(self, now: float) -> Optional[float]:
        """The seconds until the next look; None if there is no reason for one."""
        return None if self._due_at is None else max(self._due_at - now, 0.0)

    def record_look(self, began: float, succeeded: bool) -> None:
        """A look was made. If it could not judge the node, it is repeated a few times."""
        self._attempt_count += 1
        self._earliest = began + _LOOK_INTERVAL
        self._due_at = None if succeeded or self._attempt_count >= _MAX_ATTEMPTS else self._earliest


class LogWatcher:
    """The watch of an open log. What it contains already is left to slurmd, which looks at the node when it starts."""

    def __init__(
        self,
        log_descriptor: int,
        make_look: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        pci_addresses: Collection[str] = (),
    ) -> None:
        """``pci_addresses``: those of the GPUs and RDMA cards, and of the bridges above them."""
        self._log_descriptor, self._make_look, self._clock = log_descriptor, make_look, clock
        self._pci_addresses = pci_addresses
        self._schedule, self._fault_log = LookSchedule(), FaultLog()
        self._host_faults: Set[str] = set()
        self._poller = select.poll()
        self._poller.register(log_descriptor, select.POLLIN | select.POLLPRI)
        self._known_faults = self._read_faults()

    def _read_faults(self) -> Set[str]:
        """Read the new records. Return the faults in all that were read, without their numbers.

        A repeated fault is no news. The end of one is: the driver may report that a GPU needs nothing any more.
        """
        messages = kernel_log.extract_messages(kernel_log.read_available(self._log_descriptor))
        for message in messages:
            # A display of AMD only costs a look.
            self._fault_log.add_message(message, judges_amd=True)
        self._host_faults.update(hardware_faults.find_memory_messages(messages))
        self._host_faults.update(hardware_faults.find_fatal_messages(messages, self._pci_addresses))
        return self._host_faults.union(self._fault_log.count_faults())

    def wait_once(self) -> None:
        """Wait for new records, or until a look is due, and make that. Raises OSError."""
        seconds_left = self._schedule.seconds_left(self._clock())
        if self._poller.poll(None if seconds_left is None else seconds_left * 1000.0):
            time.sleep(_BATCH_SECONDS)
        faults = self._read_faults()
        if faults != self._known_faults:
            self._known_faults = faults
            self._schedule.request_look(self._clock())
        now = self._clock()
        if self._schedule.seconds_left(now) == 0.0:
            self._schedule.record_look(now, self._make_look())


def make_look(program_path: str, limit_seconds: float = _LOOK_TIMEOUT) -> bool:
    """Run the program as slurmd does. Returns whether it could judge the node.

    A process that hangs in the kernel does not end when it is killed, so that is not waited for long.
    """
    try:
        process = subprocess.Popen([program_path], stdin=subprocess.DEVNULL)
    except OSError as failure:
        print_line(f"{program_path} cannot be started: {failure.strerror}")
        return False
    try:
        return process.wait(limit_seconds) in _LOOK_STATUSES
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_SECONDS)
        print_line(f"{program_path} did not end within {limit_seconds:g} s.")
        return False
    finally:
        sys.stdout.flush()


def watch_log(program_path: str, log_path: str = WATCHED_LOG) -> NoReturn:
    """Watch the log for ever. Raises HostStateError if it cannot be read any more."""
    log_descriptor = kernel_log.open_log(log_path)
    while log_descriptor is None:
        print_line(f"{log_path} cannot be read.")
        sys.stdout.flush()
        time.sleep(_REOPEN_SECONDS)
        log_descriptor = kernel_log.open_log(log_path)
    try:
        tree = Tree()
        pci_addresses = {
            address
            for path in hardware_faults.find_watched_devices(tree, read_ports(tree)).values()
            for address in path
        }
        watcher = LogWatcher(log_descriptor, lambda: make_look(program_path), pci_addresses=pci_addresses)
        while True:
            watcher.wait_once()
    except OSError as failure:
        raise HostStateError(f"{log_path} cannot be read any more: {failure.strerror}.") from failure
