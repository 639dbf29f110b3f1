# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subordinate IDs, which rootless containers have: each user needs ranges that belong to nobody else. See subuid(5)."""

from __future__ import annotations

import os
import pwd
from typing import Iterable, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import read_text

#: The files, with the options of usermod that add and remove ranges.
FILES = (
    ("/etc/subuid", "user", "--add-subuids", "--del-subuids"),
    ("/etc/subgid", "group", "--add-subgids", "--del-subgids"),
)
#: The first ID and the size of ranges, as Debian's useradd assigns them, and the IDs that there are.
_FIRST, _COUNT, _MOST = 100000, 65536, (1 << 32) - 1


class Range(NamedTuple):
    """The IDs of an owner, who is a name or a number."""

    owner: str
    first: int
    size: int

    @property
    def last(self) -> int:
        """The last one."""
        return self.first + self.size - 1

    def overlaps(self, other: Range) -> bool:
        """Whether they have an ID in common."""
        return self.first <= other.last and other.first <= self.last


def parse(text: str) -> List[Range]:
    """The ranges in a file; other lines are ignored, as newuidmap does."""
    found = []
    for line in text.splitlines():
        owner, _colon, numbers = line.strip().partition(":")
        first, _colon, size = numbers.partition(":")
        if owner and first.isdecimal() and size.isdecimal() and int(size):
            found.append(Range(owner, int(first), int(size)))
    return found


def next_free(taken: Iterable[Range], accounts: Iterable[int]) -> Optional[Range]:
    """The first range of the usual size that contains none of the IDs of others; None if there is none."""
    used = sorted([*((one.first, one.last) for one in taken), *((number, number) for number in accounts)])
    first = _FIRST
    for low, high in used:
        if low >= first + _COUNT:
            break
        # Aligned as those of useradd are.
        if high >= first:
            first += -(-(high + 1 - first) // _COUNT) * _COUNT
    return Range("", first, _COUNT) if first + _COUNT <= _MOST else None


def refuse_unfit() -> None:
    """Refuse this user without ranges on this host, or with IDs that somebody else has, too. Raises HostStateError."""
    here, user, names = os.uname().nodename, own_name(), (own_name(), str(os.geteuid()))
    ranges = [parse(read_text(path) or "") for path, *_words in FILES]
    accounts = [entry.pw_uid for entry in pwd.getpwall()]
    free = next_free([one for each in ranges for one in each], accounts)
    adds = f"{free.first}-{free.last}" if free else "FIRST-LAST"
    for (path, kind, _add, _remove), each in zip(FILES, ranges):
        own = [one for one in each if one.owner in names]
        if not own:
            lacking = [words for words, there in zip(FILES, ranges) if not any(one.owner in names for one in there)]
            options = " ".join(f"{add} {adds}" for _path, _kind, add, _remove in lacking)
            raise HostStateError(
                f"{here}: {user} has no subordinate {kind} IDs.", f"Run as root: usermod {options} {user}"
            )
        others = [*(one for one in each if one.owner not in names), *(Range(f"account {n}", n, 1) for n in accounts)]
        twice = [(one, other) for one in own for other in others if one.overlaps(other)]
        if twice:
            one, other = twice[0]
            option = " ".join(
                f"{remove} {one.first}-{one.last} {add} {adds}" for place, _kind, add, remove in FILES if place == path
            )
            raise HostStateError(
                f"{here}: the subordinate {kind} IDs {one.first}-{one.last} of {user} are also those of {other.owner} "
                f"({path}), whose programs {user}'s containers could end.",
                f"Run as root, while {user} has no containers: usermod {option} {user}",
            )
