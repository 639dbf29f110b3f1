# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a layer, one after the other."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, Part, bring_about


@pytest.mark.parametrize(("look_only", "applied"), [(False, ["same", "new"]), (True, [])])
def test_parts_are_applied_in_order_unless_this_is_a_look(look_only: bool, applied: list[str]) -> None:
    told: list[str] = []
    parts = [
        # An earlier run may have been interrupted, so this one is applied too.
        Part(False, "", "", lambda: told.append("same")),
        Part(True, "old\n", "new\n", lambda: told.append("new")),
    ]
    assert bring_about(parts, {"key": 1}, look_only) == Outcome(True, {"key": 1}, "old\n", "new\n")
    assert told == applied
    assert not bring_about(parts[:1], {}, look_only).changed
