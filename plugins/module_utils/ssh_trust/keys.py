# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of a host's users, and the key that certifies them. The private halves never leave the host."""

from __future__ import annotations

import glob
import os
import pwd
import shutil
import tempfile
from contextlib import contextmanager
from typing import Iterator, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust.host import SIGNING, exposed

_WORK = ".new-"


def certify(run: Runner, folder: str, users: Sequence[str], identifier: str) -> None:
    """Make sure that all users have a certified key, and that the signing key exists.

    Existing keys are kept, except for those that other accounts may know. With a copy of such a key and its certificate,
    they could log in for as long as the others accept the signing key, so this one is replaced as well.

    ``users``: Host.uncertified; ``identifier`` as for look(). Raises GpumeshError.
    """
    with _work_in(folder) as work:
        signing_key = os.path.join(folder, SIGNING)
        leaked = exposed(folder, users)
        # The signing key first: after an interruption, the next run still sees the others.
        for name in [SIGNING, *leaked] if leaked else []:
            remove_file(os.path.join(folder, name))
        _have_pair(run, work, signing_key, "root")
        for user in users:
            path, copy = os.path.join(folder, user), os.path.join(work, user)
            _have_pair(run, work, path, user)
            shutil.copyfile(f"{path}.pub", f"{copy}.pub")
            sign = ["ssh-keygen", "-q", "-s", signing_key, "-I", identifier.format(user=user), "-n", user]
            run([*sign, "-V", "always:forever", f"{copy}.pub"])
            write_atomic(f"{path}-cert.pub", read_text(f"{copy}-cert.pub") or "", 0o644)


@contextmanager
def _work_in(folder: str) -> Iterator[str]:
    """A private directory for unfinished files, on the same file system."""
    for left in glob.glob(os.path.join(folder, f"{_WORK}*")):
        # Left by an interrupted run.
        shutil.rmtree(left)
    work = tempfile.mkdtemp(prefix=_WORK, dir=folder)
    try:
        yield work
    finally:
        shutil.rmtree(work)


def _have_pair(run: Runner, work: str, path: str, owner: str) -> None:
    """Create a pair of keys whose private half only its owner can read."""
    if not os.path.exists(path):
        made = os.path.join(work, "key")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", made])
        account = pwd.getpwnam(owner)
        os.chown(made, account.pw_uid, account.pw_gid)
        os.replace(made, path)
    try:
        public_key = run(["ssh-keygen", "-y", "-P", "", "-f", path]).stdout.strip()
    except CommandError as failure:
        raise HostStateError(
            f"The key {path} cannot be used: {failure.message}", f"Remove {path} and run again.", path=path
        ) from failure
    if (read_text(f"{path}.pub") or "").strip() != public_key:
        write_atomic(f"{path}.pub", public_key + "\n", 0o644)
