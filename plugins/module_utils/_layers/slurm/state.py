# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's state as one archive, transferred in parts from one manager to the next.

With the accounting, it may be large, and the output of a module is kept in memory several times, so it is transferred
in parts.

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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import remove_file
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import parse_json

#: The StateSaveLocation of the controllers that this collection sets up.
STATE_DIRECTORY = "/var/lib/slurm/slurmctld"
#: Every slurmctld creates this file, so a directory with it has or had a controller.
CLUSTERNAME_FILE = "clustername"
#: Identifies the state. Each machine writes its own.
MARKER_FILE = "gpumesh.json"
#: The archive is in the state directory, and deleted with it.
ARCHIVE_FILE = "hand_over.gz"
#: The size of a part in bytes.
PART_SIZE = 8 << 20
#: 32 GiB. The role refuses more before it requests the first part.
MAX_PARTS = 4096
_MAX_FILES = 2_000_000
_MAX_HEADER_LENGTH = 8192
_BLOCK_SIZE = 1 << 20
_RETRY_REMEDY = "Run the hand-over again."
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class StateArchive(NamedTuple):
    """An archive: its number of parts, and its SHA-256."""

    part_count: int
    checksum: str


def has_controller_state(state_directory: str) -> bool:
    """Whether a controller has used the directory."""
    return os.path.lexists(os.path.join(state_directory, CLUSTERNAME_FILE))


