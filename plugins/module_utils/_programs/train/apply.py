# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apply the training programs to this host."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import ModuleResult, apply_changes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import PUSH_OPTIONS, missing_contents
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import install, paths

#: The options of the module.
OPTIONS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "run_dir": {"type": "str", "default": ""},
    "stage_dir": {"type": "str", "default": paths.STAGE_DIR},
    "volumes": {"type": "list", "elements": "str", "default": []},
    **PUSH_OPTIONS,
}


def work(params: Mapping[str, Any], check_mode: bool) -> ModuleResult:
    """Write or remove the files; change nothing while contents are missing."""
    file_changes = list(install.desired_changes(params).values())
    outdated_contents = missing_contents(file_changes)
    values: Dict[str, Any] = {"outdated": outdated_contents, "path": paths.PROGRAM_PATH}
    if outdated_contents and not check_mode:
        return ModuleResult(False, values)
    return apply_changes(file_changes, values, check_mode)
