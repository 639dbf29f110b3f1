# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an interrupted installation of packages has left behind. Reads files only, since each run asks each host."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

#: In the policy-rc.d that prevents services from starting while their packages are installed.
MARK = "Written by gpumesh for the time of an installation."
#: States of packages that are neither installed nor removed, in the file status.
UNFINISHED = "half-installed|unpacked|half-configured|triggers-awaited|triggers-pending"

_POLICY = "usr/sbin/policy-rc.d"
_DPKG = "var/lib/dpkg"
_PACKAGE = re.compile(rf"^Package: (\S+)\n(?:(?!Package: |\n).*\n)*?Status: \S+ \S+ (?:{UNFINISHED})$", re.MULTILINE)


def unfinished(tree: Tree) -> List[str]:
    """Descriptions of what is left behind. Empty while an installation is running."""
    found = []
    if MARK in (tree.read(_POLICY) or "") or tree.exists(f"{_POLICY}.before-gpumesh"):
        found.append("/usr/sbin/policy-rc.d is that of an interrupted installation, and services do not start")
    # As apt decides it. Only these are changes of the status, which dpkg merges when it ends.
    if any(name.isdecimal() for name in tree.names(_DPKG, "updates")):
        found.append("dpkg was interrupted")
    packages = _PACKAGE.findall(tree.read(_DPKG, "status") or "")
    if packages:
        found.append(f"not completely installed: {', '.join(packages)}")
    return [] if found and _is_running(tree.path(_DPKG, "lock-frontend")) else found


def _is_running(lock: str) -> bool:
    """Whether a process has the lock of the package manager. Does not take it, which would make others fail."""
    try:
        handle = os.open(lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        held = struct.unpack("hhqqi", fcntl.fcntl(handle, fcntl.F_GETLK, asked))
    except OSError:
        return False
    finally:
        os.close(handle)
    return bool(held[0] != fcntl.F_UNLCK)
