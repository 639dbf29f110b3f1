# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin that sets the environment of jobs: where it is, and for which version of Slurm it was compiled.

The health program needs no more than this. ``spank.py`` compiles it.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import LIBRARY_DIRECTORY

Version = Tuple[int, int, int]

SOURCE_NAME = "gpumesh_job_environment.c"
SOURCE_PATH = f"{LIBRARY_DIRECTORY}/{SOURCE_NAME}"
LIBRARY_PATH = f"{LIBRARY_DIRECTORY}/gpumesh_job_environment.so"
_STAMP = re.compile(r"/\* For Slurm (\d+)\.(\d+)\.(\d+)\. \*/\n")


def format_stamp(slurm_version: Optional[Version]) -> str:
    """Return the first line of the installed source of a plugin."""
    version_text = "{}.{:02d}.{}".format(*slurm_version) if slurm_version else "?"
    return f"/* For Slurm {version_text}. */\n"


def parse_stamp(source_text: str) -> Optional[Version]:
    """Return the version of Slurm that a plugin was compiled for, from its installed source."""
    match = _STAMP.match(source_text)
    return (int(match.group(1)), int(match.group(2)), int(match.group(3))) if match else None


def fits(plugin_version: Optional[Version], slurm_version: Optional[Version]) -> bool:
    """Whether Slurm loads a plugin: it compares the release, without the last number of the version."""
    return plugin_version is not None and slurm_version is not None and plugin_version[:2] == slurm_version[:2]
