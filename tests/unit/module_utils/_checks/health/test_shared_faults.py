# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How many nodes have a fault, and what that leads to in clusters of all sizes, with a controller that is played."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import program, shared_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import HealthSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.shared_faults import (
    COMMENT_PREFIX,
    COUNTS_PREFIX,
    FaultCounts,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.show import parse_nodes_text

VOLUME, ECC = "health.mounts", "health.gpu_ecc"
#: The node with the counts.
MANAGER = "n0"
#: Seconds between the looks at a node.
INTERVAL = 300.0
REASON = "gpumesh health: x y [root@2026-11-22T14:45:56]"
#: Of Slurm 24.11.5.
NODE_LINE = (
    "NodeName=n1 Arch=x86_64 CPUTot=8 NodeAddr=10.79.86.14 NodeHostName=n1 Version=24.11.5 OS=Linux 6.18.44 #1 SMP "
    "RealMemory=23616 State=IDLE+DYNAMIC_NORM ThreadsPerCore=1 TmpDisk=0 Weight=1 Partitions=cluster "
    "CfgTRES=cpu=8,mem=23616M,billing=8 AllocTRES= CurrentWatts=0 AveWatts=0 {}\n"
)


def test_the_counts_are_with_a_node_that_all_know() -> None:
    members: list[dict[str, Any]] = [{"machine": name} for name in ("a", "b", "c")]
    assert shared_faults.choose_counting_node({"manager": "b", "members": members}) == "b"
    members[1]["slurm_node"] = False
    assert shared_faults.choose_counting_node({"manager": "b", "members": members}) == "a"


@pytest.mark.parametrize(
    ("other_count", "nodes", "shared"),
    [
        (0, 3, False),
        (1, 3, True),
        (1, 8, False),
        (2, 8, True),
        (24, 100, False),
        (25, 100, True),
        # One node may always be out of service.
        (0, 1, False),
    ],
)
def test_fault_of_too_many_nodes_is_shared(other_count: int, nodes: int, shared: bool) -> None:
    comments = [f"Comment={COMMENT_PREFIX}health.rdma,{VOLUME}"] * other_count
    comments += [f"Comment={COMMENT_PREFIX}health.rdma", f"Comment=new cables, {VOLUME}"]
    comments += [""] * nodes
    lines = [f"NodeName=m{number} State=IDLE {comment}" for number, comment in enumerate(comments[: nodes - 1])]
    counts = shared_faults.count_faults("\n".join([*lines, "NodeName=n1 State=IDLE"]), "n1", [VOLUME], 5.0)
    assert counts.node_count == nodes
    assert counts.find_shared_faults([VOLUME], 25) == ([VOLUME] if shared else [])


def test_comments_are_parsed_from_scontrol() -> None:
    scontrol_output = (
        f"NodeName=n1 State=IDLE+DRAIN Reason={REASON} Comment=gpumesh-unfit:a.b,c.d\n"
        f"NodeName=n2 State=IDLE+DRAIN Reason={REASON} Comment=see ticket 5\n"
        "NodeName=n3 State=IDLE\n"
    )
    assert shared_faults.parse_comments(scontrol_output) == {"n1": "gpumesh-unfit:a.b,c.d", "n2": "see ticket 5"}
    for other_field in ("ReservationName=mt", "Extra=x y", "InstanceId=i-1"):
        with_more = scontrol_output.replace("c.d", f"c.d {other_field}") + f"NodeName=n4 State=IDLE {other_field}\n"
        assert shared_faults.parse_comments(with_more) == shared_faults.parse_comments(scontrol_output)
        assert parse_nodes_text(with_more)[0]["reason"] == "gpumesh health: x y"
    assert shared_faults.parse_report("gpumesh-unfit:a.b,c.d") == ["a.b", "c.d"]
    assert shared_faults.parse_report("see ticket 5") == []


@pytest.mark.parametrize("before", ["", " Comment=gpumesh-unfit:health.disk", " Comment=see ticket 5"])
@pytest.mark.parametrize("after", ["", " ReservationName=mt", " InstanceId=i-1 InstanceType=x"])
def test_counts_survive_slurm(before: str, after: str) -> None:
    counts = FaultCounts(1764423560, 1000, {VOLUME: 250, ECC: 1})
    text = shared_faults.format_counts(counts)
    assert not re.search(r"[\s\"']", text)
    assert shared_faults.parse_counts(NODE_LINE.format(f"{before} Extra={text}{after}")) == counts
    nobody = FaultCounts(1, 3, {})
    assert shared_faults.parse_counts(NODE_LINE.format(f"Extra={shared_faults.format_counts(nobody)}")) == nobody


