# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files, folders and blocks of lines: planned from the current state, written, and not changed a second time."""

from __future__ import annotations

import os
import pwd
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import managed_files, safe_path
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import read_text

MARKER = "# {mark} ours"


def plan_changes(entries: list[dict[str, Any]]) -> list[managed_files.FileChange]:
    planned = [
        managed_files.plan_change(each, managed_files.read_current(each.path), managed_files.resolve_owner(each))
        for each in managed_files.parse_entries(entries)
    ]
    return [step for step in planned if step is not None]


def apply_entries(entries: list[dict[str, Any]]) -> list[str]:
    """Apply the entries, and check that nothing is left to do. Return the changed paths."""
    found = plan_changes(entries)
    for step in found:
        managed_files.apply_file_change(step)
    assert plan_changes(entries) == []
    return [step.path for step in found]


def test_files_and_directories_are_created_with_their_modes(tmp_path: Path):
    entries = [
        {"path": str(tmp_path / "d"), "state": "directory", "mode": "1777"},
        {"path": str(tmp_path / "d" / "f"), "content": "one\n", "mode": "0600"},
    ]
    assert apply_entries(entries) == [str(tmp_path / "d"), str(tmp_path / "d" / "f")]
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "d" / "f").stat().st_mode) == 0o600
    (tmp_path / "d" / "f").chmod(0o644)
    assert apply_entries(entries) == [str(tmp_path / "d" / "f")]
    assert (tmp_path / "d" / "f").read_text() == "one\n"


def test_new_mode_does_not_change_an_existing_directory(tmp_path: Path):
    entry = {"path": str(tmp_path / "d"), "state": "directory", "new_mode": "1777"}
    apply_entries([entry])
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o1777
    (tmp_path / "d").chmod(0o750)
    assert apply_entries([entry]) == []
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750


def test_directory_created_concurrently_by_another_member_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All members create the same directory in a home directory on a volume."""
    make = os.mkdir

    def late(*args: Any, **options: Any) -> None:
        monkeypatch.setattr(os, "mkdir", make)
        make(*args, **options)
        make(*args, **options)

    monkeypatch.setattr(os, "mkdir", late)
    managed_files.ensure_files([{"path": str(tmp_path / ".ssh"), "state": "directory", "mode": "0710"}], False)
    assert (tmp_path / ".ssh").stat().st_mode & 0o777 == 0o710


def test_block_is_inserted_into_a_foreign_file_and_removed_again(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n127.0.1.1 n1\nlast line without an end")
    path.chmod(0o640)
    block = {"path": str(path), "state": "block", "marker": MARKER, "hide": r"127\.0\.1\.1\s.*", "at_start": True}
    apply_entries([{**block, "content": "10.0.0.1 n1"}])
    assert path.read_text() == (
        "# BEGIN ours\n10.0.0.1 n1\n# END ours\n127.0.0.1 localhost\n# gpumesh: 127.0.1.1 n1\nlast line without an end"
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    apply_entries([{**block, "content": "10.0.0.2 n1\n"}])
    assert path.read_text().startswith("# BEGIN ours\n10.0.0.2 n1\n# END ours\n127")
    apply_entries([{**block, "state": "absent"}])
    assert path.read_text() == "127.0.0.1 localhost\n127.0.1.1 n1\nlast line without an end"


def test_file_with_only_the_block_is_removed_with_it(tmp_path: Path):
    path = tmp_path / "nccl.conf"
    apply_entries([{"path": str(path), "state": "block", "marker": MARKER, "content": "A=1"}])
    apply_entries([{"path": str(path), "state": "absent", "marker": MARKER}])
    assert not path.exists()


def test_absent_directory_is_removed_with_its_content(tmp_path: Path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_text("x")
    apply_entries(
        [{"path": str(tmp_path / "d"), "state": "absent"}, {"path": str(tmp_path / "none"), "state": "absent"}]
    )
    assert not (tmp_path / "d").exists()


def test_link_in_a_trusted_directory_is_followed(tmp_path: Path):
    target = tmp_path / "target"
    target.write_text("theirs\n")
    link = tmp_path / "link"
    link.symlink_to(target)
    apply_entries([{"path": str(link), "state": "block", "marker": MARKER, "content": "x"}])
    assert link.is_symlink() and "x\n" in target.read_text()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A directory of the account nobody."""
    if os.geteuid() != 0:
        pytest.skip("not checked: only root can write for another account")
    # Only root can access the directory of pytest.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        home = Path(folder, "home")
        home.mkdir()
        os.chown(home, 65534, 65534)
        yield home


