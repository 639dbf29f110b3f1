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

from ansible_collections.gpumesh.cluster.plugins.module_utils import host_files
from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import (
    CommandError,
    HostStateError,
    InputError,
    ParseError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.mount_table import Mounted
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import quota
from ansible_collections.gpumesh.cluster.plugins.module_utils.units import in_words, size_of

MIB = 1 << 20
NUMBER = 1_500_000_000
BEGIN, END = (f"# {mark} gpumesh cluster lab\n" for mark in ("BEGIN", "END"))
NAME = f"{BEGIN}gpumesh.lab.data:{NUMBER}\n{END}"
LINE = f"{BEGIN}{NUMBER}:/srv/data\n{END}"
PROJECT = quota.Project(NUMBER, "/srv/data")
SET = quota.Volume("data", "/srv/data", 64 * MIB, NUMBER, "ext4", "/dev/vdb", True, NUMBER, 64 * MIB, MIB)
FRESH = SET._replace(owner=0, limit=0)
RECORDED = Path(__file__).parent / "fixtures" / "xfs_quota"


def files(projid: str = "", projects: str = "") -> quota.Files:
    """The two files with these texts; an empty text means that the file is missing."""
    kinds = (host_files.Current(host_files.FILE if text else host_files.ABSENT, text) for text in (projid, projects))
    return quota.Files(*kinds)


DONE = files(NAME, LINE)


def plan(volume: quota.Volume, present: quota.Files = DONE) -> quota.Plan:
    return quota.make_plan("lab", [volume], present)


def texts(made: quota.Plan) -> dict[str, str | None]:
    """The new texts of the changed files."""
    return {step.path: step.text for step in made.files}


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
def test_a_size_is_binary(text: str, size: int) -> None:
    assert size_of("data", text) == size


@pytest.mark.parametrize("text", ["", "500", "500GB", "500g", "-1G", "0G", "much", "1e3G", "9999P", "5 0G"])
def test_an_invalid_size_is_refused_with_the_volume(text: str) -> None:
    with pytest.raises(InputError, match=rf"Volume 'data' has the quota '{text}'\. Give a size"):
        size_of("data", text)


def test_sizes_in_words() -> None:
    assert [in_words(size) for size in (1024, 64 * MIB, 3 << 39)] == ["1 KiB", "64 MiB", "1.5 TiB"]


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
def test_limit_and_usage_as_xfs_quota_prints_them(recorded: str, limit: int, used: int) -> None:
    text = (RECORDED / f"{recorded}.txt").read_text(encoding="utf-8")
    assert quota.parse_usage(text) == (limit * 1024, used * 1024)


def test_another_answer_of_xfs_quota_is_an_error() -> None:
    with pytest.raises(ParseError, match="'quota -p'"):
        quota.parse_usage("Disk quotas for Project #7\n")


def test_our_lines_are_those_of_the_cluster() -> None:
    present = files(
        "# ours: none\nbuild:7\ngpumesh.lab.data:8\ngpumesh.lab.bare:9\ngpumesh.lab-2.data:10\ngpumesh.lab.bad:x\n",
        "7:/build\n8:/srv/a:b\n10:/srv/other\n",
    )
    assert quota.parse(present, "lab") == {"data": quota.Project(8, "/srv/a:b"), "bare": quota.Project(9, "")}


def test_a_number_is_kept_and_a_new_one_is_free() -> None:
    assert quota.number_for("lab", "data", DONE) == NUMBER
    number = quota.number_for("lab", "other", files())
    assert 1 << 30 <= number < 1 << 31
    assert quota.number_for("lab", "other", files("", f"{number}:/x\n")) == number + 1
    assert quota.number_for("lab", "other", files(f"x:{number}\n", f"{number + 1}:/x\n")) == number + 2


def test_a_first_quota_marks_the_files() -> None:
    made = plan(FRESH, files("build:7\n", "7:/build\n"))
    assert made.release == []
    assert made.limit == [quota.Step(PROJECT, 0, 64 * MIB, (0, NUMBER))]
    assert texts(made) == {quota.PROJID: "build:7\n" + NAME, quota.PROJECTS: "7:/build\n" + LINE}


def test_what_is_there_stays() -> None:
    assert not plan(SET).changed
    # Files of others may lack a final line break.
    assert not plan(SET, files(NAME + "build:7", LINE + "7:/build")).changed


@pytest.mark.parametrize("limit", [32 * MIB, 128 * MIB])
def test_a_changed_quota_leaves_the_files_alone(limit: int) -> None:
    assert plan(SET._replace(limit=limit)) == quota.Plan([], [], [quota.Step(PROJECT, limit, 64 * MIB, None)])


@pytest.mark.parametrize("difference", [{"limit": 0}, {"owner": 0}])
def test_what_was_cut_off_or_replaced_is_marked_again(difference: dict[str, Any]) -> None:
    (step,) = plan(SET._replace(**difference)).limit
    assert step.move == (0, NUMBER)


def test_lost_lines_come_back() -> None:
    made = plan(SET, files())
    assert made.limit == []
    assert texts(made) == {quota.PROJID: NAME, quota.PROJECTS: LINE}


def test_quotas_that_are_no_longer_wanted_end() -> None:
    others = files("a:7\n" + NAME + "gpumesh.two.data:8\n", "7:/a\n" + LINE + "8:/srv/two\n")
    made = quota.make_plan("lab", [], others)
    assert made.release == [quota.Step(PROJECT, None, 0, (NUMBER, 0))]
    assert texts(made) == {quota.PROJID: "a:7\ngpumesh.two.data:8\n", quota.PROJECTS: "7:/a\n8:/srv/two\n"}
    assert not quota.make_plan("other", [], others).changed


def test_a_volume_that_moves_leaves_its_old_folder() -> None:
    made = plan(SET._replace(path="/srv/new"))
    assert made.release == [quota.Step(PROJECT, None, 0, (NUMBER, 0))]
    assert made.limit == [quota.Step(quota.Project(NUMBER, "/srv/new"), 64 * MIB, 64 * MIB, (0, NUMBER))]
    assert texts(made) == {quota.PROJECTS: LINE.replace("/srv/data", "/srv/new")}


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
def test_a_file_system_without_projects_is_refused(filesystem: str, remedy: str) -> None:
    with pytest.raises(HostStateError) as caught:
        plan(FRESH._replace(filesystem=filesystem, enforced=False))
    told = str(caught.value)
    assert f"Volume 'data' at /srv/data cannot have a quota: it is on {filesystem} from /dev/vdb" in told
    assert remedy in told
    assert "storage_volumes" in told


def test_a_folder_of_another_project_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"project 7\..*chattr -R -p 0 /srv/data"):
        plan(FRESH._replace(owner=7))


