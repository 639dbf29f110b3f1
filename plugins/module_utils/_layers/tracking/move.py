# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The moves of a database between servers, as both servers note them.

The former server stores a mark with the digest of the dump that it has written. A list beside the dump contains the
same digest, and the new server adds its name there when it has loaded exactly that dump. Without this receipt, the
former server keeps its database as it is: a volume can be restored, or cleaned when it is full.
"""

from __future__ import annotations

import json
from typing import Any, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_bytes, write_atomic
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.identity import acting_as
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.tracking import settings

#: The maximum number of moves in the list. A former server may come back many moves later.
_MAX_MOVES = 100


class DatabaseMove(NamedTuple):
    """A move. ``digest``: the SHA-256 of the dump. ``former``: its server. ``loaded``: who has loaded it, or empty."""

    digest: str
    former: str
    loaded: str = ""


def read_mark() -> Optional[DatabaseMove]:
    """Return the mark of this host; None if it has not saved its database, or an earlier version has."""
    moves = _parse_moves(read_bytes(settings.MOVED))
    return moves[0] if moves else None


def write_mark(move: DatabaseMove) -> None:
    """Note on this host that its database has been saved."""
    write_atomic(settings.MOVED, _format_moves([move]), mode=0o600)


def read_list(path: str) -> List[DatabaseMove]:
    """Return the moves in the list on the volume, which is read with the rights of the server's account."""
    with acting_as(settings.ACCOUNT):
        return _parse_moves(read_bytes(path, follow_links=False))


def pending_move(moves: List[DatabaseMove]) -> Optional[DatabaseMove]:
    """Return the move that has begun, but has not been completed yet; None if there is none."""
    return moves[-1] if moves and not moves[-1].loaded else None


def complete_move(moves: List[DatabaseMove], digest: str, machine: str) -> List[DatabaseMove]:
    """Return the list after a server has loaded a dump. A pending move of another dump is dropped as incomplete."""
    updated_moves = [move._replace(loaded=machine) if move.digest == digest else move for move in moves]
    return [move for move in updated_moves if move.loaded]


def write_list(path: str, moves: List[DatabaseMove]) -> None:
    """Write the list on the volume, with the rights of the server's account."""
    with acting_as(settings.ACCOUNT):
        write_atomic(path, _format_moves(moves[-_MAX_MOVES:]), mode=0o600)


def _format_moves(moves: List[DatabaseMove]) -> str:
    return json.dumps([move._asdict() for move in moves], indent=1) + "\n"


def _parse_moves(document_bytes: Optional[bytes]) -> List[DatabaseMove]:
    """Parse the moves in a file. A damaged file contains none, so that no database is given up because of it."""
    try:
        document: Any = json.loads(document_bytes or b"[]")
        return [DatabaseMove(*(str(fields[name]) for name in DatabaseMove._fields)) for fields in document]
    except (ValueError, TypeError, KeyError):
        return []
