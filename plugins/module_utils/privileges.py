# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether an account of this host can become root, as far as the host says."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Callable, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

#: Whoever is in one of them can become root: by sudo or its like, by a container or a machine with the host's disk, or
#: by the disk itself.
_GROUPS = (
    "root",
    "sudo",
    "wheel",
    "admin",
    "docker",
    "lxd",
    "incus",
    "incus-admin",
    "libvirt",
    "disk",
    "kmem",
    "shadow",
)
#: Their files are the keys to run programs as any user on all members.
_SERVICES = ("munge", "slurm")
_LISTED = "may run the following commands"
_NOT_LISTED = "is not allowed to run"


def reason(run: Runner, find: Callable[[str], Optional[str]], user: str) -> str:
    """How the account can become root; empty if it cannot, or if this host does not have it.

    ``user``: empty for the one as which Ansible connects. Unless root asks, sudo lists only what needs no password.
    """
    root = os.geteuid() == 0
    if not user and root:
        return "Ansible becomes root from it"
    try:
        entry = pwd.getpwnam(user or own_name())
    except KeyError:
        return ""
    if entry.pw_uid == 0:
        return "it is root"
    if entry.pw_name in _SERVICES:
        return "its files are the keys to all accounts"
    powerful = [name for name in groups_of(entry) if name in _GROUPS]
    if powerful:
        return f"it is a member of the group {powerful[0]}"
    return _by_sudo(run, entry.pw_name, root) if find("sudo") else ""


def _by_sudo(run: Runner, name: str, root: bool) -> str:
    done = run(["sudo", "-n", "-l", *(["-U", name] if root else [])], check=False)
    if _LISTED in done.stdout:
        return "sudo lets it run commands"
    if root and _NOT_LISTED not in done.stdout + done.stderr:
        return f"sudo does not say whether it may run commands: {printable((done.stderr or done.stdout).strip())}"
    return ""


def groups_of(entry: pwd.struct_passwd) -> List[str]:
    """The names of the account's groups."""
    found = []
    for number in os.getgrouplist(entry.pw_name, entry.pw_gid):
        try:
            found.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    return found
