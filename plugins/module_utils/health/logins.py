# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log in to every other member without overloading any of them, although all members do this at the same time.

sshd drops connections at random when about ten wait for authentication (MaxStartups), whoever they are from. So each
member has only a few logins in progress, and each starts with a different peer, so that every member receives a few in
each round. If rounds drift apart, dropped logins are repeated.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError

#: The number of logins that a member has in progress.
_AT_ONCE = 2
#: Seconds until a connection is established with its keys exchanged; a busy host takes some.
_CONNECT_SECONDS = 15
#: Seconds for a whole login.
_LOGIN_SECONDS = 60.0
#: Seconds before each repetition of a login.
_WAITS = (1.0, 2.0, 4.0, 8.0)
#: After this many logins without a success, the others are not tried: they would fail for the same reason, one after
#: the other.
_GIVE_UP = 8
#: What ssh prints if the connection ended before authentication. It then exits with 255.
_DROPPED = (
    "kex_exchange_identification",
    "ssh_exchange_identification",
    "Connection closed by",
    "Connection reset by",
    "Connection timed out during banner exchange",
    "Not allowed at this time",
)


class Logins(NamedTuple):
    """The problem by machine, None if the login worked. ``left``: machines that were not tried."""

    attempts: Dict[str, Optional[str]]
    left: List[str]


def longest(number: int) -> float:
    """The maximum duration in seconds of logins to this many members."""
    rounds = (number + _AT_ONCE - 1) // _AT_ONCE
    return rounds * (_LOGIN_SECONDS + sum(_WAITS) + len(_WAITS)) + 5.0


def order(machine: str, peers: Mapping[str, str]) -> List[str]:
    """The peers, starting with the one before ``machine`` in the alphabet and going backwards.

    Backwards, since members start one after the other: going forwards, all would log in to the same one.
    """
    names = sorted(peers, reverse=True)
    return [name for name in names if name < machine] + [name for name in names if name >= machine]


def was_dropped(done: Completed) -> bool:
    """Whether the host closed the connection, as with too many connections, instead of rejecting the login."""
    return done.rc == 255 and any(words in done.stderr for words in _DROPPED)


class _Caller:
    def __init__(self, run: Runner, user: str, peers: Mapping[str, str]) -> None:
        self._run = run
        self._user = user
        # Each user has a key of their own.
        self._prefix = command_prefix(user)
        self._peers = peers
        self._lock = threading.Lock()
        self._failed = 0
        self._worked = False

    def call(self, machine: str) -> Optional[List[Optional[str]]]:
        """The problem, as a list; None if the login was not tried."""
        with self._lock:
            if self._failed >= _GIVE_UP and not self._worked:
                return None
        trouble = self._log_in(machine)
        with self._lock:
            self._failed += trouble is not None
            self._worked = self._worked or trouble is None
        return [trouble]

    def _log_in(self, machine: str) -> Optional[str]:
        command = [*self._prefix, "ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        command += ["-o", f"ConnectTimeout={_CONNECT_SECONDS}", "-l", self._user, self._peers[machine], "true"]
        end = time.monotonic() + _LOGIN_SECONDS
        for wait in (*_WAITS, None):
            try:
                done = self._run(command, timeout=max(1.0, end - time.monotonic()), check=False)
            except CommandError as failure:
                return failure.message
            if wait is None or not was_dropped(done) or time.monotonic() >= end:
                break
            # Spread the repetitions.
            time.sleep(wait * random.uniform(0.5, 1.0))
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return None if done.rc == 0 else (said[-1] if said else f"ssh {machine} exited {done.rc}")


def log_in(run: Runner, machine: str, user: str, peers: Mapping[str, str]) -> Logins:
    """Try all peers, as this user and to the same one. ``peers`` are addresses or names by machine. Raises InputError."""
    caller = _Caller(run, user, peers)
    names = order(machine, peers)
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        results = dict(zip(names, pool.map(caller.call, names)))
    return Logins(
        {name: result[0] for name, result in results.items() if result is not None},
        [name for name, result in results.items() if result is None],
    )
