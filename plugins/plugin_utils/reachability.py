# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the actions of reachability share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import HostAction
from ansible_collections.gpumesh.cluster.plugins.plugin_utils.reach_evidence import Target, targets

LAYER = {"type": "str", "choices": ["mesh", "subnet"], "default": "mesh"}


#: The prefix of a file in a playbook's temporary folder. It is followed by the run, and the process ID of the playbook.
_NOTE = "gpumesh-run"


def runs_beside(run: str, temporary: Path, process: int) -> list[str]:
    """Record that the playbook ``process`` performs ``run``. Returns the active runs of this user's other playbooks.

    To a host, all playbooks that share an SSH connection are one controller. Only here is it known which of them still
    exist. ``temporary`` is the playbook's own temporary folder, beside those of the others; Ansible deletes it at the
    end.
    """
    (temporary / f"{_NOTE}.{run}.{process}").touch(mode=0o600)
    return sorted(_living(_names(temporary.parent), process))


def _names(parent: Path) -> Iterable[str]:
    """The names of the files in the folders below. Other playbooks may remove theirs at any time."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):
            yield from os.listdir(folder)


def _living(names: Iterable[str], own: int) -> Iterable[str]:
    for name in names:
        note, _dot, rest = name.partition(".")
        run, _dot, process = rest.partition(".")
        if note == _NOTE and int(process) != own and _lives(int(process)):
            yield run


def _lives(process: int) -> bool:
    """Whether a process of this user, such as a playbook, exists."""
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


class ReachabilityAction(HostAction):
    """An action that receives the members, and the layer whose addresses they have."""

    def targets(self, members: Any, layer: str) -> list[Target]:
        """The members. Raises InputError if there are none."""
        if not members:
            raise InputError(
                "There is neither a cluster record nor a list of members.",
                "Run the role gpumesh.cluster.cluster with tasks_from=load first, or set reachability_members.",
            )
        return targets(members, layer)

    def asked(self, members: list[Target]) -> list[str]:
        """The members that are in this run, including those that have failed.

        Members that cannot connect to others, according to the role cluster, are excluded.
        """
        machines = {member.machine for member in members} - set(self.userspace_only)
        return [machine for machine in self.variables["ansible_play_hosts_all"] if machine in machines]

    def own(self, members: list[Target]) -> Target | None:
        """The task's host; None if it is not among the members."""
        return next((member for member in members if member.machine == self.machine), None)
