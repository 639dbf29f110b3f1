# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of volumes, with a simulated kernel and xfs_quota, since this machine's kernel may not account projects."""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    CommandError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.mount_table import MountEntry
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.units import format_size, parse_size
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.storage import quota

MIB = 1 << 20
NUMBER = 1_500_000_000
BEGIN, END = (f"# {mark} gpumesh cluster lab\n" for mark in ("BEGIN", "END"))
NAME = f"{BEGIN}gpumesh.lab.data:{NUMBER}\n{END}"
LINE = f"{BEGIN}{NUMBER}:/srv/data\n{END}"
PROJECT = quota.QuotaProject(NUMBER, "/srv/data")
LIMITED_VOLUME = quota.VolumeQuota(
    "data", "/srv/data", 64 * MIB, NUMBER, "ext4", "/dev/vdb", True, NUMBER, 64 * MIB, MIB
)
UNLIMITED_VOLUME = LIMITED_VOLUME._replace(owner=0, limit=0)
RECORDED = Path(__file__).parent / "fixtures" / "xfs_quota"


def project_files(projid: str = "", projects: str = "") -> quota.ProjectFiles:
    """The two files with these texts; an empty text means that the file is missing."""
    kinds = (
        managed_files.CurrentFile(managed_files.FILE if text else managed_files.ABSENT, text)
        for text in (projid, projects)
    )
    return quota.ProjectFiles(*kinds)


COMPLETE_FILES = project_files(NAME, LINE)


def plan_volume(volume: quota.VolumeQuota, present: quota.ProjectFiles = COMPLETE_FILES) -> quota.QuotaPlan:
    return quota.plan_quotas("lab", [volume], present)


def planned_texts(made: quota.QuotaPlan) -> dict[str, str | None]:
    """The new texts of the changed files."""
    return {step.path: step.text for step in made.file_changes}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500G", 500 << 30),
        ("2TiB", 2 << 40),
        ("1.5T", 3 << 39),
        ("64 MiB", 64 << 20),
        ("1K", 1024),
        (" 1P ", 1 << 50),
    ],
)
def test_sizes_are_binary(text: str, size: int) -> None:
    assert parse_size("data", text) == size


@pytest.mark.parametrize("text", ["", "500", "500GB", "500g", "-1G", "0G", "much", "1e3G", "9999P", "5 0G"])
def test_an_invalid_size_is_refused_with_the_volume(text: str) -> None:
    with pytest.raises(InputError, match=rf"Volume 'data' has the quota '{text}'\. Give a size"):
        parse_size("data", text)


def test_sizes_are_formatted() -> None:
    assert [format_size(size) for size in (1024, 64 * MIB, 3 << 39)] == ["1 KiB", "64 MiB", "1.5 TiB"]


@pytest.mark.parametrize(
    ("recorded", "limit", "used"),
    [
        ("ext4-unknown", 0, 0),
        ("ext4-unlimited", 0, 8193),
        ("ext4-limited", 16384, 8193),
        ("ext4-overrun", 4096, 8193),
        ("xfs-unknown", 0, 0),
        ("xfs-limited", 16384, 8192),
        ("xfs-long-device", 4096, 0),
    ],
)
def test_xfs_quota_usage_is_parsed(recorded: str, limit: int, used: int) -> None:
    text = (RECORDED / f"{recorded}.txt").read_text(encoding="utf-8")
    assert quota.parse_usage(text) == (limit * 1024, used * 1024)


def test_unexpected_xfs_quota_output_is_an_error() -> None:
    with pytest.raises(ParseError, match="'quota -p'"):
        quota.parse_usage("Disk quotas for Project #7\n")


def test_only_projects_of_the_cluster_are_parsed() -> None:
    present = project_files(
        "# ours: none\nbuild:7\ngpumesh.lab.data:8\ngpumesh.lab.bare:9\ngpumesh.lab-2.data:10\ngpumesh.lab.bad:x\n",
        "7:/build\n8:/srv/a:b\n10:/srv/other\n",
    )
    assert quota.parse_projects(present, "lab") == {
        "data": quota.QuotaProject(8, "/srv/a:b"),
        "bare": quota.QuotaProject(9, ""),
    }


