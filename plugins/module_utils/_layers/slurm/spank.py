# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our plugins for Slurm (SPANK), which are compiled against the headers of the installed Slurm."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import program_archive, push
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner, find_program
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import compile_library
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_empty_directory,
    write_atomic,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import LayerChange
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import job_plugin, release
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version

#: How the plugin runs the task prolog.
_STEP_OPTION = "--step"
#: The first release of Slurm with which it was tested. Earlier ones may not know the GPUs of a step yet when they call it.
_OLDEST_RELEASE = (24, 11)
HEADER_DIRECTORY = "/usr/include/slurm"
REQUIRED_HEADERS = (f"{HEADER_DIRECTORY}/spank.h", "/usr/include/stdio.h")
_COMPILER = "gcc"
_HEADER_PACKAGE = "libslurm-dev"
_COMPILER_FLAGS = ("-O2", "-Wall", "-Wextra", "-fPIC", "-shared")
#: Without what only a debugger reads, since it is sent to other hosts.
_SMALL_FLAGS = (*_COMPILER_FLAGS, "-s")
_NOTHING = LayerChange(False, "", "", lambda: None)


class JobPlugin(NamedTuple):
    """The changes to the plugin that sets the environment of jobs, and what is known of it after them.

    ``slurm_version``: for which it is then compiled; None if there is none, or none that this host can use.
    ``missing_requirements``: what has to be installed before it can be compiled.
    """

    changes: Sequence[LayerChange] = ()
    slurm_version: Optional[release.Version] = None
    missing_requirements: Sequence[str] = ()

    def fits(self, slurmd_version: Optional[release.Version]) -> bool:
        """Whether slurmd will load it."""
        return job_plugin.fits(self.slurm_version, slurmd_version)


def plan_plugin(
    run: Runner, params: Mapping[str, Any], source_name: str, source_path: str, library_path: str
) -> LayerChange:
    """Plan the compilation of a plugin that each host compiles for itself.

    The source that it was compiled from is kept, after a line with the version of Slurm.
    """
    installed_source = read_text(source_path) or ""
    desired_source = _desired_source(params, source_name, installed_source)
    if desired_source is None:
        return LayerChange(True, "", f"{library_path}: the plugin\n", lambda: None, source_name)
    header_version = read_header_version()
    version_text = release.format_version(header_version) if header_version else "?"
    stamped_source = f"/* For Slurm {version_text}. */\n{desired_source}"
    is_changed = installed_source != stamped_source or not os.path.lexists(library_path)

    def apply() -> None:
        if is_changed:
            _compile(run, stamped_source, library_path, _COMPILER_FLAGS)
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


# --- The plugin that sets the environment of jobs


def plan_job_plugin(
    run: Runner,
    params: Mapping[str, Any],
    installed_version: Optional[release.Version],
) -> JobPlugin:
    """Plan the plugin that sets the environment of jobs.

    A host keeps one that fits, copies that of the manager if both have the same Slurm, architecture and C library, and
    compiles it otherwise. ``installed_version``: that of the manager's slurmctld, or of a member's slurmd; None if it is
    not installed.
    """
    slurm_version = installed_version or release.available_version(run)
    if slurm_version is None or not _is_wanted(params, slurm_version):
        return JobPlugin()
    usable_version = slurm_version if _computes_steps(params) else None
    if _is_current(params, slurm_version):
        return JobPlugin((), usable_version)
    is_copied = _is_manager_alike(params, slurm_version)
    missing_requirements = [] if is_copied else _missing_requirements(run, params, slurm_version)
    if installed_version is None or not (is_copied or missing_requirements or _can_compile(slurm_version)):
        return JobPlugin((), None, missing_requirements)
    desired_source = _desired_source(params, job_plugin.SOURCE_NAME, read_text(job_plugin.SOURCE_PATH) or "")
    source_change = (
        program_archive.missing_content_change(
            job_plugin.SOURCE_PATH, program_archive.FILE_MODE, job_plugin.SOURCE_NAME
        )
        if desired_source is None
        else _NOTHING
    )
    if is_copied:
        library_change = push.pushed_file_change(params, job_plugin.LIBRARY_NAME, job_plugin.LIBRARY_PATH)
        if desired_source is not None:
            stamped_source = params["manager_plugin"]["stamp"] + desired_source
            source_change = program_archive.file_change(job_plugin.SOURCE_PATH, stamped_source.encode())
        # The source is written last, since it shows which library is here.
        return JobPlugin((library_change, source_change), usable_version)

    def compile_plugin() -> None:
        _compile(run, desired_source or "", job_plugin.LIBRARY_PATH, _SMALL_FLAGS)
        stamp = _format_stamp(slurm_version, job_plugin.digest_library(_read_library()))
        write_atomic(job_plugin.SOURCE_PATH, stamp + (desired_source or ""), program_archive.FILE_MODE)

    library_change = LayerChange(True, "", f"{job_plugin.LIBRARY_PATH}: the plugin\n", compile_plugin)
    return JobPlugin((source_change, library_change), usable_version, missing_requirements)


def _missing_requirements(
    run: Runner,
    params: Mapping[str, Any],
    slurm_version: release.Version,
) -> List[str]:
    """Return what this host lacks to compile the plugin, and can install; nothing if the manager will have one for it."""
    if not params["install_compiler"] or _awaits_manager(params, slurm_version):
        return []
    missing_names = [path for path in REQUIRED_HEADERS if not os.path.exists(path)]
    missing_names += [] if find_program(_COMPILER) else [_COMPILER]
    # The headers that the distribution has are of no use for a Slurm from elsewhere.
    is_useful = bool(missing_names) and job_plugin.fits(release.available_version(run, _HEADER_PACKAGE), slurm_version)
    return missing_names if is_useful else []