def block_for_nobody(path: Path) -> dict[str, Any]:
    return {"path": str(path), "state": "block", "marker": MARKER, "content": "y", "owner": "nobody", "mode": "0600"}


def test_link_in_a_user_directory_is_followed_with_the_rights_of_the_user(home: Path):
    secret = home.parent / "secret"
    secret.write_text("root's\n")
    secret.chmod(0o600)
    (home / "link").symlink_to(secret)
    with pytest.raises(HostStateError, match="cannot be read: Permission denied"):
        plan_changes([block_for_nobody(home / "link")])
    (home / "own").write_text("own\n")
    (home / "link").unlink()
    (home / "link").symlink_to("own")
    apply_entries([block_for_nobody(home / "link")])
    assert (home / "own").read_text() == "own\n# BEGIN ours\ny\n# END ours\n"
    assert (home / "own").stat().st_uid == 65534


def test_files_in_a_user_directory_belong_to_the_user(home: Path):
    ssh = home / ".ssh"
    apply_entries(
        [{"path": str(ssh), "state": "directory", "owner": "nobody", "mode": "0700"}, block_for_nobody(ssh / "keys")]
    )
    (ssh / "mine").write_text("of root\n")
    apply_entries([{"path": str(ssh / "mine"), "state": "block", "marker": MARKER, "content": "y"}])
    assert {path.stat().st_uid for path in (ssh, ssh / "keys", ssh / "mine")} == {65534}
    assert os.geteuid() == 0 and os.getegid() == 0
    with pytest.raises(HostStateError, match="cannot belong to daemon: it is in a directory of nobody"):
        apply_entries([{**block_for_nobody(ssh / "other"), "owner": "daemon"}])
    os.chown(ssh, 0, 0)
    with pytest.raises(HostStateError, match="belongs to root, in a directory of nobody. Change its owner to nobody"):
        apply_entries([{"path": str(ssh), "state": "directory", "owner": "nobody", "mode": "0700"}])


def test_root_directory_below_a_home_remains_owned_by_root(home: Path):
    report = home / "checkout" / "report"
    report.mkdir(parents=True)
    apply_entries(
        [{"path": str(report / "deep"), "state": "directory"}, {"path": str(report / "page"), "content": "x"}]
    )
    assert {path.stat().st_uid for path in (report / "deep", report / "page")} == {0}
    (home / "link").symlink_to("checkout")
    with pytest.raises(HostStateError, match="cannot be written: Permission denied"):
        apply_entries([{"path": str(home / "link" / "page"), "content": "x"}])
    (report / "link").symlink_to("page")
    with pytest.raises(HostStateError, match="link is a link in a directory that others can write to"):
        apply_entries([{"path": str(report / "link"), "content": "y"}])
    assert os.geteuid() == 0


def test_link_in_a_world_writable_directory_is_refused(home: Path):
    home.chmod(0o1777)
    os.chown(home, 0, 0)
    (home / "target").write_text("x")
    (home / "link").symlink_to("target")
    with pytest.raises(HostStateError, match="is a link in a directory that others can write to. Remove it"):
        plan_changes([{"path": str(home / "link"), "content": "x"}])
    (home / "theirs").mkdir()
    os.chown(home / "theirs", 65534, 65534)
    with pytest.raises(HostStateError, match="belongs to nobody, in a directory that others can write to"):
        apply_entries([{"path": str(home / "theirs"), "state": "directory", "owner": "daemon", "mode": "0700"}])
    apply_entries([{"path": str(home / "ours" / "deep"), "state": "directory", "owner": "daemon", "mode": "0700"}])


