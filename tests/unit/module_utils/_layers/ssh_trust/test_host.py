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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import host, server

LOGINS = [server.PeerLogin(f"n{number}", f"10.0.0.{number}", "10.0.0.1", 22) for number in range(2, 9)]
IDENTIFIER = "{user}@n1 gpumesh lab"


def run_keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


def sshd_output(folder: Path) -> str:
    return f"pubkeyauthentication yes\npermitrootlogin no\nauthorizedkeysfile .ssh/a .ssh/b\nhostkey {folder}.server\n"


def read_trust(folder: Path, *users: str) -> host.HostTrust:
    def runner(argv: list[str], **options: Any) -> CommandResult:
        return CommandResult(0, sshd_output(folder), "") if argv[0] == "sshd" else run(argv, **options)

    return host.read_host_trust(runner, str(folder), users, IDENTIFIER, LOGINS)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "lab"
    folder.mkdir()
    for path in (Path(f"{folder}.server"), folder / "SIGNING", folder / "root"):
        run_keygen("-t", "ed25519", "-N", "", "-C", "", "-f", str(path))
    return folder


def certify_user(folder: Path, user: str = "root", principal: str = "root", **ca_options: str) -> None:
    validity = ca_options.get("validity", "always:forever")
    identity = ca_options.get("identity", f"{user}@n1 gpumesh lab")
    public_key = str(folder / f"{user}.pub")
    run_keygen("-s", str(folder / "SIGNING"), "-I", identity, "-n", principal, "-V", validity, public_key)


def test_certified_user_needs_no_change(folder: Path) -> None:
    assert read_trust(folder, "root").uncertified_users == ["root"]
    certify_user(folder)
    found = read_trust(folder, "root")
    assert found.uncertified_users == []
    root = found.account_by_user["root"]
    assert root is not None and (root.uid, root.home_directory, root.has_home) == (0, "/root", True)
    assert "root" in root.groups
    assert found.signing_key == (folder / "SIGNING.pub").read_text().strip()
    assert found.host_keys == [Path(f"{folder}.server.pub").read_text().strip()]
    assert [answer.settings.authorized_keys_files for answer in found.responses_by_user["root"]] == [
        [".ssh/a", ".ssh/b"]
    ]
    assert list(found.trusted_accounts) == ["root"]


@pytest.mark.parametrize("other", [{"validity": "+1h"}, {"identity": "root@n2"}, {"principal": "root,alice"}])
def test_certificate_with_other_contents_is_invalid(folder: Path, other: dict[str, str]) -> None:
    certify_user(folder, **other)
    assert read_trust(folder, "root").uncertified_users == ["root"]


def test_certificate_of_another_key_or_signer_is_invalid(folder: Path) -> None:
    certify_user(folder)
    for name in ("root", "SIGNING"):
        kept = {suffix: (folder / f"{name}{suffix}").read_bytes() for suffix in ("", ".pub")}
        for suffix in kept:
            (folder / f"{name}{suffix}").unlink()
        assert read_trust(folder, "root").uncertified_users == ["root"]
        run_keygen("-t", "ed25519", "-N", "", "-f", str(folder / name))
        assert read_trust(folder, "root").uncertified_users == ["root"]
        for suffix, content in kept.items():
            (folder / f"{name}{suffix}").write_bytes(content)
    assert read_trust(folder, "root").uncertified_users == []


@pytest.mark.parametrize("name", ["SIGNING", "root"])
@pytest.mark.parametrize("change", [lambda path: os.chown(path, 2001, 0), lambda path: path.chmod(0o640)])
def test_exposed_keys_are_uncertified(folder: Path, name: str, change: Callable[[Path], None]) -> None:
    certify_user(folder)
    change(folder / name)
    assert read_trust(folder, "root").uncertified_users == ["root"]
    assert host.find_exposed_keys(str(folder), ["root"]) == [name]


def test_user_with_changed_uid_is_uncertified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify_user(folder)
    entry = pwd.getpwnam("root")
    again = pwd.struct_passwd((*entry[:2], 2001, *entry[3:]))
    monkeypatch.setattr(pwd, "getpwnam", lambda user: again if user == "root" else entry)
    assert read_trust(folder, "root").uncertified_users == ["root"]


def test_fresh_host_has_no_trust(tmp_path: Path) -> None:
    found = read_trust(tmp_path / "none", "root", "no-such-account")
    assert found.uncertified_users == ["root", "no-such-account"]
    assert (found.signing_key, found.trusted_accounts, found.host_keys) == (None, {}, [])
    assert found.account_by_user["no-such-account"] is None


@given(st.text(max_size=200))
def test_arbitrary_output_is_parsed_without_a_traceback(text: str) -> None:
    host.parse_certificate(text)
    host.public_key_fingerprint(text)
    with suppress(ParseError):
        server.parse_sshd_settings(text)


def test_all_refusal_reasons_are_reported() -> None:
    right = server.parse_sshd_settings("pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\n")
    alice = host.UserAccount(1000, "/home/alice", True, ["alice"])
    there = host.HostTrust({"alice": alice}, {"alice": [server.SshdResponse(right, LOGINS)]}, [], None, [], {})
    assert host.explain_refusals(["alice"], there) == []
    closed = right._replace(allow_users=["admin"])
    accounts = {
        "alice": alice,
        "bob": None,
        "carol": alice,
        "dave": alice._replace(home_directory="/nonexistent", has_home=False),
    }
    some = [server.SshdResponse(right, LOGINS[:2]), server.SshdResponse(closed, LOGINS[2:4])]
    servers = {
        "alice": [server.SshdResponse(closed, LOGINS)],
        "carol": [server.SshdResponse(closed, LOGINS)],
        "dave": some,
    }
    here = there._replace(account_by_user=accounts, responses_by_user=servers)
    said = (
        "no user bob",
        "/nonexistent",
        "alice, carol from 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5, 10.0.0.6 and 2 more: AllowUsers",
        "dave from 10.0.0.4, 10.0.0.5: AllowUsers",
    )
    for reason, words in zip(host.explain_refusals(list(accounts), here), said, strict=True):
        assert words in reason
    assert host.count_unqueried_members(here, LOGINS) == 3
    assert (
        host.count_unqueried_members(there, LOGINS)
        == host.count_unqueried_members(there._replace(responses_by_user={}), LOGINS)
        == 0
    )


def test_missing_home_is_reported_and_not_created(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = pwd.getpwnam("daemon")
    home = tmp_path / "alice"
    monkeypatch.setattr(pwd, "getpwnam", lambda _user: pwd.struct_passwd((*entry[:5], str(home), *entry[6:])))
    found = read_trust(folder, "alice")
    assert [reason for reason in host.explain_refusals(["alice"], found) if str(home) in reason]
    assert not home.exists()
    home.mkdir()
    found = read_trust(folder, "alice")
    assert not [reason for reason in host.explain_refusals(["alice"], found) if str(home) in reason]
