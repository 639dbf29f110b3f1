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

from ansible_collections.gpumesh.cluster.plugins.module_utils.account import own_name
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.session import subordinate
from ansible_collections.gpumesh.cluster.plugins.module_utils.session.subordinate import Range

ME = own_name()
RANGES = st.builds(Range, st.just("x"), st.integers(0, 1 << 22), st.integers(1, 1 << 18))


@pytest.fixture(name="top", autouse=True)
def _top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = [(str(tmp_path / os.path.basename(path)), *words) for path, *words in subordinate.FILES]
    monkeypatch.setattr(subordinate, "FILES", files)
    return tmp_path


def refused(top: Path, users: str, groups: str) -> HostStateError:
    """The error about a host with these two files."""
    (top / "subuid").write_text(users)
    (top / "subgid").write_text(groups)
    with pytest.raises(HostStateError) as caught:
        subordinate.refuse_unfit()
    return caught.value


def test_a_user_with_ranges_of_their_own_is_fit(top: Path) -> None:
    for name in ("subuid", "subgid"):
        (top / name).write_text(f"bob:100000:65536\n{ME}:165536:65536\n")
    subordinate.refuse_unfit()
    assert "no subordinate group IDs" in refused(top, f"{ME}:165536:65536\n", "bob:165536:65536\n").message


def test_the_remedy_for_two_users_gives_them_different_ranges(top: Path) -> None:
    """The first one is Debian's first for a new user."""
    first = refused(top, "", "")
    assert f"--add-subuids 100000-165535 --add-subgids 100000-165535 {ME}" in str(first.remedy)
    second = refused(top, "bob:100000:65536\n", "carol:165536:65536\n")
    assert f"--add-subuids 231072-296607 --add-subgids 231072-296607 {ME}" in str(second.remedy)


@pytest.mark.parametrize("own", [ME, str(os.geteuid())])
def test_a_range_that_another_user_has_as_well_is_refused(top: Path, own: str) -> None:
    found = refused(top, f"bob:100000:65536\n{own}:165535:65536\n", f"{own}:100000:65536\n")
    assert "also those of bob" in found.message
    # Aligned as useradd does it, and beyond those of both files.
    assert "--del-subuids 165535-231070 --add-subuids 231072-296607" in str(found.remedy)


def test_a_range_with_the_id_of_an_account_is_refused(top: Path) -> None:
    found = refused(top, f"{ME}:0:65536\n", f"{ME}:100000:65536\n")
    assert "also those of account 0" in found.message


@given(st.lists(RANGES, max_size=20), st.lists(st.integers(0, 1 << 22), max_size=20))
def test_the_next_free_range_is_free(taken: list[Range], accounts: list[int]) -> None:
    free = subordinate.next_free(taken, accounts)
    assert free is not None and free.first >= 100000
    assert not any(free.overlaps(one) for one in taken)
    assert not any(free.first <= number <= free.last for number in accounts)


def test_there_may_be_none() -> None:
    assert subordinate.next_free([Range("x", 0, (1 << 32) - 100)], []) is None


def test_lines_that_mean_nothing_are_ignored() -> None:
    assert subordinate.parse("# a\n\nbob:1:x\nbob:5\nbob:5:0\nbob:100000:65536\n") == [Range("bob", 100000, 65536)]