def test_a_renamed_volume_takes_its_files_from_the_project_of_its_former_name() -> None:
    renamed = FRESH._replace(name="new", number=NUMBER + 1, owner=NUMBER)
    made = plan(renamed)
    assert made.release == [quota.Step(PROJECT, None, 0, (NUMBER, 0))]
    assert made.limit == [quota.Step(quota.Project(NUMBER + 1, "/srv/data"), 0, 64 * MIB, (0, NUMBER + 1))]
    # A project that stays, or that has another folder, is not released there.
    with pytest.raises(HostStateError, match=f"project {NUMBER}\\."):
        quota.make_plan("lab", [SET, renamed._replace(path="/srv/data/x")], DONE)
    with pytest.raises(HostStateError, match=f"project {NUMBER}\\."):
        plan(renamed._replace(path="/srv/other"))


@pytest.mark.parametrize("limit", [0, 128 * MIB])
def test_a_quota_below_what_is_there_is_refused(limit: int) -> None:
    with pytest.raises(HostStateError, match=r"100 MiB.* 64 MiB"):
        plan(SET._replace(limit=limit, used=100 * MIB))


@pytest.mark.parametrize("limit", [32 * MIB, 64 * MIB])
def test_a_quota_that_root_has_overrun_is_kept_and_may_grow(limit: int) -> None:
    assert plan(SET._replace(limit=limit, used=100 * MIB)).changed == (limit != 64 * MIB)


