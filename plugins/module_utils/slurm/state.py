# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's state as one archive, transferred in parts from one manager to the next.

With the accounting, it may be large, and what a module returns is held in memory several times, so it is transferred in
parts.

The new manager does not trust the former one. The archive has a format of its own: for each file, a line of JSON with
its name and size, and then its content, all compressed by gzip. It cannot contain links, devices, owners or modes, and
everything in it is bounded before it is read. Both ends work with the rights of the controller's account.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import json
import os
import stat
import zlib
from typing import BinaryIO, Iterator, List, NamedTuple, Tuple, cast

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json

#: Created by every slurmctld, so a folder with it has or had a controller.
SIGN = "clustername"
#: Identifies the state. Each machine writes its own.
MARKER = "gpumesh.json"
#: In the folder itself, and deleted with it.
ARCHIVE = "hand_over.gz"
#: The size of a part in bytes.
PART = 8 << 20
#: 32 GiB. The role refuses more before it requests the first part.
MOST_PARTS = 4096
_MOST_FILES = 2_000_000
_LONGEST_HEAD = 8192
_BLOCK = 1 << 20
_AGAIN = "Run the hand-over again."
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class Packed(NamedTuple):
    """An archive: its number of parts, and its SHA-256."""

    parts: int
    checksum: str


def in_use(folder: str) -> bool:
    """Whether a controller has used the folder."""
    return os.path.lexists(os.path.join(folder, SIGN))


