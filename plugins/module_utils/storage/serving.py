# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The exports of this host, and the program that serves them."""

from __future__ import annotations

from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage.mounts import runs

KERNEL, GANESHA = "kernel", "ganesha"
_UNITS = {KERNEL: "nfs-server.service", GANESHA: "nfs-ganesha.service"}
_SECONDS = 100


class Plan(NamedTuple):
    """``server`` is the program that serves, None if nothing is served. ``start``: it is not running, or not at boot.

    ``forgotten``: the programs whose exports file changes, which may not be the one that serves now.
    """

    files: List[host_files.Step]
    server: Optional[str]
    start: bool
    forgotten: List[str]

    @property
    def changed(self) -> bool:
        """Whether anything other than a re-export has to be done."""
        return bool(self.files) or self.start


def look(run: Runner, entries: Sequence[Mapping[str, Any]], exports: Mapping[str, str], server: Optional[str]) -> Plan:
    """Decide what to do. ``entries`` are those of host_files, ``exports`` the file of each program."""
    files = host_files.plan_all(entries)
    changing = {step.path for step in files}
    start = server is not None and not runs(run, _UNITS[server])
    return Plan(files, server, start, [program for program, path in exports.items() if path in changing])


def apply(run: Runner, plan: Plan) -> None:
    """Carry out the plan. It takes effect immediately: machines that have left the cluster are refused from here on."""
    for step in plan.files:
        host_files.apply(step)
    # Even if nothing was written: an earlier run may have been interrupted before this.
    if plan.server == KERNEL or KERNEL in plan.forgotten:
        run(["exportfs", "-ra"], timeout=_SECONDS)
    if plan.start and plan.server:
        run(["systemctl", "enable", "--now", _UNITS[plan.server]], timeout=_SECONDS)
    elif GANESHA in plan.forgotten:
        # It reloads its exports immediately, which does not affect the remaining members. Only a restart makes it drop
        # the last export.
        verb = "reload" if plan.server == GANESHA else "restart"
        run(["systemctl", verb, _UNITS[GANESHA]], timeout=_SECONDS)


def as_diff(plan: Plan) -> Tuple[str, str]:
    """The files and the service, before and after."""
    before, after = host_files.as_diff(plan.files)
    if plan.start and plan.server:
        before, after = f"{before}{_UNITS[plan.server]}: stopped\n", f"{after}{_UNITS[plan.server]}: running at boot\n"
    return before, after
