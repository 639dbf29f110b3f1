# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts and QOS: the output of sacctmgr, and its arguments. Outputs are from Slurm 24.11."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import accounts

DESIRED = accounts.parse_desired(
    {"long": {"Priority": 10, "MaxWall": "7-0", "MaxTRESPerUser": "gres/gpu=4"}},
    {"research": {"Organization": "a b", "Parent": "root", "QOS": ["normal", "long"], "users": ["root", "alice"]}},
)


class Slurm:
    """Replies as sacctmgr does, and records its commands."""

    def __init__(self, qos: str, account: str, assoc: str) -> None:
        self.outputs = {"qos": qos, "account": account, "assoc": assoc}
        self.commands: list[list[str]] = []

    def __call__(self, argv: list[str], timeout: float = 30) -> CommandResult:
        if "show" in argv:
            return CommandResult(0, self.outputs[argv[argv.index("show") + 1]], "")
        self.commands.append(argv)
        return CommandResult(0, "", "")


def planned_commands(slurm: Slurm, desired: accounts.DesiredAccounting = DESIRED) -> list[list[str]]:
    return [
        command[2:] for command in accounts.plan_commands("lab", accounts.read_current(slurm, "lab", desired), desired)
    ]


def test_missing_entities_are_added_in_dependency_order() -> None:
    empty = Slurm("normal|||0\n", "root|root\n", "root|||normal\nroot|root|root|normal\n")
    assert planned_commands(empty) == [
        ["add", "qos", "long", "priority=10", "maxwall=7-0", "maxtresperuser=gres/gpu=4"],
        ["add", "account", "research", "cluster=lab", "organization=a b", "parent=root", "qos=normal,long"],
        ["add", "user", "root", "account=research", "cluster=lab"],
        ["add", "user", "alice", "account=research", "cluster=lab"],
    ]


def test_equal_settings_in_another_notation_are_unchanged() -> None:
    there = Slurm(
        "normal|||0\nlong|gres/gpu=4|7-00:00:00|10\n",
        "research|a b\n",
        "root|||normal\nresearch||root|long,normal\nresearch|root||long,normal\nresearch|alice||long,normal\n",
    )
    assert planned_commands(there) == []


