# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The moves of a database between servers, as both note them.

The former server keeps a mark with the digest of the dump that it has written. The same is in a list beside the dump,
to which the new server adds its name when it has loaded just that dump. Without this receipt, the former server keeps
its database as it is: a volume can be restored, or cleaned when it is full.
"""

from __future__ import annotations

import json
from typing import Any, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_bytes, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils.tracking import settings

#: A former server may come back long after others have followed.
_MOST = 100


class Move(NamedTuple):
    """``digest``: the SHA-256 of the dump. ``former``: its server. ``loaded``: the one that has loaded it, or empty."""

    digest: str
    former: str
    loaded: str = ""


def mark() -> Optional[Move]:
    """The mark of this host; None if it has not saved its database, or an earlier version has."""
    found = _parsed(read_bytes(settings.MOVED))
    return found[0] if found else None


def write_mark(move: Move) -> None:
    """Note on this host that its database has been saved."""
    write_atomic(settings.MOVED, _text([move]), mode=0o600)


def listed(path: str) -> List[Move]:
    """The moves in the list on the volume, which is read with the rights of the server's account."""
    with acting_as(settings.ACCOUNT):
        return _parsed(read_bytes(path, follow=False))


def pending(moves: List[Move]) -> Optional[Move]:
    """The move that has begun, and has not been completed yet."""
    return moves[-1] if moves and not moves[-1].loaded else None


def completed(moves: List[Move], digest: str, machine: str) -> List[Move]:
    """The list after a server has loaded a dump: a move that was still pending, of another dump, never completes."""
    loaded = [one._replace(loaded=machine) if one.digest == digest else one for one in moves]
    return [one for one in loaded if one.loaded]


def write_list(path: str, moves: List[Move]) -> None:
    """Write the list on the volume, with the rights of the server's account."""
    with acting_as(settings.ACCOUNT):
        write_atomic(path, _text(moves[-_MOST:]), mode=0o600)


def _text(moves: List[Move]) -> str:
    return json.dumps([move._asdict() for move in moves], indent=1) + "\n"


def _parsed(raw: Optional[bytes]) -> List[Move]:
    """Nothing from a damaged file, so that no database is given up because of it."""
    try:
        found: Any = json.loads(raw or b"[]")
        return [Move(*(str(fields[name]) for name in Move._fields)) for fields in found]
    except (ValueError, TypeError, KeyError):
        return []
