# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a cluster, in words."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.filter.jobs_in_words import jobs_in_words

JOBS = [
    {"id": 17, "user": "alice", "name": "train", "nodes": ["n2", "n3"]},
    {"id": 18, "user": "bob", "name": "eval", "nodes": ["n1"]},
]


def test_number_user_name_and_nodes() -> None:
    assert jobs_in_words(JOBS) == ["17 of alice (train on n2, n3)", "18 of bob (eval on n1)"]


def test_only_those_on_some_nodes() -> None:
    assert jobs_in_words(JOBS, ["n3"]) == ["17 of alice (train on n2, n3)"]
    assert jobs_in_words(JOBS, []) == []
