# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key pair of a host. wg(8) generates it there; its private half is only ever in a file of root's and in a pipe."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text, write_atomic

_MODE = 0o600


class KeyState(NamedTuple):
    """``public_key`` is None if there is no key yet, and this run may not generate one."""

    public_key: Optional[str]
    changed: bool


def read_public_key(path: str, run: Runner) -> Optional[str]:
    """The public half of the key in ``path``; None if it does not exist. Raises HostStateError for a damaged file."""
    private = read_text(path)
    if private is None:
        return None
    try:
        return str(run(["wg", "pubkey"], stdin=private).stdout).strip()
    except CommandError as failure:
        if failure.details.get("rc") is None:
            raise
        # wg's own message is omitted, since it might quote the key.
        raise HostStateError(
            f"{path} does not contain a WireGuard private key.",
            "Remove the file and run the mesh layer again: the host gets a new key and registers it.",
            path=path,
        ) from None


def ensure_key(path: str, run: Runner, check_mode: bool) -> KeyState:
    """Make sure that ``path`` contains a private key that only root can read.

    In check mode, nothing is generated, and the public half of a missing key is unknown.
    """
    public_key = read_public_key(path, run)
    if public_key is None:
        if check_mode:
            return KeyState(None, True)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        private = run(["wg", "genkey"]).stdout
        public_key = str(run(["wg", "pubkey"], stdin=private).stdout).strip()
        write_atomic(path, private, _MODE)
        return KeyState(public_key, True)
    loose = stat.S_IMODE(os.stat(path).st_mode) != _MODE
    if loose and not check_mode:
        os.chmod(path, _MODE)
    return KeyState(public_key, loose)