@pytest.mark.parametrize(
    "extra",
    [
        "",
        "rack=4",
        '{"rack": 4,\n "row": 5}',
        f"{COUNTS_PREFIX}",
        f"{COUNTS_PREFIX}x:3:",
        f"{COUNTS_PREFIX}5:3:a",
        f"{COUNTS_PREFIX}5:3:a=b",
    ],
)
def test_another_extra_text_has_no_counts(extra: str) -> None:
    assert shared_faults.parse_counts(NODE_LINE.format(f"Extra={extra}")) is None
    assert shared_faults.read_extra(NODE_LINE.format(f"Extra={extra}")) == extra


class Controller:
    """Slurm's controller, with a clock of its own, and what it was asked."""

    def __init__(self, node_count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_764_423_560.0
        self.nodes: dict[str, dict[str, str]] = {f"n{number}": {} for number in range(node_count)}
        self.queries_of_all, self.drained_ever = 0, set[str]()
        self.barrier: threading.Barrier | None = None
        self.turns = threading.Lock()
        self.settings = {name: HealthSettings("lab", name, "", [VOLUME, ECC]) for name in self.nodes}
        monkeypatch.setattr(program.time, "time", lambda: self.now)
        monkeypatch.setattr(program.time, "sleep", self.sleep)
        monkeypatch.setattr(program.jobs, "notify_jobs", lambda *_arguments: None)

    def sleep(self, seconds: float) -> None:
        """While a node waits for the reports of others, those that look at the same time report their faults."""
        if seconds == program._SETTLE_SECONDS and self.barrier:
            self.barrier.wait(60)
            # From here on, they go on one after the other.
            self.turns.acquire()

    def run(self, argv: Any, **_options: Any) -> CommandResult:
        words = argv[1:]
        if words[0] == "update":
            name = words[1].partition("=")[2]
            self.nodes[name].update(word.partition("=")[::2] for word in words[2:])
            if self.nodes[name].get("state") == "drain":
                self.drained_ever.add(name)
            return CommandResult(0, "", "")
        names = words[3:] or list(self.nodes)
        self.queries_of_all += not words[3:]
        if set(names) - set(self.nodes):
            raise CommandError(argv, "Node not found", rc=1)
        return CommandResult(0, "".join(self._show(name) for name in names), "")

    def _show(self, name: str) -> str:
        fields, drained = self.nodes[name], self.nodes[name].get("state") == "drain"
        reason = f" Reason={fields['reason']} [root@2026-11-22T07:00:00]" if drained else ""
        texts = [f" {key}={fields[key.lower()]}" for key in ("Comment", "Extra") if fields.get(key.lower())]
        return f"NodeName={name} CPUTot=2 State=IDLE{'+DRAIN' * drained} Version=24.11.5{reason}{''.join(texts)}\n"

    def look(self, name: str, *failing: str, manager: str = MANAGER, is_prolog: bool = False) -> program.NodeAction:
        """Let a node look at itself."""
        results: Any = [
            {"id": check, "status": "fail" if check in failing else "pass", "reason": "broken."}
            for check in (VOLUME, ECC)
        ]
        action = program.publish_and_act(
            self.run, self.settings[name], manager, results, Tree("/nonexistent"), is_prolog
        )
        if action.action_kind == "resume":
            assert self.nodes[name].pop("state") == "resume"
        return action

    def report_at_once(self, names: list[str], *failing: str) -> None:
        """Let nodes look at the same time, of which each has these new faults."""
        self.barrier = threading.Barrier(len(names))

        def look(name: str) -> None:
            try:
                self.look(name, *failing)
            finally:
                self.turns.release()

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(look, names))
        self.barrier = None

    def look_at_all(self, *failing: str, nodes: int | None = None, is_new: bool = False) -> None:
        """Let the first nodes look at themselves, ten a second, as Slurm does."""
        began = self.now
        names = list(self.nodes)[:nodes]
        # Ten a second look while the first ones of these wait for their reports.
        group_size = int(10 * program._SETTLE_SECONDS)
        for start in range(0, len(names), group_size):
            self.now = began + start / 10
            group = names[start : start + group_size]
            if is_new:
                self.report_at_once(group, *failing)
            else:
                for name in group:
                    self.look(name, *failing)
        self.now = max(self.now, began + INTERVAL)

    def drained(self) -> list[str]:
        return [name for name, fields in self.nodes.items() if fields.get("state") == "drain"]


