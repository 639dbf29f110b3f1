# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts and QOS: the output of sacctmgr, and its arguments. Outputs are from Slurm 24.11."""

from __future__ import annotations

from typing import Any

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
    ("key", "written", "shown"),
    [
        ("maxwall", "7-0", "7-00:00:00"),
        ("maxwall", "90", "01:30:00"),
        ("maxwall", "90:30", "01:31:00"),
        ("grpwall", "1-2:3", "1-02:03:00"),
        ("maxwall", "-1", ""),
        ("maxwall", "UNLIMITED", ""),
        ("maxwall", "infinite", ""),
        ("gracetime", "120", "00:02:00"),
        ("gracetime", "2:00", "00:02:00"),
        ("gracetime", "-1", "00:00:00"),
        ("preemptexempttime", "90", "01:30:00"),
        ("usagefactor", "0.5", "0.500000"),
        ("usagefactor", "-1", "1.000000"),
        ("usagethreshold", "0.5", "0.500000"),
        ("limitfactor", "2", "2.000000"),
        ("fairshare", "-1", "1"),
        ("fairshare", "parent", "parent"),
        ("qos", "normal, long", "long,normal"),
        ("description", "The Group", "the group"),
        ("grptres", "mem=512000M", "mem=500G"),
        ("grptres", "mem=512000", "mem=500G"),
        ("grptres", "MEM=3000, cpu=1k", "cpu=1024,mem=3000M"),
        ("maxtres", "cpu=64,gres/gpu=-1", "cpu=64"),
        ("maxtres", "-1", ""),
        ("maxtres", "license/a_b@c=2", "license/a_b@c=2"),
    ],
)
def test_values_are_equal_when_slurm_shows_one_for_the_other(key: str, written: str, shown: str) -> None:
    assert accounts.meaning(key, written) == accounts.meaning(key, shown)


@pytest.mark.parametrize(
    ("key", "one", "other"),
    [
        ("maxwall", "7-1", "7-00:01:00"),
        ("gracetime", "120", "02:00:00"),
        ("usagefactor", "0.5", "0.050000"),
        ("grptres", "mem=500G", "mem=500M"),
        ("maxtres", "gres/gpu=4", "gres/gpu:h100=4"),
        ("maxjobs", "UNLIMITED", "4"),
    ],
)
def test_other_values_differ(key: str, one: str, other: str) -> None:
    assert accounts.meaning(key, one) != accounts.meaning(key, other)


def qos(given: dict[str, Any], shown: str) -> list[list[str]]:
    """The commands for the QOS t, which slurmdbd shows with these values of the settings, sorted by name."""
    return planned(Slurm(f"t|{shown}\n", "", ""), accounts.wanted({"t": given}, {}))


def test_limits_that_are_no_longer_given_are_lifted() -> None:
    modify = ["modify", "qos", "where", "name=t", "set"]
    assert qos({"MaxTRESPerUser": "cpu=64"}, "cpu=64,gres/gpu=4") == [[*modify, "maxtresperuser=cpu=64,gres/gpu=-1"]]
    assert qos({"MaxTRESPerUser": ["cpu=32", "mem=1T"]}, "cpu=64") == [[*modify, "maxtresperuser=cpu=32,mem=1T"]]
    assert qos({"MaxTRESPerUser": "gres/gpu=-1"}, "cpu=64,gres/gpu=4") == [
        [*modify, "maxtresperuser=gres/gpu=-1,cpu=-1"]
    ]
    for nothing in ("-1", "", "UNLIMITED", []):
        assert qos({"MaxTRESPerUser": nothing}, "cpu=64") == [[*modify, "maxtresperuser=cpu=-1"]]
    assert qos({"MaxTRESPerUser": "cpu=64,gres/gpu=-1"}, "cpu=64") == []


def test_values_are_sent_as_sacctmgr_reads_them() -> None:
    modify = ["modify", "qos", "where", "name=t", "set"]
    assert qos({"GraceTime": "2:00"}, "00:00:00") == [[*modify, "gracetime=120"]]
    assert qos({"GrpJobs": "UNLIMITED"}, "4") == [[*modify, "grpjobs=-1"]]
    assert qos({"Flags": []}, "DenyOnLimit") == [[*modify, "flags=-1"]]
    assert qos({"Preempt": []}, "lo") == [[*modify, "preempt="]]
    new = planned(Slurm("", "", ""), accounts.wanted({"t": {"MaxTRES": "-1", "GrpJobs": "-1", "Priority": 0}}, {}))
    assert new == [["add", "qos", "t", "priority=0"]]


