# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Act as the owner of a folder instead of root, so that links of the owner lead nowhere that the owner could not go."""

from __future__ import annotations

import grp
import os
import pwd
from contextlib import contextmanager
from typing import Iterator, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.guarded import become


def account(user: str) -> pwd.struct_passwd:
    """The account of a user. Raises HostStateError if it does not exist."""
    try:
        return pwd.getpwnam(user)
    except KeyError as failure:
        raise HostStateError(
            f"There is no user {user}.", "Install the package that the account belongs to first."
        ) from failure


def make_account(run: Runner, user: str, home: str = "/nonexistent", uid: Optional[int] = None) -> bool:
    """Create a system account, with a group of its own, if it is missing. Returns whether it was created."""
    try:
        pwd.getpwnam(user)
    except KeyError:
        numbers = [] if uid is None else [f"--uid={uid}"]
        try:
            grp.getgrnam(user)
        except KeyError:
            run(["groupadd", "--system", *(number.replace("uid", "gid") for number in numbers), user])
        argv = ["useradd", "--system", *numbers, f"--gid={user}", f"--home-dir={home}", "--no-create-home"]
        run([*argv, "--shell=/usr/sbin/nologin", user])
        return True
    return False


@contextmanager
def acting_as(user: str) -> Iterator[pwd.struct_passwd]:
    """Open, create and delete files with the rights of ``user`` and its groups. Requires root and a single thread."""
    entry = account(user)
    if entry.pw_uid == os.geteuid():
        yield entry
        return
    user_before, group_before, groups_before = os.geteuid(), os.getegid(), os.getgroups()
    become(entry.pw_uid, entry.pw_gid)
    try:
        yield entry
    finally:
        os.seteuid(user_before)
        os.setegid(group_before)
        os.setgroups(groups_before)


def command_as(user: str, argv: List[str]) -> List[str]:
    """The command that runs ``argv`` with the rights of ``user``, and no way to gain more."""
    entry = account(user)
    if entry.pw_uid == os.geteuid():
        return argv
    rights = [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--init-groups", "--no-new-privs"]
    return ["setpriv", *rights, "--", *argv]