@pytest.mark.parametrize("nodes", [12, 200, 1000])
def test_a_large_cluster_loses_no_node_to_a_shared_fault(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(nodes, monkeypatch)
    controller.look_at_all(VOLUME, is_new=True)
    groups = (nodes + 79) // 80
    assert controller.queries_of_all == groups
    for _look in range(2):
        controller.look_at_all(VOLUME)
    assert not controller.drained_ever
    # As long as nodes have it, one of them counts.
    assert controller.queries_of_all <= 3 * groups
    controller.look_at_all()
    assert not controller.drained_ever and not any(fields["comment"] for fields in controller.nodes.values())


def test_a_large_cluster_drains_what_only_a_few_nodes_have(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(200, monkeypatch)
    controller.look_at_all(VOLUME, nodes=20, is_new=True)
    assert not controller.drained_ever
    controller.look_at_all(VOLUME, nodes=20)
    assert len(controller.drained()) == 20
    controller.look_at_all()
    assert not controller.drained()


def test_a_broken_card_is_drained_at_the_first_look_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(1000, monkeypatch)
    controller.look_at_all(ECC, is_new=True)
    # All that report together are counted together.
    assert len(controller.drained()) == 240 and controller.queries_of_all == 13
    controller.look_at_all(ECC)
    assert len(controller.drained()) == 240


def test_a_count_from_before_the_report_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """One node looks earlier than the others, since its kernel log tells of a fault, and counts."""
    controller = Controller(8, monkeypatch)
    assert controller.look("n1", ECC).action_kind == "drain"
    controller.now += 2
    controller.report_at_once([name for name in controller.nodes if name != "n1"], ECC)
    assert controller.drained() == ["n1"] and controller.queries_of_all == 2


def test_a_fault_that_comes_and_goes_is_no_shared_one(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(3, monkeypatch)
    for failing, action_kind in (([VOLUME], "drain"), ([], "resume"), ([VOLUME], "drain")):
        assert controller.look("n2", *failing).action_kind == action_kind
        controller.now += 3


def test_a_job_does_not_wait_for_a_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(200, monkeypatch)
    assert controller.look("n7", VOLUME).action_kind == "none"
    assert controller.look("n8", VOLUME, is_prolog=True).action_kind == "drain"


@pytest.mark.parametrize("nodes", [1, 3, 10])
def test_a_small_cluster_drains_at_the_first_look(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(nodes, monkeypatch)
    assert controller.look("n0", VOLUME).action_kind == "drain"
    assert controller.drained() == ["n0"]


def test_the_limit_holds_without_a_place_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of the administrator's is left alone, and a manager may not be among the nodes."""
    controller = Controller(8, monkeypatch)
    controller.nodes[MANAGER]["extra"] = "rack=4"
    for number in range(1, 8):
        controller.look(f"n{number}", ECC, manager=MANAGER if number % 2 else "gone")
    assert len(controller.drained()) == 2 and controller.queries_of_all == 7
    assert controller.nodes[MANAGER]["extra"] == "rack=4"


@pytest.mark.parametrize("other_count", [0, 1])
def test_a_node_with_a_comment_of_the_administrator_counts_itself(
    other_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = Controller(3, monkeypatch)
    if other_count:
        assert controller.look("n1", VOLUME).action_kind == "drain"
    controller.nodes["n2"]["comment"] = "new cables"
    actions = [controller.look("n2", VOLUME).action_kind for _look in range(3)]
    assert actions == (["none"] * 3 if other_count else ["drain", "none", "none"])
    assert controller.nodes["n2"]["comment"] == "new cables"


@pytest.mark.parametrize("skew", [-3600, -15, 15, 3600])
def test_a_wrong_clock_costs_a_count(monkeypatch: pytest.MonkeyPatch, skew: int) -> None:
    controller = Controller(40, monkeypatch)
    controller.now += skew
    controller.look("n1", ECC)
    controller.now -= skew
    for number in range(2, 40):
        controller.look(f"n{number}", ECC)
    assert len(controller.drained()) == 10


def test_a_fit_node_asks_only_about_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(3, monkeypatch)
    assert controller.look("n1") == program.NodeAction("none", "fit")
    assert not controller.queries_of_all and not controller.nodes[MANAGER]
