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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, remove_file, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust.host import (
    SIGNING_KEY_NAME,
    find_exposed_keys,
)

_WORK_PREFIX = ".new-"


def certify_users(run: Runner, trust_directory: str, users: Sequence[str], identifier: str) -> None:
    """Make sure that all users have a certified key, and that the signing key exists.

    Existing keys are kept, except for those that other accounts may know. These could log in with a copy of such a key
    and its certificate as long as the members accept the signing key, so that is replaced as well.

    ``users``: HostTrust.uncertified_users; ``identifier`` as for read_host_trust(). Raises GpumeshError.
    """
    with _work_directory(trust_directory) as work_directory:
        signing_key = os.path.join(trust_directory, SIGNING_KEY_NAME)
        exposed_keys = find_exposed_keys(trust_directory, users)
        # The signing key is removed first: after an interruption, the next run still sees the other exposed keys.
        for key_name in [SIGNING_KEY_NAME, *exposed_keys] if exposed_keys else []:
            remove_file(os.path.join(trust_directory, key_name))
        _ensure_key_pair(run, work_directory, signing_key, "root")
        for user in users:
            key_path, copied_path = os.path.join(trust_directory, user), os.path.join(work_directory, user)
            _ensure_key_pair(run, work_directory, key_path, user)
            shutil.copyfile(f"{key_path}.pub", f"{copied_path}.pub")
            sign_command = ["ssh-keygen", "-q", "-s", signing_key, "-I", identifier.format(user=user), "-n", user]
            run([*sign_command, "-V", "always:forever", f"{copied_path}.pub"])
            write_atomic(f"{key_path}-cert.pub", read_text(f"{copied_path}-cert.pub") or "", 0o644)


@contextmanager
def _work_directory(trust_directory: str) -> Iterator[str]:
    """A private directory for unfinished files, on the same file system."""
    for leftover in glob.glob(os.path.join(trust_directory, f"{_WORK_PREFIX}*")):
        # An interrupted run has left this directory.
        shutil.rmtree(leftover)
    work_directory = tempfile.mkdtemp(prefix=_WORK_PREFIX, dir=trust_directory)
    try:
        yield work_directory
    finally:
        shutil.rmtree(work_directory)


def _ensure_key_pair(run: Runner, work_directory: str, key_path: str, owner: str) -> None:
    """Create a pair of keys whose private half only its owner can read."""
    if not os.path.exists(key_path):
        new_key_path = os.path.join(work_directory, "key")
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", new_key_path])
        account = pwd.getpwnam(owner)
        os.chown(new_key_path, account.pw_uid, account.pw_gid)
        os.replace(new_key_path, key_path)
    try:
        public_key = run(["ssh-keygen", "-y", "-P", "", "-f", key_path]).stdout.strip()
    except CommandError as failure:
        raise HostStateError(
            f"The key {key_path} cannot be used: {failure.message}", f"Remove {key_path} and run again.", path=key_path
        ) from failure
    if (read_text(f"{key_path}.pub") or "").strip() != public_key:
        write_atomic(f"{key_path}.pub", public_key + "\n", 0o644)
