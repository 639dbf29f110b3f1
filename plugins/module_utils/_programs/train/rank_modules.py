# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that a Python program of a rank can import. They import nothing of the collection."""

from __future__ import annotations

import inspect
from typing import Dict

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import (
    gpumesh_frameworks,
    gpumesh_profile,
    gpumesh_run,
    gpumesh_track,
)

_MODULES = (gpumesh_run, gpumesh_profile, gpumesh_track, gpumesh_frameworks)


def module_sources() -> Dict[str, str]:
    """Return their sources by file name."""
    return {f"{module.__name__.rpartition('.')[2]}.py": inspect.getsource(module) for module in _MODULES}
