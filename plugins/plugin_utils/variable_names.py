# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of variables that somebody meant as options of this collection: Ansible ignores a name that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from ansible_collections.gpumesh.cluster.plugins.plugin_utils.action import option_names, role_names

#: How similar two names are, in difflib's measure, if one is taken for the other misspelled: as a whole, in what follows
#: the name of a role, and as a whole if the name of the role is misspelled. The first alone takes `username` for
#: `cluster_name` and `cluster_id` for `cluster_site`.
_SIMILAR = 0.8
_SIMILAR_REST = 0.75
_SIMILAR_ROLE = 0.9


@dataclass(frozen=True)
class UnknownNames:
    """Names that are no option: what each misspelled one stands for, and others that begin as options do."""

    misspelled: dict[str, str]
    ignored: list[str]

    @property
    def questions(self) -> list[str]:
        """One question for each misspelled name."""
        return [f"{name}: did you mean {option}?" for name, option in sorted(self.misspelled.items())]


def find_unknown(names: Collection[str]) -> UnknownNames:
    """Return which of these names of variables are no option, but look like one."""
    misspelled, ignored = {}, []
    for name in sorted(names):
        # Ansible's own, and those of other roles for themselves.
        if name in option_names() or name.startswith(("_", "ansible_")):
            continue
        option = _meant_option(name)
        if option:
            misspelled[name] = option
        elif _role_prefix(name):
            ignored.append(name)
    return UnknownNames(misspelled, ignored)


def _meant_option(name: str) -> str | None:
    prefix = _role_prefix(name)
    for option in difflib.get_close_matches(name, option_names(), n=3, cutoff=_SIMILAR):
        if prefix and option.startswith(prefix):
            if _similarity(name[len(prefix) :], option[len(prefix) :]) >= _SIMILAR_REST:
                return option
        elif "_" in name and _similarity(name, option) >= _SIMILAR_ROLE:
            return option
    return None


def _similarity(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


def _role_prefix(name: str) -> str:
    """The name of a role with which this one begins, and the underscore after it; empty if there is none."""
    return next((f"{role}_" for role in role_names() if name.startswith(f"{role}_")), "")
