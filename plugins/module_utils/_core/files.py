# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read and replace files, which always have either the old or the new content, even after a crash."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import List, Optional, Tuple, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.safe_path import account_name, irregular_file_error

_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_text(path: str) -> Optional[str]:
    """Return the text of a file, or None if it does not exist."""
    try:
        content = read_bytes(path)
        return None if content is None else content.decode("utf-8")
    except UnicodeDecodeError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure


def read_bytes(path: str, follow_links: bool = True) -> Optional[bytes]:
    """Return the content of a file, or None if it does not exist. Never blocks: pipes and devices are refused."""
    try:
        descriptor = os.open(path, _READ_FLAGS | (0 if follow_links else os.O_NOFOLLOW))
    except FileNotFoundError:
        return None
    except OSError as failure:
        if failure.errno == errno.ENXIO:
            raise irregular_file_error(path, stat.S_IFSOCK) from failure
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure
    try:
        return read_open_file(path, descriptor)
    finally:
        os.close(descriptor)


def open_regular_file(path: str) -> int:
    """Open a file for reading that may belong to another user. Never blocks: pipes and devices are refused.

    Links of another user to files that are not theirs are refused too, since the content may be shown where that user
    can see it. Return a descriptor. Raises OSError and HostStateError.
    """
    link_status = os.lstat(path)
    descriptor = os.open(path, _READ_FLAGS | (0 if stat.S_ISLNK(link_status.st_mode) else os.O_NOFOLLOW))
    file_status = os.fstat(descriptor)
    try:
        _refuse_irregular(path, file_status.st_mode)
        _refuse_foreign_target(path, link_status, file_status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_irregular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise irregular_file_error(path, mode)


def refuse_foreign_link(path: str) -> None:
    """Refuse a link of another user to a file that is not theirs. Raises HostStateError and OSError."""
    _refuse_foreign_target(path, os.lstat(path), os.stat(path))


def _refuse_foreign_target(path: str, link_status: os.stat_result, target_status: os.stat_result) -> None:
    if stat.S_ISLNK(link_status.st_mode) and link_status.st_uid not in (os.geteuid(), target_status.st_uid):
        raise HostStateError(
            f"{path} is a link of {account_name(link_status.st_uid)} to what belongs to {account_name(target_status.st_uid)}.",
            "Give the path of a copy instead.",
            path=path,
        )


def _format_limit(byte_count: int) -> str:
    return f"{byte_count >> 20} MiB" if byte_count >= 1 << 20 else f"{byte_count >> 10} KiB"


def read_open_file(path: str, descriptor: int, size_limit: int = bounded_read.MAX_SIZE) -> bytes:
    """Return the whole content of an open file of at most ``size_limit`` bytes. ``path`` is for error messages."""
    try:
        _refuse_irregular(path, os.fstat(descriptor).st_mode)
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            content = bounded_read.read(stream, size_limit)
    except OSError as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", path=path) from failure
    if content is None:
        raise HostStateError(
            f"{path} is larger than {_format_limit(size_limit)}, more than such a file can be.",
            "Move it away, and run again.",
            path=path,
        )
    return content


def write_atomic(
    path: str, content: Union[str, bytes], mode: int = 0o600, owner: Optional[Tuple[int, int]] = None
) -> None:
    """Replace ``path`` with ``content`` in one step that survives a power cut. Raises OSError, which names ``path``."""
    try:
        directory_fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_in_directory(directory_fd, os.path.basename(path), content, mode, owner)
        finally:
            os.close(directory_fd)
    except OSError as failure:
        # The original error names the temporary file, or no file at all.
        raise OSError(failure.errno, failure.strerror, path) from failure


def write_in_directory(
    directory_fd: int,
    file_name: str,
    content: Union[str, bytes],
    mode: int = 0o600,
    owner: Optional[Tuple[int, int]] = None,
) -> None:
    """Replace a file in an open directory, as ``write_atomic`` does.

    The content is written to a temporary file in the same directory, with the final mode and, if set, ``owner`` (user
    and group ID). The file is synced and renamed; then the directory is synced, which contains the new name.
    """
    temporary_name = f".{file_name}.{secrets.token_hex(6)}"
    temporary_fd = os.open(temporary_name, _CREATE_FLAGS, 0o600, dir_fd=directory_fd)
    try:
        with os.fdopen(temporary_fd, "wb") as stream:
            if owner is not None:
                os.fchown(stream.fileno(), *owner)
            os.fchmod(stream.fileno(), mode)
            stream.write(content if isinstance(content, bytes) else content.encode("utf-8"))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary_name, file_name, src_dir_fd=directory_fd, dst_dir_fd=directory_fd)
    except BaseException:
        # A temporary file that may contain a key must not remain, even after a signal.
        remove_in_directory(directory_fd, temporary_name)
        raise
    # The descriptor may have been opened with O_PATH, which cannot be synced.
    synced_directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory_fd)
    try:
        os.fsync(synced_directory)
    finally:
        os.close(synced_directory)


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of the content to a descriptor that may accept only a part at a time."""
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


def remove_file(path: str) -> bool:
    """Delete ``path``. Return whether it existed."""
    return remove_in_directory(None, path)


def remove_in_directory(directory_fd: Optional[int], file_name: str) -> bool:
    """Delete a file in an open directory. Return whether it existed."""
    try:
        os.unlink(file_name, dir_fd=directory_fd)
    except FileNotFoundError:
        return False
    return True


def list_names(directory: str) -> List[str]:
    """Return the names in a directory, sorted; none if it does not exist."""
    return sorted(os.listdir(directory)) if os.path.isdir(directory) else []


def remove_empty_directory(directory: str) -> None:
    """Delete a directory if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(directory)
