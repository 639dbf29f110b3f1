# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The controller's state as one text, to carry the queue from one manager to the next."""

from __future__ import annotations

import base64
import binascii
import io
import os
import pwd
import tarfile
from typing import List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError

#: Made by every slurmctld, so a folder with it has or had a controller.
_SIGN = "clustername"


def in_use(folder: str) -> bool:
    """Whether a controller has written there."""
    return os.path.exists(os.path.join(folder, _SIGN))


def pack(folder: str) -> str:
    """All plain files below the folder, compressed, in base64. Raises HostStateError where there is no state."""
    if not in_use(folder):
        raise HostStateError(f"{folder} has no state of a controller.", "Name the machine that was the manager.")
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:gz") as archive:
        archive.add(folder, arcname=".", filter=_plain)
    return base64.b64encode(memory.getvalue()).decode("ascii")


def unpack(folder: str, content: str, user: str) -> List[str]:
    """Write the files, for ``user`` alone to read; their names. Raises InputError for what pack() has not made."""
    try:
        memory = io.BytesIO(base64.b64decode(content.encode("ascii"), validate=True))
        with tarfile.open(fileobj=memory, mode="r:gz") as archive:
            members = [member for member in archive.getmembers() if member.isfile()]
            texts = {_inside(member.name): _read(archive, member) for member in members}
    except (binascii.Error, UnicodeEncodeError, tarfile.TarError, OSError, EOFError) as failure:
        raise InputError("The state is not what state=exported has given.", "Export it again.") from failure
    try:
        owner = pwd.getpwnam(user)
    except KeyError as failure:
        raise HostStateError(f"There is no user {user}.", "Install Slurm first.") from failure
    for name, text in texts.items():
        path = os.path.join(folder, name)
        parent = folder
        for part in os.path.dirname(name).split("/"):
            parent = os.path.join(parent, part)
            if not os.path.isdir(parent):
                os.makedirs(parent, mode=0o700)
            os.chown(parent, owner.pw_uid, owner.pw_gid)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
            stream.write(text)
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return sorted(texts)


def _plain(member: tarfile.TarInfo) -> Optional[tarfile.TarInfo]:
    return member if member.isfile() or member.isdir() else None


def _inside(name: str) -> str:
    """The name, when it is below the folder."""
    clean = os.path.normpath(name)
    if clean.startswith(("/", "..")):
        raise InputError(f"The state holds {name!r}, which is outside of its folder.", "Export it again.")
    return clean


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    return stream.read() if stream is not None else b""
