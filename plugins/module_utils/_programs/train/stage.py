# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Data sets on a local disk of each node, for file servers that are too slow for data that the ranks read repeatedly.

When a run is submitted, a manifest of the data is written: its files with their sizes and times. From it, each node
makes its own copy before its ranks start, and compares the checksum of the whole copy with that of the other nodes.

DIRECTORY/                 accessible only by the user
    <key of a manifest>/   locked: shared by those that use it, exclusively while it is written
        data/              what the ranks read
        whole.json         its checksum; written once all of the data is there
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import re
import shutil
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    NO_SPACE_ERRNOS,
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import (
    read_text,
    remove_in_directory,
    write_all,
    write_atomic,
    write_in_directory,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.private_dir import (
    find_private_dir,
    open_private_dir,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

_MANIFEST_NAME = "stage.json"
_CHECKSUM_NAME = "stage.sum"
_COMPLETE_NAME = "whole.json"
#: The name of a copy. A directory that the user has chosen may contain other things, which are not touched.
_COPY_NAME_PATTERN = re.compile(r"[0-9a-f]{32}")
#: More files than this should be in shards: each node examines all of them before each attempt.
_MAX_FILES = 100_000
#: Bytes that stay free for others.
_FREE_RESERVE = 1 << 30
#: The number of files that are copied at the same time.
_PARALLEL_COPIES = 4
_CHUNK_SIZE = 1 << 20
#: Seconds between two attempts to lock a copy that another run is writing, and seconds to stop a copy.
_LOCK_RETRY_INTERVAL = 0.5
_STOP_TIMEOUT = 5.0
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StagedFile(NamedTuple):
    """A file of the data. ``path`` is relative; ``modified_ns`` in nanoseconds since 1970."""

    path: str
    size: int
    modified_ns: int


class Manifest(NamedTuple):
    """The data as it was when the run was submitted or resumed."""

    source: str
    files: Tuple[StagedFile, ...]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(staged_file.size for staged_file in self.files)

    @property
    def key(self) -> str:
        """The name of a copy, which differs for different data."""
        return hashlib.sha256(_format_manifest(self).encode()).hexdigest()[:32]


# --- When a run is submitted


def build_manifest(source: str) -> Manifest:
    """The manifest of a directory as it is now. Raises InputError."""
    root = os.path.realpath(source)
    if not os.path.isdir(root):
        raise InputError(f"{source} is not a directory.", "Set --stage to the directory with the data.")
    files: List[StagedFile] = []
    try:
        for staged_file in _walk_files(root, ""):
            files.append(staged_file)
            if len(files) > _MAX_FILES:
                raise InputError(f"{source} has more than {_MAX_FILES} files.", "Pack them into shards.")
    except OSError as failure:
        raise InputError(
            f"{failure.filename} cannot be read: {failure.strerror}.", "Make it readable, or remove it from the data."
        ) from failure
    if not files:
        raise InputError(f"There are no files in {source}.", "Set --stage to the directory with the data.")
    return Manifest(root, tuple(files))


def _walk_files(root: str, relative_dir: str) -> Iterator[StagedFile]:
    """Yield the files below a directory.

    Links to files count as files. Raises OSError, and InputError for other kinds.
    """
    with os.scandir(os.path.join(root, relative_dir)) as entries:
        sorted_entries = sorted(entries, key=lambda entry: entry.name)
    for entry in sorted_entries:
        path = f"{relative_dir}/{entry.name}" if relative_dir else entry.name
        file_stat = entry.stat()
        if stat.S_ISREG(file_stat.st_mode):
            yield StagedFile(path, file_stat.st_size, file_stat.st_mtime_ns)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk_files(root, path)
        else:
            kind = "a link to a directory" if entry.is_symlink() else "not a file"
            raise InputError(
                f"{entry.path} is {kind}.", "Remove it: a data set can contain only files and directories."
            )


def write_manifest(run_dir: str, manifest: Manifest) -> None:
    """Write the manifest that the nodes use from now on. Raises HostStateError."""
    try:
        remove_in_directory(None, f"{run_dir}/{_CHECKSUM_NAME}")
        write_atomic(f"{run_dir}/{_MANIFEST_NAME}", _format_manifest(manifest) + "\n", 0o644)
    except OSError as failure:
        raise HostStateError(
            f"{run_dir}/{_MANIFEST_NAME} cannot be written: {failure.strerror}.",
            "Make sure that the shared volume has free space.",
        ) from failure


def _format_manifest(manifest: Manifest) -> str:
    return json.dumps({"source": manifest.source, "files": manifest.files})


def read_manifest(run_dir: str) -> Manifest:
    """Read the manifest. Raises GpumeshError."""
    manifest_path = f"{run_dir}/{_MANIFEST_NAME}"
    try:
        values = parse_json(read_text(manifest_path) or "")
        return Manifest(values["source"], tuple(StagedFile(*entry) for entry in values["files"]))
    except (KeyError, TypeError, ValueError) as failure:
        raise HostStateError(f"{manifest_path} is damaged: {failure}.", "Resume the run.") from failure


# --- On a node


class _StoppedError(Exception):
    """The attempt has ended in the meantime."""


class Staging:
    """The copy on this node. It is made in a thread, since waiting for it must not block the agent."""

    def __init__(self, manifest: Manifest, directory: str, run_dir: str) -> None:
        self.total_bytes = manifest.size
        #: Bytes copied so far.
        self.copied_bytes = 0
        #: The path of the data, once it is complete.
        self.data_path = ""
        self.failure: Optional[GpumeshError] = None
        self._manifest = manifest
        self._directory = directory
        self._checksum_path = f"{run_dir}/{_CHECKSUM_NAME}"
        self._copy_fd = -1
        self._copy_error: Optional[Exception] = None
        self._stop = threading.Event()
        self._count_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Start copying."""
        self._thread.start()

    def stop(self) -> None:
        """Release the copy. An incomplete one is continued by the next run."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT)
        if self._copy_fd >= 0:
            # Other runs must not wait for the lock, even if the thread waits for a file server.
            fcntl.flock(self._copy_fd, fcntl.LOCK_UN)
        if self._copy_fd >= 0 and not self._thread.is_alive():
            os.close(self._copy_fd)
            self._copy_fd = -1

    def _run(self) -> None:
        try:
            self._directory = find_private_dir(self._directory, 0o700)
            base_fd = open_private_dir(self._directory, "--stage-dir")
            try:
                self._provide_copy(base_fd)
            finally:
                os.close(base_fd)
        except _StoppedError:
            return
        except GpumeshError as failure:
            self.failure = failure
        except OSError as failure:
            self.failure = HostStateError(f"{self._directory}: {failure.strerror}.", "Check the disk.")

    def _provide_copy(self, base_fd: int) -> None:
        """Make a complete copy available. One of the processes that need it makes it."""
        copy_name = self._manifest.key
        while True:
            self._copy_fd = _open_copy(base_fd, copy_name)
            if _try_lock(self._copy_fd, fcntl.LOCK_SH) and _is_same_directory(base_fd, copy_name, self._copy_fd):
                checksum = complete_checksum(self._copy_fd, self._manifest)
                if checksum:
                    self._compare_checksum(checksum)
                    self.copied_bytes = self.total_bytes
                    # This time determines the least recently used copy.
                    os.utime(self._copy_fd)
                    self.data_path = f"{self._directory}/{copy_name}/data"
                    return
                if _try_lock(self._copy_fd, fcntl.LOCK_EX) and _is_same_directory(base_fd, copy_name, self._copy_fd):
                    self._fill_copy(base_fd, copy_name)
            released_fd, self._copy_fd = self._copy_fd, -1
            os.close(released_fd)
            if self._stop.wait(_LOCK_RETRY_INTERVAL * (0.5 + random.random())):
                raise _StoppedError

    def _compare_checksum(self, digest: str) -> None:
        """Raise HostStateError if the data differs from that of other nodes.

        If the checksum cannot be written to the shared volume now, the copy is used without comparing it with others:
        it was compared with what was read.
        """
        draft_path = f"{self._checksum_path}.{os.uname().nodename}.{os.getpid()}"
        with contextlib.suppress(OSError):
            try:
                with open(draft_path, "w", encoding="ascii") as stream:
                    stream.write(digest)
                os.link(draft_path, self._checksum_path)
            finally:
                remove_in_directory(None, draft_path)
        agreed_digest = None
        with contextlib.suppress(HostStateError):
            agreed_digest = read_text(self._checksum_path)
        if (agreed_digest or digest) != digest:
            # A copy that another run reads stays.
            if _try_lock(self._copy_fd, fcntl.LOCK_EX):
                remove_in_directory(self._copy_fd, _COMPLETE_NAME)
                shutil.rmtree(f"/proc/self/fd/{self._copy_fd}/data", ignore_errors=True)
            raise HostStateError(
                f"The copy of {self._manifest.source} in {self._directory} differs from that of another node.",
                "Check the disks, and what writes to the original.",
            )

    def _fill_copy(self, base_fd: int, copy_name: str) -> None:
        copy_fd = self._copy_fd
        self.copied_bytes, self._copy_error = 0, None
        remove_in_directory(copy_fd, _COMPLETE_NAME)
        with contextlib.suppress(FileExistsError):
            os.mkdir("data", 0o700, dir_fd=copy_fd)
        missing_files = [staged_file for staged_file in self._manifest.files if not _has_file(copy_fd, staged_file)]
        missing_bytes = sum(staged_file.size for staged_file in missing_files)
        if not free_space(base_fd, copy_name, missing_bytes + _FREE_RESERVE):
            raise self._no_space_error(missing_bytes)
        try:
            with ThreadPoolExecutor(_PARALLEL_COPIES) as pool:
                checksums = list(pool.map(self._stage_file, self._manifest.files))
        except (_StoppedError, GpumeshError, OSError) as stopped:
            # This failure stopped the copies of the other files.
            failure = self._copy_error or stopped
            if isinstance(failure, OSError) and failure.errno in NO_SPACE_ERRNOS:
                shutil.rmtree(f"/proc/self/fd/{copy_fd}/data", ignore_errors=True)
                raise self._no_space_error(missing_bytes) from failure
            raise failure from None
        checksum_lines = "".join(
            f"{staged_file.path}\0{checksum}\n" for staged_file, checksum in zip(self._manifest.files, checksums)
        )
        digest = hashlib.sha256(os.fsencode(checksum_lines)).hexdigest()
        write_in_directory(
            copy_fd, _COMPLETE_NAME, json.dumps({"digest": digest, "source": self._manifest.source}) + "\n"
        )

    def _no_space_error(self, missing_bytes: int) -> HostStateError:
        filesystem = os.statvfs(self._directory)
        free_bytes = filesystem.f_bavail * filesystem.f_frsize
        return HostStateError(
            f"{self._directory} has {free_bytes / 1e9:.1f} GB free, but {self._manifest.source} needs {missing_bytes / 1e9:.1f} GB "
            "plus a reserve of 1 GB.",
            "Free some space, or set --stage-dir to a directory on another disk.",
        )

    def _stage_file(self, staged_file: StagedFile) -> str:
        try:
            return self._copy_if_missing(staged_file)
        except (GpumeshError, OSError) as failure:
            self._copy_error = self._copy_error or failure
            raise

    def _copy_if_missing(self, staged_file: StagedFile) -> str:
        """Return the checksum of one file, which is copied if it is missing. Raises OSError, GpumeshError."""
        self._count(0)
        path = f"/proc/self/fd/{self._copy_fd}/data/{staged_file.path}"
        if _has_file(self._copy_fd, staged_file):
            with open(path, "rb") as stream:
                return self._checksum(stream.fileno(), True)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        copy_fd = os.open(path, _WRITE_FLAGS, 0o600)
        try:
            digest = self._copy_file(staged_file, copy_fd)
            os.fsync(copy_fd)
            # The following read is from the disk, as far as the kernel can guarantee that.
            os.posix_fadvise(copy_fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(copy_fd, 0, os.SEEK_SET)
            if self._checksum(copy_fd, False) != digest:
                raise HostStateError(
                    f"The disk of {self._directory} returns different data than was written ({staged_file.path}).",
                    "Replace the disk, or set --stage-dir to a directory on another one.",
                )
            os.fchmod(copy_fd, 0o400)
            # The time is set last: a file with this time is complete.
            os.utime(copy_fd, ns=(staged_file.modified_ns, staged_file.modified_ns))
        finally:
            os.close(copy_fd)
        return digest

    def _copy_file(self, staged_file: StagedFile, copy_fd: int) -> str:
        """Copy a file. Raises InputError if it has changed since the run was submitted."""
        original_path = f"{self._manifest.source}/{staged_file.path}"
        checksum = hashlib.sha256()
        try:
            source_fd = os.open(original_path, _READ_FLAGS)
        except OSError as failure:
            raise _unreadable(original_path, failure) from failure
        try:
            for _when in ("before", "after"):
                file_stat = os.fstat(source_fd)
                if (file_stat.st_size, file_stat.st_mtime_ns) != (staged_file.size, staged_file.modified_ns):
                    raise InputError(
                        f"{original_path} has changed since the run was submitted.",
                        "Resume the run to use its current content.",
                    )
                while True:
                    try:
                        chunk = os.read(source_fd, _CHUNK_SIZE)
                    except OSError as failure:
                        raise _unreadable(original_path, failure) from failure
                    if not chunk:
                        break
                    self._count(len(chunk))
                    checksum.update(chunk)
                    write_all(copy_fd, chunk)
        finally:
            os.close(source_fd)
        return checksum.hexdigest()

    def _checksum(self, descriptor: int, is_counted: bool) -> str:
        checksum = hashlib.sha256()
        for chunk in iter(lambda: os.read(descriptor, _CHUNK_SIZE), b""):
            self._count(len(chunk) if is_counted else 0)
            checksum.update(chunk)
        return checksum.hexdigest()

    def _count(self, size: int) -> None:
        if self._stop.is_set() or self._copy_error:
            raise _StoppedError
        with self._count_lock:
            self.copied_bytes += size


def _unreadable(path: str, failure: OSError) -> InputError:
    return InputError(
        f"{path} cannot be read: {failure.strerror}.", "Check the shared volume, or remove the file and resume the run."
    )


def complete_checksum(copy_fd: int, manifest: Manifest) -> str:
    """The checksum of a copy; empty if it is incomplete."""
    try:
        values: Any = parse_json(read_text(f"/proc/self/fd/{copy_fd}/{_COMPLETE_NAME}") or "")
        digest = str(values["digest"])
    except (HostStateError, KeyError, TypeError, ValueError):
        return ""
    return digest if all(_has_file(copy_fd, staged_file) for staged_file in manifest.files) else ""


def _has_file(copy_fd: int, staged_file: StagedFile) -> bool:
    try:
        file_stat = os.lstat(f"/proc/self/fd/{copy_fd}/data/{staged_file.path}")
    except OSError:
        return False
    return stat.S_ISREG(file_stat.st_mode) and (file_stat.st_size, file_stat.st_mtime_ns) == (
        staged_file.size,
        staged_file.modified_ns,
    )


def _open_copy(base_fd: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=base_fd)
    return os.open(name, _DIRECTORY_FLAGS, dir_fd=base_fd)


def _try_lock(lock_fd: int, lock_mode: int) -> bool:
    try:
        fcntl.flock(lock_fd, lock_mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same_directory(base_fd: int, name: str, directory_fd: int) -> bool:
    """Whether the name still refers to this directory, since copies are removed to free space."""
    try:
        named_directory = os.stat(name, dir_fd=base_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (named_directory.st_dev, named_directory.st_ino) == (
        os.fstat(directory_fd).st_dev,
        os.fstat(directory_fd).st_ino,
    )


def free_space(base_fd: int, kept_name: str, needed_bytes: int) -> bool:
    """Remove unused copies until ``needed_bytes`` are free, the least recently used first."""

    def free_bytes() -> int:
        filesystem = os.statvfs(base_fd)
        return filesystem.f_bavail * filesystem.f_frsize

    used_at: Dict[str, float] = {}
    for name in filter(_COPY_NAME_PATTERN.fullmatch, os.listdir(base_fd)):
        # Another process may remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            used_at[name] = os.stat(name, dir_fd=base_fd, follow_symlinks=False).st_mtime
    for name in sorted((name for name in used_at if name != kept_name), key=lambda copy_name: used_at[copy_name]):
        if free_bytes() >= needed_bytes:
            break
        try:
            copy_fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=base_fd)
        except OSError:
            continue
        try:
            if _try_lock(copy_fd, fcntl.LOCK_EX):
                remove_in_directory(copy_fd, _COMPLETE_NAME)
                shutil.rmtree(f"/proc/self/fd/{base_fd}/{name}", ignore_errors=True)
        finally:
            os.close(copy_fd)
    return free_bytes() >= needed_bytes
