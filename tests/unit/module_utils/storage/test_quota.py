# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Quotas of volumes, with a kernel that is played where this machine's counts no projects."""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.storage import quota

MIB = 1 << 20
NUMBER = 1_500_000_000
NAME = f"gpumesh.lab.data:{NUMBER}\n"
LINE = f"{NUMBER}:/srv/data\n"
WANTED = quota.Wanted("data", "/srv/data", 64 * MIB)
SET = quota.Disk(NUMBER, "ext4", "/dev/vdb", enforced=True, owner=NUMBER, limit=64 * MIB, used=MIB)
FRESH = SET._replace(owner=0, limit=0)
EMPTY = quota.Files("", "")
DONE = quota.Files(NAME, LINE)


def plan(disk: quota.Disk, files: quota.Files = DONE, wanted: quota.Wanted = WANTED) -> quota.Plan:
    return quota.make_plan("lab", [wanted], {"data": disk}, files)


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
    assert quota.size_of("data", text) == size


@pytest.mark.parametrize("text", ["", "500", "500GB", "500g", "-1G", "0G", "much", "1e3G", "9999P", "5 0G"])
def test_what_is_no_size_is_refused_with_the_volume(text: str) -> None:
    with pytest.raises(InputError, match=rf"Volume 'data' has the quota '{text}'\. Give a size"):
        quota.size_of("data", text)


def test_sizes_in_words() -> None:
    assert [quota.in_words(size) for size in (1024, 64 * MIB, 3 << 39)] == ["1 KiB", "64 MiB", "1.5 TiB"]


def test_our_lines_are_those_of_the_cluster() -> None:
    files = quota.Files(
        "# ours: none\nbuild:7\ngpumesh.lab.data:8\ngpumesh.lab.bare:9\ngpumesh.lab-2.data:10\ngpumesh.lab.bad:x\n",
        "7:/build\n8:/srv/a:b\n10:/srv/other\n",
    )
    assert quota.parse(files, "lab") == {"data": quota.Project(8, "/srv/a:b"), "bare": quota.Project(9, "")}


def test_a_number_is_kept_and_a_new_one_is_free() -> None:
    assert quota.number_for("lab", "data", DONE) == NUMBER
    number = quota.number_for("lab", "other", EMPTY)
    assert 1 << 30 <= number < 1 << 31
    assert quota.number_for("lab", "other", quota.Files("", f"{number}:/x\n")) == number + 1
    assert quota.number_for("lab", "other", quota.Files(f"x:{number}\n", f"{number + 1}:/x\n")) == number + 2


def test_a_first_quota_marks_the_files() -> None:
    made = plan(FRESH, quota.Files("build:7\n", "7:/build\n"))
    assert made == quota.Plan(
        [],
        [quota.Step(quota.Project(NUMBER, "/srv/data"), 64 * MIB, mark=True)],
        quota.Files("build:7\n" + NAME, "7:/build\n" + LINE),
        changed=True,
    )


def test_what_is_there_stays_wherever_its_lines_stand() -> None:
    assert not plan(SET).changed
    # Others' files may end without a line's end.
    assert not plan(SET, quota.Files(NAME + "build:7", LINE + "7:/build")).changed


@pytest.mark.parametrize("limit", [32 * MIB, 128 * MIB])
def test_a_changed_quota_leaves_the_files_alone(limit: int) -> None:
    made = plan(SET._replace(limit=limit))
    assert made.steps == [quota.Step(quota.Project(NUMBER, "/srv/data"), 64 * MIB, mark=False)]
    assert (made.release, made.files) == ([], DONE)


@pytest.mark.parametrize("difference", [{"limit": 0}, {"owner": 0}])
def test_what_was_cut_off_or_replaced_is_marked_again(difference: dict[str, Any]) -> None:
    (step,) = plan(SET._replace(**difference)).steps
    assert step.mark


def test_lost_lines_come_back() -> None:
    made = plan(SET, EMPTY)
    assert made.changed
    assert (made.steps, made.files) == ([], DONE)


def test_quotas_that_are_not_wanted_any_more_end() -> None:
    others = quota.Files("a:7\n" + NAME + "gpumesh.two.data:8\n", "7:/a\n" + LINE + "8:/srv/two\n")
    made = quota.make_plan("lab", [], {}, others)
    assert made.release == [quota.Project(NUMBER, "/srv/data")]
    assert made.files == quota.Files("a:7\ngpumesh.two.data:8\n", "7:/a\n8:/srv/two\n")
    assert made.changed
    assert not quota.make_plan("other", [], {}, others).changed