def pack(folder: str, user: str) -> Packed:
    """Put all plain files below the folder into the archive. Raises HostStateError if there is no state."""
    if not in_use(folder):
        raise HostStateError(
            f"{folder} has no state of a controller.", "Set slurm_former_manager to the machine that was the manager."
        )
    path = os.path.join(folder, ARCHIVE)
    with acting_as(user):
        remove_file(path)
        with open(os.open(path, _NEW, 0o600), "wb") as stream, gzip.open(stream, "wb", compresslevel=1) as archive:
            for name in _plain_files(folder):
                _append(archive, folder, name)
        parts = -(-os.path.getsize(path) // PART)
        if parts > MOST_PARTS:
            raise HostStateError(
                f"{folder} has {parts} parts of {PART >> 20} MiB; at most {MOST_PARTS} can be transferred.",
                "Purge old jobs from the accounting with sacctmgr archive dump.",
            )
        return Packed(parts, _checksum(path))


def _plain_files(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(parent, name)
            shown = os.path.relpath(path, folder)
            if shown not in (ARCHIVE, MARKER) and stat.S_ISREG(os.lstat(path).st_mode):
                yield shown


def _append(archive: gzip.GzipFile, folder: str, name: str) -> None:
    descriptor = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        left = os.fstat(descriptor).st_size
        archive.write(json.dumps({"name": name, "size": left}).encode("ascii") + b"\n")
        while left:
            block = stream.read(min(left, _BLOCK))
            if not block:
                raise HostStateError(f"{os.path.join(folder, name)} became shorter.", "Stop the controller first.")
            archive.write(block)
            left -= len(block)


def read_part(folder: str, number: int, user: str) -> str:
    """A part of the archive in base64. Raises HostStateError if it does not exist."""
    path = os.path.join(folder, ARCHIVE)
    with acting_as(user), _opened(path, "Pack the state first, with state=packed.") as stream:
        stream.seek(number * PART)
        return base64.b64encode(stream.read(PART)).decode("ascii")


def write_part(folder: str, number: int, content: str, user: str) -> None:
    """Write a part of the archive. Raises InputError for what is not a part in base64."""
    try:
        data = base64.b64decode(content.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise InputError("The part differs from the output of state=exported.", "Export it again.") from failure
    if not 0 <= number < MOST_PARTS or len(data) > PART:
        raise InputError(f"Part {number} of {len(data)} bytes: there are at most {MOST_PARTS} of {PART}.", _AGAIN)
    path = os.path.join(folder, ARCHIVE)
    with acting_as(user):
        if len(data) > room(folder):
            raise HostStateError(f"{folder} has no room for the state of the former manager.", "Free some space there.")
        if number == 0:
            remove_file(path)
        flags = _NEW if number == 0 else os.O_WRONLY | os.O_NOFOLLOW
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError as failure:
            raise HostStateError(f"{path} cannot be opened: {failure.strerror}.", "Start with part 0.") from failure
        with open(descriptor, "wb") as stream:
            stream.seek(number * PART)
            stream.write(data)


def unpack(folder: str, checksum: str, user: str) -> List[str]:
    """Extract the archive's files, readable only by ``user``.

    Returns their names. Raises InputError for a damaged archive.
    """
    path = os.path.join(folder, ARCHIVE)
    with acting_as(user):
        if _checksum(path) != checksum:
            raise InputError(f"{path} differs from what was packed.", _AGAIN)
        with _opened(path, _AGAIN) as stream, gzip.GzipFile(fileobj=stream) as archive:
            try:
                names = _extract_all(cast(BinaryIO, archive), folder)
            except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
                raise InputError(f"{path} is damaged: {failure}.", _AGAIN) from failure
        remove_file(path)
    return sorted(names)


def _extract_all(archive: BinaryIO, folder: str) -> List[str]:
    names: List[str] = []
    sign = None
    left = room(folder)
    for name, size in _heads(archive):
        left -= size
        if left < 0:
            raise HostStateError(f"{folder} has no room for the state of the former manager.", "Free some space there.")
        if len(names) == _MOST_FILES:
            raise InputError(f"The state has more than {_MOST_FILES} files.", _AGAIN)
        if name == SIGN:
            if size > _LONGEST_HEAD:
                raise InputError(f"The state's {SIGN} has {size} bytes.", _AGAIN)
            sign = archive.read(size)
        else:
            _extract(archive, folder, name, size)
        names.append(name)
    # The marker of the state is written last, so that an interrupted hand-over starts again.
    if sign is not None:
        with _created(folder, SIGN) as stream:
            stream.write(sign)
    return names


def _heads(archive: BinaryIO) -> Iterator[Tuple[str, int]]:
    """Yield the name and size of each file; the content must be read before the next one is requested."""
    while True:
        line = archive.readline(_LONGEST_HEAD)
        if not line:
            return
        try:
            head = from_json(line)
            name, size = head["name"], head["size"]
        except (ValueError, TypeError, KeyError) as failure:
            raise InputError(f"The state has {line[:60]!r} where a file starts.", _AGAIN) from failure
        # To Python, a boolean is an integer.
        if not isinstance(name, str) or not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InputError(f"The state has {line[:60]!r} where a file starts.", _AGAIN)
        parts = name.split("/")
        if name in (ARCHIVE, MARKER) or not name.isprintable() or any(part in ("", ".", "..") for part in parts):
            raise InputError(f"The state contains {name!r}, which is an invalid name there.", _AGAIN)
        yield name, size


def _extract(archive: BinaryIO, folder: str, name: str, size: int) -> None:
    with _created(folder, name) as stream:
        while size:
            block = archive.read(min(size, _BLOCK))
            if not block:
                raise InputError(f"The state ends within {name!r}.", _AGAIN)
            stream.write(block)
            size -= len(block)


def _created(folder: str, name: str) -> BinaryIO:
    path = os.path.join(folder, name)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        remove_file(path)
        return cast(BinaryIO, open(os.open(path, _NEW, 0o600), "wb"))
    except OSError as failure:
        raise InputError(f"The state's {name!r} cannot be written: {failure.strerror}.", _AGAIN) from failure


def room(folder: str) -> int:
    """The bytes that may be written there, which leaves a tenth of the free space to the host."""
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize * 9 // 10


def _opened(path: str, remedy: str) -> BinaryIO:
    try:
        return cast(BinaryIO, open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"))
    except FileNotFoundError as failure:
        raise HostStateError(f"{path} does not exist.", remedy) from failure
    except OSError as failure:
        raise HostStateError(f"{path} cannot be opened: {failure.strerror}.", "Delete it.") from failure


def _checksum(path: str) -> str:
    digest = hashlib.sha256()
    with _opened(path, _AGAIN) as stream:
        for block in iter(lambda: stream.read(_BLOCK), b""):
            digest.update(block)
    return digest.hexdigest()
