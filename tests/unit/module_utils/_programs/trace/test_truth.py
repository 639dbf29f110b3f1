# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces with known values: the results are accurate to 5 %."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from traces import FIRST_STEP, TraceScenario

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.load import find_sources, load_traces
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import Analysis, RankShare

OFFSETS = {1: 3.0, 2: -700.0, 3: 45_000.0}


def analyse_scene(scene: TraceScenario, folder: Path) -> Analysis:
    return analyse("nano", load_traces(find_sources(scene.write(folder)), processes=1).traces)


def find_share(run: Analysis, rank: int) -> RankShare:
    return next(share for share in run.shares if share.rank == rank)


def near(milliseconds: float) -> object:
    """A value to within 5 %, in microseconds."""
    return pytest.approx(milliseconds * 1e3, rel=0.05, abs=60)


@pytest.mark.parametrize("gpu", [False, True])
def test_where_the_time_of_a_step_goes(tmp_path: Path, gpu: bool) -> None:
    scene = TraceScenario(on_gpu=gpu, clock_offsets=OFFSETS)
    run = analyse_scene(scene, tmp_path)
    assert run.uses_gpu is gpu and run.steps == [FIRST_STEP + step for step in range(scene.steps)]
    for share in run.shares:
        assert share.node == f"n{share.rank + 1}"
        assert share.step == near(scene.compute_ms + scene.transfer_ms + scene.other_ms)
        assert share.computing == near(scene.compute_ms)
        assert share.communicating == near(scene.transfer_ms)
        assert share.hidden == near(scene.hidden_transfer_ms)
        assert share.other == near(scene.other_ms)
        assert share.waiting < 100
    assert run.slow is None and run.missing_ranks == [] and run.unmatched_count == 0
    whole = sum(run.mean(part) for part in ("computing", "communicating", "waiting", "other"))
    assert whole == pytest.approx(run.mean("step"), rel=0.001)


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("probes", [True, False])
@pytest.mark.parametrize(("kind", "extra"), [("computing", 40.0), ("own", 40.0), ("computing", 8.0)])
def test_a_slow_rank_is_named_with_its_cost(tmp_path: Path, gpu: bool, probes: bool, kind: str, extra: float) -> None:
    more = {2: extra}
    scene = TraceScenario(
        on_gpu=gpu,
        clock_probes=probes,
        clock_offsets=OFFSETS,
        extra_compute_ms=more if kind == "computing" else {},
        extra_other_ms=more if kind == "own" else {},
    )
    run = analyse_scene(scene, tmp_path)
    assert run.slow is not None
    assert (run.slow.ranks, run.slow.node) == ((2,), "n3")
    assert run.slow.cost == near(extra)
    assert (
        (run.slow.computing, run.slow.other) == (near(extra), near(0))
        if kind == "computing"
        else (near(0), near(extra))
    )
    for share in run.shares:
        lost = scene.transfer_ms + (0.0 if share.rank == 2 else extra)
        assert share.communicating + share.waiting == near(lost)
        # The first exchange may start too late to be hidden.
        assert share.waiting >= (0.0 if share.rank == 2 else (extra - scene.hidden_transfer_ms) * 950)
        assert share.step == near(scene.compute_ms + scene.transfer_ms + scene.other_ms + extra)


def test_a_node_is_named_if_all_of_its_ranks_are_slow(tmp_path: Path) -> None:
    slow = {4: 38.0, 5: 40.0, 6: 41.0, 7: 40.0}
    run = analyse_scene(TraceScenario(ranks=12, ranks_per_node=4, extra_compute_ms=slow), tmp_path / "node")
    assert run.slow is not None
    assert (run.slow.ranks, run.slow.node, run.slow.cost) == ((4, 5, 6, 7), "n2", near(40.0))
    run = analyse_scene(TraceScenario(ranks=12, ranks_per_node=4, extra_compute_ms={5: 40.0}), tmp_path / "rank")
    assert run.slow is not None and (run.slow.ranks, run.slow.node, run.slow.cost) == ((5,), "n2", near(40.0))


