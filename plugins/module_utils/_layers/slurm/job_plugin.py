# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plugin that sets the environment of jobs: where it is, and for which hosts it was compiled.

The health program needs no more than this. ``spank.py`` compiles it.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.compiler import LIBRARY_DIRECTORY
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm import release
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.slurm.host import parse_version

SOURCE_NAME = "gpumesh_job_environment.c"
SOURCE_PATH = f"{LIBRARY_DIRECTORY}/{SOURCE_NAME}"
LIBRARY_NAME = "gpumesh_job_environment.so"
LIBRARY_PATH = f"{LIBRARY_DIRECTORY}/{LIBRARY_NAME}"
_STAMP = re.compile(r"/\* For Slurm (\d+\.\d+\.\d+) on (\S+) with ([^:\n]+): ([0-9a-f]{64})\. \*/\n")


class Platform(NamedTuple):
    """What a plugin was compiled for, such as Slurm 24.11.5 on x86_64 with glibc 2.41."""

    slurm_version: release.Version
    architecture: str
    libc: str


class Build(NamedTuple):
    """A compiled plugin. ``library_digest``: of its library, in hexadecimal digits."""

    platform: Platform
    library_digest: str


def digest_library(library: bytes) -> str:
    """Return the digest by which a stamp knows its library."""
    return hashlib.sha256(library).hexdigest()


def format_stamp(build: Build) -> str:
    """Return the first line of the installed source of the plugin. It tells which library belongs to the source."""
    slurm_version, architecture, libc = build.platform
    version_text = release.format_version(slurm_version)
    return f"/* For Slurm {version_text} on {architecture} with {libc}: {build.library_digest}. */\n"


def parse_stamp(source_text: str) -> Optional[Build]:
    """Return what a plugin was compiled for, from its installed source."""
    match = _STAMP.match(source_text)
    if match is None:
        return None
    version_text, architecture, libc, library_digest = match.groups()
    return Build(Platform(parse_version(version_text), architecture, libc), library_digest)


def fits(plugin_version: Optional[release.Version], slurm_version: Optional[release.Version]) -> bool:
    """Whether Slurm loads a plugin: it compares the release, without the last number of the version."""
    return plugin_version is not None and slurm_version is not None and plugin_version[:2] == slurm_version[:2]


def works_on(built_for: Platform, host_platform: Platform) -> bool:
    """Whether a library that was compiled for one platform works on another one."""
    return fits(built_for.slurm_version, host_platform.slurm_version) and built_for[1:] == host_platform[1:]
