# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's callback events. Only this module accesses its plays, tasks and results."""

from __future__ import annotations

import os
from typing import Any

from ansible.playbook.task_include import TaskInclude

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.progress.tally import LOSSES, Run


def play_hosts(play: Any) -> list[str]:
    """The hosts of a play, including those that have failed before."""
    variables = play.get_variable_manager().get_vars(play=play, include_hostvars=False)
    return [str(host) for host in variables.get("ansible_play_hosts_all", [])]


def begin_play(run: Run, play: Any) -> None:
    """A play starts."""
    run.begin_phase(str(play.get_name()).strip(), play_hosts(play), bool(play.check_mode))


def begin_task(run: Run, task: Any, handler: bool = False) -> None:
    """A task starts. It is not counted if it only includes others."""
    if not isinstance(task, TaskInclude):
        run.begin_task(str(task.get_name(include_role_fqcn=False)).strip(), task.run_once is True, handler)


def host(result: Any) -> str:
    """The inventory name of a result's host."""
    return str(result._host.get_name())


def worked(result: Any) -> str:
    """The host of a result, and the one that did its work: ``n1``, or ``n1 → n2`` for a delegated task."""
    name, other = host(result), result._task.delegate_to
    # In a loop, it differs between the items, and is a template for the task as a whole.
    return name if other in (None, "", name) or "{{" in other else f"{name} → {other}"


def silence(result: Any) -> tuple[str, str]:
    """A host that does not answer, and the reason."""
    return worked(result), str(result._result.get("msg") or result._task.get_name())


def ends_run(result: Any) -> bool:
    """Whether all hosts end with this one, although its task ignores that it is unreachable.

    Ansible's linear strategy ends them for each unreachable host of a task that runs once, unless it ignores errors.
    """
    task = result._task
    return bool((task.run_once or task.any_errors_fatal) and not task.ignore_errors)


def counts(result: Any) -> bool:
    """Whether a result belongs to a counted task."""
    return not isinstance(result._task, TaskInclude)


def end_host(run: Run, result: Any, outcome: str) -> None:
    """A host has ended a task. One that only includes others counts if it fails."""
    if counts(result):
        run.end_host(host(result), outcome, worked(result))
    elif outcome in LOSSES:
        run.lose_host(host(result), outcome)


def _is_among(task: Any, tasks: Any) -> bool:
    """Compared by identifier, since a result has a copy of its task."""
    return any(one._uuid == task._uuid or _is_among(task, getattr(one, "block", [])) for one in tasks)


def is_rescued(task: Any) -> bool:
    """Whether a block around the task has a rescue section with tasks."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if getattr(parent, "rescue", None) and _is_among(child, parent.block):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


def failure(result: Any, ignored: bool) -> str:
    """What the failure of a task means for the host."""
    if ignored:
        return "ignored"
    return "rescued" if is_rescued(result._task) else "failed"


def written_at(result: Any) -> str:
    """The file and line of a result's task, relative to the current directory if that is shorter."""
    path = result._task.get_path()
    if not path:
        return ""
    relative = os.path.relpath(path)
    return str(relative if len(relative) < len(path) else path)