def test_replaceable_mount_point_is_refused(home: Path):
    with pytest.raises(HostStateError, match="others could replace it. Choose a mount point below directories"):
        safe_path.refuse_replaceable_mount_points([str(home / "data")])
    home.chmod(0o1777)
    os.chown(home, 0, 0)
    with pytest.raises(HostStateError, match="others could replace"):
        safe_path.refuse_replaceable_mount_points([str(home / "data")])
    (home / "data").mkdir()
    safe_path.refuse_replaceable_mount_points([str(home / "data"), str(home.parent / "data"), str(home)])
    os.chown(home / "data", 65534, 65534)
    with pytest.raises(HostStateError, match="others could replace"):
        safe_path.refuse_replaceable_mount_points([str(home / "data")])


@pytest.mark.parametrize("kind", ["named pipe", "device", "link to a device", "socket", "too much"])
def test_irregular_and_huge_files_are_refused_without_blocking(kind: str, tmp_path: Path):
    path = tmp_path / "authorized_keys"
    message = f"is a {kind.rpartition(' a ')[2]}, but a file is required. Move it away"
    if kind == "named pipe":
        os.mkfifo(path)
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("not checked: only root can make a device")
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    else:
        path.touch()
        os.truncate(path, 1 << 40)
        message = "larger than 32 MiB"
    with pytest.raises(HostStateError, match=message):
        plan_changes([{"path": str(path), "state": "block", "marker": MARKER, "content": "y"}])
    with pytest.raises(HostStateError, match=message):
        read_text(str(path))


def test_files_in_proc_are_read():
    assert read_text("/proc/sys/kernel/ostype") == "Linux\n"
    assert "Pid:" in (read_text("/proc/self/status") or "")


