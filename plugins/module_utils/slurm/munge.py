# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The munge key of a cluster: one file, the same on every member, readable only by munged."""

from __future__ import annotations

import base64
import binascii
import errno
import hashlib
import os
import pwd
import stat
from typing import NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import write_atomic

#: Bytes; munge(7) accepts 32 to 1024, and its own tool generates 128.
_SHORTEST, _LONGEST, _MADE = 32, 1024, 128

#: How unmunge(1) exits, without a word, for a credential that was signed with munged's own key.
_REPLAYED = 17
_SILENT = {15: "it has expired", 16: "it was created in the future"}


class Account(NamedTuple):
    """The owner of the key file."""

    uid: int
    gid: int


class State(NamedTuple):
    """The current key file. ``tight``: only its owner can read it."""

    key: Optional[bytes]
    owner: Optional[Account]
    tight: bool


def decode(content: str) -> bytes:
    """Decode the key from base64. Raises InputError, which never quotes it."""
    try:
        key = base64.b64decode(content.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise InputError("The munge key is not base64.", "Encode the key file with base64.") from failure
    if not _SHORTEST <= len(key) <= _LONGEST:
        raise InputError(
            f"The munge key has {len(key)} bytes; munge accepts {_SHORTEST} to {_LONGEST}.",
            f"Generate one with 'dd if=/dev/urandom bs={_MADE} count=1'.",
        )
    return key


def encode(key: bytes) -> str:
    """The key in base64, as accepted by decode()."""
    return base64.b64encode(key).decode("ascii")


def fingerprint(key: bytes) -> str:
    """Distinguishes keys without revealing them."""
    return hashlib.sha256(key).hexdigest()[:16]


def account(user: str) -> Optional[Account]:
    """The user that runs munged, or None if the package has not created it yet."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid)


def read_state(path: str) -> State:
    """The key file of this host."""
    try:
        # The folder belongs to munged: links in it are not followed, pipes do not block, and at most the size of a key
        # is read.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            about = os.fstat(stream.fileno())
            if stat.S_ISREG(about.st_mode) and about.st_nlink == 1:
                key = stream.read(_LONGEST + 1)
                return State(key, Account(about.st_uid, about.st_gid), about.st_mode & 0o077 == 0)
    except FileNotFoundError:
        return State(None, None, True)
    except OSError as failure:
        if failure.errno != errno.ELOOP:
            raise HostStateError(f"{path} cannot be read: {failure.strerror}.", path=path) from failure
    raise HostStateError(f"{path} is not a plain file with a single link.", "Delete it.", path=path)


def desired_key(state: State, given: Optional[bytes], generate: bool, rotate: bool) -> Optional[bytes]:
    """The key that the file should have: the given one, a new one, or the current one."""
    if given is not None:
        return given
    if rotate or (generate and state.key is None):
        return os.urandom(_MADE)
    return state.key


def differs(state: State, key: bytes, owner: Account) -> bool:
    """Whether the file has to be written."""
    return state.key != key or state.owner != owner or not state.tight


def write(path: str, key: bytes, owner: Account) -> None:
    """Write the key. The folder must belong to munged as well: munged refuses a key that others could replace."""
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    os.chown(folder, owner.uid, owner.gid)
    write_atomic(path, key, mode=0o400, owner=(owner.uid, owner.gid))


def is_stale(path: str, socket: str) -> bool:
    """Whether munged does not run, or has read an older key: the age of its socket is its own."""
    try:
        return os.stat(socket).st_mtime < os.stat(path).st_mtime
    except FileNotFoundError:
        return True


def sign(run: Runner) -> Tuple[str, str]:
    """A credential, or the reason why there is none.

    With the longest lifetime, an hour: it is signed once for all members, and some may verify it after the usual 300 s.
    """
    done = run(["munge", "--no-input", "--ttl=-1"], check=False)
    return (done.stdout.strip(), "") if done.rc == 0 else ("", done.stderr.strip())


def verify(run: Runner, credential: str) -> Tuple[bool, str]:
    """Whether munged accepts it, and why not.

    One that it has accepted before is as good: a module whose connection breaks off may be run again by Ansible.
    """
    if not credential:
        return False, "the manager has signed nothing"
    # Its payload is empty, and the identity of the signer is irrelevant.
    done = run(["unmunge", "--metadata=/dev/null", "--output=/dev/null"], stdin=credential, check=False)
    if done.rc in (0, _REPLAYED):
        return True, ""
    return False, done.stderr.strip() or _SILENT.get(done.rc, f"unmunge exited {done.rc}")
