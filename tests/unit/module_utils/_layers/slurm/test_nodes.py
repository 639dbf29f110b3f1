# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes are drained and resumed, and those that others have drained stay drained."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import nodes
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import SlurmNode, parse_nodes_text


def node(state: str, reason: str = "") -> SlurmNode:
    """The node n1 in a state."""
    text = f" Reason={reason} [root@2026-11-20T21:58:49]" if reason else ""
    return parse_nodes_text(f"NodeName=n1 State={state} CPUTot=8{text}\n")[0]


OUR_REASON = "gpumesh: GPU 3 is lost"
UPDATE = ["scontrol", "update", "nodename=n1"]


@pytest.mark.parametrize(
    ("present", "state", "command"),
    [
        (node("IDLE"), "idle", None),
        (node("IDLE+DRAIN", OUR_REASON), "idle", [*UPDATE, "state=resume"]),
        (node("DOWN", OUR_REASON), "idle", [*UPDATE, "state=resume"]),
        (node("DOWN"), "idle", [*UPDATE, "state=resume"]),
        (node("MIXED"), "drained", [*UPDATE, "state=drain", "reason=gpumesh: GPU 3 is lost"]),
        (node("IDLE+DRAIN", OUR_REASON), "drained", None),
        (node("IDLE+DRAIN", "gpumesh: hot"), "drained", [*UPDATE, "reason=gpumesh: GPU 3 is lost"]),
        (node("IDLE"), "down", [*UPDATE, "state=down", "reason=gpumesh: GPU 3 is lost"]),
        (node("IDLE+DRAIN", OUR_REASON), "down", [*UPDATE, "state=down", "reason=gpumesh: GPU 3 is lost"]),
        (node("IDLE"), "absent", ["scontrol", "delete", "nodename=n1"]),
    ],
)
def test_plan(present: SlurmNode, state: str, command: list[str] | None) -> None:
    planned = nodes.plan_commands({"n1": present}, ["n1"], state, "GPU 3 is lost")
    assert planned.commands == ([command] if command else [])
    assert planned.foreign_reasons == {}


@pytest.mark.parametrize("state", ["idle", "drained"])
def test_nodes_drained_by_others_are_not_changed(state: str) -> None:
    planned = nodes.plan_commands({"n1": node("IDLE+DRAIN", "replacing the fan")}, ["n1"], state, "GPU 3 is lost")
    assert planned.commands == []
    assert planned.foreign_reasons == {"n1": "replacing the fan"}


def test_foreign_reason_does_not_protect_a_node_in_service() -> None:
    assert nodes.plan_commands({"n1": node("IDLE", "old story")}, ["n1"], "drained", "hot").commands


def test_unknown_nodes_are_refused() -> None:
    assert nodes.plan_commands({}, ["n1"], "absent", "").commands == []
    with pytest.raises(InputError, match="n9.*n1"):
        nodes.plan_commands({"n1": node("IDLE")}, ["n9"], "idle", "")


@pytest.mark.parametrize(
    ("present", "state", "missing"),
    [
        (node("IDLE+DRAIN"), "drained", 0),
        (node("DOWN+DRAIN"), "drained", 0),
        (node("MIXED+DRAIN"), "drained", 1),
        (node("IDLE+COMPLETING+DRAIN"), "drained", 1),
        (node("IDLE"), "idle", 0),
        (node("IDLE+NOT_RESPONDING"), "idle", 1),
    ],
)
def test_missing_conditions_are_described(present: SlurmNode, state: str, missing: int) -> None:
    assert len(nodes.describe_missing({"n1": present}, ["n1"], state)) == missing


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that only sleeping moves."""
    moment = [0.0]

    def sleep(seconds: float) -> None:
        moment[0] += seconds

    monkeypatch.setattr("time.sleep", sleep)
    monkeypatch.setattr("time.monotonic", lambda: moment[0])
    return moment


def test_wait_ends_with_the_last_job(now: list[float]) -> None:
    states = [node("MIXED+DRAIN"), node("MIXED+DRAIN"), node("IDLE+DRAIN")]

    def read() -> dict[str, SlurmNode]:
        return {"n1": states.pop(0)}

    assert nodes.wait_for_state(read, ["n1"], "drained", 60)["n1"]["state"] == "idle"
    assert now == [4.0]


def test_wait_timeout_reports_missing_conditions(now: list[float]) -> None:
    with pytest.raises(HostStateError, match=r"After 10 s: n1 still has jobs \(mixed\+drain\)"):
        nodes.wait_for_state(lambda: {"n1": node("MIXED+DRAIN")}, ["n1"], "drained", 10)
    assert now == [10.0]


@pytest.mark.parametrize(("state", "completing"), [("IDLE+COMPLETING+DRAIN", True), ("MIXED+COMPLETING+DRAIN", False)])
def test_wait_timeout_distinguishes_completing_jobs(now: list[float], state: str, completing: bool) -> None:
    with pytest.raises(HostStateError) as caught:
        nodes.wait_for_state(lambda: {"n1": node(state), "n2": node("IDLE+DRAIN")}, ["n1", "n2"], "drained", 10)
    assert caught.value.details["completing"] is completing


def test_busy_node_is_not_deleted() -> None:
    def run(argv: list[str], **_options: Any) -> CommandResult:
        raise CommandError(argv, "exited 1", rc=1, stderr="delete_node nodename=n1: Requested nodes are busy")

    with pytest.raises(HostStateError, match="n1 has jobs"):
        nodes.run_commands(run, nodes.NodePlan([["scontrol", "delete", "nodename=n1"]], {}))
    with pytest.raises(CommandError):
        nodes.run_commands(run, nodes.NodePlan([["scontrol", "update", "nodename=n1"]], {}))
