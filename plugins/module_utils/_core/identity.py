# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Act as the owner of a directory instead of root, so that links lead root nowhere that the owner could not go."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import contextmanager
from typing import Iterator, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.safe_path import become_account


def require_account(user: str) -> pwd.struct_passwd:
    """Return the account of a user. Raises HostStateError if it does not exist."""
    try:
        return pwd.getpwnam(user)
    except KeyError as failure:
        raise HostStateError(
            f"There is no user {user}.", "Install the package that the account belongs to first."
        ) from failure


def ensure_account(run: Runner, user: str, home_directory: str = "/nonexistent", uid: Optional[int] = None) -> bool:
    """Create a system account, with a group of its own, if it is missing. Return whether it was created."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        uid_options = [] if uid is None else [f"--uid={uid}"]
        try:
            grp.getgrnam(user)
        except KeyError:
            run(["groupadd", "--system", *(uid_option.replace("uid", "gid") for uid_option in uid_options), user])
        useradd_command = [
            "useradd",
            "--system",
            *uid_options,
            f"--gid={user}",
            f"--home-dir={home_directory}",
            "--no-create-home",
        ]
        run([*useradd_command, "--shell=/usr/sbin/nologin", user])
        return True
    return False


@contextmanager
def acting_as(user: str) -> Iterator[pwd.struct_passwd]:
    """Open, create and delete files with the rights of ``user`` and its groups. Requires root and a single thread."""
    account_entry = require_account(user)
    if account_entry.pw_uid == os.geteuid():
        yield account_entry
        return
    original_uid, original_gid, original_groups = os.geteuid(), os.getegid(), os.getgroups()
    become_account(account_entry.pw_uid, account_entry.pw_gid)
    try:
        yield account_entry
    finally:
        os.seteuid(original_uid)
        os.setegid(original_gid)
        os.setgroups(original_groups)


def command_as(user: str, argv: List[str]) -> List[str]:
    """Return the command that runs ``argv`` with the rights of ``user``, and no way to gain more."""
    account_entry = require_account(user)
    if account_entry.pw_uid == os.geteuid():
        return argv
    setpriv_options = [
        f"--reuid={account_entry.pw_uid}",
        f"--regid={account_entry.pw_gid}",
        "--init-groups",
        "--no-new-privs",
    ]
    return ["setpriv", *setpriv_options, "--", *argv]