def test_an_account_s_own_limits_are_read() -> None:
    """An account also shows the limits that it inherits, which it cannot lift."""
    asked = accounts.wanted({}, {"sub": {"MaxTRES": "cpu=8"}})
    seen: list[list[str]] = []

    def slurm(argv: list[str], timeout: float = 30) -> Completed:
        seen.append(argv)
        return Completed(0, "", "")

    accounts.read(slurm, "lab", asked)
    assert "woplimits" in seen[-1]


def test_accounts_are_added_after_their_parents() -> None:
    given = {"c": {"Parent": "b"}, "b": {"Parent": "A"}, "a": {"Parent": "other"}, "d": None}
    new = planned(Slurm("", "", ""), accounts.wanted({}, given))
    assert [command[2] for command in new] == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="the parents form a cycle: a -> b -> a"):
        accounts.wanted({}, {"x": {"Parent": "a"}, "a": {"Parent": "b"}, "b": {"Parent": "a"}})


def test_a_qos_preempts_others_once_all_are_there() -> None:
    asked = accounts.wanted({"hi": {"Preempt": "lo", "Priority": 9}, "lo": {"Preempt": []}}, {})
    preempts = ["modify", "qos", "where", "name=hi", "set", "preempt=lo"]
    assert planned(Slurm("", "", ""), asked) == [["add", "qos", "hi", "priority=9"], ["add", "qos", "lo"], preempts]
    # After an interruption between these commands.
    assert planned(Slurm("hi||9\nlo||0\n", "", ""), asked) == [preempts]
    assert planned(Slurm("hi|lo|9\nlo||0\n", "", ""), asked) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"a": {"QOS": ["short", "long"]}}, "gets the QOS normal, which is not among those of a"),
        ({"a": {"QOS": ["short", "long"], "DefaultQOS": "big"}}, "gets the QOS big"),
        ({"a": {"QOS": "short,long", "Parent": "b"}, "b": {"DefaultQOS": "big"}}, "a without --qos gets the QOS big"),
        ({"a": {"QOS": "short,long"}, "root": {"DefaultQOS": "big"}}, "a without --qos gets the QOS big"),
        ({"a": {"QOS": "short", "DefaultQOS": "big"}}, "gets the QOS big"),
        ({"a": {"QOS": ["short", "long"], "DefaultQOS": "short"}}, ""),
        ({"a": {"QOS": ["Short", "long"], "Parent": "b"}, "b": {"Parent": "c"}, "c": {"DefaultQOS": "short"}}, ""),
        ({"a": {"QOS": "short,long"}, "root": {"DefaultQOS": "long"}}, ""),
        ({"a": {"QOS": ["normal", "long"]}}, ""),
        ({"a": {"QOS": "long"}, "root": {"DefaultQOS": "short"}}, "gets the QOS short"),
        ({"a": {"QOS": "long"}}, ""),
        ({"a": {"QOS": "+long,+short"}, "b": {}}, ""),
    ],
)
def test_an_account_needs_a_qos_for_jobs_that_do_not_request_one(given: dict[str, Any], fault: str) -> None:
    asked = accounts.wanted({}, given)
    if not fault:
        accounts.check_defaults(asked)
        return
    with pytest.raises(InputError, match=fault):
        accounts.check_defaults(asked)


def test_what_cannot_be_a_name_or_a_value_is_refused() -> None:
    with pytest.raises(InputError, match="slurm_qos: 'Long!'"):
        accounts.wanted({"Long!": {}}, {})
    with pytest.raises(InputError, match="slurm_accounts: 7"):
        accounts.wanted({}, {7: {}})
    with pytest.raises(InputError, match="users of a is 'alice', not a list"):
        accounts.wanted({}, {"a": {"users": "alice"}})
    with pytest.raises(InputError, match="slurm_qos: long is 10"):
        accounts.wanted({"long": 10}, {})
    with pytest.raises(InputError, match="slurm_accounts: '-x'"):
        accounts.wanted({}, {"a": {"users": ["-x"]}})
    with pytest.raises(InputError, match="Max Wall"):
        accounts.wanted({"long": {"Max Wall": 1}}, {})
    with pytest.raises(InputError, match="slurm_accounts: Description of a is 'x|y'".replace("|", r"\|")):
        accounts.wanted({}, {"a": {"Description": "x|y"}})
    for wrong in ("gres/gpu", "1=64", "mem=1.5G", "cpu=64;mem=2"):
        with pytest.raises(InputError, match="slurm_qos: MaxTRES of long contains"):
            accounts.wanted({"long": {"MaxTRES": ["node=2", wrong]}}, {})


def test_an_output_of_another_shape_is_an_error() -> None:
    with pytest.raises(ParseError):
        accounts.parse_table("one|two|three\n", ["name", "priority"])
