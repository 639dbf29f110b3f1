# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of a record, whose older entries are folded so that a record does not grow with its changes. Pure.

Folded entries leave their number, their dates, and a digest of the whole history up to there, with which two copies can
still be compared. The entries that are read later are kept: see ``_is_landmark`` and ``fold``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.record.model import Folded, HistoryEntry, Record

#: The number of the newest entries that are never folded. A copy that is further behind is compared by the landmarks.
NEWEST = 50
#: The kind of a change that switches the tracking of experiments on or off: the last one is kept, since it shows that a
#: member may still have the server.
_TRACKING = "tracking"


def fold(record: Record) -> Record:
    """The record with its older entries folded, or the record itself if there is nothing to fold."""
    was = record.get("folded")
    through = record["generation"] - NEWEST
    if through <= (was["through"] if was else 0):
        return record
    older = [entry for entry in record["history"] if entry["generation"] <= through]
    tracking = [entry["generation"] for entry in older if entry["change"] == _TRACKING][-1:]
    kept = [entry for entry in older if _is_landmark(entry) or entry["generation"] in tracking]
    gone = [entry["at"] for entry in older if entry not in kept]
    dates = [*([was["first"], was["last"]] if was else []), *gone]
    if not dates:
        return record
    folded: Folded = {
        "through": through,
        "count": through - len(kept),
        "first": min(dates),
        "last": max(dates),
        "digest": str(_digest(record, through)),
    }
    return {**record, "folded": folded, "history": [*kept, *record["history"][len(older) :]]}


def difference(copy: Record, reference: Record) -> Optional[str]:
    """How the histories of two copies of one record differ up to the older one's generation; None if they do not.

    Where one copy has folded more than the other has seen, only the landmarks can be compared: to lose a later change of
    the other, somebody must have decided it, since a manager that does not know of its successor differs by a landmark.
    """
    shared = min(copy["generation"], reference["generation"])
    mine, theirs = _by_generation(copy, shared), _by_generation(reference, shared)
    for generation in sorted(mine.keys() | theirs.keys()):
        here, there = mine.get(generation), theirs.get(generation)
        if here and there and here != there:
            return (
                f"both have a generation {generation}: in the copy it is '{here['detail']}' by {here['by']} at "
                f"{here['at']}, in the other '{there['detail']}' by {there['by']} at {there['at']}"
            )
        only = here or there
        if only and not (here and there) and _is_landmark(only):
            return (
                f"both have a generation {generation}: in {'the copy' if here else 'the other'} it is '{only['detail']}' "
                f"by {only['by']} at {only['at']}, in {'the other' if here else 'the copy'} something else"
            )
    through = max(_through(copy), _through(reference))
    if through <= shared and _digest(copy, through) != _digest(reference, through):
        return f"their changes up to generation {through}, which are folded, are not the same"
    return None


def _is_landmark(entry: HistoryEntry) -> bool:
    """Whether an entry is always kept: the creation, and the beginning of each manager's tenure."""
    return entry["generation"] == 1 or entry["change"] == "hand_over"


def _through(record: Record) -> int:
    folded = record.get("folded")
    return folded["through"] if folded else 0


def _by_generation(record: Record, last: int) -> Dict[int, HistoryEntry]:
    return {entry["generation"]: entry for entry in record["history"] if entry["generation"] <= last}


def _digest(record: Record, generation: int) -> Optional[str]:
    """The digest of the history up to a generation; None if some of the entries after it are folded, too."""
    folded = record.get("folded")
    begin, digest = (folded["through"], folded["digest"]) if folded else (0, "")
    if generation < begin:
        return None
    entries: List[HistoryEntry] = [one for one in record["history"] if begin < one["generation"] <= generation]
    for entry in entries:
        canonical = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(f"{digest}{canonical}".encode("ascii")).hexdigest()
    return digest