def test_ranks_that_are_slow_in_turn_are_not_named(tmp_path: Path) -> None:
    run = analyse_scene(TraceScenario(extra_compute_ms={0: 10.0, 1: 10.0}), tmp_path)
    assert run.slow is None
    assert find_share(run, 2).waiting == near(10.0)


def test_a_rank_that_is_slow_by_chance_is_not_named(tmp_path: Path) -> None:
    """The rank is slow in one step of five: the mean is 8 ms of 80."""
    run = analyse_scene(TraceScenario(fourth_step_extra_ms={2: 40.0}), tmp_path)
    assert run.slow is None
    assert find_share(run, 2).awaited == near(8.0)
    assert find_share(run, 2).local_times == [near(64.0)] * 3 + [near(104.0)] + [near(64.0)]


@pytest.mark.parametrize("probes", [True, False])
def test_clocks_are_aligned_within_the_stated_error(tmp_path: Path, probes: bool) -> None:
    scene = TraceScenario(clock_offsets=OFFSETS, clock_probes=probes, extra_compute_ms={1: 30.0}, jitter_ms=0.2)
    run = analyse_scene(scene, tmp_path)
    method = "probes" if probes else "collectives"
    assert {rank: clock.method for rank, clock in run.clocks.items()} == {
        rank: method if rank else "reference" for rank in range(4)
    }
    for rank, offset in OFFSETS.items():
        clock = run.clocks[rank]
        assert clock.error is not None
        assert abs(clock.ahead - offset * 1e3) <= clock.error <= (60 if probes else 10_000)
    assert run.clock_contradiction <= max(clock.error or 0.0 for clock in run.clocks.values())


def test_a_drifting_clock_is_aligned(tmp_path: Path) -> None:
    """100 ppm in 20 s are 2 ms: with a constant offset, waiting would be wrong by as much."""
    scene = TraceScenario(
        clock_offsets=OFFSETS, clock_drift={2: 1e-4}, compute_ms=3_000.0, extra_compute_ms={1: 30.0}, steps=7
    )
    run = analyse_scene(scene, tmp_path)
    assert run.clocks[2].drift == pytest.approx(-1e-4, rel=0.05)
    for rank in (0, 2, 3):
        assert find_share(run, rank).waiting == near(30.0)


def test_clocks_that_contradict_collectives_are_reported(tmp_path: Path) -> None:
    scene = TraceScenario(clock_offsets=OFFSETS, probe_error_ms=0.05)
    scene.write(tmp_path)
    path = tmp_path / "rank-3.json"
    told = json.loads(path.read_text())
    told["clocks"] = [{**one, "ahead": one["ahead"] - 20_000_000} for one in told["clocks"]]
    path.write_text(json.dumps(told))
    run = analyse("nano", load_traces(find_sources(tmp_path), processes=1).traces)
    # The shorter exchange takes 5 ms.
    assert run.clock_contradiction == near(20 - 5)


def test_a_slow_link_is_named(tmp_path: Path) -> None:
    links = {0: 9400.0, 1: 92.0, 2: 9100.0, 3: 9500.0}
    scene = TraceScenario(clock_offsets=OFFSETS, transfer_ms=160.0, link_rates=links)
    run = analyse_scene(scene, tmp_path)
    assert [(link.source, link.target, link.mbits) for link in run.slow_links] == [(1, 2, 92.0)]
    assert run.mean("communicating") == near(160.0)
    assert run.slow is None


def test_links_within_a_node_do_not_hide_a_slow_one_between_nodes(tmp_path: Path) -> None:
    links = {rank: 9400.0 if rank == 3 else 900.0 if rank == 7 else 40_000.0 for rank in range(8)}
    run = analyse_scene(TraceScenario(ranks=8, ranks_per_node=4, link_rates=links), tmp_path)
    assert [(link.source, link.target) for link in run.links] == [(3, 4), (7, 0)]
    assert [link.source for link in run.slow_links] == [7]


