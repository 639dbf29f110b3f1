# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The history of a record, whose older entries are folded so that a record does not grow with its changes. Pure.

Folded entries leave their number, their dates, and a digest of the whole history up to there, with which two copies can
still be compared. The entries that are read later are kept: see ``_is_landmark`` and ``fold_history``.
"""

from __future__ import annotations

import hashlib
import json
from typing import Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record.model import (
    FoldedHistory,
    HistoryEntry,
    Record,
)

#: The number of the newest entries that are never folded. A copy that is further behind is compared by the landmarks.
UNFOLDED_ENTRIES = 50
#: The kind of a change that switches the tracking of experiments on or off: the last one is kept, since it shows that a
#: member may still have the server.
_TRACKING_CHANGE = "tracking"


def fold_history(record: Record) -> Record:
    """Fold the older entries of a record. Returns the record itself if there is nothing to fold."""
    previous_fold = record.get("folded")
    last_folded = record["generation"] - UNFOLDED_ENTRIES
    if last_folded <= (previous_fold["through"] if previous_fold else 0):
        return record
    older_entries = [entry for entry in record["history"] if entry["generation"] <= last_folded]
    tracking_generations = [entry["generation"] for entry in older_entries if entry["change"] == _TRACKING_CHANGE][-1:]
    kept_entries = [
        entry for entry in older_entries if _is_landmark(entry) or entry["generation"] in tracking_generations
    ]
    folded_dates = [entry["at"] for entry in older_entries if entry not in kept_entries]
    date_range = [*([previous_fold["first"], previous_fold["last"]] if previous_fold else []), *folded_dates]
    if not date_range:
        return record
    folded: FoldedHistory = {
        "through": last_folded,
        "count": last_folded - len(kept_entries),
        "first": min(date_range),
        "last": max(date_range),
        "digest": str(_history_digest(record, last_folded)),
    }
    return {**record, "folded": folded, "history": [*kept_entries, *record["history"][len(older_entries) :]]}


def find_difference(other_copy: Record, reference_record: Record) -> Optional[str]:
    """Describe how the histories of two copies of one record differ up to the older one's generation.

    Returns None if they do not. Where one copy has folded more than the other has seen, only the landmarks can be
    compared: to lose a later change of the other, somebody must have decided it, since a manager that does not know of
    its successor differs by a landmark.
    """
    common_generation = min(other_copy["generation"], reference_record["generation"])
    copy_entries, reference_entries = (
        _entries_by_generation(other_copy, common_generation),
        _entries_by_generation(reference_record, common_generation),
    )
    for generation in sorted(copy_entries.keys() | reference_entries.keys()):
        copy_entry, reference_entry = copy_entries.get(generation), reference_entries.get(generation)
        if copy_entry and reference_entry and copy_entry != reference_entry:
            return (
                f"both have a generation {generation}: in the copy it is '{copy_entry['detail']}' by {copy_entry['by']} at "
                f"{copy_entry['at']}, in the other '{reference_entry['detail']}' by {reference_entry['by']} at {reference_entry['at']}"
            )
        single_entry = copy_entry or reference_entry
        if single_entry and not (copy_entry and reference_entry) and _is_landmark(single_entry):
            return (
                f"both have a generation {generation}: in {'the copy' if copy_entry else 'the other'} it is '{single_entry['detail']}' "
                f"by {single_entry['by']} at {single_entry['at']}, in {'the other' if copy_entry else 'the copy'} something else"
            )
    last_folded = max(_last_folded_generation(other_copy), _last_folded_generation(reference_record))
    if last_folded <= common_generation and _history_digest(other_copy, last_folded) != _history_digest(
        reference_record, last_folded
    ):
        return f"their changes up to generation {last_folded}, which are summarized, differ"
    return None


def _is_landmark(entry: HistoryEntry) -> bool:
    """Whether an entry is always kept: the creation, and the beginning of each manager's term."""
    return entry["generation"] == 1 or entry["change"] == "hand_over"


def _last_folded_generation(record: Record) -> int:
    folded = record.get("folded")
    return folded["through"] if folded else 0


def _entries_by_generation(record: Record, last_generation: int) -> Dict[int, HistoryEntry]:
    return {entry["generation"]: entry for entry in record["history"] if entry["generation"] <= last_generation}


def _history_digest(record: Record, generation: int) -> Optional[str]:
    """The digest of the history up to a generation; None if some of the entries after it are folded, too."""
    folded = record.get("folded")
    last_folded, running_digest = (folded["through"], folded["digest"]) if folded else (0, "")
    if generation < last_folded:
        return None
    entries: List[HistoryEntry] = [
        entry for entry in record["history"] if last_folded < entry["generation"] <= generation
    ]
    for entry in entries:
        canonical_json = json.dumps(entry, sort_keys=True, separators=(",", ":"))
        running_digest = hashlib.sha256(f"{running_digest}{canonical_json}".encode("ascii")).hexdigest()
    return running_digest
