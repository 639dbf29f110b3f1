# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The output of the controller, as recorded from both versions."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import show
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version

FIXTURES = Path(__file__).parent / "fixtures"


def read_fixture(name: str) -> str:
    """The output of a command."""
    return (FIXTURES / name).read_text(encoding="utf-8")


def local_timestamp(text: str) -> int:
    """A local time in seconds since 1970."""
    return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))


@pytest.mark.parametrize(("name", "version"), [("22.05", (22, 5, 8)), ("24.11", (24, 11, 5)), ("26.05", (26, 5, 5))])
def test_version(name: str, version: tuple[int, int, int]) -> None:
    assert parse_version(read_fixture(f"{name}.version.txt")) == version


@pytest.mark.parametrize("name", ["22.05.node.txt", "24.11.node.txt", "24.11.node.json"])
def test_nodes(name: str) -> None:
    parse = show.parse_nodes_json if name.endswith("json") else show.parse_nodes_text
    first, second = parse(read_fixture(name))
    assert first == {
        "name": "p1",
        "address": "10.77.61.11",
        "hostname": "p1",
        "state": "mixed",
        "flags": ["dynamic_norm"],
        "ready": True,
        "drained": False,
        "reason": "",
        "reason_user": "",
        "cpus": 2,
        "cpus_allocated": 1,
        "memory": 24105,
        "gres": "gpu:fake:2",
        "features": [],
        "partitions": ["cluster"],
        "version": "22.05.8" if name.startswith("22") else "24.11.5",
        # The text has local time.
        "slurmd_started": 1795211951
        if name.endswith("json")
        else local_timestamp("2026-11-20T21:58:17" if name.startswith("22") else "2026-11-20T21:59:11"),
    }
    assert (second["state"], second["flags"], second["ready"]) == ("idle", ["drain", "dynamic_norm"], False)
    assert (second["reason"], second["reason_user"]) == ("gpumesh: gpu 3 = lost", "root")


@pytest.mark.parametrize("name", ["26.05.node.txt", "26.05.node.json"])
def test_nodes_of_the_newest_release(name: str) -> None:
    # Recorded on Debian 14.
    down, mixed = (show.parse_nodes_json if name.endswith("json") else show.parse_nodes_text)(read_fixture(name))
    assert (down["state"], down["ready"], down["reason"]) == ("down", False, "it's gone | x=y")
    assert (mixed["state"], mixed["ready"], mixed["version"]) == ("mixed", True, "26.05.5")
    assert (mixed["cpus"], mixed["cpus_allocated"], mixed["memory"], mixed["gres"]) == (2, 1, 1000, "gpu:2")
    assert (mixed["address"], mixed["features"], mixed["partitions"]) == ("10.9.9.1", ["a", "b"], ["all"])


@pytest.mark.parametrize("name", ["26.05.job.txt", "26.05.job.json"])
def test_jobs_of_the_newest_release(name: str) -> None:
    runs, waits = (show.parse_jobs_json if name.endswith("json") else show.parse_jobs_text)(read_fixture(name))
    assert (runs["id"], runs["name"], runs["state"], runs["nodes"], runs["user"]) == (
        1,
        "runs",
        "running",
        ["n1"],
        "root",
    )
    assert (waits["state"], waits["reason"], waits["started"]) == ("pending", "Dependency", None)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["RUNNING"], "running"),
        (["CANCELLED", "COMPLETING"], "completing"),
        (["RUNNING", "CONFIGURING", "POWER_UP_NODE"], "configuring"),
        (["PENDING", "REQUEUED"], "requeued"),
        (["PENDING", "REQUEUED", "COMPLETING"], "completing"),
        (["PENDING", "LAUNCH_FAILED"], "pending"),
        ("RUNNING", "running"),
        ([], ""),
    ],
)
def test_job_state_equals_the_text_output(words: Any, state: str) -> None:
    text = json.dumps({"jobs": [{"job_id": 1, "job_state": words}]})
    assert [job["state"] for job in show.parse_jobs_json(text)] == [state]