def test_the_longest_operations_are_listed(tmp_path: Path) -> None:
    run = analyse_scene(TraceScenario(extra_compute_ms={1: 20.0}), tmp_path)
    times = {one.name: one for one in run.operations}
    # An operator without the one that it calls, which takes four fifths of its time.
    assert times["aten::addmm"].time == near((60 + 5) * 0.8)
    assert times["aten::linear"].time == near((60 + 5) * 0.2)
    assert (times["aten::linear"].slowest_rank, times["aten::linear"].slowest_time) == (1, near(80 * 0.2))
    assert times["aten::linear"].calls == times["gloo:all_reduce"].calls == 2


def test_missing_ranks_are_reported(tmp_path: Path) -> None:
    run = analyse(
        "nano",
        load_traces(
            find_sources(TraceScenario(ranks=4).write(tmp_path, selected_ranks=range(1, 4))), processes=1
        ).traces,
    )
    assert run.missing_ranks == [0]
    # No rank has the clock of rank 0 now, but it is still the reference for the others.
    assert run.clocks[1].method in ("probes", "reference")
    assert run.mean("communicating") == near(8.0)


#: Two groups that do not wait for each other, the second one slower. In each group all ranks are equal.
GROUPS = TraceScenario(process_groups=((0, 1), (2, 3)), extra_compute_ms={2: 50.0, 3: 50.0})


def test_groups_that_exchange_data_independently_do_not_wait_for_each_other(tmp_path: Path) -> None:
    run = analyse_scene(replace(GROUPS, on_gpu=True), tmp_path)
    assert run.unmatched_count == run.ungrouped_count == 0 and run.slow is None
    for share in run.shares:
        assert share.waiting < 100 and share.communicating == near(8.0)


@pytest.mark.parametrize("probes", [True, False])
@pytest.mark.parametrize("gpu", [False, True])
def test_exchanges_of_an_unknown_group_are_not_compared(tmp_path: Path, gpu: bool, probes: bool) -> None:
    """Gloo never names a group. NCCL does not with older versions of PyTorch."""
    scene = replace(GROUPS, on_gpu=gpu, clock_probes=probes)
    scene.write(tmp_path, compress=False)
    for path in tmp_path.glob("*.trace.json"):
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r', "Process Group Name": "\d"', "", text), encoding="utf-8")
    run = analyse("nano", load_traces(find_sources(tmp_path), processes=1).traces)
    assert (run.unmatched_count, run.ungrouped_count) == (0, 4 * scene.steps * 2)
    assert all(share.waiting == 0 and share.communicating == near(8.0) for share in run.shares)
    # Nothing determines the clocks without time queries, so they are not shifted.
    assert all(abs(clock.ahead) < 100 and clock.method != "collectives" for clock in run.clocks.values())


def test_a_group_is_unambiguous_if_all_groups_have_the_same_ranks(tmp_path: Path) -> None:
    run = analyse_scene(replace(GROUPS, process_groups=((0, 1, 2, 3),), extra_compute_ms={2: 50.0}), tmp_path)
    assert run.ungrouped_count == 0 and run.slow is not None and run.slow.ranks == (2,)


def test_group_names_without_ranks_are_ambiguous(tmp_path: Path) -> None:
    """All ranks are assumed only if there is just the default group."""
    for name, groups in (("one", ()), ("two", GROUPS.process_groups)):
        scene = replace(GROUPS, on_gpu=True, process_groups=groups)
        for path in scene.write(tmp_path / name, compress=False).glob("*.trace.json"):
            path.write_text(path.read_text(encoding="utf-8").replace('"pg_config"', '"pg"'), encoding="utf-8")
        run = analyse("nano", load_traces(find_sources(tmp_path / name), processes=1).traces)
        assert (run.ungrouped_count == 0) == (name == "one")
        assert (max(share.waiting for share in run.shares) > 40_000) == (name == "one")
