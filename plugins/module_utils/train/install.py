# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`gpumesh-train`, `gpumesh-trace` and the modules for Python programs, as files on this host."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Mapping

from ansible_collections.gpumesh.cluster.plugins.module_utils import package
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.host_files import Differences, in_words
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Part
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import program as trace
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import profile, program

#: Where programs that were not started by gpumesh-train find gpumesh_run.
LIBRARY = "/usr/local/lib/gpumesh/python"


def parts(params: Mapping[str, Any]) -> Dict[str, Part]:
    """The desired files by path, from the parameters of the module train."""
    modules = {f"{LIBRARY}/{name}": source for name, source in profile.modules().items()}
    if params["state"] == "absent":
        programs = {path: package.part(path, None) for path in (program.PATH, trace.PATH)}
        return {**programs, **{path: package.module_part(path, None) for path in modules}}
    settings = {name: params[name] for name in ("volumes", "run_dir", "stage_dir")}
    archives = {
        program.PATH: package.build(sys.executable, program.__name__, settings),
        trace.PATH: package.build(sys.executable, trace.__name__, {**settings, "library": LIBRARY}),
    }
    return {
        **{path: package.part(path, content) for path, content in archives.items()},
        **{path: package.module_part(path, source) for path, source in modules.items()},
    }


def differences(_run: Runner, params: Mapping[str, Any]) -> Differences:
    """How this host differs from the module's parameters."""
    found = [path for path, part in parts(params).items() if part.changed]
    words = [in_words(path) for path in found]
    return Differences(words, bool(words) and not os.path.lexists(program.PATH))