def test_project_number_is_stable_and_unique() -> None:
    assert quota.choose_number("lab", "data", COMPLETE_FILES) == NUMBER
    number = quota.choose_number("lab", "other", project_files())
    assert 1 << 30 <= number < 1 << 31
    assert quota.choose_number("lab", "other", project_files("", f"{number}:/x\n")) == number + 1
    assert quota.choose_number("lab", "other", project_files(f"x:{number}\n", f"{number + 1}:/x\n")) == number + 2


def test_first_quota_moves_files_into_the_project() -> None:
    made = plan_volume(UNLIMITED_VOLUME, project_files("build:7\n", "7:/build\n"))
    assert made.released_projects == []
    assert made.limit_changes == [quota.QuotaChange(PROJECT, 0, 64 * MIB, (0, NUMBER))]
    assert planned_texts(made) == {quota.PROJID_PATH: "build:7\n" + NAME, quota.PROJECTS_PATH: "7:/build\n" + LINE}


def test_correct_quota_is_not_changed() -> None:
    assert not plan_volume(LIMITED_VOLUME).changed
    # Files of others may lack a final line break.
    assert not plan_volume(LIMITED_VOLUME, project_files(NAME + "build:7", LINE + "7:/build")).changed


@pytest.mark.parametrize("limit", [32 * MIB, 128 * MIB])
def test_changed_limit_does_not_move_files(limit: int) -> None:
    assert plan_volume(LIMITED_VOLUME._replace(limit=limit)) == quota.QuotaPlan(
        [], [], [quota.QuotaChange(PROJECT, limit, 64 * MIB, None)]
    )


@pytest.mark.parametrize("difference", [{"limit": 0}, {"owner": 0}])
def test_interrupted_marking_is_repeated(difference: dict[str, Any]) -> None:
    (step,) = plan_volume(LIMITED_VOLUME._replace(**difference)).limit_changes
    assert step.project_move == (0, NUMBER)


def test_missing_lines_are_restored() -> None:
    made = plan_volume(LIMITED_VOLUME, project_files())
    assert made.limit_changes == []
    assert planned_texts(made) == {quota.PROJID_PATH: NAME, quota.PROJECTS_PATH: LINE}


def test_removed_quotas_are_released() -> None:
    others = project_files("a:7\n" + NAME + "gpumesh.two.data:8\n", "7:/a\n" + LINE + "8:/srv/two\n")
    made = quota.plan_quotas("lab", [], others)
    assert made.released_projects == [quota.QuotaChange(PROJECT, None, 0, (NUMBER, 0))]
    assert planned_texts(made) == {
        quota.PROJID_PATH: "a:7\ngpumesh.two.data:8\n",
        quota.PROJECTS_PATH: "7:/a\n8:/srv/two\n",
    }
    assert not quota.plan_quotas("other", [], others).changed


def test_moved_volume_releases_its_old_directory() -> None:
    made = plan_volume(LIMITED_VOLUME._replace(path="/srv/new"))
    assert made.released_projects == [quota.QuotaChange(PROJECT, None, 0, (NUMBER, 0))]
    assert made.limit_changes == [
        quota.QuotaChange(quota.QuotaProject(NUMBER, "/srv/new"), 64 * MIB, 64 * MIB, (0, NUMBER))
    ]
    assert planned_texts(made) == {quota.PROJECTS_PATH: LINE.replace("/srv/data", "/srv/new")}


