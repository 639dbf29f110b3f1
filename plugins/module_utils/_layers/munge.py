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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import Runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import write_atomic

#: Lengths in bytes: munge(7) accepts 32 to 1024, and its own tool generates 128.
_MIN_KEY_LENGTH, _MAX_KEY_LENGTH, _NEW_KEY_LENGTH = 32, 1024, 128

#: The statuses with which unmunge(1) exits, without a message, for a credential that was signed with munged's own key.
_REPLAYED_STATUS = 17
_SILENT_FAILURES = {15: "it has expired", 16: "it was created in the future"}


class KeyOwner(NamedTuple):
    """The owner of the key file."""

    uid: int
    gid: int


class KeyFile(NamedTuple):
    """The current key file. ``is_private``: only its owner can read it."""

    key: Optional[bytes]
    owner: Optional[KeyOwner]
    is_private: bool


def decode_key(encoded_key: str) -> bytes:
    """Decode the key from base64. Raises InputError, which never quotes it."""
    try:
        key = base64.b64decode(encoded_key.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise InputError("The munge key is not base64.", "Encode the key file with base64.") from failure
    if not _MIN_KEY_LENGTH <= len(key) <= _MAX_KEY_LENGTH:
        raise InputError(
            f"The munge key has {len(key)} bytes; munge accepts {_MIN_KEY_LENGTH} to {_MAX_KEY_LENGTH}.",
            f"Generate one with 'dd if=/dev/urandom bs={_NEW_KEY_LENGTH} count=1'.",
        )
    return key


def encode_key(key: bytes) -> str:
    """Return the key in base64, as accepted by decode_key()."""
    return base64.b64encode(key).decode("ascii")


def key_fingerprint(key: bytes) -> str:
    """Return a short hash that distinguishes keys without revealing them."""
    return hashlib.sha256(key).hexdigest()[:16]


def find_key_owner(user: str) -> Optional[KeyOwner]:
    """Return the account that runs munged, or None if the package has not created it yet."""
    try:
        passwd_entry = pwd.getpwnam(user)
    except KeyError:
        return None
    return KeyOwner(passwd_entry.pw_uid, passwd_entry.pw_gid)


def read_key_file(key_path: str) -> KeyFile:
    """Read the key file of this host."""
    try:
        # The directory belongs to munged: links in it are not followed, pipes do not block, and at most the size of a
        # key is read.
        with open(os.open(key_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            file_status = os.fstat(stream.fileno())
            if stat.S_ISREG(file_status.st_mode) and file_status.st_nlink == 1:
                key = stream.read(_MAX_KEY_LENGTH + 1)
                return KeyFile(key, KeyOwner(file_status.st_uid, file_status.st_gid), file_status.st_mode & 0o077 == 0)
    except FileNotFoundError:
        return KeyFile(None, None, True)
    except OSError as failure:
        if failure.errno != errno.ELOOP:
            raise HostStateError(f"{key_path} cannot be read: {failure.strerror}.", path=key_path) from failure
    raise HostStateError(f"{key_path} is not a plain file with a single link.", "Delete it.", path=key_path)


def desired_key(key_file: KeyFile, provided_key: Optional[bytes], generate: bool, rotate: bool) -> Optional[bytes]:
    """Return the key that the file should have: the provided one, a new one, or the current one."""
    if provided_key is not None:
        return provided_key
    if rotate or (generate and key_file.key is None):
        return os.urandom(_NEW_KEY_LENGTH)
    return key_file.key


def needs_write(key_file: KeyFile, key: bytes, owner: KeyOwner) -> bool:
    """Whether the file has to be written."""
    return key_file.key != key or key_file.owner != owner or not key_file.is_private


def write_key(key_path: str, key: bytes, owner: KeyOwner) -> None:
    """Write the key. Its directory belongs to munged too, which refuses a key that others could replace."""
    key_directory = os.path.dirname(key_path)
    os.makedirs(key_directory, mode=0o700, exist_ok=True)
    os.chown(key_directory, owner.uid, owner.gid)
    write_atomic(key_path, key, mode=0o400, owner=(owner.uid, owner.gid))


def is_stale(key_path: str, socket_path: str) -> bool:
    """Whether munged does not run, or was started before the key was written, by the age of its socket."""
    try:
        return os.stat(socket_path).st_mtime < os.stat(key_path).st_mtime
    except FileNotFoundError:
        return True


def sign_credential(run: Runner) -> Tuple[str, str]:
    """Return a credential and an empty string, or an empty string and the reason why there is none.

    It has the longest lifetime, an hour: it is signed once for all members, and some may verify it after the usual
    300 s.
    """
    munge_result = run(["munge", "--no-input", "--ttl=-1"], check=False)
    return (munge_result.stdout.strip(), "") if munge_result.rc == 0 else ("", munge_result.stderr.strip())


def verify_credential(run: Runner, credential: str) -> Tuple[bool, str]:
    """Return whether munged accepts the credential, and the reason if it does not.

    A credential that it has accepted before is valid too: Ansible may run a module again after a lost connection.
    """
    if not credential:
        return False, "the manager has not signed a credential"
    # The payload is empty, and the identity of the signer is irrelevant.
    unmunge_result = run(["unmunge", "--metadata=/dev/null", "--output=/dev/null"], stdin=credential, check=False)
    if unmunge_result.rc in (0, _REPLAYED_STATUS):
        return True, ""
    return False, unmunge_result.stderr.strip() or _SILENT_FAILURES.get(
        unmunge_result.rc, f"unmunge exited {unmunge_result.rc}"
    )
