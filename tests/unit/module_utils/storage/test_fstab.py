# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Volumes on a host without automounts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import VolumeUser
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import fstab

UNIT = (
    "[Unit]\nDescription=Volume data\n\n[Mount]\nWhat=10.99.0.1:/srv/data\nWhere=/data\nType=nfs4\n"
    "Options=vers=4.2,_netdev,nofail,softerr\nTimeoutSec=60\n"
)
LINE = "10.99.0.1:/srv/data /data nfs4 vers=4.2,_netdev,softerr,noauto 0 0"
WANTED = {"/data": LINE}
USER = VolumeUser("/data", 4711, "alice", "python3")


def host(**differences: Any) -> fstab.Host:
    """A host on which everything is right."""
    return fstab.Host(WANTED, ["/data"], [], [])._replace(**differences)


class Commands:
    """Records the commands."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __call__(self, argv: Sequence[str], **_options: Any) -> Completed:
        self.told.append(" ".join(argv))
        return Completed(0, "", "")


def test_a_unit_as_a_line() -> None:
    assert fstab.line_of(UNIT) == ("/data", LINE)
    assert (
        fstab.line_of("[Mount]\nWhat=/srv/x\nWhere=/x\nType=none\nOptions=bind\n")[1]
        == "/srv/x /x none bind,noauto 0 0"
    )


def test_where_everything_is_right_nothing_is_done() -> None:
    assert not fstab.make_plan(WANTED, host(users=[USER])).changed


def test_a_new_volume_is_written_and_mounted_and_goes_again(tmp_path: Path) -> None:
    path, point = tmp_path / "fstab", str(tmp_path / "data")
    path.write_text("/dev/sda1 / ext4 defaults 0 1\n")
    wanted = {point: LINE.replace("/data nfs4", f"{point} nfs4")}
    commands = Commands()
    fstab.apply(commands, fstab.make_plan(wanted, host(lines={}, mounted=[])), wanted, "lab", str(path))
    assert commands.told == [f"mount {point}"]
    assert fstab.parse(path.read_text(), "lab") == wanted
    assert fstab.parse(path.read_text(), "lab2") == {}
    commands = Commands()
    fstab.apply(commands, fstab.make_plan({}, host(lines=wanted, mounted=[point])), {}, "lab", str(path))
    assert commands.told == [f"umount --lazy {point}"]
    assert path.read_text() == "/dev/sda1 / ext4 defaults 0 1\n"


def test_after_a_restart_of_the_container_it_is_only_mounted() -> None:
    assert fstab.make_plan(WANTED, host(mounted=[])) == fstab.Plan([], False, ["/data"])


def test_a_volume_in_use_is_not_unmounted_and_its_user_is_named() -> None:
    for wanted in ({}, {"/data": LINE.replace("softerr", "hard")}):
        with pytest.raises(HostStateError, match=r"python3 of alice \(process 4711\) uses /data"):
            fstab.make_plan(wanted, host(users=[USER]))
        assert fstab.make_plan(wanted, host(users=[USER]), force=True).unmount == ["/data"]


def test_a_volume_in_use_is_confined_without_being_unmounted() -> None:
    wanted = {"/data": LINE.replace("noauto", "nosuid,nodev,noauto")}
    plan = fstab.make_plan(wanted, host(users=[USER], options={"/data": ["rw", "relatime"]}))
    assert (plan.unmount, plan.write, plan.mount) == ([], True, [])
    assert [each.after for each in plan.remount] == [("rw", "relatime", "nosuid", "nodev")]
    settled = host(lines=wanted, users=[USER], options={"/data": ["rw", "nosuid", "nodev"]})
    assert not fstab.make_plan(wanted, settled).changed


def test_a_stale_volume_is_mounted_anew_whoever_uses_it() -> None:
    assert fstab.make_plan(WANTED, host(stale=["/data"], users=[USER])) == fstab.Plan(["/data"], False, ["/data"])


def test_a_container_that_may_not_mount_is_refused() -> None:
    fstab.refuse_without_right("CapEff:\t000001ffffffffff\n")
    with pytest.raises(HostStateError, match="CAP_SYS_ADMIN"):
        fstab.refuse_without_right("CapEff:\t00000000a80425fb\n")


class Refused(Commands):
    """A server that exports a volume only after this many attempts to mount it."""

    def __init__(self, attempts: int) -> None:
        super().__init__()
        self.attempts = attempts

    def __call__(self, argv: Sequence[str], check: bool = True, **options: Any) -> Completed:
        super().__call__(argv, **options)
        self.attempts -= 1
        if self.attempts >= 0 and check:
            raise CommandError(argv, "exited 32", 32, "mount.nfs4: mounting failed: No such file or directory")
        return Completed(32 if self.attempts >= 0 else 0, "", "")


@pytest.mark.parametrize(("kind", "refused", "attempts"), [("nfs4", 2, 3), ("nfs4", 99, 6), ("none", 99, 1)])
def test_an_export_that_is_about_to_come_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, refused: int, attempts: int
) -> None:
    monkeypatch.setattr(fstab.time, "sleep", lambda _seconds: None)
    point = str(tmp_path / "data")
    wanted = {point: f"10.99.0.1:/srv/data {point} {kind} noauto 0 0"}
    commands = Refused(refused)
    made = fstab.Plan([], write=False, mount=[point])
    if refused == 99:
        with pytest.raises(CommandError, match="No such file"):
            fstab.apply(commands, made, wanted, "lab")
    else:
        fstab.apply(commands, made, wanted, "lab")
    assert commands.told == [f"mount {point}"] * attempts