def test_foreign_lines_in_another_encoding_are_kept(tmp_path: Path):
    path = tmp_path / "keys"
    path.write_bytes(b"ssh-rsa AAAA M\xfcller\n")
    entry = {"path": str(path), "state": "block", "marker": MARKER, "content": "y"}
    assert "M?ller" in managed_files.format_diff(plan_changes([entry]))[0]
    apply_entries([entry])
    assert path.read_bytes() == b"ssh-rsa AAAA M\xfcller\n# BEGIN ours\ny\n# END ours\n"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "etc/x", "content": ""}, "not absolute"),
        ({"path": "/", "state": "absent"}, "not absolute"),
        ({"path": "/x"}, "no content"),
        ({"path": "/x", "state": "block", "content": "a", "marker": "# ours"}, "marker"),
        ({"path": "/x", "content": "", "mode": "rw"}, "octal"),
    ],
)
def test_invalid_entries_are_refused(entry: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        managed_files.parse_entries([entry])


def test_conflicts_with_the_host_are_refused(tmp_path: Path):
    (tmp_path / "d").mkdir()
    with pytest.raises(HostStateError, match="is a directory"):
        plan_changes([{"path": str(tmp_path / "d"), "content": "x"}])
    with pytest.raises(HostStateError, match="no-such-account"):
        plan_changes([{"path": str(tmp_path / "f"), "content": "x", "owner": "no-such-account"}])
    with pytest.raises(InputError, match="more than once"):
        plan_changes([{"path": "/x", "content": "x"}, {"path": "/x", "state": "absent"}])


@pytest.mark.parametrize("mode", [511, 0o1777, 1777, 420])
def test_numeric_mode_is_refused(mode: int):
    # YAML reads 0777 without quotes as 511. All digits of that are octal, so the mode would become 0511.
    for key in ("mode", "new_mode"):
        with pytest.raises(InputError, match=rf"/x: {key} is the number {mode}\. Quote it: '0644'"):
            managed_files.parse_entries([{"path": "/x", "content": "x", key: mode}])


@pytest.mark.parametrize("kind", [int, str])
def test_owners_are_names_or_numbers(tmp_path: Path, kind: Callable[[Any], Any]):
    def ids(**owner: Any) -> tuple[int | None, int | None]:
        return managed_files.resolve_owner(managed_files.parse_entries([{"path": "/x", "content": "", **owner}])[0])

    nobody = pwd.getpwnam("nobody")
    assert ids(owner="nobody") == ids(owner=kind(nobody.pw_uid)) == (nobody.pw_uid, nobody.pw_gid)
    # Users need no account on the server, since NFS transmits numbers.
    assert ids(owner=kind(64123)) == (64123, None)
    assert ids(owner=kind(64123), group=kind(64124)) == (64123, 64124)
    assert ids(group=kind(0)) == (None, 0)
    with pytest.raises(InputError, match="/x: the owner 4294967295 is not a valid ID"):
        ids(owner=kind(4294967295))
    entry = {"path": str(tmp_path / "d"), "state": "directory", "owner": kind(64123), "group": kind(64124)}
    if os.geteuid() == 0:
        assert apply_entries([entry]) == [str(tmp_path / "d")]
        assert ((tmp_path / "d").stat().st_uid, (tmp_path / "d").stat().st_gid) == (64123, 64124)


BEGIN, END = (MARKER.format(mark=mark) for mark in ("BEGIN", "END"))
LINES = st.lists(st.sampled_from([BEGIN, END, "ours", "theirs", "", "#", f"{BEGIN} not"]), max_size=12)


def make_block(**more: Any) -> managed_files.FileEntry:
    return managed_files.parse_entries([{"path": "/f", "state": "block", "marker": MARKER, "content": "", **more}])[0]


@given(LINES, st.sampled_from(["", "\n"]), st.text(alphabet="xy\n", max_size=20), st.booleans())
def test_inserting_a_block_keeps_all_foreign_lines(lines: list[str], end: str, content: str, at_start: bool):
    text = "\n".join(lines) + end
    entry = make_block(content=content, at_start=at_start)
    marks = [line for line in lines if line in (BEGIN, END)]
    if marks != [BEGIN, END] * (len(marks) // 2):
        for read in (managed_files.remove_block, managed_files.find_block):
            with pytest.raises(HostStateError, match="^/f: line"):
                read("/f", text, MARKER)
        with pytest.raises(HostStateError, match="^/f: line"):
            managed_files.insert_block(text, entry)
        return
    inside, ours, theirs = False, [], []
    for line in text.splitlines(keepends=True):
        if line.rstrip() in (BEGIN, END):
            inside = not inside
        else:
            (ours if inside else theirs).append(line)
    assert managed_files.remove_block("/f", text, MARKER) == "".join(theirs)
    assert managed_files.find_block("/f", text, MARKER) == ("".join(ours) if marks else None)
    once = managed_files.insert_block(text, entry)
    assert managed_files.insert_block(once, entry) == once
    rest = managed_files.remove_block("/f", once, MARKER)
    assert rest in ("".join(theirs), "".join(theirs) + "\n")


@pytest.mark.parametrize("text", [f"{BEGIN}\nours\ntheirs\n", f"ours\n{END}\ntheirs\n", f"{BEGIN}\n{BEGIN}\n{END}\n"])
def test_unpaired_marker_is_refused_before_any_change(tmp_path: Path, text: str):
    path, other = tmp_path / "authorized_keys", tmp_path / "other"
    path.write_text(text)
    for state in ("block", "absent"):
        entry = {"path": str(path), "state": state, "marker": MARKER, "content": "new"}
        with pytest.raises(HostStateError) as refused:
            managed_files.ensure_files([{"path": str(other), "content": "x"}, entry], False)
        assert refused.value.details["path"] == str(path) and refused.value.remedy
        assert path.read_text() == text and not other.exists()


def test_block_with_windows_line_endings_is_recognized(tmp_path: Path):
    path = tmp_path / "authorized_keys"
    path.write_bytes(b"theirs\r\n# BEGIN ours\r\nold\r\n# END ours\r\n")
    apply_entries([{"path": str(path), "state": "block", "marker": MARKER, "content": "new"}])
    assert path.read_bytes() == b"theirs\r\n# BEGIN ours\nnew\n# END ours\n"


def test_many_markers_are_parsed_in_linear_time():
    # Searching from each marker to the end would take days.
    with pytest.raises(HostStateError, match="line 1,"):
        managed_files.find_block("/f", f"{BEGIN}\n" * 1_000_000, MARKER)
    assert managed_files.remove_block("/f", f"{BEGIN}\n{END}\n" * 500_000 + "theirs\n", MARKER) == "theirs\n"