def test_a_volume_that_moves_leaves_its_old_folder() -> None:
    made = plan(SET, wanted=WANTED._replace(path="/srv/new"))
    assert made.release == [quota.Project(NUMBER, "/srv/data")]
    assert made.steps == [quota.Step(quota.Project(NUMBER, "/srv/new"), 64 * MIB, mark=True)]
    assert made.files == quota.Files(NAME, f"{NUMBER}:/srv/new\n")


@pytest.mark.parametrize(
    ("filesystem", "remedy"),
    [
        ("ext4", "'tune2fs -O project,quota /dev/vdb', and mount it with the option prjquota"),
        ("xfs", "option pquota"),
        ("btrfs", "'btrfs qgroup limit'"),
        ("zfs", "'zfs set quota'"),
        ("overlay", "on ext4 or XFS"),
    ],
)
def test_a_file_system_without_projects_is_refused(filesystem: str, remedy: str) -> None:
    with pytest.raises(HostStateError) as caught:
        plan(FRESH._replace(filesystem=filesystem, enforced=False))
    told = str(caught.value)
    assert f"Volume 'data' at /srv/data cannot have a quota: it is on {filesystem} from /dev/vdb" in told
    assert remedy in told
    assert "take quota out of the volume" in told


def test_a_folder_of_another_project_is_refused() -> None:
    with pytest.raises(HostStateError, match=r"its folder is in the project 7 already.*chattr -R -p 0 /srv/data"):
        plan(FRESH._replace(owner=7))


@pytest.mark.parametrize("limit", [0, 128 * MIB])
def test_a_quota_below_what_is_there_is_refused(limit: int) -> None:
    with pytest.raises(HostStateError, match=r"has 100 MiB in it, more than its quota of 64 MiB\. Give"):
        plan(SET._replace(limit=limit, used=100 * MIB))


@pytest.mark.parametrize("limit", [32 * MIB, 64 * MIB])
def test_a_quota_that_root_has_overrun_is_kept_and_may_grow(limit: int) -> None:
    assert plan(SET._replace(limit=limit, used=100 * MIB)).changed == (limit != 64 * MIB)


def test_the_difference_shows_limits() -> None:
    raised = plan(SET._replace(limit=32 * MIB))
    before, after = quota.as_diff("lab", raised, DONE, [SET._replace(limit=32 * MIB)])
    assert (before, after) == ("gpumesh.lab.data: /srv/data 32 MiB\n", "gpumesh.lab.data: /srv/data 64 MiB\n")
    unset = quota.make_plan("lab", [], {}, DONE)
    assert quota.as_diff("lab", unset, DONE, []) == ("gpumesh.lab.data: /srv/data with a quota\n", "")
    same = plan(SET)
    assert len(set(quota.as_diff("lab", same, DONE, [SET]))) == 1


class Kernel:
    """File attributes and the limits of projects, as the two system calls have them, byte by byte."""

    def __init__(self, flags: int = 0x30) -> None:
        self.flags = flags
        self.attributes: dict[int, tuple[int, int]] = {}
        self.limits: dict[int, int] = {}
        self.asked: list[int] = []

    def ioctl(self, descriptor: int, request: int, memory: bytes) -> bytes:
        assert len(memory) == 28
        inode = os.fstat(descriptor).st_ino
        flags, project = self.attributes.get(inode, (0x80, 0))
        if request == 0x401C5820:
            words = struct.unpack("=7I", memory)
            # The size hint for extents goes back as it came.
            assert words[1] == 4096
            self.attributes[inode] = (words[0], words[3])
            return memory
        assert request == 0x801C581F
        return struct.pack("=7I", flags, 4096, 1, project, 0, 0, 0)

    def quotactl(self, descriptor: int, command: int, number: int, memory: bytes) -> bytes:
        assert os.fstat(descriptor).st_ino
        self.asked.append(command)
        if command == 0x5808:
            if not self.flags:
                raise OSError(errno.ENOSYS, "Function not implemented")
            assert memory[0] == 1
            return memory[:2] + struct.pack("=H", self.flags) + memory[4:]
        if command == 0x800008:
            words = struct.unpack("=8QI4x", memory)
            assert words[1:] == (0, 0, 0, 0, 0, 0, 0, 1)
            self.limits[number] = words[0]
            return memory
        assert command == 0x800007
        if number not in self.limits:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return struct.pack("=8QI4x", self.limits[number], 0, 5 * MIB, 0, 0, 0, 0, 0, 0)

    def project_of(self, path: Path) -> tuple[int, bool]:
        """The project and whether it is inherited."""
        flags, project = self.attributes.get(path.stat().st_ino, (0, 0))
        return project, bool(flags & 0x200)