def _awaits_manager(params: Mapping[str, Any], slurm_version: release.Version) -> bool:
    """Whether the manager has no plugin, or an outdated one, and would compile one that works here."""
    manager_build = job_plugin.parse_stamp((params["manager_plugin"] or {}).get("stamp", ""))
    if params["serve"] or manager_build is None:
        return not params["serve"]
    platform = manager_build.platform
    if params["controller_version"]:
        platform = platform._replace(slurm_version=parse_version(params["controller_version"]))
    return job_plugin.works_on(platform, _read_platform(slurm_version))


def predict_built(planned_plugin: JobPlugin, params: Mapping[str, Any]) -> Optional[Dict[str, str]]:
    """Return what ``read_built`` would return after the changes, without the library, for others in check mode."""
    if not planned_plugin.changes or planned_plugin.slurm_version is None:
        return read_built()
    return {
        "stamp": _format_stamp(planned_plugin.slurm_version, job_plugin.digest_library(b"")),
        "source_digest": params["digests"][job_plugin.SOURCE_NAME],
        "library": "",
    }


def read_built() -> Optional[Dict[str, str]]:
    """Return the plugin of this host for others: its stamp, the digest of its source, and the library, encoded.

    None if there is none.
    """
    source_text, library = read_text(job_plugin.SOURCE_PATH) or "", _read_library()
    build = job_plugin.parse_stamp(source_text)
    if build is None or build.library_digest != job_plugin.digest_library(library):
        return None
    stamp, _newline, source = source_text.partition("\n")
    return {
        "stamp": f"{stamp}\n",
        "source_digest": push.content_digest(source.encode()),
        "library": push.encode_content(library),
    }


def read_header_version() -> Optional[release.Version]:
    """Return the version of the installed headers, or None."""
    match = re.search(
        r"SLURM_VERSION_NUMBER\s+(0x[0-9a-fA-F]+)", read_text(f"{HEADER_DIRECTORY}/slurm_version.h") or ""
    )
    if match is None:
        return None
    version_number = int(match.group(1), 16)
    return version_number >> 16, version_number >> 8 & 255, version_number & 255


def _is_wanted(params: Mapping[str, Any], slurm_version: release.Version) -> bool:
    """Whether the host needs the plugin: for its own jobs, or as the manager for other members."""
    needs_plugin = params["serve"] or (params["slurm_node"] and _computes_steps(params))
    return bool(params["job_plugin"] and needs_plugin) and slurm_version[:2] >= _OLDEST_RELEASE


def _computes_steps(params: Mapping[str, Any]) -> bool:
    # The role job_environment may not have been here, or an earlier version of it.
    return _STEP_OPTION in (read_text(params["task_prolog"]) or "")


def _is_current(params: Mapping[str, Any], slurm_version: release.Version) -> bool:
    """Whether the installed plugin is of the desired source, undamaged, and for this host."""
    source_text = read_text(job_plugin.SOURCE_PATH) or ""
    build = job_plugin.parse_stamp(source_text)
    return (
        build is not None
        and job_plugin.fits(build.platform.slurm_version, slurm_version)
        and build.platform.architecture == os.uname().machine
        and push.content_digest(source_text.partition("\n")[2].encode())
        == params["digests"].get(job_plugin.SOURCE_NAME)
        and build.library_digest == job_plugin.digest_library(_read_library())
    )


def _is_manager_alike(params: Mapping[str, Any], slurm_version: release.Version) -> bool:
    """Whether the plugin of the manager is of the desired source, and works here."""
    manager_plugin = params["manager_plugin"] or {}
    build = job_plugin.parse_stamp(manager_plugin.get("stamp", ""))
    return (
        build is not None
        and manager_plugin.get("source_digest") == params["digests"].get(job_plugin.SOURCE_NAME)
        and job_plugin.works_on(build.platform, _read_platform(slurm_version))
    )


def _can_compile(slurm_version: release.Version) -> bool:
    return (
        find_program(_COMPILER) is not None
        and all(map(os.path.exists, REQUIRED_HEADERS))
        and job_plugin.fits(read_header_version(), slurm_version)
    )


def _format_stamp(slurm_version: release.Version, library_digest: str) -> str:
    return job_plugin.format_stamp(job_plugin.Build(_read_platform(slurm_version), library_digest))


def _read_platform(slurm_version: release.Version) -> job_plugin.Platform:
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except ValueError:
        # Another C library has no such name.
        libc = None
    return job_plugin.Platform(slurm_version, os.uname().machine, libc or "another C library")


def _read_library() -> bytes:
    return program_archive.read_current(job_plugin.LIBRARY_PATH, program_archive.FILE_MODE)


def _desired_source(params: Mapping[str, Any], source_name: str, installed_source: str) -> Optional[str]:
    """Return the desired source; None if it has to be pushed. ``installed_source``: with the stamp before it."""
    source = push.desired_content(params, source_name, installed_source.partition("\n")[2].encode())
    return None if source is None else source.decode()


def _compile(run: Runner, source: str, library_path: str, compiler_flags: Sequence[str]) -> None:
    required_packages = f"{_COMPILER} and {_HEADER_PACKAGE}"
    compile_library(run, "The plugin for Slurm", source, library_path, compiler_flags, required_packages)
