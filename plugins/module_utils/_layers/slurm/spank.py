# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our plugins for Slurm (SPANK), which are compiled on the host against the headers of its Slurm."""

from __future__ import annotations

import os
import re
from typing import Any, Mapping, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin

#: How the plugin runs the task prolog.
_STEP_OPTION = "--step"
#: The first release of Slurm with which it was tested. Earlier ones may not know the GPUs of a step yet when they call it.
_OLDEST_RELEASE = (24, 11)
HEADER_DIRECTORY = "/usr/include/slurm"
REQUIRED_HEADERS = (f"{HEADER_DIRECTORY}/spank.h", "/usr/include/stdio.h")
_COMPILER_FLAGS = ("-O2", "-Wall", "-Wextra", "-fPIC", "-shared")


class JobPlugin(NamedTuple):
    """The change to the plugin that sets the environment of jobs, and whether it can be used after that."""

    change: LayerChange
    is_usable: bool


def plan_plugin(
    run: Runner, params: Mapping[str, Any], source_name: str, source_path: str, library_path: str
) -> LayerChange:
    """Plan the compilation of a plugin against the headers of the installed Slurm.

    The source that it was compiled from is kept, after a line with the version of Slurm.
    """
    installed_source = read_text(source_path) or ""
    desired_source = push.desired_content(params, source_name, installed_source.partition("\n")[2].encode())
    if desired_source is None:
        return LayerChange(True, "", f"{library_path}: the plugin\n", lambda: None, source_name)
    stamped_source = job_plugin.format_stamp(read_header_version()) + desired_source.decode()
    is_changed = installed_source != stamped_source or not os.path.lexists(library_path)

    def apply() -> None:
        if is_changed:
            compile_library(
                run, "The plugin for Slurm", stamped_source, library_path, _COMPILER_FLAGS, "gcc and libslurm-dev"
            )
            # The source is written last, since it shows what the plugin was compiled from.
            write_atomic(source_path, stamped_source, 0o644)

    return LayerChange(is_changed, installed_source, stamped_source, apply)


def plan_removal(source_path: str) -> LayerChange:
    """Plan the removal of the source of a plugin, and of the directory after the last one."""
    removal_change = program_archive.zipapp_change(source_path, None)

    def apply() -> None:
        removal_change.apply()
        # The directory may also contain the library of a pod.
        remove_empty_directory(os.path.dirname(source_path))

    return removal_change._replace(apply=apply)


def plan_job_plugin(run: Runner, params: Mapping[str, Any], slurm_version: Optional[job_plugin.Version]) -> JobPlugin:
    """Plan the plugin that sets the environment of jobs. A host without a compiler keeps one that fits."""
    unchanged = LayerChange(False, "", "", lambda: None)
    # The role job_environment may not have been here, or an earlier version of it.
    knows_steps = _STEP_OPTION in (read_text(params["task_prolog"]) or "")
    if not knows_steps or slurm_version is None or slurm_version[:2] < _OLDEST_RELEASE:
        return JobPlugin(unchanged, False)
    header_version = read_header_version()
    if (
        find_program("gcc") is not None
        and all(map(os.path.exists, REQUIRED_HEADERS))
        and job_plugin.fits(header_version, slurm_version)
    ):
        change = plan_plugin(run, params, job_plugin.SOURCE_NAME, job_plugin.SOURCE_PATH, job_plugin.LIBRARY_PATH)
        return JobPlugin(change, True)
    installed_source = read_text(job_plugin.SOURCE_PATH) or ""
    digest = push.content_digest(installed_source.partition("\n")[2].encode())
    is_current = digest == params["digests"].get(job_plugin.SOURCE_NAME)
    is_usable = (
        is_current
        and os.path.lexists(job_plugin.LIBRARY_PATH)
        and job_plugin.fits(job_plugin.parse_stamp(installed_source), slurm_version)
    )
    return JobPlugin(unchanged, is_usable)


def read_header_version() -> Optional[job_plugin.Version]:
    """Return the version of the installed headers, or None."""
    match = re.search(
        r"SLURM_VERSION_NUMBER\s+(0x[0-9a-fA-F]+)", read_text(f"{HEADER_DIRECTORY}/slurm_version.h") or ""
    )
    if match is None:
        return None
    version_number = int(match.group(1), 16)
    return version_number >> 16, version_number >> 8 & 255, version_number & 255