@pytest.mark.parametrize(
    ("filesystem", "remedy"),
    [
        ("ext4", "'tune2fs -O project,quota /dev/vdb', and mount it with the option prjquota"),
        ("xfs", "option pquota"),
        ("btrfs", "'btrfs qgroup limit'"),
        ("zfs", "'zfs set quota'"),
        ("overlay", "to ext4 or XFS"),
    ],
)
def test_filesystem_without_project_quotas_is_refused(filesystem: str, remedy: str) -> None:
    with pytest.raises(HostStateError) as caught:
        plan_volume(UNLIMITED_VOLUME._replace(filesystem=filesystem, enforced=False))
    told = str(caught.value)
    assert f"Volume 'data' at /srv/data cannot have a quota: it is on {filesystem} from /dev/vdb" in told
    assert remedy in told
    assert "storage_volumes" in told


def test_directory_of_another_project_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"project 7\..*chattr -R -p 0 /srv/data"):
        plan_volume(UNLIMITED_VOLUME._replace(owner=7))


def test_renamed_volume_takes_over_its_files() -> None:
    renamed = UNLIMITED_VOLUME._replace(name="new", number=NUMBER + 1, owner=NUMBER)
    made = plan_volume(renamed)
    assert made.released_projects == [quota.QuotaChange(PROJECT, None, 0, (NUMBER, 0))]
    assert made.limit_changes == [
        quota.QuotaChange(quota.QuotaProject(NUMBER + 1, "/srv/data"), 0, 64 * MIB, (0, NUMBER + 1))
    ]
    # A project that stays, or that has another folder, is not released there.
    with pytest.raises(HostStateError, match=f"project {NUMBER}\\."):
        quota.plan_quotas("lab", [LIMITED_VOLUME, renamed._replace(path="/srv/data/x")], COMPLETE_FILES)
    with pytest.raises(HostStateError, match=f"project {NUMBER}\\."):
        plan_volume(renamed._replace(path="/srv/other"))


@pytest.mark.parametrize("limit", [0, 128 * MIB])
def test_quota_below_usage_is_refused(limit: int) -> None:
    with pytest.raises(HostStateError, match=r"100 MiB.* 64 MiB"):
        plan_volume(LIMITED_VOLUME._replace(limit=limit, used=100 * MIB))


@pytest.mark.parametrize("limit", [32 * MIB, 64 * MIB])
def test_exceeded_quota_may_be_increased(limit: int) -> None:
    assert plan_volume(LIMITED_VOLUME._replace(limit=limit, used=100 * MIB)).changed == (limit != 64 * MIB)


def test_diff_contains_limits() -> None:
    assert quota.format_quota_diff(plan_volume(LIMITED_VOLUME._replace(limit=32 * MIB))) == (
        "/srv/data: 32 MiB\n",
        "/srv/data: 64 MiB\n",
    )
    before, after = quota.format_quota_diff(quota.plan_quotas("lab", [], COMPLETE_FILES))
    assert before.endswith("/srv/data: limited\n")
    assert after.endswith("/srv/data: not limited\n")
    assert quota.format_quota_diff(plan_volume(LIMITED_VOLUME)) == ("", "")