def test_the_difference_shows_limits() -> None:
    assert quota.as_diff(plan(SET._replace(limit=32 * MIB))) == ("/srv/data: 32 MiB\n", "/srv/data: 64 MiB\n")
    before, after = quota.as_diff(quota.make_plan("lab", [], DONE))
    assert before.endswith("/srv/data: limited\n")
    assert after.endswith("/srv/data: not limited\n")
    assert quota.as_diff(plan(SET)) == ("", "")


class Host:
    """File attributes in the form of the two ioctls, byte by byte, and the limits of projects in that of xfs_quota."""

    def __init__(self) -> None:
        self.options = ["rw", "prjquota"]
        self.attributes: dict[int, tuple[int, int]] = {}
        self.limits: dict[str, int] = {}
        self.told: list[list[str]] = []
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

    def run(self, argv: Sequence[str], **_options: Any) -> Completed:
        self.told.append(list(argv))
        if argv[0] == "du":
            return Completed(0, f"{3 * MIB}\t{argv[-1]}\n", "")
        assert argv[:7] == ["xfs_quota", "-x", "-f", "-D", "/dev/null", "-P", "/dev/null"]
        assert argv[-1] == "/"
        if self.complaint:
            return Completed(0, "", self.complaint)
        limiting = re.fullmatch(r"limit -p bsoft=0 bhard=(\d+)k (\d+)", argv[8])
        if limiting:
            self.limits[limiting[2]] = int(limiting[1])
            return Completed(0, "", "")
        (number,) = re.fullmatch(r"quota -p -n -N -b -v (\d+)", argv[8]).groups()
        shown = f"/dev/vdb {5 * 1024:>10} {0:>10} {self.limits.get(number, 0):>10}   00 [--------] /\n"
        return Completed(0, shown, "")

    def project_of(self, path: Path) -> tuple[int, bool]:
        """The project and whether it is inherited."""
        flags, project = self.attributes.get(path.stat().st_ino, (0, 0))
        return project, bool(flags & 0x200)

    def look(self, path: Path, text: str = "64M") -> quota.Volume:
        return quota.look(self.run, "data", str(path), text, NUMBER)


@pytest.fixture(name="host")
def _host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Host:
    host = Host()
    monkeypatch.setattr(quota.fcntl, "ioctl", host.ioctl)
    monkeypatch.setattr(quota, "find", lambda program: f"/usr/sbin/{program}")
    monkeypatch.setattr(
        quota, "mount_of", lambda _mounts, _path: Mounted("/", "ext4", "/dev/vdb", False, host.options, [], "254:16")
    )
    for name in ("PROJID", "PROJECTS"):
        monkeypatch.setattr(quota, name, str(tmp_path / name.lower()))
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


def test_from_nothing_to_a_quota_and_back(tmp_path: Path, tree: Path, host: Host) -> None:
    projid = tmp_path / "projid"
    projid.write_text("build:7\n")
    projid.chmod(0o640)
    volume = host.look(tree)
    assert (volume.enforced, volume.owner, volume.limit, volume.used) == (True, 0, 0, 3 * MIB)
    quota.apply(host.run, plan(volume, quota.read_files()))
    for folder in (tree, tree / "deep", tree / "deep" / "er"):
        assert host.project_of(folder) == (NUMBER, True)
    assert host.project_of(tree / "file") == (NUMBER, False)
    assert host.project_of(tmp_path / "outside") == host.project_of(tmp_path / "outside" / "kept") == (0, False)
    assert host.limits == {str(NUMBER): 65536}
    assert projid.read_text() == "build:7\n" + NAME
    assert projid.stat().st_mode & 0o777 == 0o640
    again = host.look(tree)
    assert again == volume._replace(owner=NUMBER, limit=64 * MIB, used=5 * MIB)
    assert not plan(again, quota.read_files()).changed

    quota.apply(host.run, quota.make_plan("lab", [], quota.read_files()))
    assert host.limits == {str(NUMBER): 0}
    for path in (tree, tree / "deep", tree / "deep" / "er", tree / "file"):
        assert host.project_of(path) == (0, False)
    assert projid.read_text() == "build:7\n"
    assert not (tmp_path / "projects").exists()


