# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Subordinate IDs: no two users have the same, and what is printed as a remedy gives them none that others have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.account import current_user_name
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session import subordinate
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.session.subordinate import SubordinateRange

USER_NAME = current_user_name()
RANGES = st.builds(SubordinateRange, st.just("x"), st.integers(0, 1 << 22), st.integers(1, 1 << 18))


@pytest.fixture(name="top", autouse=True)
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = [(str(tmp_path / os.path.basename(path)), *words) for path, *words in subordinate.RANGE_FILES]
    monkeypatch.setattr(subordinate, "RANGE_FILES", files)
    return tmp_path


def get_refusal(top: Path, users: str, groups: str) -> HostStateError:
    """The error about a host with these two files."""
    (top / "subuid").write_text(users)
    (top / "subgid").write_text(groups)
    with pytest.raises(HostStateError) as caught:
        subordinate.refuse_unfit_user()
    return caught.value


def test_user_with_exclusive_ranges_is_accepted(top: Path) -> None:
    for name in ("subuid", "subgid"):
        (top / name).write_text(f"bob:100000:65536\n{USER_NAME}:165536:65536\n")
    subordinate.refuse_unfit_user()
    assert "no subordinate group IDs" in get_refusal(top, f"{USER_NAME}:165536:65536\n", "bob:165536:65536\n").message


def test_remedies_suggest_different_ranges(top: Path) -> None:
    """The first one is Debian's first for a new user."""
    first = get_refusal(top, "", "")
    assert f"--add-subuids 100000-165535 --add-subgids 100000-165535 {USER_NAME}" in str(first.remedy)
    second = get_refusal(top, "bob:100000:65536\n", "carol:165536:65536\n")
    assert f"--add-subuids 231072-296607 --add-subgids 231072-296607 {USER_NAME}" in str(second.remedy)


@pytest.mark.parametrize("own", [USER_NAME, str(os.geteuid())])
def test_overlapping_range_is_refused(top: Path, own: str) -> None:
    found = get_refusal(top, f"bob:100000:65536\n{own}:165535:65536\n", f"{own}:100000:65536\n")
    assert "also those of bob" in found.message
    # Aligned as useradd does it, and beyond those of both files.
    assert "--del-subuids 165535-231070 --add-subuids 231072-296607" in str(found.remedy)


def test_range_containing_an_account_is_refused(top: Path) -> None:
    found = get_refusal(top, f"{USER_NAME}:0:65536\n", f"{USER_NAME}:100000:65536\n")
    assert "also those of account 0" in found.message


@given(st.lists(RANGES, max_size=20), st.lists(st.integers(0, 1 << 22), max_size=20))
def test_suggested_range_overlaps_no_other(taken: list[SubordinateRange], accounts: list[int]) -> None:
    free = subordinate.find_free_range(taken, accounts)
    assert free is not None and free.first_id >= 100000
    assert not any(free.overlaps(one) for one in taken)
    assert not any(free.first_id <= number <= free.last_id for number in accounts)


def test_exhausted_ids_leave_no_free_range() -> None:
    assert subordinate.find_free_range([SubordinateRange("x", 0, (1 << 32) - 100)], []) is None


def test_invalid_lines_are_ignored() -> None:
    assert subordinate.parse_ranges("# a\n\nbob:1:x\nbob:5\nbob:5:0\nbob:100000:65536\n") == [
        SubordinateRange("bob", 100000, 65536)
    ]
