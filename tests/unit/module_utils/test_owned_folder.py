# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Directories that other users may have created, or could replace."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils import owned_folder
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError


def test_what_is_not_the_users_alone_is_not_used(tmp_path: Path) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(0o770)
    with pytest.raises(HostStateError, match=r"is open to other users: .* mode 0770"):
        owned_folder.owned(str(place), "--dir")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(HostStateError, match="cannot be used"):
        owned_folder.owned(str(tmp_path / "link"), "--dir")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(HostStateError, match=r"may rename what is in .*shared.*chmod \+t"):
        owned_folder.owned(str(shared / "mine"), "--dir")
    shared.chmod(0o1777)
    os.close(owned_folder.owned(str(shared / "mine"), "--dir"))
    assert (shared / "mine").stat().st_mode & 0o777 == 0o700
    with pytest.raises(HostStateError, match="cannot be used: No such file"):
        owned_folder.owned(str(tmp_path / "none" / "mine"), "--dir")


def test_a_directory_that_another_user_has_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "planted"
    place.mkdir(mode=0o700)
    monkeypatch.setattr(owned_folder, "refuse_open", lambda *_given: None)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(HostStateError, match=f"belongs to user {os.getuid()}"):
        owned_folder.owned(str(place), "--dir")


def test_others_may_look_into_some(tmp_path: Path) -> None:
    place = tmp_path / "images"
    place.mkdir(mode=0o755)
    place.chmod(0o755)
    os.close(owned_folder.owned(str(place), "session_storage_dir", 0o022))
    with pytest.raises(HostStateError, match="give another one with session_storage_dir"):
        owned_folder.owned(str(place), "session_storage_dir")


def test_a_group_that_may_write_somewhere_could_replace_what_is_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for the user's private group, which comes with a umask of 002."""
    members = [SimpleNamespace(gr_name="alice", gr_mem=["alice"])]
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o2775)
    user = SimpleNamespace(pw_name="alice", pw_gid=place.stat().st_gid)
    monkeypatch.setattr(owned_folder.pwd, "getpwuid", lambda _user: user)
    monkeypatch.setattr(owned_folder.grp, "getgrgid", lambda _group: members[-1])
    owned_folder.refuse_open(str(place), "--dir")
    for group in (
        SimpleNamespace(gr_name="alice", gr_mem=["alice", "mallory"]),
        SimpleNamespace(gr_name="users", gr_mem=[]),
    ):
        members.append(group)
        with pytest.raises(HostStateError, match=r"may rename what is in .*shared: it has mode 2775\. .*chmod \+t"):
            owned_folder.refuse_open(str(place), "--dir")
    place.chmod(0o3775)
    owned_folder.refuse_open(str(place), "--dir")


def test_a_volume_that_maps_root_to_nobody_has_directories_of_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    if not os.getuid():
        # Those above belong to root, whom everyone trusts.
        os.chown(tmp_path, 4242, 4242)
    owner = tmp_path.stat().st_uid
    with pytest.raises(HostStateError, match=f"belongs to user {owner}, who may rename what is in it"):
        owned_folder.refuse_open(str(tmp_path), "--dir")
    owned_folder.refuse_open(str(tmp_path), "--dir", owner)
