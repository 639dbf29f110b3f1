# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories that other users may have created, or could replace."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import private_dir
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError


def test_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o770)
    with pytest.raises(HostStateError, match=r"is open to other users: .* mode 0770"):
        private_dir.open_private_dir(str(place), "--dir")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(HostStateError, match="cannot be used"):
        private_dir.open_private_dir(str(tmp_path / "link"), "--dir")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(HostStateError, match=r"may rename what is in .*shared.*chmod \+t"):
        private_dir.open_private_dir(str(shared / "mine"), "--dir")
    shared.chmod(0o1777)
    os.close(private_dir.open_private_dir(str(shared / "mine"), "--dir"))
    assert (shared / "mine").stat().st_mode & 0o777 == 0o700
    with pytest.raises(HostStateError, match="cannot be used: No such file"):
        private_dir.open_private_dir(str(tmp_path / "none" / "mine"), "--dir")


def test_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "planted"
    place.mkdir(mode=0o700)
    monkeypatch.setattr(private_dir, "refuse_replaceable_dir", lambda *_given: None)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(HostStateError, match=f"belongs to user {os.getuid()}"):
        private_dir.open_private_dir(str(place), "--dir")


def test_readable_directory_is_accepted_where_allowed(tmp_path: Path) -> None:
    place = tmp_path / "images"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    os.close(private_dir.open_private_dir(str(place), "session_storage_dir", 0o022))
    with pytest.raises(HostStateError, match="give another one with session_storage_dir"):
        private_dir.open_private_dir(str(place), "session_storage_dir")


def test_group_writable_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private group of the user is an exception, since it comes with the umask 002."""
    members = [SimpleNamespace(gr_name="alice", gr_mem=["alice"])]
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o2775)
    user = SimpleNamespace(pw_name="alice", pw_gid=place.stat().st_gid)
    monkeypatch.setattr(private_dir.pwd, "getpwuid", lambda _user: user)
    monkeypatch.setattr(private_dir.grp, "getgrgid", lambda _group: members[-1])
    private_dir.refuse_replaceable_dir(str(place), "--dir")
    for group in (
        SimpleNamespace(gr_name="alice", gr_mem=["alice", "mallory"]),
        SimpleNamespace(gr_name="users", gr_mem=[]),
    ):
        members.append(group)
        with pytest.raises(HostStateError, match=r"may rename what is in .*shared: it has mode 2775\. .*chmod \+t"):
            private_dir.refuse_replaceable_dir(str(place), "--dir")
    place.chmod(0o3775)
    private_dir.refuse_replaceable_dir(str(place), "--dir")


def test_directory_of_nobody_is_accepted_where_root_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    if not os.getuid():
        # The directories above belong to root, whom everyone trusts.
        os.chown(tmp_path, 4242, 4242)
    owner = tmp_path.stat().st_uid
    with pytest.raises(HostStateError, match=f"belongs to user {owner}, who may rename what is in it"):
        private_dir.refuse_replaceable_dir(str(tmp_path), "--dir")
    private_dir.refuse_replaceable_dir(str(tmp_path), "--dir", owner)
