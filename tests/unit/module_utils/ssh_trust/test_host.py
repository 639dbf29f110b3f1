# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the trust on a host, read with the real ssh-keygen."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed, run
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils.ssh_trust import host, server

LOGINS = [server.Login(f"n{number}", f"10.0.0.{number}", "10.0.0.1", 22) for number in range(2, 9)]
IDENTIFIER = "{user}@n1 gpumesh lab"


def keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


def sshd(folder: Path) -> str:
    return f"pubkeyauthentication yes\npermitrootlogin no\nauthorizedkeysfile .ssh/a .ssh/b\nhostkey {folder}.server\n"


def look(folder: Path, *users: str) -> host.Host:
    def runner(argv: list[str], **options: Any) -> Completed:
        return Completed(0, sshd(folder), "") if argv[0] == "sshd" else run(argv, **options)

    return host.look(runner, str(folder), users, IDENTIFIER, LOGINS)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    for path in (Path(f"{folder}.server"), folder / "SIGNING", folder / "root"):
        keygen("-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return folder


def certify(folder: Path, user: str = "root", principal: str = "root", **other: str) -> None:
    validity = other.get("validity", "always:forever")
    identity = other.get("identity", f"{user}@n1 gpumesh lab")
    public_key = str(folder / f"{user}.pub")
    keygen("-s", str(folder / "SIGNING"), "-I", identity, "-n", principal, "-V", validity, public_key)


def test_a_user_with_a_certified_key_needs_nothing(folder: Path) -> None:
    assert look(folder, "root").uncertified == ["root"]
    certify(folder)
    found = look(folder, "root")
    assert found.uncertified == []
    root = found.accounts["root"]
    assert root is not None and (root.uid, root.home, root.has_home) == (0, "/root", True)
    assert "root" in root.groups
    assert found.signing_key == (folder / "SIGNING.pub").read_text().strip()
    assert found.host_keys == [Path(f"{folder}.server.pub").read_text().strip()]
    assert [answer.server.authorized_keys for answer in found.servers["root"]] == [[".ssh/a", ".ssh/b"]]
    assert list(found.trusted) == ["root"]


@pytest.mark.parametrize("other", [{"validity": "+1h"}, {"identity": "root@n2"}, {"principal": "root,alice"}])
def test_a_certificate_that_says_something_else_does_not_count(folder: Path, other: dict[str, str]) -> None:
    certify(folder, **other)
    assert look(folder, "root").uncertified == ["root"]


def test_a_certificate_of_another_key_or_signer_does_not_count(folder: Path) -> None:
    certify(folder)
    for name in ("root", "SIGNING"):
        kept = {suffix: (folder / f"{name}{suffix}").read_bytes() for suffix in ("", ".pub")}
        for suffix in kept:
            (folder / f"{name}{suffix}").unlink()
        assert look(folder, "root").uncertified == ["root"]
        keygen("-t", "ed25519", "-N", "", "-f", str(folder / name))
        assert look(folder, "root").uncertified == ["root"]
        for suffix, content in kept.items():
            (folder / f"{name}{suffix}").write_bytes(content)
    assert look(folder, "root").uncertified == []


@pytest.mark.parametrize("name", ["SIGNING", "root"])
@pytest.mark.parametrize("change", [lambda path: os.chown(path, 2001, 0), lambda path: path.chmod(0o640)])
def test_keys_that_other_accounts_may_know_do_not_count(
    folder: Path, name: str, change: Callable[[Path], None]
) -> None:
    certify(folder)
    change(folder / name)
    assert look(folder, "root").uncertified == ["root"]
    assert host.exposed(str(folder), ["root"]) == [name]


def test_a_user_with_another_uid_than_before_is_uncertified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(folder)
    entry = pwd.getpwnam("root")
    again = pwd.struct_passwd((*entry[:2], 2001, *entry[3:]))
    monkeypatch.setattr(pwd, "getpwnam", lambda user: again if user == "root" else entry)
    assert look(folder, "root").uncertified == ["root"]


def test_a_fresh_host_has_nothing_and_an_unknown_account_is_null(tmp_path: Path) -> None:
    found = look(tmp_path / "none", "root", "no-such-account")
    assert found.uncertified == ["root", "no-such-account"]
    assert (found.signing_key, found.trusted, found.host_keys) == (None, {}, [])
    assert found.accounts["no-such-account"] is None


@given(st.text(max_size=200))
def test_what_sshd_and_ssh_keygen_print_never_gives_a_traceback(text: str) -> None:
    host.parse_certificate(text)
    host.fingerprint(text)
    with suppress(ParseError):
        server.parse(text)


def test_a_host_that_would_not_let_a_user_in_is_refused_with_every_reason() -> None:
    right = server.parse("pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\n")
    alice = host.Account(1000, "/home/alice", True, ["alice"])
    there = host.Host({"alice": alice}, {"alice": [server.Answer(right, LOGINS)]}, [], None, [], {})
    assert host.refusals(["alice"], there) == []
    closed = right._replace(allow_users=["admin"])
    accounts = {
        "alice": alice,
        "bob": None,
        "carol": alice,
        "dave": alice._replace(home="/nonexistent", has_home=False),
    }
    some = [server.Answer(right, LOGINS[:2]), server.Answer(closed, LOGINS[2:4])]
    servers = {
        "alice": [server.Answer(closed, LOGINS)],
        "carol": [server.Answer(closed, LOGINS)],
        "dave": some,
    }
    here = there._replace(accounts=accounts, servers=servers)
    said = (
        "no user bob",
        "/nonexistent",
        "alice, carol from 10.0.0.2, 10.0.0.3, 10.0.0.4 and 4 more: AllowUsers",
        "dave from 10.0.0.4, 10.0.0.5: AllowUsers",
    )
    for reason, words in zip(host.refusals(list(accounts), here), said, strict=True):
        assert words in reason
    assert host.unqueried(here, LOGINS) == 3
    assert host.unqueried(there, LOGINS) == host.unqueried(there._replace(servers={}), LOGINS) == 0


def test_a_home_that_does_not_exist_is_seen_and_not_created(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.getpwnam("daemon")
    home = tmp_path / "alice"
    monkeypatch.setattr(pwd, "getpwnam", lambda _user: pwd.struct_passwd((*entry[:5], str(home), *entry[6:])))
    found = look(folder, "alice")
    assert [reason for reason in host.refusals(["alice"], found) if str(home) in reason]
    assert not home.exists()
    home.mkdir()
    found = look(folder, "alice")
    assert not [reason for reason in host.refusals(["alice"], found) if str(home) in reason]