def test_differing_settings_are_modified() -> None:
    other = Slurm(
        "long|gres/gpu=4|1-00:00:00|10\n",
        "research|a b\n",
        "research||root|normal\nresearch|root||normal\nresearch|alice||normal\n",
    )
    assert planned_commands(other) == [
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
def test_equivalent_notations_of_a_setting_are_equal(key: str, written: str, shown: str) -> None:
    assert accounts.normalise_setting(key, written) == accounts.normalise_setting(key, shown)


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
def test_different_settings_are_not_equal(key: str, one: str, other: str) -> None:
    assert accounts.normalise_setting(key, one) != accounts.normalise_setting(key, other)


def plan_qos_commands(requested_settings: dict[str, Any], displayed: str) -> list[list[str]]:
    """The commands for the QOS t, which slurmdbd shows with these values of the settings, sorted by name."""
    return planned_commands(Slurm(f"t|{displayed}\n", "", ""), accounts.parse_desired({"t": requested_settings}, {}))


def test_removed_limits_are_lifted() -> None:
    modify = ["modify", "qos", "where", "name=t", "set"]
    assert plan_qos_commands({"MaxTRESPerUser": "cpu=64"}, "cpu=64,gres/gpu=4") == [
        [*modify, "maxtresperuser=cpu=64,gres/gpu=-1"]
    ]
    assert plan_qos_commands({"MaxTRESPerUser": ["cpu=32", "mem=1T"]}, "cpu=64") == [
        [*modify, "maxtresperuser=cpu=32,mem=1T"]
    ]
    assert plan_qos_commands({"MaxTRESPerUser": "gres/gpu=-1"}, "cpu=64,gres/gpu=4") == [
        [*modify, "maxtresperuser=gres/gpu=-1,cpu=-1"]
    ]
    for nothing in ("-1", "", "UNLIMITED", []):
        assert plan_qos_commands({"MaxTRESPerUser": nothing}, "cpu=64") == [[*modify, "maxtresperuser=cpu=-1"]]
    assert plan_qos_commands({"MaxTRESPerUser": "cpu=64,gres/gpu=-1"}, "cpu=64") == []


def test_settings_are_formatted_for_sacctmgr() -> None:
    modify = ["modify", "qos", "where", "name=t", "set"]
    assert plan_qos_commands({"GraceTime": "2:00"}, "00:00:00") == [[*modify, "gracetime=120"]]
    assert plan_qos_commands({"GrpJobs": "UNLIMITED"}, "4") == [[*modify, "grpjobs=-1"]]
    assert plan_qos_commands({"Flags": []}, "DenyOnLimit") == [[*modify, "flags=-1"]]
    assert plan_qos_commands({"Preempt": []}, "lo") == [[*modify, "preempt="]]
    new = planned_commands(
        Slurm("", "", ""), accounts.parse_desired({"t": {"MaxTRES": "-1", "GrpJobs": "-1", "Priority": 0}}, {})
    )
    assert new == [["add", "qos", "t", "priority=0"]]


def test_limits_of_parent_accounts_are_not_read() -> None:
    """An account also shows the limits that it inherits, which it cannot lift."""
    asked = accounts.parse_desired({}, {"sub": {"MaxTRES": "cpu=8"}})
    seen: list[list[str]] = []

    def slurm(argv: list[str], timeout: float = 30) -> CommandResult:
        seen.append(argv)
        return CommandResult(0, "", "")

    accounts.read_current(slurm, "lab", asked)
    assert "woplimits" in seen[-1]


def test_accounts_are_added_after_their_parents() -> None:
    given = {"c": {"Parent": "b"}, "b": {"Parent": "A"}, "a": {"Parent": "other"}, "d": None}
    new = planned_commands(Slurm("", "", ""), accounts.parse_desired({}, given))
    assert [command[2] for command in new] == ["a", "b", "c", "d"]
    with pytest.raises(InputError, match="the parents form a cycle: a -> b -> a"):
        accounts.parse_desired({}, {"x": {"Parent": "a"}, "a": {"Parent": "b"}, "b": {"Parent": "a"}})


def test_preemption_is_set_after_all_qos_exist() -> None:
    asked = accounts.parse_desired({"hi": {"Preempt": "lo", "Priority": 9}, "lo": {"Preempt": []}}, {})
    preempts = ["modify", "qos", "where", "name=hi", "set", "preempt=lo"]
    assert planned_commands(Slurm("", "", ""), asked) == [
        ["add", "qos", "hi", "priority=9"],
        ["add", "qos", "lo"],
        preempts,
    ]
    # A run may have been interrupted between these commands.
    assert planned_commands(Slurm("hi||9\nlo||0\n", "", ""), asked) == [preempts]
    assert planned_commands(Slurm("hi|lo|9\nlo||0\n", "", ""), asked) == []


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
def test_account_without_usable_default_qos_is_refused(given: dict[str, Any], fault: str) -> None:
    asked = accounts.parse_desired({}, given)
    if not fault:
        accounts.check_default_qos(asked)
        return
    with pytest.raises(InputError, match=fault):
        accounts.check_default_qos(asked)


def test_invalid_names_and_settings_are_refused() -> None:
    with pytest.raises(InputError, match="slurm_qos: 'Long!'"):
        accounts.parse_desired({"Long!": {}}, {})
    with pytest.raises(InputError, match="slurm_accounts: 7"):
        accounts.parse_desired({}, {7: {}})
    with pytest.raises(InputError, match="users of a is 'alice', not a list"):
        accounts.parse_desired({}, {"a": {"users": "alice"}})
    with pytest.raises(InputError, match="slurm_qos: long is 10"):
        accounts.parse_desired({"long": 10}, {})
    with pytest.raises(InputError, match="slurm_accounts: '-x'"):
        accounts.parse_desired({}, {"a": {"users": ["-x"]}})
    with pytest.raises(InputError, match="Max Wall"):
        accounts.parse_desired({"long": {"Max Wall": 1}}, {})
    with pytest.raises(InputError, match="slurm_accounts: Description of a is 'x|y'".replace("|", r"\|")):
        accounts.parse_desired({}, {"a": {"Description": "x|y"}})
    for wrong in ("gres/gpu", "1=64", "mem=1.5G", "cpu=64;mem=2"):
        with pytest.raises(InputError, match="slurm_qos: MaxTRES of long contains"):
            accounts.parse_desired({"long": {"MaxTRES": ["node=2", wrong]}}, {})


def test_unexpected_sacctmgr_output_is_an_error() -> None:
    with pytest.raises(ParseError):
        accounts.parse_table("one|two|three\n", ["name", "priority"])
