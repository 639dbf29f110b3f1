# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes of a layer, one after the other, and the umask of modules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.module import (
    LayerChange,
    ModuleResult,
    apply_changes,
    exit_with,
)


@pytest.mark.parametrize(("look_only", "applied"), [(False, ["same", "new"]), (True, [])])
def test_changes_are_applied_in_order_unless_in_check_mode(look_only: bool, applied: list[str]) -> None:
    applied_names: list[str] = []
    changes = [
        # A change without a difference is applied too, since an earlier run may have been interrupted.
        LayerChange(False, "", "", lambda: applied_names.append("same")),
        LayerChange(True, "old\n", "new\n", lambda: applied_names.append("new")),
    ]
    assert apply_changes(changes, {"key": 1}, look_only) == ModuleResult(True, {"key": 1}, "old\n", "new\n")
    assert applied_names == applied
    assert not apply_changes(changes[:1], {}, look_only).changed


class FakeModule:
    """The part of AnsibleModule that exit_with uses."""

    _diff = False
    check_mode = False
    params: ClassVar[dict[str, Any]] = {}

    def exit_json(self, **_result: Any) -> None:
        raise SystemExit


@pytest.fixture(name="hardened")
def _hardened() -> Iterator[None]:
    """A host with a umask that gives other users no access to new files."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.parametrize(("uid", "own_umask", "mode"), [(0, False, 0o755), (0, True, 0o750), (1000, False, 0o750)])
def test_parent_directories_created_by_root_are_accessible_to_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hardened: None, uid: int, own_umask: bool, mode: int
) -> None:
    """Users could otherwise not reach the volume, or the keys and scripts in /etc/gpumesh."""

    def work() -> ModuleResult:
        managed_files.ensure_files(
            [{"path": str(tmp_path / "srv" / "data"), "state": "directory", "mode": "1777"}], False
        )
        return ModuleResult(True, {})

    monkeypatch.setattr(os, "geteuid", lambda: uid)
    with pytest.raises(SystemExit):
        exit_with(FakeModule(), work, keep_umask=own_umask)
    assert (tmp_path / "srv").stat().st_mode & 0o777 == mode
    assert (tmp_path / "srv" / "data").stat().st_mode & 0o7777 == 0o1777
