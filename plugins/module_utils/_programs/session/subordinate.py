# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subordinate IDs for rootless containers: each user needs ranges that belong to nobody else. See subuid(5)."""

from __future__ import annotations

import os
import pwd
from typing import Iterable, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text

#: The files, with the options of usermod that add and remove ranges.
RANGE_FILES = (
    ("/etc/subuid", "user", "--add-subuids", "--del-subuids"),
    ("/etc/subgid", "group", "--add-subgids", "--del-subgids"),
)
#: The first ID and the size of the ranges that Debian's useradd assigns, and the highest possible ID.
_FIRST_ID, _RANGE_SIZE, _MAX_ID = 100000, 65536, (1 << 32) - 1


class SubordinateRange(NamedTuple):
    """A range of IDs. ``owner``: the name or the UID of a user."""

    owner: str
    first_id: int
    id_count: int

    @property
    def last_id(self) -> int:
        """Return the last ID."""
        return self.first_id + self.id_count - 1

    def overlaps(self, other_range: SubordinateRange) -> bool:
        """Return whether both ranges have an ID in common."""
        return self.first_id <= other_range.last_id and other_range.first_id <= self.last_id


def parse_ranges(text: str) -> List[SubordinateRange]:
    """Parse the ranges in a file. Invalid lines are ignored, as newuidmap does."""
    ranges = []
    for line in text.splitlines():
        owner, _colon, range_text = line.strip().partition(":")
        first_text, _colon, size_text = range_text.partition(":")
        if owner and first_text.isdecimal() and size_text.isdecimal() and int(size_text):
            ranges.append(SubordinateRange(owner, int(first_text), int(size_text)))
    return ranges


def find_free_range(used_ranges: Iterable[SubordinateRange], account_ids: Iterable[int]) -> Optional[SubordinateRange]:
    """Return the first range of the default size without any used ID; None if there is none."""
    bounds = sorted(
        [*((used.first_id, used.last_id) for used in used_ranges), *((account, account) for account in account_ids)]
    )
    first_id = _FIRST_ID
    for lowest_id, highest_id in bounds:
        if lowest_id >= first_id + _RANGE_SIZE:
            break
        # The range is aligned like those of useradd.
        if highest_id >= first_id:
            first_id += -(-(highest_id + 1 - first_id) // _RANGE_SIZE) * _RANGE_SIZE
    return SubordinateRange("", first_id, _RANGE_SIZE) if first_id + _RANGE_SIZE <= _MAX_ID else None


def refuse_unfit_user() -> None:
    """Refuse a user who has no ranges on this host, or IDs that somebody else also has. Raises HostStateError."""
    node_name, user_name, owners = os.uname().nodename, current_user_name(), (current_user_name(), str(os.geteuid()))
    ranges_per_file = [parse_ranges(read_text(path) or "") for path, *_file in RANGE_FILES]
    account_ids = [account.pw_uid for account in pwd.getpwall()]
    free_range = find_free_range([id_range for file_ranges in ranges_per_file for id_range in file_ranges], account_ids)
    suggestion = f"{free_range.first_id}-{free_range.last_id}" if free_range else "FIRST-LAST"
    for (path, id_kind, _add, _remove), file_ranges in zip(RANGE_FILES, ranges_per_file):
        user_ranges = [id_range for id_range in file_ranges if id_range.owner in owners]
        if not user_ranges:
            incomplete = [
                file
                for file, ranges in zip(RANGE_FILES, ranges_per_file)
                if not any(id_range.owner in owners for id_range in ranges)
            ]
            add_options = " ".join(f"{add} {suggestion}" for _path, _kind, add, _remove in incomplete)
            raise HostStateError(
                f"{node_name}: {user_name} has no subordinate {id_kind} IDs.",
                f"Run as root: usermod {add_options} {user_name}",
            )
        foreign_ranges = [
            *(id_range for id_range in file_ranges if id_range.owner not in owners),
            *(SubordinateRange(f"account {number}", number, 1) for number in account_ids),
        ]
        overlapping_pairs = [
            (id_range, foreign) for id_range in user_ranges for foreign in foreign_ranges if id_range.overlaps(foreign)
        ]
        if overlapping_pairs:
            id_range, foreign = overlapping_pairs[0]
            usermod_options = " ".join(
                f"{remove} {id_range.first_id}-{id_range.last_id} {add} {suggestion}"
                for listed_path, _kind, add, remove in RANGE_FILES
                if listed_path == path
            )
            raise HostStateError(
                f"{node_name}: the subordinate {id_kind} IDs {id_range.first_id}-{id_range.last_id} of {user_name} are also those of {foreign.owner} "
                f"({path}), whose programs {user_name}'s containers could end.",
                f"Run as root, while {user_name} has no containers: usermod {usermod_options} {user_name}",
            )
