# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record on disk: one file per cluster, changed under a lock, never half written, never silently replaced.

``<name>.json`` is the record, ``<name>.json.good`` a second copy of what was last written completely, and
``.<name>.lock`` the lock. The lock is a separate file, since the record is replaced by renaming: a process that waits
for a lock on the old file would get one that is no longer used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import stat
import time
from typing import Iterator, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils import files
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, RecordError
from ansible_collections.gpumesh.cluster.plugins.module_utils.record import model, values
from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Record
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: Seconds. A change takes milliseconds; a process that holds the lock longer is stopped or stuck.
DEFAULT_WAIT = 30.0

#: Far larger than a record of thousands of members; a larger file cannot be a record, and is not read.
_LARGEST = 64 * 1024 * 1024
_SUFFIX = ".json"
#: Attempts to create a folder while others remove it.
_TRIES = 100
_GOOD = ".good"


class DamagedRecordError(RecordError):
    """The file exists but is not a usable record. It is not changed."""


class LockedRecordError(RecordError):
    """Another process holds the lock for longer than we wait."""


class StoredRecord(NamedTuple):
    """A record that was found, and its file."""

    path: str
    record: Record


class Damage(NamedTuple):
    """A file that cannot be used. ``last_good``: the path of a copy that can, or None."""

    path: str
    reason: str
    last_good: Optional[str]


