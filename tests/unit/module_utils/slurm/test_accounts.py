# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts and QOS: the output of sacctmgr, and its arguments. Outputs are from Slurm 24.11."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.slurm import accounts

ASKED = accounts.wanted(
    {"long": {"Priority": 10, "MaxWall": "7-0", "MaxTRESPerUser": "gres/gpu=4"}},
    {"research": {"Organization": "a b", "Parent": "root", "QOS": ["normal", "long"], "users": ["root", "alice"]}},
)


class Slurm:
    """Replies as sacctmgr does, and records its commands."""

    def __init__(self, qos: str, account: str, assoc: str) -> None:
        self.shown = {"qos": qos, "account": account, "assoc": assoc}
        self.told: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 30) -> Completed:
        if "show" in argv:
            return Completed(0, self.shown[argv[argv.index("show") + 1]], "")
        self.told.append(argv)
        return Completed(0, "", "")


def planned(slurm: Slurm, asked: accounts.Wanted = ASKED) -> list[list[str]]:
    return [command[2:] for command in accounts.plan("lab", accounts.read(slurm, "lab", asked), asked)]


def test_what_is_missing_is_added_in_the_order_in_which_it_is_needed() -> None:
    empty = Slurm("normal|||0\n", "root|root\n", "root|||normal\nroot|root|root|normal\n")
    assert planned(empty) == [
        ["add", "qos", "long", "priority=10", "maxwall=7-0", "maxtresperuser=gres/gpu=4"],
        ["add", "account", "research", "cluster=lab", "organization=a b", "parent=root", "qos=normal,long"],
        ["add", "user", "root", "account=research", "cluster=lab"],
        ["add", "user", "alice", "account=research", "cluster=lab"],
    ]


def test_what_is_there_is_left_alone_however_it_is_written() -> None:
    there = Slurm(
        "normal|||0\nlong|gres/gpu=4|7-00:00:00|10\n",
        "research|a b\n",
        "root|||normal\nresearch||root|long,normal\nresearch|root||long,normal\nresearch|alice||long,normal\n",
    )
    assert planned(there) == []


def test_what_differs_is_set() -> None:
    other = Slurm(
        "long|gres/gpu=4|1-00:00:00|10\n",
        "research|a b\n",
        "research||root|normal\nresearch|root||normal\nresearch|alice||normal\n",
    )
    assert planned(other) == [
        ["modify", "qos", "where", "name=long", "set", "maxwall=7-0"],
        ["modify", "account", "where", "name=research", "cluster=lab", "set", "qos=normal,long"],
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [("7-0", "7-00:00:00"), ("90", "01:30:00"), ("90:30", "01:30:30"), ("1-2:3", "1-02:03:00"), ("-1", "")],
)
def test_times_are_equal_when_they_last_as_long(one: str, other: str) -> None:
    assert accounts.meaning("maxwall", one) == accounts.meaning("maxwall", other)
    assert accounts.meaning("maxwall", "7-1") != accounts.meaning("maxwall", "7-00:01:00")


def test_what_cannot_be_a_name_or_a_value_is_refused() -> None:
    with pytest.raises(InputError, match="slurm_qos: 'Long!'"):
        accounts.wanted({"Long!": {}}, {})
    with pytest.raises(InputError, match="slurm_accounts: '-x'"):
        accounts.wanted({}, {"a": {"users": ["-x"]}})
    with pytest.raises(InputError, match="Max Wall"):
        accounts.wanted({"long": {"Max Wall": 1}}, {})


def test_an_output_of_another_shape_is_an_error() -> None:
    with pytest.raises(ParseError):
        accounts.parse_table("one|two|three\n", ["name", "priority"])
