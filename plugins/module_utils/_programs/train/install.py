# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Install `gpumesh-train`, `gpumesh-trace` and the modules for Python programs on this host."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.managed_files import (
    LayerDifferences,
    describe_difference,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import paths


def desired_changes(params: Mapping[str, Any]) -> Dict[str, LayerChange]:
    """Return the desired files by path, from the parameters of the module train."""
    module_paths = {f"{name}.py": f"{paths.LIBRARY_DIR}/{name}.py" for name in paths.IMPORTABLE_MODULES}
    if params["state"] == "absent":
        program_changes = {
            path: program_archive.zipapp_change(path, None) for path in (paths.PROGRAM_PATH, paths.TRACE_PATH)
        }
        return {**program_changes, **{path: program_archive.module_removal(path) for path in module_paths.values()}}
    train_settings = {name: params[name] for name in ("volumes", "run_dir", "stage_dir")}
    trace_settings = {**train_settings, "library": paths.LIBRARY_DIR}
    return {
        paths.PROGRAM_PATH: push.program_change(
            params, paths.PROGRAM_NAME, paths.PROGRAM_PATH, paths.ENTRY_MODULE, train_settings
        ),
        paths.TRACE_PATH: push.program_change(
            params, paths.TRACE_NAME, paths.TRACE_PATH, paths.TRACE_ENTRY_MODULE, trace_settings
        ),
        **{path: push.pushed_file_change(params, name, path) for name, path in module_paths.items()},
    }


def find_differences(_run: Runner, params: Mapping[str, Any]) -> LayerDifferences:
    """Return how this host differs from the module's parameters."""
    changed_paths = [path for path, change in desired_changes(params).items() if change.changed]
    descriptions = [describe_difference(path) for path in changed_paths]
    return LayerDifferences(descriptions, bool(descriptions) and not os.path.lexists(paths.PROGRAM_PATH))
