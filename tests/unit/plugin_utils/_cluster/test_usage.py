# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who uses a cluster, as text."""

from __future__ import annotations

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.usage import (
    format_job,
    format_unreachable,
    format_volume_users,
    running_jobs,
)

JOBS = [
    {"id": 17, "user": "alice", "name": "train", "nodes": ["n2", "n3"], "state": "running"},
    {"id": 18, "user": "bob", "name": "eval", "nodes": ["n1"], "state": "completing"},
    {"id": 19, "user": "bob", "name": "late", "nodes": ["n1", "n3"], "state": "pending"},
    {"id": 20, "user": "bob", "name": "soon", "nodes": ["n4"], "state": "configuring"},
    {"id": 21, "user": "bob", "name": "done", "nodes": ["n4"], "state": "cancelled"},
]


def test_job_is_described_with_user_name_and_nodes() -> None:
    assert format_job(JOBS[0]) == "17 of alice (train on n2, n3)"


def test_running_jobs_are_selected_by_node() -> None:
    assert [job["id"] for job in running_jobs(JOBS, ["n3"])] == [17]
    assert [job["id"] for job in running_jobs(JOBS, ["n1", "n2", "n3"])] == [17, 18]
    assert [job["id"] for job in running_jobs(JOBS, ["n4"])] == [20]
    assert running_jobs(JOBS, []) == []


def test_volume_users_are_listed_by_machine() -> None:
    results = {"n1": {"descriptions": ["vim (7) in /data", "sshd (8)"]}, "n2": {"descriptions": []}, "n3": {}}
    assert format_volume_users(results) == ["n1: vim (7) in /data, sshd (8)"]


def test_unreachable_machines_are_listed() -> None:
    """The task goes on, so that its result is not that of a failure."""
    results = {
        "n1": {"descriptions": []},
        "n2": {"failed": False, "failed_when_result": False, "msg": "no\nPython"},
        "n3": {"skipped": True, "skip_reason": "Conditional result was False"},
        "n4": {},
        "n5": {"unreachable": True},
    }
    assert format_unreachable(results) == ["n2: unknown (no Python)", "n5: unknown (no message)"]
