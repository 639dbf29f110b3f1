# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that always have either the old or the new content, even if they are written during a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import List, Optional, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.guarded import account_name, unusual

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_text(path: str) -> Optional[str]:
    """The text of a file, or None if it does not exist."""
    try:
        raw = read_bytes(path)
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure


def read_bytes(path: str, follow: bool = True) -> Optional[bytes]:
    """The content of a file, or None if it does not exist. Never blocks: pipes and devices are refused."""
    try:
        descriptor = os.open(path, _READ | (0 if follow else os.O_NOFOLLOW))
    except FileNotFoundError:
        return None
    except OSError as failure:
        if failure.errno == errno.ENXIO:
            raise unusual(path, stat.S_IFSOCK) from failure
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure
    try:
        return read_open(path, descriptor)
    finally:
        os.close(descriptor)


def open_plain(path: str) -> int:
    """Open a file that may belong to another user for reading. Never blocks: pipes and devices are refused.

    So are links of another user to what is not theirs: what is read may be shown where they can see it. Returns a
    descriptor. Raises OSError and HostStateError.
    """
    link = os.lstat(path)
    descriptor = os.open(path, _READ | (0 if stat.S_ISLNK(link.st_mode) else os.O_NOFOLLOW))
    about = os.fstat(descriptor)
    try:
        _refuse_unusual(path, about.st_mode)
        _refuse_foreign(path, link, about)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_unusual(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise unusual(path, mode)


def refuse_foreign_link(path: str) -> None:
    """Raises HostStateError for a link of another user to what is not theirs, and OSError."""
    _refuse_foreign(path, os.lstat(path), os.stat(path))


def _refuse_foreign(path: str, link: os.stat_result, target: os.stat_result) -> None:
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), target.st_uid):
        raise HostStateError(
            f"{path} is a link of {account_name(link.st_uid)} to what belongs to {account_name(target.st_uid)}.",
            "Give a copy instead.",
            path=path,
        )


def _size(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count >> 10} KiB"


def read_open(path: str, descriptor: int, limit: int = limited.LARGEST) -> bytes:
    """The whole content of an open file of at most ``limit`` bytes. ``path`` is for error messages."""
    try:
        _refuse_unusual(path, os.fstat(descriptor).st_mode)
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            raw = limited.read(stream, limit)
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure
    if raw is None:
        raise HostStateError(
            f"{path} is larger than {_size(limit)}, more than such a file can be.",
            "Move it away, and run again.",
            path=path,
        )
    return raw


def write_atomic(
    path: str, content: Union[str, bytes], mode: int = 0o600, owner: Optional[Tuple[int, int]] = None
) -> None:
    """Replace ``path`` by ``content`` in one step that survives a power cut. Raises OSError, which names ``path``."""
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_in(folder, os.path.basename(path), content, mode, owner)
        finally:
            os.close(folder)
    except OSError as failure:
        # The error itself names the temporary file, or none.
        raise OSError(failure.errno, failure.strerror, path) from failure


def write_in(
    folder: int, name: str, content: Union[str, bytes], mode: int = 0o600, owner: Optional[Tuple[int, int]] = None
) -> None:
    """Replace a file in an open folder, as ``write_atomic`` does.

    The content is written to a temporary file beside it with its final mode and, if given, ``owner`` (user and group
    ID). The file is synced and renamed; then the folder is synced, which contains the new name.
    """
    temporary = f".{name}.{secrets.token_hex(6)}"
    handle = os.open(temporary, _NEW, 0o600, dir_fd=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        # Also on a signal: a temporary file that may contain a key must not remain.
        remove_in(folder, temporary)
        raise
    # The descriptor may have been opened with O_PATH, which cannot be synced.
    synced = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(synced)
    finally:
        os.close(synced)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data to a descriptor that may accept only a part at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_file(path: str) -> bool:
    """Delete ``path``. Returns whether it existed."""
    return remove_in(None, path)


def remove_in(folder: Optional[int], name: str) -> bool:
    """Delete a file in an open folder. Returns whether it existed."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def names_in(folder: str) -> List[str]:
    """The names in a folder, sorted; none if it does not exist."""
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


def remove_empty(folder: str) -> None:
    """Delete a folder if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
