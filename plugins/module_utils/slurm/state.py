# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's state as one archive, carried part by part from one manager to the next.

With the accounting it may be large, and what a module returns is held in memory several times: so it goes in parts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import pwd
import shutil
import tarfile
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import remove_file

#: Made by every slurmctld, so a folder with it has or had a controller.
_SIGN = "clustername"
#: Lies in the folder itself, and is cleared away with it.
ARCHIVE = "hand_over.tar.gz"
#: Bytes of the archive.
PART = 8 << 20


class Packed(NamedTuple):
    """An archive: in how many parts it is read, and its SHA-256."""

    parts: int
    checksum: str


def in_use(folder: str) -> bool:
    """Whether a controller has written there."""
    return os.path.exists(os.path.join(folder, _SIGN))


def pack(folder: str) -> Packed:
    """Put all plain files below the folder into the archive. Raises HostStateError where there is no state."""
    if not in_use(folder):
        raise HostStateError(f"{folder} has no state of a controller.", "Name the machine that was the manager.")
    path = os.path.join(folder, ARCHIVE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz", compresslevel=1) as archive:
        archive.add(folder, arcname=".", filter=_carried)
    return Packed(-(-os.path.getsize(path) // PART), _checksum(path))


def read_part(folder: str, number: int) -> str:
    """A part of the archive in base64. Raises HostStateError where there is none."""
    path = os.path.join(folder, ARCHIVE)
    try:
        with open(path, "rb") as stream:
            stream.seek(number * PART)
            return base64.b64encode(stream.read(PART)).decode("ascii")
    except FileNotFoundError as failure:
        raise HostStateError(f"{path} is not there.", "Pack the state first, with state=packed.") from failure


def write_part(folder: str, number: int, content: str) -> None:
    """Put a part of the archive in its place. Raises InputError for what is not base64."""
    try:
        data = base64.b64decode(content.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as failure:
        raise InputError("The part is not what state=exported has given.", "Export it again.") from failure
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if number == 0 else 0)
    with open(os.open(os.path.join(folder, ARCHIVE), flags, 0o600), "wb") as stream:
        stream.seek(number * PART)
        stream.write(data)


def unpack(folder: str, checksum: str, user: str) -> List[str]:
    """Write the archive's files, for ``user`` alone to read; their names. Raises InputError for a damaged archive."""
    path = os.path.join(folder, ARCHIVE)
    if _checksum(path) != checksum:
        raise InputError(f"{path} is not what was packed.", "Hand the state over again.")
    try:
        owner = pwd.getpwnam(user)
    except KeyError as failure:
        raise HostStateError(f"There is no user {user}.", "Install Slurm first.") from failure
    with tarfile.open(path, mode="r:gz") as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        # What says that the state is there comes last: a hand-over that was cut off begins anew.
        for member in sorted(members, key=lambda member: os.path.normpath(member.name) == _SIGN):
            _extract(archive, member, folder, owner)
    remove_file(path)
    return sorted(os.path.normpath(member.name) for member in members)


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str, owner: pwd.struct_passwd) -> None:
    name = os.path.normpath(member.name)
    if name.startswith(("/", "..")):
        raise InputError(f"The state holds {name!r}, which is outside of its folder.", "Hand the state over again.")
    parent = folder
    for part in os.path.dirname(name).split("/"):
        parent = os.path.join(parent, part)
        if not os.path.isdir(parent):
            os.makedirs(parent, mode=0o700)
        os.chown(parent, owner.pw_uid, owner.pw_gid)
    path = os.path.join(folder, name)
    source = archive.extractfile(member)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        if source is not None:
            shutil.copyfileobj(source, stream)
    os.chown(path, owner.pw_uid, owner.pw_gid)


def _carried(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    return member if member.isdir() or (member.isfile() and os.path.normpath(member.name) != ARCHIVE) else None


def _checksum(path: str) -> str:
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except FileNotFoundError as failure:
        raise HostStateError(f"{path} is not there.", "Hand the state over again.") from failure
    return digest.hexdigest()
