# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes on a host without automounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.volume_users import VolumeUser
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import fstab

UNIT = (
    "[Unit]\nDescription=Volume data\n\n[Mount]\nWhat=10.99.0.1:/srv/data\nWhere=/data\nType=nfs4\n"
    "Options=vers=4.2,_netdev,nofail,softerr\nTimeoutSec=60\n"
)
LINE = "10.99.0.1:/srv/data /data nfs4 vers=4.2,_netdev,softerr,noauto 0 0"
DESIRED_LINES = {"/data": LINE}
USER = VolumeUser("/data", 4711, "alice", "python3")


def fstab_state(**differences: Any) -> fstab.FstabState:
    """A host on which everything is right."""
    return fstab.FstabState(DESIRED_LINES, ["/data"], [], [])._replace(**differences)


class Commands:
    """Records the commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def __call__(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        self.commands.append(" ".join(argv))
        return CommandResult(0, "", "")


def test_unit_is_converted_to_a_line() -> None:
    assert fstab.convert_unit(UNIT) == ("/data", LINE)
    assert (
        fstab.convert_unit("[Mount]\nWhat=/srv/x\nWhere=/x\nType=none\nOptions=bind\n")[1]
        == "/srv/x /x none bind,noauto 0 0"
    )


def test_correct_host_is_not_changed() -> None:
    assert not fstab.plan_fstab(DESIRED_LINES, fstab_state(users=[USER])).changed


def test_volume_is_added_and_removed(tmp_path: Path) -> None:
    path, point = tmp_path / "fstab", str(tmp_path / "data")
    path.write_text("/dev/sda1 / ext4 defaults 0 1\n")
    wanted = {point: LINE.replace("/data nfs4", f"{point} nfs4")}
    commands = Commands()
    fstab.apply_fstab_plan(
        commands, fstab.plan_fstab(wanted, fstab_state(lines={}, mounted=[])), wanted, "lab", str(path)
    )
    assert commands.commands == [f"mount {point}"]
    assert fstab.parse_own_lines(path.read_text(), "lab") == wanted
    assert fstab.parse_own_lines(path.read_text(), "lab2") == {}
    commands = Commands()
    fstab.apply_fstab_plan(
        commands, fstab.plan_fstab({}, fstab_state(lines=wanted, mounted=[point])), {}, "lab", str(path)
    )
    assert commands.commands == [f"umount --lazy {point}"]
    assert path.read_text() == "/dev/sda1 / ext4 defaults 0 1\n"


def test_volume_is_mounted_after_a_container_restart() -> None:
    assert fstab.plan_fstab(DESIRED_LINES, fstab_state(mounted=[])) == fstab.FstabPlan([], False, ["/data"])


def test_volume_in_use_is_refused_with_its_user() -> None:
    for wanted in ({}, {"/data": LINE.replace("softerr", "hard")}):
        with pytest.raises(HostStateError, match=r"python3 of alice \(process 4711\) uses /data"):
            fstab.plan_fstab(wanted, fstab_state(users=[USER]))
        assert fstab.plan_fstab(wanted, fstab_state(users=[USER]), force=True).unmount_points == ["/data"]


def test_volume_in_use_is_remounted_with_new_flags() -> None:
    wanted = {"/data": LINE.replace("noauto", "nosuid,nodev,noauto")}
    plan = fstab.plan_fstab(wanted, fstab_state(users=[USER], options={"/data": ["rw", "relatime"]}))
    assert (plan.unmount_points, plan.block_changed, plan.mount_points) == ([], True, [])
    assert [each.options_after for each in plan.remounts] == [("rw", "relatime", "nosuid", "nodev")]
    settled = fstab_state(lines=wanted, users=[USER], options={"/data": ["rw", "nosuid", "nodev"]})
    assert not fstab.plan_fstab(wanted, settled).changed


def test_stale_volume_in_use_is_remounted() -> None:
    assert fstab.plan_fstab(DESIRED_LINES, fstab_state(stale=["/data"], users=[USER])) == fstab.FstabPlan(
        ["/data"], False, ["/data"]
    )


def test_missing_mount_capability_is_refused() -> None:
    fstab.refuse_without_capability("CapEff:\t000001ffffffffff\n")
    with pytest.raises(HostStateError, match="CAP_SYS_ADMIN"):
        fstab.refuse_without_capability("CapEff:\t00000000a80425fb\n")


class RefusingServer(Commands):
    """A server that exports a volume only after this many attempts to mount it."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts

    def __call__(self, argv: Sequence[str], check: bool = True, **options: Any) -> CommandResult:
        super().__call__(argv, **options)
        self.attempts -= 1
        if self.attempts >= 0 and check:
            raise CommandError(argv, "exited 32", 32, "mount.nfs4: mounting failed: No such file or directory")
        return CommandResult(32 if self.attempts >= 0 else 0, "", "")


@pytest.mark.parametrize(("kind", "refused", "attempts"), [("nfs4", 2, 3), ("nfs4", 99, 6), ("none", 99, 1)])
def test_mount_is_retried_until_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: int, attempts: int
) -> None:
    monkeypatch.setattr(fstab.time, "sleep", lambda _seconds: None)
    point = str(tmp_path / "data")
    wanted = {point: f"10.99.0.1:/srv/data {point} {kind} noauto 0 0"}
    commands = RefusingServer(refused)
    made = fstab.FstabPlan([], block_changed=False, mount_points=[point])
    if refused == 99:
        with pytest.raises(CommandError, match="No such file"):
            fstab.apply_fstab_plan(commands, made, wanted, "lab")
    else:
        fstab.apply_fstab_plan(commands, made, wanted, "lab")
    assert commands.commands == [f"mount {point}"] * attempts
