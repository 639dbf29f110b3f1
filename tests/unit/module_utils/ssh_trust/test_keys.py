# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys generated and certified with the real ssh-keygen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import host, keys, server

IDENTIFIER = "{user}@n1 gpumesh lab"


def runner(argv: list[str], **options: object) -> Completed:
    return Completed(0, "pubkeyauthentication yes\n", "") if argv[0] == "sshd" else run(argv, **options)


def uncertified(folder: Path) -> list[str]:
    logins = [server.Login("n2", "10.0.0.2", "10.0.0.1", 22)]
    return list(host.look(runner, str(folder), ["root", "daemon"], IDENTIFIER, logins).uncertified)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    keys.certify(run, str(tmp_path), ["root", "daemon"], IDENTIFIER)
    return tmp_path


def test_each_user_has_a_certified_key(folder: Path) -> None:
    assert uncertified(folder) == []
    assert sorted(contents(folder)) == [
        "SIGNING",
        "SIGNING.pub",
        *(f"{user}{suffix}" for user in ("daemon", "root") for suffix in ("", "-cert.pub", ".pub")),
    ]
    for name, owner in (("SIGNING", "root"), ("root", "root"), ("daemon", "daemon")):
        path = folder / name
        assert (path.stat().st_mode & 0o777, path.owner(), path.group()) == (0o600, owner, owner)
    assert (folder / "daemon-cert.pub").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("lost", ["root-cert.pub", "root.pub", "SIGNING.pub"])
def test_keys_that_are_there_stay(folder: Path, lost: str) -> None:
    before = contents(folder)
    (folder / lost).unlink()
    # Left by an interrupted run.
    (folder / ".new-abc").mkdir()
    (folder / ".new-abc" / "key").write_text("half")
    assert "root" in uncertified(folder)
    keys.certify(run, str(folder), uncertified(folder), IDENTIFIER)
    assert uncertified(folder) == []
    after = contents(folder)
    assert set(after) == set(before)
    assert {name for name in before if after[name] != before[name]} <= {"root-cert.pub", "daemon-cert.pub"}


def test_a_lost_private_key_is_replaced(folder: Path) -> None:
    before = contents(folder)
    (folder / "root").unlink()
    keys.certify(run, str(folder), ["root"], IDENTIFIER)
    assert uncertified(folder) == []
    assert contents(folder)["root.pub"] != before["root.pub"]


def test_keys_that_other_accounts_may_know_are_replaced(folder: Path) -> None:
    before = contents(folder)
    os.chown(folder / "daemon", 2001, 2001)
    # Who has copied its certificate must not be accepted either, so the signing key changes with it.
    assert uncertified(folder) == ["root", "daemon"]
    keys.certify(run, str(folder), uncertified(folder), IDENTIFIER)
    assert uncertified(folder) == []
    after = contents(folder)
    assert {name for name in before if after[name] == before[name]} == {"root", "root.pub"}
    assert (folder / "daemon").owner() == "daemon"


def test_a_signing_key_that_others_could_read_is_replaced(folder: Path) -> None:
    before = contents(folder)
    (folder / "SIGNING").chmod(0o644)
    keys.certify(run, str(folder), uncertified(folder), IDENTIFIER)
    assert uncertified(folder) == []
    after = contents(folder)
    assert {name for name in before if after[name] == before[name]} == {"root", "root.pub", "daemon", "daemon.pub"}
    assert (folder / "SIGNING").stat().st_mode & 0o777 == 0o600


def test_a_key_that_cannot_be_used_is_named(folder: Path) -> None:
    (folder / "root").write_text("broken")
    with pytest.raises(HostStateError, match=f"The key {folder}/root cannot be used.*Remove"):
        keys.certify(run, str(folder), ["root"], IDENTIFIER)
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
