# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""However a person, a survey or another playbook writes a list of machines."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.gpumesh.cluster.plugins.filter.machines import machines


@pytest.mark.parametrize(
    "given",
    [["a", "b2", "c.d"], ("a", "b2", "c.d"), "a,b2,c.d", "a, b2,\n c.d", "a b2 c.d", "a\nb2\nc.d\n", "a,b2,a,c.d"],
)
def test_all_the_same(given: object) -> None:
    assert machines(given) == ["a", "b2", "c.d"]


@pytest.mark.parametrize("given", [None, "", " ", [], ","])
def test_none(given: object) -> None:
    assert machines(given) == []


@pytest.mark.parametrize("given", [{"a": 1}, 7, "a;b", ["a b"], [None, "-x"]])
def test_refused(given: object) -> None:
    with pytest.raises(AnsibleFilterError, match=r"machine"):
        machines(given)