@pytest.mark.parametrize("name", ["22.05.job.txt", "24.11.job.txt", "24.11.job.json"])
def test_jobs(name: str) -> None:
    parse = show.parse_jobs_json if name.endswith("json") else show.parse_jobs_text
    _first, running, pending = parse(read_fixture(name))
    assert {key: running[key] for key in ("id", "name", "user", "state", "nodes", "node_count", "partition")} == {
        "id": 2,
        "name": "wrap",
        "user": "root",
        "state": "running",
        "nodes": ["p1"],
        "node_count": 1,
        "partition": "cluster",
    }
    assert running["started"] is not None
    assert running["time_limit"] is None
    assert (pending["state"], pending["nodes"], pending["node_count"], pending["started"]) == ("pending", [], 2, None)
    assert pending["reason"].startswith("Nodes required for job are DOWN, DRAINED")


@pytest.mark.parametrize("name", ["22.05.partition.txt", "24.11.partition.txt"])
def test_partitions(name: str) -> None:
    (partition,) = show.parse_partitions_text(read_fixture(name))
    assert partition == {
        "name": "cluster",
        "state": "up",
        "default": True,
        "nodes": ["p1", "p2"],
        "cpus": 4,
        "max_time": None,
    }


def test_a_reason_that_looks_like_another_field() -> None:
    line = "NodeName=n1 State=DOWN*+DRAIN CPUTot=8 Reason=State=IDLE because NodeAddr=1.2.3.4 [eve@2026-11-20T21:58:49]"
    (node,) = show.parse_nodes_text(line + "\n")
    assert (node["state"], node["address"], node["reason_user"]) == ("down", "", "eve")
    assert node["flags"] == ["drain", "not_responding"]
    assert node["reason"] == "State=IDLE because NodeAddr=1.2.3.4"


def test_a_reason_that_looks_like_one_with_fields_after_it() -> None:
    reason = "see [bob@work] Version=1"
    (node,) = show.parse_nodes_text(f"NodeName=n1 State=DOWN Reason={reason} [eve@2026-11-20T21:58:49] Comment=x\n")
    assert (node["reason"], node["reason_user"], node["version"]) == (reason, "eve", "")


@pytest.mark.parametrize("more", ["", " Comment=x y", " ReservationName=mt", " Comment=x y ReservationName=mt"])
def test_a_reason_ends_before_a_comment_and_a_reservation(more: str) -> None:
    line = f"NodeName=n1 State=DOWN+DRAIN+RESERVED Reason=Kill task failed [root@2026-11-20T21:58:49]{more}\n"
    (node,) = show.parse_nodes_text(line)
    assert (node["reason"], node["reason_user"]) == ("Kill task failed", "root")


@pytest.mark.parametrize(
    ("state", "flags", "ready"),
    [
        ("IDLE+DYNAMIC_NORM", ["dynamic_norm"], True),
        ("IDLE+COMPLETING", ["completing"], True),
        ("ALLOCATED*", ["not_responding"], False),
        ("IDLE+NOT_RESPONDING", ["not_responding"], False),
        ("INVAL", ["invalid_reg"], False),
        ("IDLE+DRAIN+INVALID_REG", ["drain", "invalid_reg"], False),
        ("UNKNOWN+DYNAMIC_NORM", ["dynamic_norm"], False),
        ("DOWN", [], False),
    ],
)
def test_states(state: str, flags: list[str], ready: bool) -> None:
    (node,) = show.parse_nodes_text(f"NodeName=n1 State={state} CPUTot=8\n")
    assert (node["flags"], node["ready"]) == (flags, ready)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30:00", 30), ("02:30:00", 150), ("1-02:30:00", 1590), ("UNLIMITED", None), ("INFINITE", None), ("", None)],
)
def test_minutes(text: str, expected: int | None) -> None:
    assert show.parse_time_limit(text) == expected


@pytest.mark.parametrize("text", ["", "slurm_load_node error", "[]", json.dumps({"jobs": []})])
def test_invalid_node_output_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        show.parse_nodes_json(text)


