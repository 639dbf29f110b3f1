# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The common parts of the reachability actions."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._checks.reachability_evidence import (
    ExpectedMember,
    expected_members,
)
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import HostAction

#: The prefix of a file in a playbook's temporary directory, followed by the run, and the process ID of the playbook.
_RUN_FILE_PREFIX = "gpumesh-run"


def find_concurrent_runs(run_id: str, temporary_directory: Path, process_id: int) -> list[str]:
    """Record that the playbook ``process_id`` performs ``run_id``. Returns the active runs of other playbooks.

    Only playbooks of this user count. To a host, all playbooks that share an SSH connection are one controller. Only
    here is it known which of them still exist. ``temporary_directory`` is the playbook's own, beside those of the
    others; Ansible deletes it at the end.
    """
    (temporary_directory / f"{_RUN_FILE_PREFIX}.{run_id}.{process_id}").touch(mode=0o600)
    return sorted(_active_runs(_run_file_names(temporary_directory.parent), process_id))


def _run_file_names(parent_directory: Path) -> Iterable[str]:
    """Yield the names of the files in the directories below. Other playbooks may remove theirs at any time."""
    for directory in parent_directory.iterdir():
        with contextlib.suppress(OSError):
            yield from os.listdir(directory)


def _active_runs(file_names: Iterable[str], own_process_id: int) -> Iterable[str]:
    for name in file_names:
        file_prefix, _dot, suffix = name.partition(".")
        run_id, _dot, process_text = suffix.partition(".")
        if file_prefix == _RUN_FILE_PREFIX and int(process_text) != own_process_id and _is_running(int(process_text)):
            yield run_id


def _is_running(process_id: int) -> bool:
    """Whether a process of this user, such as a playbook, exists."""
    try:
        os.kill(process_id, 0)
    except OSError:
        return False
    return True


class ReachabilityAction(HostAction):
    """An action that receives the members, and the layer whose addresses they have."""

    def require_targets(self, members: Any, layer: str) -> list[ExpectedMember]:
        """Return the members. Raises InputError if there are none."""
        if not members:
            raise InputError(
                "There is neither a cluster record nor a list of members.",
                "Run the role gpumesh.cluster.cluster with tasks_from=load first, or set reachability_members.",
            )
        return expected_members(members, layer)

    def participants(self, members: list[ExpectedMember]) -> list[str]:
        """Return the members that are in this run, including those that have failed.

        Members that cannot connect to others, according to the role cluster, are excluded.
        """
        machines = {member.machine for member in members} - set(self.userspace_only)
        return [machine for machine in self.variables["ansible_play_hosts_all"] if machine in machines]

    def own_target(self, members: list[ExpectedMember]) -> ExpectedMember | None:
        """Return the member that is the task's host; None if it is not among the members."""
        return next((member for member in members if member.machine == self.machine), None)