@pytest.mark.parametrize("killed", [False, True])
def test_a_volume_with_a_quota_can_be_renamed(
    tree: Path, host: Host, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    quota.apply(host.run, plan(host.look(tree), quota.read_files()))

    def look() -> quota.Plan:
        found = quota.look(host.run, "new", str(tree), "64M", NUMBER + 1)
        return quota.make_plan("lab", [found], quota.read_files())

    if killed:
        # Between the release of the former project, here at the second folder, and the new limit.
        given: list[int] = []

        def give(descriptor: int, old: int, new: int, inherits: int) -> None:
            given.append(new)
            if len(given) == 2:
                raise KeyboardInterrupt
            original(descriptor, old, new, inherits)

        original = quota._give
        with monkeypatch.context() as patch:
            patch.setattr(quota, "_give", give)
            with pytest.raises(KeyboardInterrupt):
                quota.apply(host.run, look())
    quota.apply(host.run, look())
    for path in (tree, tree / "deep", tree / "deep" / "er", tree / "file"):
        assert host.project_of(path)[0] == NUMBER + 1
    assert host.limits == {str(NUMBER): 0, str(NUMBER + 1): 65536}
    assert not look().changed


def test_what_is_of_another_project_stays_its(tree: Path, host: Host) -> None:
    inode = (tree / "deep").stat().st_ino
    host.attributes[inode] = (0x200, 7)
    quota.apply(host.run, quota.Plan([], [], [quota.Step(quota.Project(NUMBER, str(tree)), 0, MIB, (0, NUMBER))]))
    assert host.project_of(tree / "deep") == (7, True)
    assert host.project_of(tree) == (NUMBER, True)


def test_a_folder_that_is_not_there_yet_or_any_more(tmp_path: Path, host: Host) -> None:
    missing = tmp_path / "not" / "yet"
    assert (host.look(missing).owner, host.look(missing).used) == (0, 0)
    host.attributes[tmp_path.stat().st_ino] = (0x200, 7)
    assert host.look(missing).owner == 7
    release = quota.Step(quota.Project(NUMBER, str(missing)), None, 0, (NUMBER, 0))
    quota.apply(host.run, quota.Plan([release], [], []))
    assert host.limits == {str(NUMBER): 0}
    assert host.project_of(tmp_path) == (7, True)


def test_a_line_that_was_lost_takes_no_limit_away(host: Host) -> None:
    quota.apply(host.run, quota.Plan([quota.Step(quota.Project(NUMBER, ""), None, 0, (NUMBER, 0))], [], []))
    assert host.told == []


def test_without_the_program_the_files_are_counted(tree: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota, "find", lambda _program: None)
    host.attributes[tree.stat().st_ino] = (0x200, NUMBER)
    volume = host.look(tree)
    assert (volume.owner, volume.limit, volume.used) == (NUMBER, 0, 3 * MIB)
    assert [argv[0] for argv in host.told] == ["du"]


@pytest.mark.parametrize("options", [["rw"], ["rw", "pqnoenforce"], ["rw", "noquota"]])
def test_counting_alone_is_no_quota(tmp_path: Path, host: Host, options: list[str]) -> None:
    host.options = options
    assert not host.look(tmp_path).enforced
    assert host.told == []


def test_a_complaint_of_xfs_quota_is_an_error_whatever_its_status(tmp_path: Path, host: Host) -> None:
    host.complaint = "xfs_quota: cannot setup path for mount /: No such device or address\n"
    with pytest.raises(CommandError, match=r"cannot setup path for mount.*In a container"):
        host.look(tmp_path)


def test_what_the_kernel_forbids_is_told(tmp_path: Path, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(quota.fcntl, "ioctl", refused)
    with pytest.raises(HostStateError, match=r"The quota of .* could not be read or set: Operation not permitted\."):
        host.look(tmp_path)