def test_output_format_depends_on_the_version() -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_options: Any) -> CommandResult:
        asked.append(argv)
        return CommandResult(0, read_fixture("24.11.node.json" if "--json" in argv else "22.05.node.txt"), "")

    assert [node["name"] for node in show.list_nodes(run, (24, 11, 5))] == ["p1", "p2"]
    assert [node["name"] for node in show.list_nodes(run, (22, 5, 8))] == ["p1", "p2"]
    assert asked == [["scontrol", "show", "node", "--json"], ["scontrol", "show", "-o", "node"]]


@pytest.mark.parametrize(
    ("said", "state", "flags", "ready"),
    [
        # scontrol and JSON, in parts.
        ("IDLE", "idle", [], True),
        ("IDLE+DYNAMIC_NORM", "idle", ["dynamic_norm"], True),
        ("MIXED+PLANNED", "mixed", ["planned"], True),
        ("ALLOCATED+COMPLETING", "allocated", ["completing"], True),
        ("IDLE+RESERVED", "idle", ["reserved"], True),
        ("IDLE+CLOUD+POWERED_DOWN", "idle", ["cloud", "powered_down"], False),
        ("IDLE*+DRAIN+INVALID_REG", "idle", ["drain", "invalid_reg", "not_responding"], False),
        ("IDLE+DRAIN+NO_RESPOND", "idle", ["drain", "not_responding"], False),
        ("DOWN*", "down", ["not_responding"], False),
        ("IDLE+MAINT", "idle", ["maintenance"], False),
        ("IDLE+REBOOT_REQUESTED", "idle", ["reboot_requested"], False),
        ("IDLE+REBOOT_ISSUED", "idle", ["reboot_issued"], False),
        ("IDLE+REBOOT_CANCELED", "idle", ["reboot_canceled"], True),
        ("IDLE+POWER_DRAIN", "idle", ["power_drain"], False),
        ("IDLE+BLOCKED", "idle", ["blocked"], True),
        ("FUTURE", "future", [], False),
        ("ERROR", "error", [], False),
        ("UNKNOWN+INVALID_REG", "unknown", ["invalid_reg"], False),
        ("INVAL", "unknown", ["invalid_reg"], False),
        # sinfo, as one word.
        ("mixed-", "mixed", ["planned"], True),
        ("idle-", "idle", ["planned"], True),
        ("planned", "idle", ["planned"], True),
        ("idle*", "idle", ["not_responding"], False),
        ("allocated+", "allocated", ["completing"], True),
        ("completing", "idle", ["completing"], True),
        ("completing*", "idle", ["completing", "not_responding"], False),
        ("reserved", "idle", ["reserved"], True),
        ("blocked", "idle", ["blocked"], True),
        ("drained", "idle", ["drain"], False),
        ("drained*", "idle", ["drain", "not_responding"], False),
        ("draining", "mixed", ["drain"], False),
        ("draining@", "mixed", ["drain", "reboot_requested"], False),
        ("drained^", "idle", ["drain", "reboot_issued"], False),
        ("fail", "idle", ["fail"], False),
        ("failing", "mixed", ["fail"], False),
        ("maint", "idle", ["maintenance"], False),
        ("idle$", "idle", ["maintenance"], False),
        ("idle~", "idle", ["powered_down"], False),
        ("idle#", "idle", ["powering_up"], False),
        ("idle!", "idle", ["power_down"], False),
        ("idle%", "idle", ["powering_down"], False),
        ("down$", "down", ["maintenance"], False),
        ("powering_up", "idle", ["powering_up"], False),
        ("powered_down", "idle", ["powered_down"], False),
        ("reboot_issued", "idle", ["reboot_issued"], False),
        ("inval", "unknown", ["invalid_reg"], False),
        ("future", "future", [], False),
        ("unknown*", "unknown", ["not_responding"], False),
        ("", "unknown", [], False),
    ],
)
def test_sinfo_states_are_parsed(said: str, state: str, flags: list[str], ready: bool) -> None:
    words = said.split("+") if said.isupper() or "*+" in said else [said]
    assert show.parse_node_state(words) == (state, flags)
    assert show.accepts_jobs(state, flags) is ready
    assert show.is_drained(flags) is bool({"drain", "fail", "maintenance"} & set(flags))
