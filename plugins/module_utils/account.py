# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Accounts of this host: the one of this process, and one without privileges to run commands as."""

from __future__ import annotations

import os
import pwd
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError

#: Exists on every machine, with the same UID everywhere, and owns nothing.
NOBODY = "nobody"


def own_name() -> str:
    """The user name of this process, regardless of its environment. Raises HostStateError."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise HostStateError(f"User {os.geteuid()} has no account on this host.", "Create it on all hosts.") from None


def command_prefix(name: str) -> List[str]:
    """The words that make a command run as the account; empty unless we are root, and for root itself.

    The working directory is /, since ours may be one that the account cannot enter, or that others can write to.
    """
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"There is no account {name} on this host.", "Choose one that every member has.") from None
    if os.geteuid() != 0 or entry.pw_uid == 0:
        return []
    return [
        "setpriv",
        f"--reuid={entry.pw_uid}",
        f"--regid={entry.pw_gid}",
        "--clear-groups",
        "--no-new-privs",
        "env",
        "--chdir=/",
        f"HOME={entry.pw_dir}",
        f"USER={name}",
        f"LOGNAME={name}",
    ]
