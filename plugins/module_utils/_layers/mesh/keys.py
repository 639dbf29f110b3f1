# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key pair of a host. wg(8) generates it there; its private half is only ever in a file of root's and in a pipe."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text, write_atomic

_KEY_MODE = 0o600


class KeyState(NamedTuple):
    """The state of a key. ``public_key`` is None if there is no key yet, and this run may not generate one."""

    public_key: Optional[str]
    key_changed: bool


def read_public_key(key_path: str, run_command: Runner) -> Optional[str]:
    """Return the public half of the key in the file; None if it does not exist. Raises HostStateError if damaged."""
    private_key = read_text(key_path)
    if private_key is None:
        return None
    try:
        return str(run_command(["wg", "pubkey"], stdin=private_key).stdout).strip()
    except CommandError as failure:
        if failure.details.get("rc") is None:
            raise
        # wg's own message is omitted, since it might quote the key.
        raise HostStateError(
            f"{key_path} does not contain a WireGuard private key.",
            "Remove the file and run the mesh layer again: the host gets a new key and registers it.",
            path=key_path,
        ) from None


def ensure_key(key_path: str, run_command: Runner, check_mode: bool) -> KeyState:
    """Make sure that ``key_path`` contains a private key that only root can read.

    In check mode, nothing is generated, and the public half of a missing key is unknown.
    """
    public_key = read_public_key(key_path, run_command)
    if public_key is None:
        if check_mode:
            return KeyState(None, True)
        os.makedirs(os.path.dirname(key_path), mode=0o700, exist_ok=True)
        private_key = run_command(["wg", "genkey"]).stdout
        public_key = str(run_command(["wg", "pubkey"], stdin=private_key).stdout).strip()
        write_atomic(key_path, private_key, _KEY_MODE)
        return KeyState(public_key, True)
    too_permissive = stat.S_IMODE(os.stat(key_path).st_mode) != _KEY_MODE
    if too_permissive and not check_mode:
        os.chmod(key_path, _KEY_MODE)
    return KeyState(public_key, too_permissive)
