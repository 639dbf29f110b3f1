# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of machines in all forms that a user, a survey or another playbook may write."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._cluster.machines import parse_machine_names


@pytest.mark.parametrize(
    "given",
    [["a", "b2", "c.d"], ("a", "b2", "c.d"), "a,b2,c.d", "a, b2,\n c.d", "a b2 c.d", "a\nb2\nc.d\n", "a,b2,a,c.d"],
)
def test_equivalent_lists_of_machines(given: object) -> None:
    assert parse_machine_names(given) == ["a", "b2", "c.d"]


@pytest.mark.parametrize("given", [None, "", " ", [], ","])
def test_no_machines(given: object) -> None:
    assert parse_machine_names(given) == []


@pytest.mark.parametrize("given", [{"a": 1}, 7, "a;b", ["a b"], [None, "-x"]])
def test_invalid_machines_are_refused(given: object) -> None:
    with pytest.raises(InputError, match=r"machine"):
        parse_machine_names(given)