def to_text(record: Record) -> str:
    """The text of a record on disk and in diffs: equal records have equal texts."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


class Store:
    """One cluster's record in one folder of this host."""

    def __init__(self, folder: str, name: str, wait: float = DEFAULT_WAIT) -> None:
        self.folder = folder
        # The name becomes part of a file name here, so it is checked here.
        try:
            self.name = values.cluster_name(name)
        except ValueError as failure:
            raise RecordError(f"{failure}.", "Set a valid cluster_name.") from failure
        self.wait = wait
        self.path = os.path.join(folder, name + _SUFFIX)
        self.good_path = self.path + _GOOD
        self.lock_path = os.path.join(folder, f".{name}.lock")

    def read(self) -> Optional[Record]:
        """The record, or None if there is none. Needs no lock, since a file is replaced in one step.

        Raises DamagedRecordError with the path, the reason and the last good copy; changes nothing.
        """
        _check_folder(self.folder)
        try:
            record = _load(self.path)
        except GpumeshError as failure:
            raise self._damaged(failure) from failure
        if record is not None and record["name"] != self.name:
            reason = model.InvalidRecordError("name", f"it is the record of '{record['name']}'")
            raise self._damaged(reason)
        if record is None and os.path.exists(self.good_path) and not os.path.exists(self.path):
            # Creation writes the record first, and deletion removes the good copy first: a good copy alone means a lost
            # record.
            raise self._damaged(RecordError("it is missing, although its last good copy exists"))
        return record

    def exists(self) -> bool:
        """Whether there is any file of this cluster, valid or not."""
        return any(os.path.lexists(path) for path in (self.path, self.good_path))

    @contextlib.contextmanager
    def locked(self, by: str) -> Iterator[None]:
        """Hold the lock; ``by`` is shown to those who wait.

        The kernel releases it when this process ends in any way.
        """
        handle = self._acquire(by)
        try:
            yield
        finally:
            os.close(handle)

    def write(self, record: Record) -> None:
        """Replace the record. Only inside ``locked``. A record that could not be read back is never written."""
        checked = model.parse(json.loads(json.dumps(record)))
        if checked["name"] != self.name:
            raise RecordError(f"The record of '{checked['name']}' cannot be written to {self.path}.")
        text = to_text(checked)
        _sweep(self.folder, os.path.basename(self.path))
        for path in (self.path, self.good_path):
            try:
                files.write_atomic(path, text)
            except OSError as failure:
                there = "new" if files.read_text(self.path) == text else "old"
                raise HostStateError(
                    f"{path} cannot be written: {failure.strerror}.",
                    f"Free some space or make the file system writable, and run again; the {there} record is in place.",
                    path=path,
                ) from failure

    def remove(self) -> bool:
        """Delete the record, its copy and the lock. Returns whether there was one. Only inside ``locked``.

        The lock is removed last: a process that waits for it notices that the locked file is gone, and starts over.
        """
        _sweep(self.folder, os.path.basename(self.path))
        had_copy = files.remove_file(self.good_path)
        had_record = files.remove_file(self.path)
        files.remove_file(self.lock_path)
        # Only our own empty folders, never the one that contains them.
        for folder in (self.folder, os.path.dirname(self.folder)):
            if os.path.basename(folder) in ("clusters", "gpumesh"):
                files.remove_empty(folder)
        return had_copy or had_record

    def _open(self) -> int:
        """Open the lock, in its folder, which is created if it does not exist."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        for _try in range(_TRIES):
            try:
                _make_folder(self.folder)
                return os.open(self.lock_path, flags, 0o600)
            except FileNotFoundError:
                # Another process that deletes the last record removes the folder, and the one above.
                continue
            except OSError as failure:
                raise HostStateError(
                    f"The lock {self.lock_path} cannot be opened: {failure.strerror}.",
                    "Remove it, unless it is a plain file.",
                    path=self.lock_path,
                ) from failure
        raise HostStateError(f"{self.folder} cannot be created: another process keeps deleting it.", path=self.folder)

    def _acquire(self, by: str) -> int:
        deadline = time.monotonic() + self.wait
        while True:
            handle = self._open()
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(handle, self.lock_path):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, f"{by}, process {os.getpid()}, since {values.now()}\n".encode(), 0)
                    return handle
            except OSError as failure:
                if failure.errno not in (errno.EAGAIN, errno.EACCES):
                    os.close(handle)
                    raise HostStateError(f"{self.lock_path} cannot be locked: {failure.strerror}.") from failure
                holder = os.pread(handle, 200, 0).decode("utf-8", "replace").strip()
                if time.monotonic() >= deadline:
                    os.close(handle)
                    raise LockedRecordError(
                        f"The record {self.path} is being changed by {holder or 'a process that is just starting'}; "
                        f"it did not end within {self.wait:g} s.",
                        "Wait until it has ended, or kill that process if it hangs, and run again.",
                        path=self.path,
                        holder=holder,
                    ) from failure
            os.close(handle)
            # Random pauses, so that many processes that were started together do not retry together.
            time.sleep(random.uniform(0.005, 0.03))

    def _damaged(self, failure: GpumeshError) -> DamagedRecordError:
        good: Optional[Record] = None
        with contextlib.suppress(GpumeshError):
            good = _load(self.good_path)
        if good is None:
            last_good = None
            remedy = f"Inspect it, then replace it with a member's copy of {self.path}."
        else:
            last_good = self.good_path
            remedy = f"Inspect it, then replace it with the last good copy, {self.good_path}."
        if isinstance(failure, model.FutureSchemaError):
            remedy = failure.remedy
        reason = failure.message.rstrip(".")
        copy = f"generation {good['generation']} is in {last_good}" if good else "none on this host"
        return DamagedRecordError(
            f"The cluster record {self.path} is invalid: {reason}. Last good copy: {copy}.",
            remedy,
            path=self.path,
            reason=reason,
            last_good=last_good,
            last_good_generation=good["generation"] if good else None,
        )


class Found(NamedTuple):
    """The content of a directory."""

    records: List[StoredRecord]
    damaged: List[Damage]

    @property
    def unreadable(self) -> List[str]:
        """The names of the clusters whose record is damaged."""
        return [os.path.basename(one.path)[: -len(_SUFFIX)] for one in self.damaged]


def scan(folder: str, only: Optional[str] = None) -> Found:
    """All clusters' records in a folder, or the one named ``only``, valid and damaged.

    A missing folder counts as empty.
    """
    found = Found([], [])
    try:
        _check_folder(folder)
        # A good copy without its record counts as damage too, so both names are considered.
        entries = {entry[: -len(_GOOD)] if entry.endswith(_SUFFIX + _GOOD) else entry for entry in os.listdir(folder)}
    except FileNotFoundError:
        return found
    except OSError as failure:
        raise HostStateError(f"{folder} cannot be read: {failure.strerror}.", path=folder) from failure
    for entry in sorted(entries):
        name = entry[: -len(_SUFFIX)]
        if not entry.endswith(_SUFFIX) or entry.startswith(".") or only not in (None, name):
            continue
        path = os.path.join(folder, entry)
        try:
            record = Store(folder, name).read()
        except GpumeshError as failure:
            details = failure.details
            found.damaged.append(Damage(path, str(details.get("reason", failure.message)), details.get("last_good")))
            continue
        if record is not None:
            found.records.append(StoredRecord(path, record))
    return found


def _load(path: str) -> Optional[Record]:
    """The record in a file, or None if there is none. Raises RecordError with only the reason."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as failure:
        if failure.errno == errno.ELOOP:
            raise RecordError("it is a symbolic link") from failure
        raise RecordError(f"it cannot be opened: {failure.strerror}") from failure
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise RecordError("it is not a plain file")
        _check_trust(about, "it")
        if about.st_size > _LARGEST:
            raise RecordError(f"it has {about.st_size} bytes, but a record has at most {_LARGEST}")
        with open(handle, "rb", closefd=False) as stream:
            raw = stream.read(_LARGEST)
    except OSError as failure:
        raise RecordError(f"it cannot be read: {failure.strerror}") from failure
    finally:
        os.close(handle)
    if not raw.strip():
        raise RecordError("it is empty")
    try:
        document = from_json(raw.decode("utf-8"))
    except ValueError as failure:
        raise RecordError(f"it is not JSON ({failure})") from failure
    return model.parse(document)