@pytest.fixture(name="kernel")
def _kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(quota.fcntl, "ioctl", kernel.ioctl)
    monkeypatch.setattr(quota, "_quotactl", kernel.quotactl)
    return kernel


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    """A volume with files, a link out of it, a link from outside into it, and what cannot be marked."""
    root = tmp_path / "data"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "file").write_bytes(bytes(MIB))
    (root / "deep" / "er" / "same").hardlink_to(root / "file")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("")
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    return root


def test_from_nothing_to_a_quota_and_back(tmp_path: Path, tree: Path, kernel: Kernel) -> None:
    projid, projects = tmp_path / "projid", tmp_path / "projects"
    projid.write_text("build:7\n")
    projid.chmod(0o640)
    paths = (str(projid), str(projects))
    wanted = quota.Wanted("data", str(tree), 64 * MIB)
    disk = quota.look(str(tree), NUMBER)
    assert (disk.enforced, disk.owner, disk.limit) == (True, 0, 0)
    # The file with two names counts once.
    assert MIB <= disk.used < 2 * MIB
    quota.apply(quota.make_plan("lab", [wanted], {"data": disk}, quota.Files("build:7\n", "")), *paths)
    for folder in (tree, tree / "deep", tree / "deep" / "er"):
        assert kernel.project_of(folder) == (NUMBER, True)
    assert kernel.project_of(tree / "file") == (NUMBER, False)
    assert kernel.project_of(tmp_path / "outside") == kernel.project_of(tmp_path / "outside" / "kept") == (0, False)
    assert kernel.limits == {NUMBER: 65536}
    files = quota.Files(projid.read_text(), projects.read_text())
    assert files.projid.startswith("build:7\ngpumesh.lab.data:")
    assert projid.stat().st_mode & 0o777 == 0o640
    again = quota.look(str(tree), NUMBER)
    assert again == disk._replace(owner=NUMBER, limit=64 * MIB, used=5 * MIB)
    assert not quota.make_plan("lab", [wanted], {"data": again}, files).changed

    quota.apply(quota.make_plan("lab", [], {}, files), *paths)
    assert kernel.limits == {NUMBER: 0}
    for path in (tree, tree / "deep", tree / "deep" / "er", tree / "file"):
        assert kernel.project_of(path) == (0, False)
    assert projid.read_text() == "build:7\n"
    assert not projects.exists()


def test_what_is_of_another_project_stays_its(tree: Path, tmp_path: Path, kernel: Kernel) -> None:
    inode = (tree / "deep").stat().st_ino
    kernel.attributes[inode] = (0x200, 7)
    step = quota.Step(quota.Project(NUMBER, str(tree)), MIB, mark=True)
    quota.apply(quota.Plan([], [step], EMPTY, changed=True), str(tmp_path / "a"), str(tmp_path / "b"))
    assert kernel.project_of(tree / "deep") == (7, True)
    assert kernel.project_of(tree) == (NUMBER, True)


def test_a_folder_that_is_not_there_yet_or_any_more(tmp_path: Path, kernel: Kernel) -> None:
    missing = str(tmp_path / "not" / "yet")
    assert quota.look(missing, NUMBER).owner == 0
    kernel.attributes[tmp_path.stat().st_ino] = (0x200, 7)
    assert quota.look(missing, NUMBER).owner == 7
    release = quota.Plan([quota.Project(NUMBER, missing)], [], EMPTY, changed=True)
    quota.apply(release, str(tmp_path / "a"), str(tmp_path / "b"))
    assert kernel.limits == {NUMBER: 0}
    assert kernel.project_of(tmp_path) == (7, True)


@pytest.mark.parametrize("flags", [0, 0x10, 0x0F])
def test_counting_alone_is_no_quota(tmp_path: Path, kernel: Kernel, flags: int) -> None:
    kernel.flags = flags
    assert not quota.look(str(tmp_path), NUMBER).enforced
    assert kernel.asked == [0x5808]


def test_this_kernel_understands_the_question(tmp_path: Path) -> None:
    """The real call: whatever file system this is, it says whether it counts projects."""
    assert quota.look(str(tmp_path), NUMBER).enforced in (True, False)


def test_what_the_kernel_forbids_is_told(tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: Any) -> bytes:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(quota, "_quotactl", refused)
    with pytest.raises(HostStateError, match=r"The quota of .* cannot be read or set: Operation not permitted\."):
        quota.look(str(tmp_path), NUMBER)
