# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the units of a cluster's volumes change, without systemd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import CommandError, HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.holders import VolumeUser
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import mounts

TITLE = "Description=Volume data of gpumesh cluster lab"
DATA = mounts.Units(
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

    def __init__(self, answers: dict[tuple[str, ...], Completed] | None = None) -> None:
        self.told: list[str] = []
        self.answers = answers or {}

    def __call__(self, argv: Sequence[str], **_options: Any) -> Completed:
        self.told.append(" ".join(argv))
        return self.answers.get(tuple(argv), Completed(0, "", ""))


def host(**differences: Any) -> mounts.Host:
    """A host on which everything is right."""
    return mounts.Host(FILES, ["/data"], [], [], [])._replace(**differences)


def test_where_everything_is_right_nothing_is_done() -> None:
    assert not mounts.make_plan([DATA], host(users=[USER])).changed


def test_a_new_volume_is_written_and_started(tmp_path: Path) -> None:
    plan = mounts.make_plan([DATA], host(files={}, mounted=[]))
    systemd = Systemd()
    mounts.apply(systemd, plan, str(tmp_path))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == FILES
    assert systemd.told == ["systemctl daemon-reload", "systemctl enable --now data.automount"]


def test_a_volume_that_is_gone_is_unmounted_behind_its_automount(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    systemd = Systemd()
    mounts.apply(systemd, mounts.make_plan([], host()), str(tmp_path))
    assert systemd.told == [
        "systemctl stop data.automount",
        "systemctl stop data.mount",
        "systemctl disable data.automount",
        "systemctl daemon-reload",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_volume_in_use_is_not_unmounted_and_its_user_is_named() -> None:
    changed = DATA._replace(texts={**DATA.texts, ".mount": f"{TITLE}\nWhere=/data\nOptions=ro\n"})
    for wanted in ([], [changed]):
        with pytest.raises(HostStateError, match=r"python3 of alice \(process 4711\) uses /data"):
            mounts.make_plan(wanted, host(users=[USER]))
    assert mounts.make_plan([], host(users=[USER]), force=True).delete == ["data"]


CONFINED = DATA._replace(
    texts={**DATA.texts, ".mount": f"[Unit]\n{TITLE}\n[Mount]\nWhere=/data\nOptions=hard,nosuid,nodev\n"}
)
LOOSE = {**FILES, "data.mount": f"[Unit]\n{TITLE}\n[Mount]\nWhere=/data\nOptions=hard\n"}


def test_a_volume_in_use_is_confined_without_being_unmounted(tmp_path: Path) -> None:
    there = host(files=LOOSE, users=[USER], options={"/data": ["rw", "relatime"]})
    plan = mounts.make_plan([CONFINED], there)
    systemd = Systemd()
    mounts.apply(systemd, plan, str(tmp_path))
    assert "nosuid,nodev" in (tmp_path / "data.mount").read_text()
    assert systemd.told == ["systemctl daemon-reload", "mount -o remount,bind,rw,relatime,nosuid,nodev /data"]
    assert "# /data: mounted with rw,relatime\n" in mounts.as_diff(plan, there)[0]
    # A run that was interrupted after the unit was written continues from what is mounted.
    written = host(files={**FILES, **dict(zip(FILES, CONFINED.texts.values()))}, users=[USER])
    again = mounts.make_plan([CONFINED], written._replace(options={"/data": ["rw"]}))
    assert (again.write, [each.after for each in again.remount]) == ([], [("rw", "nosuid", "nodev")])
    assert not mounts.make_plan([CONFINED], written._replace(options={"/data": ["rw", "nodev", "nosuid"]})).changed
    back = mounts.make_plan([DATA], host(options={"/data": ["rw", "nosuid", "nodev"]}))
    assert [each.after for each in back.remount] == [("rw", "suid", "dev")]


def test_a_stale_volume_is_mounted_anew_whoever_uses_it() -> None:
    plan = mounts.make_plan([DATA], host(stale=["/data"], users=[USER]))
    assert plan == mounts.Plan([], [], [], [], ["data"])
    systemd = Systemd()
    mounts.apply(systemd, plan)
    assert systemd.told == ["systemctl stop data.mount", "systemctl start data.automount"]
    # A volume that leaves the cluster is removed even then.
    assert mounts.make_plan([], host(stale=["/data"], users=[USER])).delete == ["data"]


def test_a_stale_volume_that_is_asked_for_meanwhile_is_healed_all_the_same() -> None:
    plan = mounts.Plan([], [], [], [], ["data"])
    stop = ("systemctl", "stop", "data.mount")
    asked = Systemd({stop: Completed(1, "", "Job for data.mount canceled.\n")})
    mounts.apply(asked, plan)
    assert asked.told[-1] == "systemctl start data.automount"
    with pytest.raises(CommandError, match=r"'systemctl stop data.mount' exited 1: Job for data.mount failed"):
        mounts.apply(Systemd({stop: Completed(1, "", "Job for data.mount failed.\n")}), plan)


def test_an_automount_that_does_not_run_is_started() -> None:
    assert mounts.make_plan([DATA], host(idle=["data"])).start == ["data"]
    disabled = Systemd({("systemctl", "is-enabled", "--quiet", "data.automount"): Completed(1, "", "")})
    assert mounts.idle_automounts(disabled, ["data", "scratch"]) == ["data"]


def test_units_of_others_are_not_ours() -> None:
    others = {
        "home.mount": "[Unit]\nDescription=Home\n",
        "old.mount": "[Unit]\nDescription=Volume old of gpumesh cluster lab2\n",
        "dash.mount": "[Unit]\nDescription=Volume dash of gpumesh cluster lab-2\n",
    }
    assert mounts.parse_ours({**others, **FILES}, "lab") == FILES


def test_only_a_stale_handle_is_stale() -> None:
    def run(argv: Sequence[str], **_options: Any) -> Completed:
        if argv[-1] == "/hangs":
            raise CommandError(argv, "did not end within 10 s")
        return Completed(0, {"/stale": "116\n", "/denied": "13\n"}.get(argv[-1], ""), "")

    assert mounts.stale(run, ["/good", "/stale", "/denied", "/hangs"]) == ["/stale"]


def test_a_file_system_may_be_built_in_or_a_module() -> None:
    filesystems = "nodev\ttmpfs\n\text4\nnodev\tnfs4\n"
    nothing = Systemd({("modprobe", "--dry-run", "--quiet", "nfsd"): Completed(1, "", "")})
    assert mounts.missing_in_kernel(nothing, filesystems, served=False, fetched=True) == []
    if mounts.find("modprobe"):
        assert mounts.missing_in_kernel(Systemd(), filesystems, served=True, fetched=True) == []
    assert mounts.missing_in_kernel(nothing, filesystems, served=True, fetched=True) == ["nfsd"]


def test_the_diff_shows_the_units() -> None:
    before, after = mounts.as_diff(mounts.make_plan([DATA], host(files={})), host(files={}))
    assert before == ""
    assert "# data.mount\n[Unit]" in after


def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, automounts: bool = True) -> tuple[list[str], bool]:
    """How a host differs from a folder, an export and a mount in the record."""
    monkeypatch.setattr(mounts, "UNIT_FOLDER", str(tmp_path))
    monkeypatch.setattr(mounts, "automounts", lambda: automounts)
    files = [
        {"path": str(tmp_path / "kernel"), "content": "/srv/data *\n"},
        {"path": str(tmp_path / "ganesha"), "state": "absent"},
    ]
    params = {
        "folders": [{"path": str(tmp_path / "served"), "state": "directory"}],
        "files": files,
        "mounts": [{"unit": "data", "mount": "[Mount]\n", "automount": "[Automount]\n"}],
    }
    words, nothing_there = mounts.differences(None, params)
    return [word.replace(f"{tmp_path}/", "") for word in words], nothing_there


def test_a_host_is_compared_with_its_folders_exports_and_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ["served is missing", "kernel is missing", "data.mount is missing", "data.automount is missing"]
    assert compared(tmp_path, monkeypatch) == (missing, True)
    (tmp_path / "served").mkdir()
    (tmp_path / "kernel").write_text("/srv/data *\n")
    (tmp_path / "ganesha").write_text("left")
    (tmp_path / "data.mount").write_text("[Mount]\nWhere=/other\n")
    wrong = ["ganesha is no longer wanted", "data.mount differs", "data.automount is missing"]
    assert compared(tmp_path, monkeypatch) == (wrong, False)
    # In a container, there are no units that could be missing.
    assert compared(tmp_path, monkeypatch, automounts=False) == (wrong[:1], False)
    # If nothing is wanted, remains are not reported as missing.
    leftover = {"folders": [], "files": [{"path": str(tmp_path / "ganesha"), "state": "absent"}], "mounts": []}
    assert not mounts.differences(None, leftover).nothing_there
