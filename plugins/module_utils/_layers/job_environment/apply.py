# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the environment of jobs to this host."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, apply_changes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import files, folder, host

#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "rdma": {"type": "bool", "default": True},
    "cluster": {"type": "str"},
    "machine": {"type": "str"},
    "settings": {"type": "dict"},
    **push.PUSH_OPTIONS,
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Inspect the host, refuse unusable settings, then write the files and mount the directory.

    Change nothing while contents are missing.
    """
    program_changes = {} if params["state"] == "absent" else files.program_changes(params)
    outdated_contents = push.missing_contents(program_changes.values())
    if outdated_contents and not check_mode:
        return ModuleResult(False, {"paths": [], "outdated": outdated_contents})
    program_result = ModuleResult(False, {})
    if params["state"] == "absent":
        directory_result = folder.ensure_jobs_mount(run, present=False, check_mode=check_mode)
        file_steps = managed_files.ensure_files(files.removal_entries(params["cluster"]), check_mode)
    else:
        host_state = host.read_job_host(run, Tree(), params["settings"])
        host.refuse_ephemeral_ports(params["settings"], host_state.local_ports)
        file_steps = managed_files.ensure_files(files.desired_entries(params, host_state), check_mode)
        program_result = apply_changes(list(program_changes.values()), {}, check_mode)
        directory_result = folder.ensure_jobs_mount(run, present=True, check_mode=check_mode)
    values = {
        "paths": [
            *(step.path for step in file_steps),
            *(path for path, change in program_changes.items() if change.changed),
        ],
        "unlimited_reason": directory_result.failure_reason,
        "outdated": outdated_contents,
    }
    diff_before, diff_after = managed_files.format_diff(file_steps)
    if directory_result.changed:
        diff_before, diff_after = diff_before + directory_result.before, diff_after + directory_result.after
    return ModuleResult(
        bool(file_steps) or directory_result.changed or program_result.changed,
        values,
        diff_before + program_result.before,
        diff_after + program_result.after,
    )
