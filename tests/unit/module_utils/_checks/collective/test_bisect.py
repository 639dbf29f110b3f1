# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.bisect import find_culprit


def nodes(number: int) -> list[str]:
    return [f"n{index:02d}" for index in range(1, number + 1)]


class Cluster:
    """A cluster with slow nodes and slow links that counts its runs."""

    def __init__(self, slow_nodes: Sequence[str] = (), slow_links: Sequence[tuple[str, str]] = ()) -> None:
        self._nodes = set(slow_nodes)
        self._links = [set(link) for link in slow_links]
        self.runs: list[tuple[str, ...]] = []

    def measure(self, chosen: Sequence[str]) -> bool:
        self.runs.append(tuple(chosen))
        return not self._nodes & set(chosen) and not any(link <= set(chosen) for link in self._links)


@pytest.mark.parametrize("number", [3, 4, 8, 9, 32, 33])
def test_one_slow_node_is_found(number: int) -> None:
    for slow in (nodes(number)[0], nodes(number)[-1], nodes(number)[number // 2]):
        cluster = Cluster([slow])
        culprit = find_culprit(nodes(number), cluster.measure)
        assert (culprit.kind, culprit.node_names) == ("node", (slow,))
        assert slow in culprit.description


@pytest.mark.parametrize("number", [3, 4, 8])
def test_one_slow_link_is_found_among_few(number: int) -> None:
    for link in (("n01", "n02"), ("n01", "n03"), ("n02", "n03")):
        culprit = find_culprit(nodes(number), Cluster(slow_links=[link]).measure)
        assert (culprit.kind, culprit.node_names) == ("link", link)


def test_a_slow_link_within_a_half_is_found_among_many() -> None:
    culprit = find_culprit(nodes(32), Cluster(slow_links=[("n01", "n04")]).measure)
    assert (culprit.kind, culprit.node_names) == ("link", ("n01", "n04"))


def test_slow_link_across_the_halves_is_narrowed_down() -> None:
    culprit = find_culprit(nodes(32), Cluster(slow_links=[("n01", "n30")]).measure)
    assert culprit.kind == "group"
    assert "switches" in culprit.description


def test_two_slow_nodes_are_both_named() -> None:
    culprit = find_culprit(nodes(6), Cluster(["n02", "n05"]).measure)
    assert (culprit.kind, culprit.node_names) == ("node", ("n02", "n05"))


def test_nodes_that_are_slow_only_together_are_a_group() -> None:
    culprit = find_culprit(nodes(4), lambda chosen: len(chosen) < 3)
    assert culprit.kind == "group"
    culprit = find_culprit(nodes(4), lambda _chosen: False)
    assert culprit.kind == "group"


def test_only_slow_sets_are_measured_again_and_the_cost_is_bounded() -> None:
    for number in (8, 64, 256):
        slow = nodes(number)[5]
        cluster = Cluster([slow])
        find_culprit(nodes(number), cluster.measure)
        assert all(cluster.runs.count(run) == (2 if slow in run else 1) for run in cluster.runs)
        assert len(set(cluster.runs)) <= number / 2 + 1 + 28


def test_single_disturbed_run_is_not_blamed() -> None:
    cluster = Cluster(slow_links=[("n01", "n03")])
    disturbed = [("n02", "n03")]

    def measure(chosen: Sequence[str]) -> bool:
        if tuple(chosen) in disturbed:
            disturbed.remove(tuple(chosen))
            return False
        return cluster.measure(chosen)

    assert find_culprit(nodes(3), measure).node_names == ("n01", "n03")


@given(st.integers(1, 20), st.randoms())
def test_search_ends_with_any_measurements(number: int, dice: object) -> None:
    def answers(_chosen: Sequence[str]) -> bool:
        return dice.random() < 0.5

    assert find_culprit(nodes(number), answers).description
