# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes of the units of a cluster's volumes, without systemd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.volume_users import VolumeUser
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import mounts

TITLE = "Description=Volume data of gpumesh cluster lab"
DATA = mounts.VolumeUnits(
    "data",
    "/data",
    {
        ".mount": f"[Unit]\n{TITLE}\n[Mount]\nWhere=/data\n",
        ".automount": f"[Unit]\n{TITLE}, mounted at first use\n[Automount]\nWhere=/data\n",
    },
)
FILES = {"data" + suffix: text for suffix, text in DATA.texts.items()}
USER = VolumeUser("/data", 4711, "alice", "python3")


class Systemd:
    """Records the commands; ``answers`` are exit codes by command, else 0."""

    def __init__(self, answers: dict[tuple[str, ...], CommandResult] | None = None) -> None:
        self.commands: list[str] = []
        self.answers = answers or {}

    def __call__(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        self.commands.append(" ".join(argv))
        return self.answers.get(tuple(argv), CommandResult(0, "", ""))


def mount_state(**differences: Any) -> mounts.MountState:
    """A host on which everything is right."""
    return mounts.MountState(FILES, ["/data"], [], [], [])._replace(**differences)


def test_correct_host_is_not_changed() -> None:
    assert not mounts.plan_mounts([DATA], mount_state(users=[USER])).changed


def test_new_volume_is_written_and_started(tmp_path: Path) -> None:
    plan = mounts.plan_mounts([DATA], mount_state(files={}, mounted=[]))
    systemd = Systemd()
    mounts.apply_mount_plan(systemd, plan, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FILES
    assert systemd.commands == ["systemctl daemon-reload", "systemctl enable --now data.automount"]


def test_automount_is_stopped_before_the_removed_mount(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    systemd = Systemd()
    mounts.apply_mount_plan(systemd, mounts.plan_mounts([], mount_state()), str(tmp_path))
    assert systemd.commands == [
        "systemctl stop data.automount",
        "systemctl stop data.mount",
        "systemctl disable data.automount",
        "systemctl daemon-reload",
    ]
    assert list(tmp_path.iterdir()) == []


def test_volume_in_use_is_refused_with_its_user() -> None:
    changed = DATA._replace(texts={**DATA.texts, ".mount": f"{TITLE}\nWhere=/data\nOptions=ro\n"})
    for wanted in ([], [changed]):
        with pytest.raises(HostStateError, match=r"python3 of alice \(process 4711\) uses /data"):
            mounts.plan_mounts(wanted, mount_state(users=[USER]))
    assert mounts.plan_mounts([], mount_state(users=[USER]), force=True).deleted_units == ["data"]


CONFINED = DATA._replace(
    texts={**DATA.texts, ".mount": f"[Unit]\n{TITLE}\n[Mount]\nWhere=/data\nOptions=hard,nosuid,nodev\n"}
)
LOOSE = {**FILES, "data.mount": f"[Unit]\n{TITLE}\n[Mount]\nWhere=/data\nOptions=hard\n"}


def test_volume_in_use_is_remounted_with_new_flags(tmp_path: Path) -> None:
    there = mount_state(files=LOOSE, users=[USER], options={"/data": ["rw", "relatime"]})
    plan = mounts.plan_mounts([CONFINED], there)
    systemd = Systemd()
    mounts.apply_mount_plan(systemd, plan, str(tmp_path))
    assert "nosuid,nodev" in (tmp_path / "data.mount").read_text()
    assert systemd.commands == ["systemctl daemon-reload", "mount -o remount,bind,rw,relatime,nosuid,nodev /data"]
    assert "# /data: mounted with rw,relatime\n" in mounts.format_mount_diff(plan, there)[0]
    # A run that was interrupted after the unit was written continues from what is mounted.
    written = mount_state(files={**FILES, **dict(zip(FILES, CONFINED.texts.values()))}, users=[USER])
    again = mounts.plan_mounts([CONFINED], written._replace(options={"/data": ["rw"]}))
    assert (again.written_units, [each.options_after for each in again.remounts]) == ([], [("rw", "nosuid", "nodev")])
    assert not mounts.plan_mounts([CONFINED], written._replace(options={"/data": ["rw", "nodev", "nosuid"]})).changed
    back = mounts.plan_mounts([DATA], mount_state(options={"/data": ["rw", "nosuid", "nodev"]}))
    assert [each.options_after for each in back.remounts] == [("rw", "suid", "dev")]


def test_stale_volume_in_use_is_healed() -> None:
    plan = mounts.plan_mounts([DATA], mount_state(stale=["/data"], users=[USER]))
    assert plan == mounts.MountPlan([], [], [], [], ["data"])
    systemd = Systemd()
    mounts.apply_mount_plan(systemd, plan)
    assert systemd.commands == ["systemctl stop data.mount", "systemctl start data.automount"]
    # A volume that leaves the cluster is removed even then.
    assert mounts.plan_mounts([], mount_state(stale=["/data"], users=[USER])).deleted_units == ["data"]


def test_access_during_healing_is_tolerated() -> None:
    plan = mounts.MountPlan([], [], [], [], ["data"])
    stop = ("systemctl", "stop", "data.mount")
    asked = Systemd({stop: CommandResult(1, "", "Job for data.mount canceled.\n")})
    mounts.apply_mount_plan(asked, plan)
    assert asked.commands[-1] == "systemctl start data.automount"
    with pytest.raises(CommandError, match=r"'systemctl stop data.mount' exited 1: Job for data.mount failed"):
        mounts.apply_mount_plan(Systemd({stop: CommandResult(1, "", "Job for data.mount failed.\n")}), plan)


def test_inactive_automount_is_started() -> None:
    assert mounts.plan_mounts([DATA], mount_state(idle=["data"])).started_units == ["data"]
    disabled = Systemd({("systemctl", "is-enabled", "--quiet", "data.automount"): CommandResult(1, "", "")})
    assert mounts.find_idle_automounts(disabled, ["data", "scratch"]) == ["data"]


def test_foreign_units_are_ignored() -> None:
    others = {
        "home.mount": "[Unit]\nDescription=Home\n",
        "old.mount": "[Unit]\nDescription=Volume old of gpumesh cluster lab2\n",
        "dash.mount": "[Unit]\nDescription=Volume dash of gpumesh cluster lab-2\n",
    }
    assert mounts.select_own_units({**others, **FILES}, "lab") == FILES


def test_only_estale_counts_as_stale() -> None:
    def run(argv: Sequence[str], **_options: Any) -> CommandResult:
        if argv[-1] == "/hangs":
            raise CommandError(argv, "did not end within 10 s")
        return CommandResult(0, {"/stale": "116\n", "/denied": "13\n"}.get(argv[-1], ""), "")

    assert mounts.find_stale_mounts(run, ["/good", "/stale", "/denied", "/hangs"]) == ["/stale"]


def test_built_in_and_modular_filesystems_are_available() -> None:
    filesystems = "nodev\ttmpfs\n\text4\nnodev\tnfs4\n"
    nothing = Systemd({("modprobe", "--dry-run", "--quiet", "nfsd"): CommandResult(1, "", "")})
    assert mounts.find_missing_filesystems(nothing, filesystems, serves_volumes=False, mounts_volumes=True) == []
    if mounts.find_program("modprobe"):
        assert mounts.find_missing_filesystems(Systemd(), filesystems, serves_volumes=True, mounts_volumes=True) == []
    assert mounts.find_missing_filesystems(nothing, filesystems, serves_volumes=True, mounts_volumes=True) == ["nfsd"]


def test_diff_contains_the_units() -> None:
    before, after = mounts.format_mount_diff(mounts.plan_mounts([DATA], mount_state(files={})), mount_state(files={}))
    assert before == ""
    assert "# data.mount\n[Unit]" in after


def compare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, automounts: bool = True) -> tuple[list[str], bool]:
    """Return how a host differs from a directory, an export and a mount in the record."""
    monkeypatch.setattr(mounts, "UNIT_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(mounts, "supports_automount", lambda: automounts)
    files = [
        {"path": str(tmp_path / "kernel"), "content": "/srv/data *\n"},
        {"path": str(tmp_path / "ganesha"), "state": "absent"},
    ]
    params = {
        "folders": [{"path": str(tmp_path / "served"), "state": "directory"}],
        "files": files,
        "mounts": [{"unit": "data", "mount": "[Mount]\n", "automount": "[Automount]\n"}],
    }
    words, nothing_there = mounts.find_differences(None, params)
    return [word.replace(f"{tmp_path}/", "") for word in words], nothing_there


def test_differences_cover_directories_exports_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ["served is missing", "kernel is missing", "data.mount is missing", "data.automount is missing"]
    assert compare_host(tmp_path, monkeypatch) == (missing, True)
    (tmp_path / "served").mkdir()
    (tmp_path / "kernel").write_text("/srv/data *\n")
    (tmp_path / "ganesha").write_text("left")
    (tmp_path / "data.mount").write_text("[Mount]\nWhere=/other\n")
    wrong = ["ganesha is no longer wanted", "data.mount differs", "data.automount is missing"]
    assert compare_host(tmp_path, monkeypatch) == (wrong, False)
    # A container has no units that could be missing.
    assert compare_host(tmp_path, monkeypatch, automounts=False) == (wrong[:1], False)
    # Leftovers are not reported as missing if the record has no volumes.
    leftover = {"folders": [], "files": [{"path": str(tmp_path / "ganesha"), "state": "absent"}], "mounts": []}
    assert not mounts.find_differences(None, leftover).nothing_exists
