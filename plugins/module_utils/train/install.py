# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train`, `gpumesh-trace` and the modules for Python programs, as files on this host."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils import package, supplied
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences, in_words
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import paths


def parts(params: Mapping[str, Any]) -> Dict[str, Part]:
    """The desired files by path, from the parameters of the module train."""
    modules = [f"{paths.LIBRARY}/{name}.py" for name in paths.MODULES]
    if params["state"] == "absent":
        programs = {path: package.part(path, None) for path in (paths.PATH, paths.TRACE_PATH)}
        return {**programs, **{path: package.no_module_part(path) for path in modules}}
    settings = {name: params[name] for name in ("volumes", "run_dir", "stage_dir")}
    traced = {**settings, "library": paths.LIBRARY}
    return {
        paths.PATH: supplied.program_part(params, paths.PATH, paths.ENTRY, settings),
        paths.TRACE_PATH: supplied.program_part(params, paths.TRACE_PATH, paths.TRACE_ENTRY, traced),
        **{path: supplied.file_part(params, path) for path in modules},
    }


def differences(_run: Runner, params: Mapping[str, Any]) -> Differences:
    """How this host differs from the module's parameters."""
    found = [path for path, part in parts(params).items() if part.changed]
    words = [in_words(path) for path in found]
    return Differences(words, bool(words) and not os.path.lexists(paths.PATH))
