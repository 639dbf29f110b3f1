# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of logins, what is retried, and when logins are given up."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import command_prefix, own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils.health import logins

DROPPED = Completed(
    255, "", "kex_exchange_identification: read: Connection reset by peer\nConnection reset by x port 22"
)
GOOD = Completed(0, "", "")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


class Ssh:
    """Returns results in turn, by host."""

    def __init__(self, answers: dict[str, list[Completed]]) -> None:
        self.answers = answers
        self.calls: list[str] = []
        self.most = self.now = 0
        self.lock = threading.Lock()

    def __call__(self, argv: list[str], **_options: Any) -> Completed:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.calls.append(argv[-2])
            answers = self.answers.get(argv[-2], [])
        done = answers.pop(0) if answers else GOOD
        with self.lock:
            self.now -= 1
        return done


def log_in(ssh: Any, number: int, machine: str = "n00") -> logins.Logins:
    peers = {f"n{index:02}": f"10.0.0.{index}" for index in range(number) if f"n{index:02}" != machine}
    return logins.log_in(ssh, machine, "root", peers)


@pytest.mark.parametrize("number", [2, 3, 12, 40])
def test_in_each_round_everybody_is_visited_once(number: int) -> None:
    names = [f"n{index:02}" for index in range(number)]
    orders = {name: logins.order(name, {other: other for other in names if other != name}) for name in names}
    assert all(sorted([name, *order]) == names for name, order in orders.items())
    for place in range(number - 1):
        assert set(Counter(order[place] for order in orders.values()).values()) == {1}


def test_a_member_has_only_a_few_logins_under_way() -> None:
    ssh = Ssh({})
    found = log_in(ssh, 40)
    assert ssh.most <= 2
    assert len(found.attempts) == 39 and not any(found.attempts.values()) and not found.left


def test_who_is_dropped_comes_again() -> None:
    ssh = Ssh({"10.0.0.3": [DROPPED, DROPPED]})
    assert log_in(ssh, 5).attempts["n03"] is None
    assert ssh.calls.count("10.0.0.3") == 3


def test_who_is_always_dropped_is_said() -> None:
    ssh = Ssh({"10.0.0.3": [DROPPED] * 9})
    assert log_in(ssh, 5).attempts["n03"] == "Connection reset by x port 22"
    assert ssh.calls.count("10.0.0.3") == 5


@pytest.mark.parametrize(
    "said",
    ["Host key verification failed.", "root@n3: Permission denied (publickey).", "ssh: connect: Connection refused"],
)
def test_a_refusal_is_not_tried_again(said: str) -> None:
    ssh = Ssh({"10.0.0.3": [Completed(255, "", said)]})
    assert log_in(ssh, 5).attempts["n03"] == said
    assert ssh.calls.count("10.0.0.3") == 1


def test_where_nothing_works_the_rest_is_left() -> None:
    def broken(argv: list[str], **_options: Any) -> Completed:
        raise CommandError(argv, "did not end within 30 s")

    found = log_in(broken, 40)
    assert 8 <= len(found.attempts) <= 9
    assert len(found.attempts) + len(found.left) == 39


def test_one_success_is_enough_to_try_them_all() -> None:
    refused = Completed(255, "", "Permission denied")
    ssh = Ssh({f"10.0.0.{index}": [refused] for index in range(1, 39)})
    found = log_in(ssh, 40)
    assert not found.left
    assert sum(trouble is not None for trouble in found.attempts.values()) == 38


def test_the_limit_of_time_follows_from_the_rounds() -> None:
    assert logins.longest(1) < logins.longest(11) < logins.longest(39)
    assert logins.longest(2) > 30


def test_a_user_logs_in_with_a_key_of_their_own() -> None:
    """The commands of the check run as root, whose key is for root alone."""
    seen: list[list[str]] = []

    def ssh(argv: list[str], **_options: Any) -> Completed:
        seen.append(argv)
        return GOOD

    logins.log_in(ssh, "n0", "nobody", {"n1": "10.0.0.1"})
    logins.log_in(ssh, "n0", own_name(), {"n1": "10.0.0.1"})
    assert seen[0][: len(command_prefix("nobody"))] == command_prefix("nobody")
    assert "ssh" in seen[0] and seen[1][0] == "ssh"
