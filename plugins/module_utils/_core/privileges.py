# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find out whether an account of this host can become root, as far as the host shows it."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Callable, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

#: Members of these groups can become root: by sudo or similar, by a container or virtual machine with the disk of the
#: host, or by the disk itself.
_ROOT_GROUPS = (
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
#: The files of these accounts are the keys to run programs as any user on all members.
_SERVICE_ACCOUNTS = ("munge", "slurm")
_SUDO_ALLOWED = "may run the following commands"
_SUDO_DENIED = "is not allowed to run"


def explain_root_access(run: Runner, find_program: Callable[[str], Optional[str]], user: str) -> str:
    """Explain how the account can become root; empty if it cannot, or if this host does not have it.

    ``user``: empty for the one as which Ansible connects. Unless root runs it, sudo lists only what needs no password.
    """
    is_root = os.geteuid() == 0
    if not user and is_root:
        return "Ansible becomes root from it"
    try:
        account = pwd.getpwnam(user or current_user_name())
    except KeyError:
        return ""
    if account.pw_uid == 0:
        return "it is root"
    if account.pw_name in _SERVICE_ACCOUNTS:
        return "its files are the keys to all accounts"
    root_groups = [name for name in list_group_names(account) if name in _ROOT_GROUPS]
    if root_groups:
        return f"it is a member of the group {root_groups[0]}"
    return _explain_sudo_access(run, account.pw_name, is_root) if find_program("sudo") else ""


def _explain_sudo_access(run: Runner, user_name: str, is_root: bool) -> str:
    completed = run(["sudo", "-n", "-l", *(["-U", user_name] if is_root else [])], check=False)
    if _SUDO_ALLOWED in completed.stdout:
        return "sudo lets it run commands"
    if is_root and _SUDO_DENIED not in completed.stdout + completed.stderr:
        return f"sudo does not say whether it may run commands: {printable((completed.stderr or completed.stdout).strip())}"
    return ""


def list_group_names(account: pwd.struct_passwd) -> List[str]:
    """Return the names of the groups of the account."""
    group_names = []
    for group_id in os.getgrouplist(account.pw_name, account.pw_gid):
        try:
            group_names.append(grp.getgrgid(group_id).gr_name)
        except KeyError:
            continue
    return group_names
