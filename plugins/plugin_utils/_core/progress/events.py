# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Translate the callback events of Ansible. Only this module accesses its plays, tasks and results."""

from __future__ import annotations

import os
from typing import Any

from ansible.playbook.task_include import TaskInclude

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.progress.tally import LOST_OUTCOMES, PlaybookRun


def list_play_hosts(play: Any) -> list[str]:
    """Return the hosts of a play, including those that have failed before."""
    play_variables = play.get_variable_manager().get_vars(play=play, include_hostvars=False)
    return [str(host) for host in play_variables.get("ansible_play_hosts_all", [])]


def begin_play(playbook_run: PlaybookRun, play: Any) -> None:
    """Begin a phase for a play."""
    playbook_run.begin_phase(str(play.get_name()).strip(), list_play_hosts(play), bool(play.check_mode))


def begin_task(playbook_run: PlaybookRun, task: Any, is_handler: bool = False) -> None:
    """Begin a task. A task that only includes others is not counted."""
    if not isinstance(task, TaskInclude):
        playbook_run.begin_task(str(task.get_name(include_role_fqcn=False)).strip(), task.run_once is True, is_handler)


def host_name(result: Any) -> str:
    """Return the inventory name of the host of a result."""
    return str(result._host.get_name())


def format_worker(result: Any) -> str:
    """Format the host of a result, and the host that did the work: ``n1``, or ``n1 → n2`` for a delegated task."""
    inventory_name, delegate = host_name(result), result._task.delegate_to
    # In a loop, the delegate differs between the items, and is a template for the task as a whole.
    return (
        inventory_name
        if delegate in (None, "", inventory_name) or "{{" in delegate
        else f"{inventory_name} → {delegate}"
    )


def unreachable_reason(result: Any) -> tuple[str, str]:
    """Return an unreachable host, and the reason."""
    return format_worker(result), str(result._result.get("msg") or result._task.get_name())


def ends_run(result: Any) -> bool:
    """Whether this unreachable host ends the run of all hosts, although its task ignores unreachable hosts.

    The linear strategy of Ansible does so if the task runs once, unless the task ignores errors.
    """
    task = result._task
    return bool((task.run_once or task.any_errors_fatal) and not task.ignore_errors)


def is_counted(result: Any) -> bool:
    """Whether a result belongs to a counted task."""
    return not isinstance(result._task, TaskInclude)


def end_host(playbook_run: PlaybookRun, result: Any, outcome: str) -> None:
    """Record the outcome of a host. A task that only includes others counts if it fails."""
    if is_counted(result):
        playbook_run.end_host(host_name(result), outcome, format_worker(result))
    elif outcome in LOST_OUTCOMES:
        playbook_run.lose_host(host_name(result), outcome)


def _is_among(task: Any, tasks: Any) -> bool:
    """Whether the task is among the tasks or in their blocks, by identifier: a result has a copy of its task."""
    return any(candidate._uuid == task._uuid or _is_among(task, getattr(candidate, "block", [])) for candidate in tasks)


def is_rescued(task: Any) -> bool:
    """Whether a block around the task has a rescue section with tasks."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if getattr(parent, "rescue", None) and _is_among(child, parent.block):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


def failure_outcome(result: Any, is_ignored: bool) -> str:
    """Return the outcome that the failure of a task means for the host."""
    if is_ignored:
        return "ignored"
    return "rescued" if is_rescued(result._task) else "failed"


def task_location(result: Any) -> str:
    """Return the file and line of the task of a result, relative to the current directory if that is shorter."""
    task_path = result._task.get_path()
    if not task_path:
        return ""
    relative_path = os.path.relpath(task_path)
    return str(relative_path if len(relative_path) < len(task_path) else task_path)
