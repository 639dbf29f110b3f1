# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of a layer, one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.module import Outcome, Part, bring_about, exit_with


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


class Module:
    """What exit_with uses of AnsibleModule."""

    _diff = False
    check_mode = False
    params: ClassVar[dict[str, Any]] = {}

    def exit_json(self, **_result: Any) -> None:
        raise SystemExit


@pytest.fixture(name="hardened")
def _hardened() -> Iterator[None]:
    """A host on which files that are created are only for their owner, and their group, unless told otherwise."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.parametrize(("uid", "own_umask", "mode"), [(0, False, 0o755), (0, True, 0o750), (1000, False, 0o750)])
def test_what_root_creates_on_the_way_is_for_all_users_whatever_its_umask_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardened: None, uid: int, own_umask: bool, mode: int
) -> None:
    """Otherwise, nobody else could get to the volume, or to the keys and scripts in /etc/gpumesh."""

    def work() -> Outcome:
        host_files.see_to([{"path": str(tmp_path / "srv" / "data"), "state": "directory", "mode": "1777"}], False)
        return Outcome(True, {})

    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(SystemExit):
        exit_with(Module(), work, own_umask=own_umask)
    assert (tmp_path / "srv").stat().st_mode & 0o777 == mode
    assert (tmp_path / "srv" / "data").stat().st_mode & 0o7777 == 0o1777
