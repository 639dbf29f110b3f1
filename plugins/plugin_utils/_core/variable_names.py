# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names of variables that somebody meant as options of this collection: Ansible ignores a name that nothing reads."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from dataclasses import dataclass

from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.action import option_names, role_names

#: The similarity, in difflib's measure, from which on one name is taken for the other misspelled: of the whole names,
#: of what follows the name of a role, and of the whole names if the name of the role is misspelled. The first alone
#: takes `username` for `cluster_name` and `cluster_id` for `cluster_site`.
_NAME_SIMILARITY = 0.8
_SUFFIX_SIMILARITY = 0.75
_ROLE_SIMILARITY = 0.9


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
    option_by_misspelling, ignored_names = {}, []
    for name in sorted(names):
        # Ansible's own variables and private ones of other roles are ignored.
        if name in option_names() or name.startswith(("_", "ansible_")):
            continue
        option = _closest_option(name)
        if option:
            option_by_misspelling[name] = option
        elif _role_prefix(name):
            ignored_names.append(name)
    return UnknownNames(option_by_misspelling, ignored_names)


def _closest_option(name: str) -> str | None:
    prefix = _role_prefix(name)
    for option in difflib.get_close_matches(name, option_names(), n=3, cutoff=_NAME_SIMILARITY):
        if prefix and option.startswith(prefix):
            if _similarity(name[len(prefix) :], option[len(prefix) :]) >= _SUFFIX_SIMILARITY:
                return option
        elif "_" in name and _similarity(name, option) >= _ROLE_SIMILARITY:
            return option
    return None


def _similarity(first_name: str, second_name: str) -> float:
    return difflib.SequenceMatcher(None, first_name, second_name).ratio()


def _role_prefix(name: str) -> str:
    """The name of a role with which this one begins, and the underscore after it; empty if there is none."""
    return next((f"{role}_" for role in role_names() if name.startswith(f"{role}_")), "")
