# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The work for pairs grows only with their number, measured in executed lines, since time would depend on the machine.

Also the reports on a cluster that is too large to draw each member.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_matrix import draw_matrix
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_verdicts import (
    judge_reachability as judge_pairs,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.report import (
    crowd,
    evidence,
    html,
    prometheus,
    terminal,
)
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks import test_reachability_verdicts as probes
from ansible_collections.gpumesh.cluster.tests.unit.plugin_utils._checks.report import samples

FEW_MEMBERS, MANY_MEMBERS = 12, 36
#: The factor by which the number of pairs grows.
PAIR_RATIO = MANY_MEMBERS * (MANY_MEMBERS - 1) / (FEW_MEMBERS * (FEW_MEMBERS - 1))


def count_lines(work: Callable[[], Any]) -> int:
    """The number of executed lines of our own code."""
    counted = 0

    def trace(frame: FrameType, event: str, _value: Any) -> Any:
        nonlocal counted
        if "/plugin_utils/" not in frame.f_code.co_filename:
            return None
        counted += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return counted


def measure_growth(make: Callable[[int], Callable[[], Any]]) -> float:
    return count_lines(make(MANY_MEMBERS)) / count_lines(make(FEW_MEMBERS))


def probe_results(number: int) -> dict[str, Any]:
    results = probes.healthy_results(number)
    rates = {
        f"n{one}": {
            "throughput": [
                {"machine": f"n{other}", "gbps": 9.0, "method": "iperf3", "error": ""}
                for other in range(1, number + 1)
                if other != one
            ]
        }
        for one in range(1, number + 1)
    }
    return {**results, "throughput": rates}


def evidence_for(number: int, dead: tuple[str, ...] = ()) -> dict[str, Any]:
    record = samples.record(number, ("a", "b"))
    machines = [member["machine"] for member in record["members"]]
    return {
        "record": record,
        "evidence": {
            "queried": machines,
            "answered": [machine for machine in machines if machine not in dead],
            "reachability": {"pairs": samples.pairs(record, dead), "checks": []},
            "health": {machine: {"checks": samples.checks(record)[-3:]} for machine in machines},
        },
        "generated_at": "2026-11-20T20:31:00Z",
        "level": "full",
    }


def test_judging_the_probes_grows_with_the_pairs() -> None:
    def make(number: int) -> Callable[[], Any]:
        results, members = probe_results(number), probes.build_members(number)
        return lambda: judge_pairs(results, members)

    assert measure_growth(make) < PAIR_RATIO * 1.1


def test_the_verdict_grows_with_the_pairs() -> None:
    def make(number: int) -> Callable[[], Any]:
        given = evidence_for(number)
        return lambda: evidence.judge_cluster(**given)

    assert measure_growth(make) < PAIR_RATIO * 1.1


@pytest.mark.parametrize("render", [html.render, terminal.render, prometheus.render])
@pytest.mark.parametrize("broken", [False, True])
def test_reports_grow_with_the_pairs(render: Callable[[Any], str], broken: bool) -> None:
    def make(number: int) -> Callable[[], Any]:
        dead = tuple(f"n{index:02}" for index in range(1, number + 1)) if broken else ()
        verdict = samples.verdict(number, dead=dead)
        return lambda: render(verdict)

    assert measure_growth(make) < PAIR_RATIO * 1.1


def test_drawing_in_text_grows_with_the_pairs() -> None:
    def make(number: int) -> Callable[[], Any]:
        pairs = [
            {"from": f"a{one}", "to": f"a{other}", "status": "fail", "verdict": "refused", "message": "", "remedy": ""}
            for one in range(number)
            for other in range(number)
            if one != other
        ]
        return lambda: draw_matrix(pairs)

    assert measure_growth(make) < PAIR_RATIO * 1.2


def test_a_large_cluster_is_summed_up() -> None:
    verdict = evidence.judge_cluster(**evidence_for(130, dead=("n017",)))
    reachability = verdict["reachability"]
    summary = reachability["summary"]
    assert summary["counts"] == {"pass": 129 * 128, "skipped": 0, "error": 0, "fail": 2 * 129}
    assert len(reachability["pairs"]) == 2 * 129 and summary["left_out"] == 0
    assert [machine for group in summary["groups"] for machine in group] == [f"n{n:03}" for n in range(1, 131)]
    assert len(summary["groups"]) < 40
    # No group has members of two sites.
    assert ["n064", "n065"] in summary["groups"] or ["n065"] in summary["groups"]
    one = next(block for block in summary["blocks"] if block["from"] == block["to"] == 4)
    assert (one["pass"], one["fail"]) == (6, 6)
    page = html.render(verdict)
    assert page.count('class="cell') < 2 * 40 * 40
    assert "n017 – n020" in page and "6 of 12 pairs reach each other, 6 fail" in page
    assert "129 of 130" in page and "16512 of 16770" in page
    assert "n001, n002, n003 <details>" in page
    text = terminal.render(verdict)
    assert "and 158 more" in text and len(text.splitlines()) < 400


def test_one_site_per_member_does_not_prevent_grouping() -> None:
    members = [{"machine": f"n{number}", "site": f"s{number}"} for number in range(200)]
    assert len(crowd.group_members(members)) <= 36


def test_the_number_of_listed_pairs_is_limited() -> None:
    members = [{"machine": f"n{number}", "site": "a"} for number in range(120)]
    pairs = [
        {"from": one["machine"], "to": other["machine"], "status": "fail"}
        for one in members
        for other in members
        if one is not other
    ]
    assert len(crowd.list_faulty_pairs(pairs)) + crowd.summarize_pairs(members, pairs)["left_out"] == len(pairs)
    assert len(crowd.list_faulty_pairs(pairs)) == 2000
