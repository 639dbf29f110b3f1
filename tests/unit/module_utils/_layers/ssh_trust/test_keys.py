# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys generated and certified with the real ssh-keygen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import host, keys, server

IDENTIFIER = "{user}@n1 gpumesh lab"


def runner(argv: list[str], **options: object) -> CommandResult:
    return CommandResult(0, "pubkeyauthentication yes\n", "") if argv[0] == "sshd" else run(argv, **options)


def list_uncertified(folder: Path) -> list[str]:
    logins = [server.PeerLogin("n2", "10.0.0.2", "10.0.0.1", 22)]
    return list(host.read_host_trust(runner, str(folder), ["root", "daemon"], IDENTIFIER, logins).uncertified_users)


def read_contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    keys.certify_users(run, str(tmp_path), ["root", "daemon"], IDENTIFIER)
    return tmp_path


def test_each_user_gets_a_certified_key(folder: Path) -> None:
    assert list_uncertified(folder) == []
    assert sorted(read_contents(folder)) == [
        "SIGNING",
        "SIGNING.pub",
        *(f"{user}{suffix}" for user in ("daemon", "root") for suffix in ("", "-cert.pub", ".pub")),
    ]
    for name, owner in (("SIGNING", "root"), ("root", "root"), ("daemon", "daemon")):
        path = folder / name
        assert (path.stat().st_mode & 0o777, path.owner(), path.group()) == (0o600, owner, owner)
    assert (folder / "daemon-cert.pub").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("lost", ["root-cert.pub", "root.pub", "SIGNING.pub"])
def test_existing_keys_are_kept(folder: Path, lost: str) -> None:
    before = read_contents(folder)
    (folder / lost).unlink()
    # An interrupted run has left this directory.
    (folder / ".new-abc").mkdir()
    (folder / ".new-abc" / "key").write_text("half")
    assert "root" in list_uncertified(folder)
    keys.certify_users(run, str(folder), list_uncertified(folder), IDENTIFIER)
    assert list_uncertified(folder) == []
    after = read_contents(folder)
    assert set(after) == set(before)
    assert {name for name in before if after[name] != before[name]} <= {"root-cert.pub", "daemon-cert.pub"}


def test_missing_private_key_is_replaced(folder: Path) -> None:
    before = read_contents(folder)
    (folder / "root").unlink()
    keys.certify_users(run, str(folder), ["root"], IDENTIFIER)
    assert list_uncertified(folder) == []
    assert read_contents(folder)["root.pub"] != before["root.pub"]


def test_exposed_keys_are_replaced(folder: Path) -> None:
    before = read_contents(folder)
    os.chown(folder / "daemon", 2001, 2001)
    # Who has copied its certificate must not be accepted either, so the signing key changes with it.
    assert list_uncertified(folder) == ["root", "daemon"]
    keys.certify_users(run, str(folder), list_uncertified(folder), IDENTIFIER)
    assert list_uncertified(folder) == []
    after = read_contents(folder)
    assert {name for name in before if after[name] == before[name]} == {"root", "root.pub"}
    assert (folder / "daemon").owner() == "daemon"


def test_exposed_signing_key_is_replaced(folder: Path) -> None:
    before = read_contents(folder)
    (folder / "SIGNING").chmod(0o644)
    keys.certify_users(run, str(folder), list_uncertified(folder), IDENTIFIER)
    assert list_uncertified(folder) == []
    after = read_contents(folder)
    assert {name for name in before if after[name] == before[name]} == {"root", "root.pub", "daemon", "daemon.pub"}
    assert (folder / "SIGNING").stat().st_mode & 0o777 == 0o600


def test_unusable_key_is_reported(folder: Path) -> None:
    (folder / "root").write_text("broken")
    with pytest.raises(HostStateError, match=f"The key {folder}/root cannot be used.*Remove"):
        keys.certify_users(run, str(folder), ["root"], IDENTIFIER)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
