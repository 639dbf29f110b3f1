# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces written by PyTorch: the slow rank and its delay are found to within 5 %, with and without compared clocks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.analyse import analyse
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.load import find_sources, load_traces
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import RankTrace

FIXTURES = Path(__file__).parent / "fixtures"
#: The rank that was delayed in each step, and for how many microseconds.
SLOW, DELAYS = 1, {"debian-12": 100_000.0, "debian-13": 60_000.0}


@pytest.fixture(name="traces", scope="module", params=sorted(DELAYS))
def _traces(request: pytest.FixtureRequest) -> tuple[float, Mapping[int, RankTrace]]:
    return DELAYS[request.param], load_traces(find_sources(FIXTURES / request.param), processes=1).traces


def test_the_slow_rank_is_named_with_its_cost(traces: tuple[float, Mapping[int, RankTrace]]) -> None:
    delay, ranks = traces
    run = analyse("toy", ranks)
    assert run.steps == [8, 9, 10, 11]
    assert run.slow is not None and (run.slow.ranks, run.slow.node) == ((SLOW,), "n2")
    assert [run.slow.cost, run.slow.other] == pytest.approx([delay, delay], rel=0.05)
    assert abs(run.slow.computing) < 0.05 * delay
    assert run.missing_ranks == [] and run.unmatched_count == 0 and len(run.links) == 3
    # The traces were recorded on one machine, so the clocks are the same.
    for clock in run.clocks.values():
        assert clock.error is not None and abs(clock.ahead) <= clock.error < 100
    # All exchanges of each rank were found: two all-reduces per step.
    assert {one.name: one.calls for one in run.operations}["gloo:all_reduce"] == 2


@pytest.mark.parametrize("shift", [0, 7_000_000, -3_600_000_000_000])
def test_clocks_are_aligned_by_the_ends_of_collectives(
    traces: tuple[float, Mapping[int, RankTrace]], shift: int
) -> None:
    """Traces of another program may come from machines with different clocks. ``shift`` is in nanoseconds."""
    delay, ranks = traces
    others = {rank: trace._replace(probes=[], origin=trace.origin + shift * rank) for rank, trace in ranks.items()}
    run = analyse("toy", others)
    for rank in (1, 2):
        clock = run.clocks[rank]
        assert clock.method == "collectives" and clock.error is not None
        assert abs(clock.ahead - shift / 1e3 * rank) <= clock.error < 5_000
    assert run.slow is not None and run.slow.ranks == (SLOW,) and run.slow.cost == pytest.approx(delay, rel=0.05)