class FakeHost:
    """A host with file attributes in the form of the two ioctls, and project limits in that of xfs_quota."""

    def __init__(self) -> None:
        self.options = ["rw", "prjquota"]
        self.attributes: dict[int, tuple[int, int]] = {}
        self.limits: dict[str, int] = {}
        self.commands: list[list[str]] = []
        self.complaint = ""

    def ioctl(self, descriptor: int, request: int, memory: bytes) -> bytes:
        assert len(memory) == 28
        inode = os.fstat(descriptor).st_ino
        flags, project = self.attributes.get(inode, (0x80, 0))
        if request == 0x401C5820:
            words = struct.unpack("=7I", memory)
            # The extent size hint is written back unchanged.
            assert words[1] == 4096
            self.attributes[inode] = (words[0], words[3])
            return memory
        assert request == 0x801C581F
        return struct.pack("=7I", flags, 4096, 1, project, 0, 0, 0)

    def run(self, argv: Sequence[str], **_options: Any) -> CommandResult:
        self.commands.append(list(argv))
        if argv[0] == "du":
            return CommandResult(0, f"{3 * MIB}\t{argv[-1]}\n", "")
        assert argv[:7] == ["xfs_quota", "-x", "-f", "-D", "/dev/null", "-P", "/dev/null"]
        assert argv[-1] == "/"
        if self.complaint:
            return CommandResult(0, "", self.complaint)
        limiting = re.fullmatch(r"limit -p bsoft=0 bhard=(\d+)k (\d+)", argv[8])
        if limiting:
            self.limits[limiting[2]] = int(limiting[1])
            return CommandResult(0, "", "")
        (number,) = re.fullmatch(r"quota -p -n -N -b -v (\d+)", argv[8]).groups()
        shown = f"/dev/vdb {5 * 1024:>10} {0:>10} {self.limits.get(number, 0):>10}   00 [--------] /\n"
        return CommandResult(0, shown, "")

    def project_of(self, path: Path) -> tuple[int, bool]:
        """The project and whether it is inherited."""
        flags, project = self.attributes.get(path.stat().st_ino, (0, 0))
        return project, bool(flags & 0x200)

    def read_volume(self, path: Path, text: str = "64M") -> quota.VolumeQuota:
        return quota.read_volume_quota(self.run, "data", str(path), text, NUMBER)


@pytest.fixture(name="host")
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHost:
    host = FakeHost()
    monkeypatch.setattr(quota.fcntl, "ioctl", host.ioctl)
    monkeypatch.setattr(quota, "find_program", lambda program: f"/usr/sbin/{program}")
    monkeypatch.setattr(
        quota,
        "require_mount",
        lambda _mounts, _path: MountEntry("/", "ext4", "/dev/vdb", False, host.options, [], "254:16"),
    )
    for name in ("projid", "projects"):
        monkeypatch.setattr(quota, f"{name.upper()}_PATH", str(tmp_path / name))
    return host


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    """A volume with files, a link out of it, a link from outside into it, and files that cannot have a project."""
    root = tmp_path / "data"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "file").write_bytes(bytes(MIB))
    (root / "deep" / "er" / "same").hardlink_to(root / "file")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    (root / "link").symlink_to(outside)
    (root / "to-file").symlink_to(outside / "kept")
    os.mkfifo(root / "pipe")
    return root


