# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of this host: that of this process, and an unprivileged one for running commands."""

from __future__ import annotations

import os
import pwd
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError

#: This account exists on every machine, has the same UID everywhere, and owns nothing.
NOBODY = "nobody"


def current_user_name() -> str:
    """Return the user name of this process, regardless of its environment. Raises HostStateError."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise HostStateError(f"User {os.geteuid()} has no account on this host.", "Create it on all hosts.") from None


def command_prefix(user_name: str) -> List[str]:
    """Return the arguments that make a command run as the account; empty unless we are root, and for root itself.

    The working directory is /, since the account may not be able to enter ours, or others may be able to write to it.
    """
    try:
        account = pwd.getpwnam(user_name)
    except KeyError:
        raise InputError(
            f"There is no account {user_name} on this host.", "Choose one that every member has."
        ) from None
    if os.geteuid() != 0 or account.pw_uid == 0:
        return []
    return [
        "setpriv",
        f"--reuid={account.pw_uid}",
        f"--regid={account.pw_gid}",
        "--clear-groups",
        "--no-new-privs",
        "env",
        "--chdir=/",
        f"HOME={account.pw_dir}",
        f"USER={user_name}",
        f"LOGNAME={user_name}",
    ]
