# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of logins, what is retried, and when logins are given up."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import host, logins
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import command_prefix, current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError

DROPPED = CommandResult(
    255, "", "kex_exchange_identification: read: Connection reset by peer\nConnection reset by x port 22"
)
GOOD = CommandResult(0, "", "")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


class FakeSsh:
    """Returns results in turn, by host."""

    def __init__(self, answers: dict[str, list[CommandResult]]) -> None:
        self.answers = answers
        self.calls: list[str] = []
        self.most = self.now = 0
        self.lock = threading.Lock()

    def __call__(self, argv: list[str], **_options: Any) -> CommandResult:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.calls.append(argv[-2])
            answers = self.answers.get(argv[-2], [])
        ssh_result = answers.pop(0) if answers else GOOD
        with self.lock:
            self.now -= 1
        return ssh_result


def log_in(ssh: Any, number: int, machine: str = "n00") -> logins.LoginResults:
    peers = {f"n{index:02}": f"10.0.0.{index}" for index in range(number) if f"n{index:02}" != machine}
    return logins.log_in_to_peers(ssh, machine, "root", peers)


@pytest.mark.parametrize("number", [2, 3, 12, 40])
def test_every_member_gets_one_login_per_round(number: int) -> None:
    names = [f"n{index:02}" for index in range(number)]
    orders = {
        name: logins.order_peers(name, {peer_order: peer_order for peer_order in names if peer_order != name})
        for name in names
    }
    assert all(sorted([name, *order]) == names for name, order in orders.items())
    for round_number in range(number - 1):
        assert set(Counter(order[round_number] for order in orders.values()).values()) == {1}


def test_concurrent_logins_are_limited() -> None:
    ssh = FakeSsh({})
    login_results = log_in(ssh, 40)
    assert ssh.most <= 2
    assert (
        len(login_results.problem_by_machine) == 39
        and not any(login_results.problem_by_machine.values())
        and not login_results.untried_machines
    )


def test_large_cluster_is_sampled_evenly_and_says_so() -> None:
    """Each member logs in to as many others as log in to it."""
    names = {f"n{index:02}": f"10.0.0.{index}" for index in range(80)}
    received: Counter[str] = Counter()
    for machine in names:
        ssh = FakeSsh({})
        login_results = log_in(ssh, 80, machine)
        received.update(ssh.calls)
    assert set(received.values()) == {logins.MAX_PEERS} and set(received) == set(names.values())
    judgement = host.judge_ssh(login_results, "root")
    assert (judgement.status, judgement.actual, judgement.unit) == ("pass", 49, "peers, a sample of 79")
    assert host.judge_ssh(log_in(FakeSsh({}), 50), "root").unit == "peers"


def test_dropped_login_is_repeated() -> None:
    ssh = FakeSsh({"10.0.0.3": [DROPPED, DROPPED]})
    assert log_in(ssh, 5).problem_by_machine["n03"] is None
    assert ssh.calls.count("10.0.0.3") == 3


def test_always_dropped_login_is_reported() -> None:
    ssh = FakeSsh({"10.0.0.3": [DROPPED] * 9})
    assert log_in(ssh, 5).problem_by_machine["n03"] == "Connection reset by x port 22"
    assert ssh.calls.count("10.0.0.3") == 5


@pytest.mark.parametrize(
    "error_text",
    ["Host key verification failed.", "root@n3: Permission denied (publickey).", "ssh: connect: Connection refused"],
)
def test_refused_login_is_not_repeated(error_text: str) -> None:
    ssh = FakeSsh({"10.0.0.3": [CommandResult(255, "", error_text)]})
    assert log_in(ssh, 5).problem_by_machine["n03"] == error_text
    assert ssh.calls.count("10.0.0.3") == 1


def test_remaining_peers_are_skipped_if_every_login_fails() -> None:
    def broken(argv: list[str], **_options: Any) -> CommandResult:
        raise CommandError(argv, "did not end within 30 s")

    login_results = log_in(broken, 40)
    assert 8 <= len(login_results.problem_by_machine) <= 9
    assert len(login_results.problem_by_machine) + len(login_results.untried_machines) == 39


def test_one_success_is_enough_to_try_every_peer() -> None:
    refused = CommandResult(255, "", "Permission denied")
    ssh = FakeSsh({f"10.0.0.{index}": [refused] for index in range(1, 39)})
    login_results = log_in(ssh, 40)
    assert not login_results.untried_machines
    assert sum(trouble is not None for trouble in login_results.problem_by_machine.values()) == 38


def test_the_limit_of_time_follows_from_the_rounds() -> None:
    assert logins.max_login_seconds(1) < logins.max_login_seconds(11) < logins.max_login_seconds(39)
    assert logins.max_login_seconds(2) > 30


def test_user_logs_in_with_their_own_key() -> None:
    """The commands of the check run as root, whose key is for root alone."""
    commands: list[list[str]] = []

    def ssh(argv: list[str], **_options: Any) -> CommandResult:
        commands.append(argv)
        return GOOD

    logins.log_in_to_peers(ssh, "n0", "nobody", {"n1": "10.0.0.1"})
    logins.log_in_to_peers(ssh, "n0", current_user_name(), {"n1": "10.0.0.1"})
    assert commands[0][: len(command_prefix("nobody"))] == command_prefix("nobody")
    assert "ssh" in commands[0] and commands[1][0] == "ssh"
