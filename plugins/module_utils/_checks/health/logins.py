# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Log in to the other members without overloading any of them, although all members do this at the same time.

In large clusters, each member logs in to the same number of others, and receives as many logins: all keys are tested from
both sides, at a cost that does not grow with the square of the members.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import command_prefix
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

#: The number of logins that a member has in progress.
_CONCURRENT_LOGINS = 2
#: The number of others that a member logs in to at most.
MAX_PEERS = 49
#: Seconds until a connection is established with its keys exchanged; a busy host takes some.
_CONNECT_SECONDS = 15
#: Seconds for a whole login.
_LOGIN_SECONDS = 60.0
#: Seconds before each repetition of a login.
_RETRY_DELAYS = (1.0, 2.0, 4.0, 8.0)
#: The number of logins without a success after which no more are tried: they would fail for the same reason, one after
#: the other.
_MAX_FAILED_LOGINS = 8
#: The messages of ssh if the connection ended before authentication. It then exits with 255.
_DROPPED_MESSAGES = (
    "kex_exchange_identification",
    "ssh_exchange_identification",
    "Connection closed by",
    "Connection reset by",
    "Connection timed out during banner exchange",
    "Not allowed at this time",
)


class LoginResults(NamedTuple):
    """The problem by machine, None if the login worked, and the machines that were not tried after these.

    ``peer_count``: of how many peers all of these are a sample.
    """

    problem_by_machine: Dict[str, Optional[str]]
    untried_machines: List[str]
    peer_count: int


def max_login_seconds(number: int) -> float:
    """The maximum duration in seconds of logins to this many members."""
    rounds = (min(number, MAX_PEERS) + _CONCURRENT_LOGINS - 1) // _CONCURRENT_LOGINS
    return rounds * (_LOGIN_SECONDS + sum(_RETRY_DELAYS) + len(_RETRY_DELAYS)) + 5.0


def order_peers(machine: str, peers: Mapping[str, str]) -> List[str]:
    """The peers, starting with the one before ``machine`` in the alphabet and going backwards.

    Backwards, since members start one after the other: going forwards, all would log in to the same one.
    """
    names = sorted(peers, reverse=True)
    return [name for name in names if name < machine] + [name for name in names if name >= machine]


def was_dropped(ssh_result: CommandResult) -> bool:
    """Whether the host closed the connection, as with too many connections, instead of rejecting the login."""
    return ssh_result.rc == 255 and any(dropped_message in ssh_result.stderr for dropped_message in _DROPPED_MESSAGES)


class _LoginClient:
    def __init__(self, run: Runner, user: str, peers: Mapping[str, str]) -> None:
        self._run_command = run
        self._ssh_user = user
        # Every user has a key of their own.
        self._account_command = command_prefix(user)
        self._address_by_machine = peers
        self._count_lock = threading.Lock()
        self._failed_count = 0
        self._has_succeeded = False

    def try_login(self, machine: str) -> Optional[List[Optional[str]]]:
        """The problem, as a list; None if the login was not tried."""
        with self._count_lock:
            if self._failed_count >= _MAX_FAILED_LOGINS and not self._has_succeeded:
                return None
        trouble = self._log_in(machine)
        with self._count_lock:
            self._failed_count += trouble is not None
            self._has_succeeded = self._has_succeeded or trouble is None
        return [trouble]

    def _log_in(self, machine: str) -> Optional[str]:
        command = [*self._account_command, "ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"]
        command += [
            "-o",
            f"ConnectTimeout={_CONNECT_SECONDS}",
            "-l",
            self._ssh_user,
            self._address_by_machine[machine],
            "true",
        ]
        deadline = time.monotonic() + _LOGIN_SECONDS
        for retry_delay in (*_RETRY_DELAYS, None):
            try:
                ssh_result = self._run_command(command, timeout=max(1.0, deadline - time.monotonic()), check=False)
            except CommandError as failure:
                return failure.message
            if retry_delay is None or not was_dropped(ssh_result) or time.monotonic() >= deadline:
                break
            # Spread the repetitions.
            time.sleep(retry_delay * random.uniform(0.5, 1.0))
        error_lines = [line.strip() for line in ssh_result.stderr.splitlines() if line.strip()]
        return (
            None
            if ssh_result.rc == 0
            else (error_lines[-1] if error_lines else f"ssh {machine} exited {ssh_result.rc}")
        )


def log_in_to_peers(run: Runner, machine: str, user: str, peers: Mapping[str, str]) -> LoginResults:
    """Log in to the peers, or in a large cluster to a sample, as this user and to the same account. Raises InputError."""
    caller = _LoginClient(run, user, peers)
    names = order_peers(machine, peers)[:MAX_PEERS]
    with ThreadPoolExecutor(max_workers=_CONCURRENT_LOGINS) as pool:
        results = dict(zip(names, pool.map(caller.try_login, names)))
    return LoginResults(
        {name: result[0] for name, result in results.items() if result is not None},
        [name for name, result in results.items() if result is None],
        len(peers),
    )
