# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one unreachable host does to a task that decides for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ansible_collections.gpumesh.cluster.tests.support.task_files import ROOT, TASK_FILES

_INNER = ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks")
_INHERITED = ("run_once", "any_errors_fatal", "ignore_unreachable", "ignore_errors", "delegate_to")


def tasks_with_inherited(
    entries: list[dict[str, Any]], above: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Each task, with the keywords of the blocks and plays around it."""
    for entry in entries:
        known = {name: entry[name] for name in _INHERITED if name in entry}
        task = {**(above or {}), **entry}
        inner = [name for name in _INNER if name in entry]
        for name in inner:
            yield from tasks_with_inherited(entry[name], {**(above or {}), **known})
        if not inner:
            yield task


def ends_all_hosts(task: dict[str, Any]) -> bool:
    """Whether one unreachable host ends the run of all, although the task ignores that it is unreachable."""
    decides = task.get("run_once", False) or task.get("any_errors_fatal", False)
    return bool(decides and task.get("ignore_unreachable", False) and not task.get("ignore_errors", False))


def test_an_ignored_unreachable_host_does_not_end_the_play_for_others() -> None:
    """Ansible's linear strategy ends all hosts without a message, whatever ignore_unreachable says."""
    found = [
        f"{path.relative_to(ROOT)}: {task['name']}"
        for path in TASK_FILES
        for task in tasks_with_inherited(yaml.safe_load(path.read_text(encoding="utf-8")) or [])
        if ends_all_hosts(task)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("{run_once: true, ignore_unreachable: true}", True),
        ("{any_errors_fatal: true, ignore_unreachable: true}", True),
        ("{run_once: true, ignore_unreachable: true, ignore_errors: true}", False),
        ("{run_once: true}", False),
        ("{block: [{run_once: true}], ignore_unreachable: true}", True),
        ("{block: [{ignore_unreachable: '{{ x }}'}], run_once: true}", True),
    ],
)
def test_the_rule_detects_tasks_that_end_all_hosts(text: str, ends: bool) -> None:
    assert [ends_all_hosts(task) for task in tasks_with_inherited([yaml.safe_load(text)])] == [ends]


#: Hosts that the first tasks of a play have asked, or whose failure to answer is the result of the playbook.
HOSTS_THAT_ANSWERED = (
    "localhost",
    "{{ cluster_record.manager }}",
    "{{ __cluster_registration.manager }}",
    "{{ __cluster_copies.authority }}",
    "{{ __cluster_removal.authority }}",
    "{{ __slurm_manager_state.handover.query or cluster_record.manager }}",
    # The trusted copies replace others only where these have answered.
    "{{ item }}",
)


def test_delegated_run_once_tasks_require_hosts_that_answered() -> None:
    """Where it is unreachable, all hosts end: so nothing that may be down may be among them."""
    given = {
        (str(path.relative_to(ROOT)), task["delegate_to"])
        for path in TASK_FILES
        for task in tasks_with_inherited(yaml.safe_load(path.read_text(encoding="utf-8")) or [])
        if task.get("run_once") and task.get("delegate_to") and not task.get("ignore_unreachable")
    }
    assert given
    assert {(path, host) for path, host in given if host not in HOSTS_THAT_ANSWERED} == set()