def _check_trust(about: os.stat_result, what: str) -> None:
    """Root acts on the record on every member, so only root may be able to write it."""
    if about.st_uid != os.geteuid():
        raise RecordError(f"{what} belongs to user {about.st_uid}, not to {os.geteuid()}")
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise RecordError(f"{what} can be written by others (mode {stat.S_IMODE(about.st_mode):04o})")


def _check_folder(folder: str) -> None:
    """Refuse a folder in which another user could replace the files. It need not exist."""
    try:
        about = os.stat(folder)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise HostStateError(f"{folder} cannot be read: {failure.strerror}.", path=folder) from failure
    if not stat.S_ISDIR(about.st_mode):
        raise HostStateError(f"{folder} is not a directory.", "Move it away.", path=folder)
    try:
        _check_trust(about, f"the directory {folder}")
    except RecordError as failure:
        raise HostStateError(
            f"The records in {folder} are refused: {failure.message}.",
            f"Make the user that runs this its owner and allow nobody else to write: chown and chmod 0700 {folder}.",
            path=folder,
        ) from failure


def _make_folder(folder: str) -> None:
    """Raises HostStateError, or FileNotFoundError if another process removes the folder above meanwhile."""
    above = os.path.dirname(folder) or "/"
    try:
        try:
            os.makedirs(above, mode=0o755, exist_ok=True)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(above).st_mode):
                raise
            # It was removed before makedirs found out that it is a folder, and then made again.
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise HostStateError(f"{folder} cannot be created: {failure.strerror}.", path=folder) from failure


def _sweep(folder: str, name: str) -> None:
    """Remove the temporary files of a killed writer. Under the lock, there is no other writer."""
    for entry in os.listdir(folder):
        if entry.startswith(f".{name}."):
            files.remove_file(os.path.join(folder, entry))


def _is_still(handle: int, path: str) -> bool:
    """Whether the path still refers to the opened file."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    here = os.fstat(handle)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