def test_quota_is_set_and_released(tmp_path: Path, tree: Path, host: FakeHost) -> None:
    projid = tmp_path / "projid"
    projid.write_text("build:7\n")
    projid.chmod(0o640)
    volume = host.read_volume(tree)
    assert (volume.enforced, volume.owner, volume.limit, volume.used) == (True, 0, 0, 3 * MIB)
    quota.apply_quota_plan(host.run, plan_volume(volume, quota.read_project_files()))
    for folder in (tree, tree / "deep", tree / "deep" / "er"):
        assert host.project_of(folder) == (NUMBER, True)
    assert host.project_of(tree / "file") == (NUMBER, False)
    assert host.project_of(tmp_path / "outside") == host.project_of(tmp_path / "outside" / "kept") == (0, False)
    assert host.limits == {str(NUMBER): 65536}
    assert projid.read_text() == "build:7\n" + NAME
    assert projid.stat().st_mode & 0o777 == 0o640
    again = host.read_volume(tree)
    assert again == volume._replace(owner=NUMBER, limit=64 * MIB, used=5 * MIB)
    assert not plan_volume(again, quota.read_project_files()).changed

    quota.apply_quota_plan(host.run, quota.plan_quotas("lab", [], quota.read_project_files()))
    assert host.limits == {str(NUMBER): 0}
    for path in (tree, tree / "deep", tree / "deep" / "er", tree / "file"):
        assert host.project_of(path) == (0, False)
    assert projid.read_text() == "build:7\n"
    assert not (tmp_path / "projects").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_volume_with_a_quota_can_be_renamed(
    tree: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    quota.apply_quota_plan(host.run, plan_volume(host.read_volume(tree), quota.read_project_files()))

    def look() -> quota.QuotaPlan:
        found = quota.read_volume_quota(host.run, "new", str(tree), "64M", NUMBER + 1)
        return quota.plan_quotas("lab", [found], quota.read_project_files())

    if killed:
        # The interruption is between the release of the former project, at the second directory, and the new limit.
        given: list[int] = []

        def give(descriptor: int, old: int, new: int, inherits: int) -> None:
            given.append(new)
            if len(given) == 2:
                raise KeyboardInterrupt
            original(descriptor, old, new, inherits)

        original = quota._set_project
        with monkeypatch.context() as patch:
            patch.setattr(quota, "_set_project", give)
            with pytest.raises(KeyboardInterrupt):
                quota.apply_quota_plan(host.run, look())
    quota.apply_quota_plan(host.run, look())
    for path in (tree, tree / "deep", tree / "deep" / "er", tree / "file"):
        assert host.project_of(path)[0] == NUMBER + 1
    assert host.limits == {str(NUMBER): 0, str(NUMBER + 1): 65536}
    assert not look().changed


def test_files_of_other_projects_are_kept(tree: Path, host: FakeHost) -> None:
    inode = (tree / "deep").stat().st_ino
    host.attributes[inode] = (0x200, 7)
    quota.apply_quota_plan(
        host.run,
        quota.QuotaPlan([], [], [quota.QuotaChange(quota.QuotaProject(NUMBER, str(tree)), 0, MIB, (0, NUMBER))]),
    )
    assert host.project_of(tree / "deep") == (7, True)
    assert host.project_of(tree) == (NUMBER, True)


def test_missing_directory_is_handled(tmp_path: Path, host: FakeHost) -> None:
    missing = tmp_path / "not" / "yet"
    assert (host.read_volume(missing).owner, host.read_volume(missing).used) == (0, 0)
    host.attributes[tmp_path.stat().st_ino] = (0x200, 7)
    assert host.read_volume(missing).owner == 7
    release = quota.QuotaChange(quota.QuotaProject(NUMBER, str(missing)), None, 0, (NUMBER, 0))
    quota.apply_quota_plan(host.run, quota.QuotaPlan([release], [], []))
    assert host.limits == {str(NUMBER): 0}
    assert host.project_of(tmp_path) == (7, True)


def test_lost_line_keeps_the_limit(host: FakeHost) -> None:
    quota.apply_quota_plan(
        host.run, quota.QuotaPlan([quota.QuotaChange(quota.QuotaProject(NUMBER, ""), None, 0, (NUMBER, 0))], [], [])
    )
    assert host.commands == []


def test_usage_is_counted_without_xfs_quota(tree: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "find_program", lambda _program: None)
    host.attributes[tree.stat().st_ino] = (0x200, NUMBER)
    volume = host.read_volume(tree)
    assert (volume.owner, volume.limit, volume.used) == (NUMBER, 0, 3 * MIB)
    assert [argv[0] for argv in host.commands] == ["du"]


@pytest.mark.parametrize("options", [["rw"], ["rw", "pqnoenforce"], ["rw", "noquota"]])
def test_accounting_without_enforcement_is_refused(tmp_path: Path, host: FakeHost, options: list[str]) -> None:
    host.options = options
    assert not host.read_volume(tmp_path).enforced
    assert host.commands == []


def test_xfs_quota_error_output_is_an_error(tmp_path: Path, host: FakeHost) -> None:
    host.complaint = "xfs_quota: cannot setup path for mount /: No such device or address\n"
    with pytest.raises(CommandError, match=r"cannot setup path for mount.*In a container"):
        host.read_volume(tmp_path)


def test_kernel_refusal_is_reported(tmp_path: Path, host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(quota.fcntl, "ioctl", refused)
    with pytest.raises(HostStateError, match=r"The quota of .* could not be read or set: Operation not permitted\."):
        host.read_volume(tmp_path)
