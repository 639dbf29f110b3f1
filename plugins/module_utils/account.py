# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a command as an account without rights, where this runs as root."""

from __future__ import annotations

import os
import pwd
from typing import List

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError

#: On every machine, everywhere with the same number, and without anything of its own.
NOBODY = "nobody"


def command_prefix(name: str) -> List[str]:
    """What a command begins with that is to run as the account; nothing where we are not root, or the account is.

    Its working folder is /, since ours may be one that the account cannot enter, or that others can write to.
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
