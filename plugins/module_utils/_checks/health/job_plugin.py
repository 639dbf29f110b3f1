# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether Slurm loads the plugin that sets the environment of jobs: it ignores one that is missing or does not fit."""

from __future__ import annotations

from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    Judgement,
    failed,
    passed,
    skipped,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_bytes
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import configure, release
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin as plugin_files

#: The file of this host, and what includes it: the controller's file, as slurmd has fetched it or as it is on the manager.
_NODE_FILE = "etc/slurm/plugstack.conf.d/gpumesh.conf"
_SERVED_FILES = ("run/slurm/conf/plugstack.conf", "etc/slurm/plugstack.conf")
_TASK_PROLOG = "etc/gpumesh/task_prolog"
_REMEDY = "Run the slurm playbook, which compiles it."


class InstalledPlugin(NamedTuple):
    """What Slurm finds. ``is_wanted``: this host has it in place of the task prolog.

    ``library_digest``: empty if there is no library. ``build``: what was installed.
    """

    is_wanted: bool
    has_program: bool
    is_included: bool
    library_digest: str
    build: Optional[plugin_files.Build]


def read_plugin(tree: Tree) -> InstalledPlugin:
    """Read the plugin that is installed, and the files by which Slurm finds it."""
    library = read_bytes(tree.path(plugin_files.LIBRARY_PATH.lstrip("/")))
    served_text = next((text for text in map(tree.read, _SERVED_FILES) if text is not None), None)
    return InstalledPlugin(
        plugin_files.LIBRARY_PATH in (tree.read(_NODE_FILE) or ""),
        tree.exists(_TASK_PROLOG),
        configure.includes_plugins(served_text, configure.CONFIG_DIRECTORY),
        plugin_files.digest_library(library) if library else "",
        plugin_files.parse_stamp(tree.read(plugin_files.SOURCE_PATH.lstrip("/")) or ""),
    )


def judge_plugin(plugin: InstalledPlugin, slurm_version: Optional[release.Version]) -> Judgement:
    """Judge whether jobs get their environment from the plugin, where that is in place of the task prolog."""
    if not plugin.is_wanted:
        return skipped(
            "Slurm's TaskProlog sets the environment of jobs, so steps in containers of Slurm plugins such as pyxis cannot "
            "run here. The plugin for that needs Slurm 24.11 or later, with gcc and libslurm-dev on the manager or here."
            if plugin.has_program
            else "This host does not set the environment of jobs."
        )
    problem = _find_problem(plugin, slurm_version)
    if problem:
        return failed("not loaded", "loaded", f"Jobs get no environment: {problem}.", _REMEDY)
    return passed("loaded", "loaded")


def _find_problem(plugin: InstalledPlugin, slurm_version: Optional[release.Version]) -> str:
    if not plugin.has_program:
        return f"/{_TASK_PROLOG} is missing"
    if not plugin.library_digest:
        return f"{plugin_files.LIBRARY_PATH} is missing"
    if plugin.build is None or plugin.build.library_digest != plugin.library_digest:
        return f"{plugin_files.LIBRARY_PATH} is not the one that was installed"
    if not plugin_files.fits(plugin.build.platform.slurm_version, slurm_version):
        return f"{plugin_files.LIBRARY_PATH} was compiled for another release of Slurm"
    return "" if plugin.is_included else f"the controller's plugstack.conf does not include /{_NODE_FILE}"
