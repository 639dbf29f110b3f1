# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the names of the members to this host: /etc/hosts, and what restores it in a container."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, program_archive, push, service
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import (
    LayerChange,
    ModuleResult,
    apply_changes,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers import names

_MEMBER_OPTIONS = {
    "address": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
}


#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "machine": {"type": "str"},
    "cluster": {"type": "str"},
    "members": {"type": "list", "elements": "dict", "options": _MEMBER_OPTIONS, "default": []},
    "address": {"type": "str"},
    **push.PUSH_OPTIONS,
    "supervisor_programs": {"type": "path", "default": service.ServicePaths().supervisor_programs},
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Write or remove the names in /etc/hosts, and what restores them; change nothing while sources are missing."""
    boot_changes = plan_boot_restore(params, service.service_manager(Tree()))
    outdated_contents = push.missing_contents(boot_changes.values())
    if outdated_contents and not check_mode:
        return ModuleResult(False, {"paths": [], "outdated": outdated_contents})
    file_steps = managed_files.ensure_files(names.build_local_entries(params), check_mode)
    diff_before, diff_after = managed_files.format_diff(file_steps)
    changed_paths = [path for path, change in boot_changes.items() if change.changed]
    boot_result = apply_changes(
        list(boot_changes.values()),
        {"paths": [*(step.path for step in file_steps), *changed_paths], "outdated": outdated_contents},
        check_mode,
    )
    return ModuleResult(
        bool(file_steps) or boot_result.changed,
        boot_result.return_values,
        diff_before + boot_result.before,
        diff_after + boot_result.after,
    )


def plan_boot_restore(params: Mapping[str, Any], service_manager: str) -> Dict[str, LayerChange]:
    """Return the files that restore the names when a container starts, by path. With systemd, there are none."""
    program_name = f"{names.PROGRAM_NAME}-{params['cluster']}"
    program_path, settings_path = (
        f"/usr/local/sbin/{program_name}",
        os.path.join(params["supervisor_programs"], f"{program_name}.conf"),
    )
    if params["state"] == "absent" or service_manager != service.SUPERVISORD:
        return {
            settings_path: program_archive.zipapp_change(settings_path, None),
            program_path: program_archive.zipapp_change(program_path, None),
        }
    program_params = {key: params[key] for key in ("cluster", "state", "members", "address")}
    supervisor_config = names.render_boot_program(program_name, program_path).encode("utf-8")
    return {
        program_path: push.program_change(params, names.PROGRAM_NAME, program_path, names.__name__, program_params),
        settings_path: program_archive.file_change(settings_path, supervisor_config),
    }
