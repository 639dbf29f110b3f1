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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    NO_ROOM,
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import (
    read_text,
    remove_in,
    write_all,
    write_atomic,
    write_in,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.owned_folder import owned, unless_taken
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

_MANIFEST = "stage.json"
_SUM = "stage.sum"
_WHOLE = "whole.json"
#: The name of a copy. A directory that the user has chosen may contain other things, which are not touched.
_KEY = re.compile(r"[0-9a-f]{32}")
#: More files than this should be in shards: each node examines all of them before each attempt.
_MOST = 100_000
#: Bytes that are left free for others.
_RESERVE = 1 << 30
#: The number of files that are copied at the same time.
_AT_ONCE = 4
_PART = 1 << 20
#: Seconds between two attempts to lock a copy that another run is writing, and seconds to stop a copy.
_SPACING = 0.5
_PATIENCE = 5.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Entry(NamedTuple):
    """A file of the data. ``path`` is relative; ``modified`` in nanoseconds since 1970."""

    path: str
    size: int
    modified: int


class Manifest(NamedTuple):
    """The data as it was when the run was submitted or resumed."""

    source: str
    files: Tuple[Entry, ...]

    @property
    def size(self) -> int:
        """The size of all files in bytes."""
        return sum(entry.size for entry in self.files)

    @property
    def key(self) -> str:
        """The name of a copy, which differs for different data."""
        return hashlib.sha256(_text(self).encode()).hexdigest()[:32]


# --- When a run is submitted


def listed(source: str) -> Manifest:
    """The manifest of a directory as it is now. Raises InputError."""
    root = os.path.realpath(source)
    if not os.path.isdir(root):
        raise InputError(f"{source} is not a directory.", "Set --stage to the directory with the data.")
    files: List[Entry] = []
    try:
        for entry in _walk(root, ""):
            files.append(entry)
            if len(files) > _MOST:
                raise InputError(f"{source} has more than {_MOST} files.", "Pack them into shards.")
    except OSError as failure:
        raise InputError(
            f"{failure.filename} cannot be read: {failure.strerror}.", "Make it readable, or remove it from the data."
        ) from failure
    if not files:
        raise InputError(f"There are no files in {source}.", "Set --stage to the directory with the data.")
    return Manifest(root, tuple(files))


def _walk(root: str, place: str) -> Iterator[Entry]:
    """Yield the files below a directory.

    Links to files count as files. Raises OSError, and InputError for other kinds.
    """
    with os.scandir(os.path.join(root, place)) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        path = f"{place}/{entry.name}" if place else entry.name
        about = entry.stat()
        if stat.S_ISREG(about.st_mode):
            yield Entry(path, about.st_size, about.st_mtime_ns)
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(root, path)
        else:
            kind = "a link to a directory" if entry.is_symlink() else "not a file"
            raise InputError(
                f"{entry.path} is {kind}.", "Remove it: a data set can contain only files and directories."
            )


def write(folder: str, manifest: Manifest) -> None:
    """Write the manifest that the nodes use from now on. Raises HostStateError."""
    try:
        remove_in(None, f"{folder}/{_SUM}")
        write_atomic(f"{folder}/{_MANIFEST}", _text(manifest) + "\n", 0o644)
    except OSError as failure:
        raise HostStateError(
            f"{folder}/{_MANIFEST} cannot be written: {failure.strerror}.",
            "Make sure that the shared volume has free space.",
        ) from failure


def _text(manifest: Manifest) -> str:
    return json.dumps({"source": manifest.source, "files": manifest.files})


def read(folder: str) -> Manifest:
    """Read what ``write`` has written. Raises GpumeshError."""
    path = f"{folder}/{_MANIFEST}"
    try:
        values = from_json(read_text(path) or "")
        return Manifest(values["source"], tuple(Entry(*entry) for entry in values["files"]))
    except (KeyError, TypeError, ValueError) as failure:
        raise HostStateError(f"{path} is damaged: {failure}.", "Resume the run.") from failure


# --- On a node


class _StoppedError(Exception):
    """The attempt has ended in the meantime."""


class Staging:
    """The copy on this node. It is made in a thread, since waiting for it must not block the agent."""

    def __init__(self, manifest: Manifest, directory: str, folder: str) -> None:
        self.total = manifest.size
        #: Bytes copied so far.
        self.done = 0
        #: The path of the data, once it is complete.
        self.path = ""
        self.failure: Optional[GpumeshError] = None
        self._manifest = manifest
        self._directory = directory
        self._sum = f"{folder}/{_SUM}"
        self._held = -1
        self._broken: Optional[Exception] = None
        self._stop = threading.Event()
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self) -> None:
        """Start copying."""
        self._thread.start()

    def stop(self) -> None:
        """Release the copy. An incomplete one is continued by the next run."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if self._held >= 0:
            # Even if the thread waits for a file server, other runs must not wait for the lock.
            fcntl.flock(self._held, fcntl.LOCK_UN)
        if self._held >= 0 and not self._thread.is_alive():
            os.close(self._held)
            self._held = -1

    def _work(self) -> None:
        try:
            self._directory = unless_taken(self._directory, 0o700)
            base = owned(self._directory, "--stage-dir")
            try:
                self._bring(base)
            finally:
                os.close(base)
        except _StoppedError:
            return
        except GpumeshError as failure:
            self.failure = failure
        except OSError as failure:
            self.failure = HostStateError(f"{self._directory}: {failure.strerror}.", "Check the disk.")

    def _bring(self, base: int) -> None:
        """Make a complete copy available. Of several processes that need it, one makes it."""
        name = self._manifest.key
        while True:
            self._held = _open_in(base, name)
            if _lock(self._held, fcntl.LOCK_SH) and _same(base, name, self._held):
                found = whole(self._held, self._manifest)
                if found:
                    self._agree(found)
                    self.done = self.total
                    # Read when the least recently used copy is determined.
                    os.utime(self._held)
                    self.path = f"{self._directory}/{name}/data"
                    return
                if _lock(self._held, fcntl.LOCK_EX) and _same(base, name, self._held):
                    self._fill(base, name)
            held, self._held = self._held, -1
            os.close(held)
            if self._stop.wait(_SPACING * (0.5 + random.random())):
                raise _StoppedError

    def _agree(self, digest: str) -> None:
        """Raises HostStateError if the data differs from that of other nodes.

        If the checksum cannot be written to the shared volume now, the copy is used without comparing it with others:
        it was compared with what was read.
        """
        draft = f"{self._sum}.{os.uname().nodename}.{os.getpid()}"
        with contextlib.suppress(OSError):
            try:
                with open(draft, "w", encoding="ascii") as stream:
                    stream.write(digest)
                os.link(draft, self._sum)
            finally:
                remove_in(None, draft)
        agreed = None
        with contextlib.suppress(HostStateError):
            agreed = read_text(self._sum)
        if (agreed or digest) != digest:
            # While another run reads it, it stays.
            if _lock(self._held, fcntl.LOCK_EX):
                remove_in(self._held, _WHOLE)
                shutil.rmtree(f"/proc/self/fd/{self._held}/data", ignore_errors=True)
            raise HostStateError(
                f"The copy of {self._manifest.source} in {self._directory} differs from that of another node.",
                "Check the disks, and what writes to the original.",
            )

    def _fill(self, base: int, name: str) -> None:
        held = self._held
        self.done, self._broken = 0, None
        remove_in(held, _WHOLE)
        with contextlib.suppress(FileExistsError):
            os.mkdir("data", 0o700, dir_fd=held)
        lacking = [entry for entry in self._manifest.files if not _has(held, entry)]
        need = sum(entry.size for entry in lacking)
        if not make_room(base, name, need + _RESERVE):
            raise self._full(need)
        try:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                sums = list(pool.map(self._file, self._manifest.files))
        except (_StoppedError, GpumeshError, OSError) as stopped:
            # The failure that stopped the copies of the other files.
            failure = self._broken or stopped
            if isinstance(failure, OSError) and failure.errno in NO_ROOM:
                shutil.rmtree(f"/proc/self/fd/{held}/data", ignore_errors=True)
                raise self._full(need) from failure
            raise failure from None
        lines = "".join(f"{entry.path}\0{one}\n" for entry, one in zip(self._manifest.files, sums))
        digest = hashlib.sha256(os.fsencode(lines)).hexdigest()
        write_in(held, _WHOLE, json.dumps({"digest": digest, "source": self._manifest.source}) + "\n")

    def _full(self, need: int) -> HostStateError:
        about = os.statvfs(self._directory)
        free = about.f_bavail * about.f_frsize
        return HostStateError(
            f"{self._directory} has {free / 1e9:.1f} GB free, but {self._manifest.source} needs {need / 1e9:.1f} GB "
            "and 1 GB to spare.",
            "Free some space, or set --stage-dir to a directory on another disk.",
        )

    def _file(self, entry: Entry) -> str:
        try:
            return self._brought(entry)
        except (GpumeshError, OSError) as failure:
            self._broken = self._broken or failure
            raise

    def _brought(self, entry: Entry) -> str:
        """The checksum of one file, which is copied if it is missing. Raises OSError, GpumeshError."""
        self._count(0)
        path = f"/proc/self/fd/{self._held}/data/{entry.path}"
        if _has(self._held, entry):
            with open(path, "rb") as stream:
                return self._checksum(stream.fileno(), True)
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        copy = os.open(path, _WRITE, 0o600)
        try:
            digest = self._copy(entry, copy)
            os.fsync(copy)
            # The following read is from the disk, as far as the kernel can guarantee that.
            os.posix_fadvise(copy, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(copy, 0, os.SEEK_SET)
            if self._checksum(copy, False) != digest:
                raise HostStateError(
                    f"The disk of {self._directory} returns different data than was written ({entry.path}).",
                    "Replace the disk, or set --stage-dir to a directory on another one.",
                )
            os.fchmod(copy, 0o400)
            # Only now: a file with this time is complete.
            os.utime(copy, ns=(entry.modified, entry.modified))
        finally:
            os.close(copy)
        return digest

    def _copy(self, entry: Entry, copy: int) -> str:
        """Copy a file. Raises InputError if it has changed since the run was submitted."""
        original = f"{self._manifest.source}/{entry.path}"
        total = hashlib.sha256()
        try:
            source = os.open(original, _READ)
        except OSError as failure:
            raise _unreadable(original, failure) from failure
        try:
            for _look in ("before", "after"):
                about = os.fstat(source)
                if (about.st_size, about.st_mtime_ns) != (entry.size, entry.modified):
                    raise InputError(
                        f"{original} has changed since the run was submitted.",
                        "Resume the run to use its current content.",
                    )
                while True:
                    try:
                        part = os.read(source, _PART)
                    except OSError as failure:
                        raise _unreadable(original, failure) from failure
                    if not part:
                        break
                    self._count(len(part))
                    total.update(part)
                    write_all(copy, part)
        finally:
            os.close(source)
        return total.hexdigest()

    def _checksum(self, descriptor: int, counts: bool) -> str:
        total = hashlib.sha256()
        for part in iter(lambda: os.read(descriptor, _PART), b""):
            self._count(len(part) if counts else 0)
            total.update(part)
        return total.hexdigest()

    def _count(self, size: int) -> None:
        if self._stop.is_set() or self._broken:
            raise _StoppedError
        with self._counting:
            self.done += size


def _unreadable(path: str, failure: OSError) -> InputError:
    return InputError(
        f"{path} cannot be read: {failure.strerror}.", "Check the shared volume, or remove the file and resume the run."
    )


def whole(held: int, manifest: Manifest) -> str:
    """The checksum of a copy; empty if it is incomplete."""
    try:
        values: Any = from_json(read_text(f"/proc/self/fd/{held}/{_WHOLE}") or "")
        digest = str(values["digest"])
    except (HostStateError, KeyError, TypeError, ValueError):
        return ""
    return digest if all(_has(held, entry) for entry in manifest.files) else ""


def _has(held: int, entry: Entry) -> bool:
    try:
        about = os.lstat(f"/proc/self/fd/{held}/data/{entry.path}")
    except OSError:
        return False
    return stat.S_ISREG(about.st_mode) and (about.st_size, about.st_mtime_ns) == (entry.size, entry.modified)


def _open_in(base: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=base)
    return os.open(name, _DIRECTORY, dir_fd=base)


def _lock(held: int, how: int) -> bool:
    try:
        fcntl.flock(held, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(base: int, name: str, held: int) -> bool:
    """Whether the name still refers to this directory, since copies are removed to make room."""
    try:
        found = os.stat(name, dir_fd=base, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (os.fstat(held).st_dev, os.fstat(held).st_ino)


def make_room(base: int, kept: str, need: int) -> bool:
    """Remove unused copies until ``need`` bytes are free, the least recently used first."""

    def free() -> int:
        about = os.statvfs(base)
        return about.f_bavail * about.f_frsize

    used: Dict[str, float] = {}
    for name in filter(_KEY.fullmatch, os.listdir(base)):
        # Another process may remove it at the same time.
        with contextlib.suppress(FileNotFoundError):
            used[name] = os.stat(name, dir_fd=base, follow_symlinks=False).st_mtime
    for name in sorted((name for name in used if name != kept), key=lambda other: used[other]):
        if free() >= need:
            break
        try:
            held = os.open(name, _DIRECTORY, dir_fd=base)
        except OSError:
            continue
        try:
            if _lock(held, fcntl.LOCK_EX):
                remove_in(held, _WHOLE)
                shutil.rmtree(f"/proc/self/fd/{base}/{name}", ignore_errors=True)
        finally:
            os.close(held)
    return free() >= need
