# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find what an interrupted installation of packages has left behind. Only files are read: each run checks each host."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

#: This comment marks the policy-rc.d that prevents services from starting while their packages are installed.
POLICY_MARK = "Written by gpumesh for the time of an installation."
#: States of packages that are neither installed nor removed, in the file status.
UNFINISHED_STATES = "half-installed|unpacked|half-configured|triggers-awaited|triggers-pending"

_POLICY_PATH = "usr/sbin/policy-rc.d"
_DPKG_DIRECTORY = "var/lib/dpkg"
_UNFINISHED_PACKAGE = re.compile(
    rf"^Package: (\S+)\n(?:(?!Package: |\n).*\n)*?Status: \S+ \S+ (?:{UNFINISHED_STATES})$", re.MULTILINE
)


def find_leftovers(tree: Tree) -> List[str]:
    """Return descriptions of what is left behind. Empty while an installation is running."""
    leftovers = []
    if POLICY_MARK in (tree.read(_POLICY_PATH) or "") or tree.exists(f"{_POLICY_PATH}.before-gpumesh"):
        leftovers.append("/usr/sbin/policy-rc.d is that of an interrupted installation, and services do not start")
    # apt decides in the same way: only files with numeric names are changes of the status that dpkg has not merged yet.
    if any(name.isdecimal() for name in tree.list_names(_DPKG_DIRECTORY, "updates")):
        leftovers.append("dpkg was interrupted")
    unfinished_packages = _UNFINISHED_PACKAGE.findall(tree.read(_DPKG_DIRECTORY, "status") or "")
    if unfinished_packages:
        leftovers.append(f"not completely installed: {', '.join(unfinished_packages)}")
    return [] if leftovers and _is_locked(tree.path(_DPKG_DIRECTORY, "lock-frontend")) else leftovers


def _is_locked(lock_path: str) -> bool:
    """Whether a process has the lock of the package manager. Taking the lock to find out would make others fail."""
    try:
        lock_descriptor = os.open(lock_path, os.O_RDONLY)
    except OSError:
        return False
    try:
        lock_request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        existing_lock = struct.unpack("hhqqi", fcntl.fcntl(lock_descriptor, fcntl.F_GETLK, lock_request))
    except OSError:
        return False
    finally:
        os.close(lock_descriptor)
    return bool(existing_lock[0] != fcntl.F_UNLCK)
