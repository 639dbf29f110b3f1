# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a cluster, as text."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.usage import (
    holders_in_words,
    in_words,
    running_jobs,
    silences_in_words,
)

JOBS = [
    {"id": 17, "user": "alice", "name": "train", "nodes": ["n2", "n3"], "state": "running"},
    {"id": 18, "user": "bob", "name": "eval", "nodes": ["n1"], "state": "completing"},
    {"id": 19, "user": "bob", "name": "late", "nodes": ["n1", "n3"], "state": "pending"},
    {"id": 20, "user": "bob", "name": "soon", "nodes": ["n4"], "state": "configuring"},
    {"id": 21, "user": "bob", "name": "done", "nodes": ["n4"], "state": "cancelled"},
]


def test_jobs_have_a_number_a_user_a_name_and_nodes() -> None:
    assert in_words(JOBS[0]) == "17 of alice (train on n2, n3)"


def test_only_jobs_that_run_on_some_nodes() -> None:
    assert [job["id"] for job in running_jobs(JOBS, ["n3"])] == [17]
    assert [job["id"] for job in running_jobs(JOBS, ["n1", "n2", "n3"])] == [17, 18]
    assert [job["id"] for job in running_jobs(JOBS, ["n4"])] == [20]
    assert running_jobs(JOBS, []) == []


def test_who_holds_what_by_machine() -> None:
    results = {"n1": {"holders": ["vim (7) in /data", "sshd (8)"]}, "n2": {"holders": []}, "n3": {}}
    assert holders_in_words(results) == ["n1: vim (7) in /data, sshd (8)"]


def test_who_was_asked_and_has_not_answered() -> None:
    """The task goes on, so that its result is not that of a failure."""
    results = {
        "n1": {"holders": []},
        "n2": {"failed": False, "failed_when_result": False, "msg": "no\nPython"},
        "n3": {"skipped": True, "skip_reason": "Conditional result was False"},
        "n4": {},
        "n5": {"unreachable": True},
    }
    assert silences_in_words(results) == ["n2: unknown (no Python)", "n5: unknown (no message)"]