def pack_state(state_directory: str, user: str) -> StateArchive:
    """Put all regular files below the directory into the archive. Raises HostStateError if there is no state."""
    if not has_controller_state(state_directory):
        raise HostStateError(
            f"{state_directory} has no state of a controller.",
            "Set slurm_former_manager to the machine that was the manager.",
        )
    archive_path = os.path.join(state_directory, ARCHIVE_FILE)
    with acting_as(user):
        remove_file(archive_path)
        with open(os.open(archive_path, _CREATE_FLAGS, 0o600), "wb") as stream, gzip.open(
            stream, "wb", compresslevel=1
        ) as archive:
            for relative_path in _list_regular_files(state_directory):
                _append_file(archive, state_directory, relative_path)
        part_count = -(-os.path.getsize(archive_path) // PART_SIZE)
        if part_count > MAX_PARTS:
            raise HostStateError(
                f"{state_directory} has {part_count} parts of {PART_SIZE >> 20} MiB; "
                f"at most {MAX_PARTS} can be transferred.",
                "Purge old jobs from the accounting with sacctmgr archive dump.",
            )
        return StateArchive(part_count, _compute_checksum(archive_path))


def _list_regular_files(state_directory: str) -> Iterator[str]:
    for parent, subdirectories, file_names in os.walk(state_directory):
        subdirectories.sort()
        for file_name in sorted(file_names):
            file_path = os.path.join(parent, file_name)
            relative_path = os.path.relpath(file_path, state_directory)
            if relative_path not in (ARCHIVE_FILE, MARKER_FILE) and stat.S_ISREG(os.lstat(file_path).st_mode):
                yield relative_path


def _append_file(archive: gzip.GzipFile, state_directory: str, relative_path: str) -> None:
    descriptor = os.open(os.path.join(state_directory, relative_path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as stream:
        remaining_bytes = os.fstat(descriptor).st_size
        archive.write(json.dumps({"name": relative_path, "size": remaining_bytes}).encode("ascii") + b"\n")
        while remaining_bytes:
            block = stream.read(min(remaining_bytes, _BLOCK_SIZE))
            if not block:
                raise HostStateError(
                    f"{os.path.join(state_directory, relative_path)} changed while it was being read.",
                    "Stop the controller first.",
                )
            archive.write(block)
            remaining_bytes -= len(block)


def read_part(state_directory: str, part_number: int, user: str) -> str:
    """Return a part of the archive in base64. Raises HostStateError if it does not exist."""
    archive_path = os.path.join(state_directory, ARCHIVE_FILE)
    with acting_as(user), _open_for_reading(archive_path, "Pack the state first, with state=packed.") as stream:
        stream.seek(part_number * PART_SIZE)
        return base64.b64encode(stream.read(PART_SIZE)).decode("ascii")


def write_part(state_directory: str, part_number: int, encoded_part: str, user: str) -> None:
    """Write a part of the archive, given in base64. Raises InputError if it is invalid."""
    try:
        part_bytes = base64.b64decode(encoded_part.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise InputError("The part differs from what slurm_state_info has returned.", "Read it again.") from failure
    if not 0 <= part_number < MAX_PARTS or len(part_bytes) > PART_SIZE:
        raise InputError(
            f"Part {part_number} of {len(part_bytes)} bytes: there are at most {MAX_PARTS} of {PART_SIZE}.",
            _RETRY_REMEDY,
        )
    archive_path = os.path.join(state_directory, ARCHIVE_FILE)
    with acting_as(user):
        if len(part_bytes) > available_bytes(state_directory):
            raise HostStateError(
                f"{state_directory} has not enough free space for the state of the former manager.",
                "Free some space there.",
            )
        if part_number == 0:
            remove_file(archive_path)
        open_flags = _CREATE_FLAGS if part_number == 0 else os.O_WRONLY | os.O_NOFOLLOW
        try:
            descriptor = os.open(archive_path, open_flags, 0o600)
        except OSError as failure:
            raise HostStateError(
                f"{archive_path} cannot be opened: {failure.strerror}.", "Start with part 0."
            ) from failure
        with open(descriptor, "wb") as stream:
            stream.seek(part_number * PART_SIZE)
            stream.write(part_bytes)


def unpack_state(state_directory: str, expected_checksum: str, user: str) -> List[str]:
    """Extract the archive's files, readable only by ``user``.

    Returns their names. Raises InputError for a damaged archive.
    """
    archive_path = os.path.join(state_directory, ARCHIVE_FILE)
    with acting_as(user):
        if _compute_checksum(archive_path) != expected_checksum:
            raise InputError(f"{archive_path} differs from what was packed.", _RETRY_REMEDY)
        with _open_for_reading(archive_path, _RETRY_REMEDY) as stream, gzip.GzipFile(fileobj=stream) as archive:
            try:
                file_names = _extract_all(cast(BinaryIO, archive), state_directory)
            except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
                raise InputError(f"{archive_path} is damaged: {failure}.", _RETRY_REMEDY) from failure
        remove_file(archive_path)
    return sorted(file_names)


def _extract_all(archive: BinaryIO, state_directory: str) -> List[str]:
    extracted_names: List[str] = []
    clustername_content = None
    remaining_space = available_bytes(state_directory)
    for file_name, file_size in _read_headers(archive):
        remaining_space -= file_size
        if remaining_space < 0:
            raise HostStateError(
                f"{state_directory} has not enough free space for the state of the former manager.",
                "Free some space there.",
            )
        if len(extracted_names) == _MAX_FILES:
            raise InputError(f"The state has more than {_MAX_FILES} files.", _RETRY_REMEDY)
        if file_name == CLUSTERNAME_FILE:
            if file_size > _MAX_HEADER_LENGTH:
                raise InputError(f"The state's {CLUSTERNAME_FILE} has {file_size} bytes.", _RETRY_REMEDY)
            clustername_content = archive.read(file_size)
        else:
            _extract_file(archive, state_directory, file_name, file_size)
        extracted_names.append(file_name)
    # The marker of the state is written last, so that an interrupted hand-over starts again.
    if clustername_content is not None:
        with _create_file(state_directory, CLUSTERNAME_FILE) as stream:
            stream.write(clustername_content)
    return extracted_names


def _read_headers(archive: BinaryIO) -> Iterator[Tuple[str, int]]:
    """Yield the name and size of each file; the content must be read before the next one is requested."""
    while True:
        header_line = archive.readline(_MAX_HEADER_LENGTH)
        if not header_line:
            return
        try:
            header = parse_json(header_line)
            file_name, file_size = header["name"], header["size"]
        except (ValueError, TypeError, KeyError) as failure:
            raise InputError(f"The state has {header_line[:60]!r} where a file starts.", _RETRY_REMEDY) from failure
        # A boolean is an integer in Python.
        if (
            not isinstance(file_name, str)
            or not isinstance(file_size, int)
            or isinstance(file_size, bool)
            or file_size < 0
        ):
            raise InputError(f"The state has {header_line[:60]!r} where a file starts.", _RETRY_REMEDY)
        path_components = file_name.split("/")
        if (
            file_name in (ARCHIVE_FILE, MARKER_FILE)
            or not file_name.isprintable()
            or any(part in ("", ".", "..") for part in path_components)
        ):
            raise InputError(f"The state contains {file_name!r}, which is an invalid name there.", _RETRY_REMEDY)
        yield file_name, file_size


def _extract_file(archive: BinaryIO, state_directory: str, file_name: str, remaining_size: int) -> None:
    with _create_file(state_directory, file_name) as stream:
        while remaining_size:
            block = archive.read(min(remaining_size, _BLOCK_SIZE))
            if not block:
                raise InputError(f"The state ends within {file_name!r}.", _RETRY_REMEDY)
            stream.write(block)
            remaining_size -= len(block)


def _create_file(state_directory: str, file_name: str) -> BinaryIO:
    file_path = os.path.join(state_directory, file_name)
    try:
        os.makedirs(os.path.dirname(file_path), mode=0o700, exist_ok=True)
        remove_file(file_path)
        return cast(BinaryIO, open(os.open(file_path, _CREATE_FLAGS, 0o600), "wb"))
    except OSError as failure:
        raise InputError(
            f"The state's {file_name!r} cannot be written: {failure.strerror}.", _RETRY_REMEDY
        ) from failure


def available_bytes(state_directory: str) -> int:
    """Return how many bytes may be written there, so that a tenth of the free space is left to the host."""
    filesystem_stats = os.statvfs(state_directory)
    return filesystem_stats.f_bavail * filesystem_stats.f_frsize * 9 // 10


def _open_for_reading(path: str, missing_remedy: str) -> BinaryIO:
    try:
        return cast(BinaryIO, open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb"))
    except FileNotFoundError as failure:
        raise HostStateError(f"{path} does not exist.", missing_remedy) from failure
    except OSError as failure:
        raise HostStateError(f"{path} cannot be opened: {failure.strerror}.", "Delete it.") from failure


def _compute_checksum(path: str) -> str:
    digest = hashlib.sha256()
    with _open_for_reading(path, _RETRY_REMEDY) as stream:
        for block in iter(lambda: stream.read(_BLOCK_SIZE), b""):
            digest.update(block)
    return digest.hexdigest()
