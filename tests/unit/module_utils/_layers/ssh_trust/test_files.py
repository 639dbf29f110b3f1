# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the trust on a host, and what is removed with a user who is no longer listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import files, host, server

ALICE, BOB = host.UserAccount(1000, "/home/alice", True, []), host.UserAccount(1001, "/home/bob", True, [])
SSHD_RESPONSE = server.SshdResponse(
    server.parse_sshd_settings("pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\n"), []
)


def params(*users: str) -> dict[str, Any]:
    texts = {"known_hosts": "n1 key\n", "client_config": "Host n1\n", "authorized_keys": "cert-authority key"}
    login = {"address": "10.0.0.1", "peers": {"10.0.0.2": "n2"}, "port": 22}
    return {"cluster": "lab", "machine": "n1", "users": list(users), **login, **texts}


def host_trust(*users: str, **trusted: host.UserAccount | None) -> host.HostTrust:
    accounts = {"alice": ALICE, "bob": BOB}
    return host.HostTrust(
        {user: accounts[user] for user in users}, {user: [SSHD_RESPONSE] for user in users}, [], "key", [], trusted
    )


def test_removed_user_loses_keys_and_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "trust_directory_path", lambda cluster: str(tmp_path / cluster))
    (tmp_path / "lab").mkdir()
    for name in ("alice", "bob", "bob.pub", "bob-cert.pub"):
        (tmp_path / "lab" / name).touch()
    here = host_trust("alice", alice=ALICE, bob=BOB)
    wanted = {entry["path"]: entry for entry in files.desired_entries(params("alice"), here)}
    assert wanted["/home/alice/.ssh/authorized_keys"]["state"] == "block"
    assert wanted["/home/bob/.ssh/authorized_keys"]["state"] == "absent"
    assert wanted["/home/bob/.ssh/authorized_keys"]["marker"]
    assert str(tmp_path / "lab") not in wanted
    stale = files.find_stale_keys(params("alice"), here)
    assert stale == [f"{tmp_path}/lab/{name}" for name in ("bob", "bob.pub", "bob-cert.pub")]
    assert not set(stale) & set(wanted), "a diff would show the private key"


def test_trust_without_users_is_removed() -> None:
    wanted = files.desired_entries(params(), host_trust(alice=ALICE, gone=None))
    assert {entry["state"] for entry in wanted} == {"absent"}
    # The directory is last: after an interruption, the next run still sees whose lines have to be removed.
    assert [entry["path"] for entry in wanted] == [
        "/home/alice/.ssh/authorized_keys",
        "/etc/ssh/ssh_config.d/gpumesh-lab.conf",
        "/etc/gpumesh/ssh/lab",
    ]


def test_differences_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "trust_directory_path", lambda cluster: str(tmp_path / cluster))
    here = host_trust("alice")._replace(uncertified_users=["alice"], account_by_user={"alice": ALICE})
    monkeypatch.setattr(host, "read_host_trust", lambda *_: here)
    certificate = f"{tmp_path}/lab/alice-cert.pub"
    told = params("alice")
    monkeypatch.setattr(
        files, "desired_entries", lambda *_: [{"path": f"{tmp_path}/lab/known_hosts", "content": "n1 key\n"}]
    )
    assert files.find_differences(None, told) == (
        [f"{tmp_path}/lab/known_hosts is missing", f"{certificate} is missing"],
        True,
    )
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "known_hosts").write_text("n1 key\n")
    assert files.find_differences(None, told) == ([f"{certificate} is missing"], False)
    here = here._replace(uncertified_users=[], account_by_user={"alice": None})
    assert files.find_differences(None, told).messages[0].startswith("there is no user alice")
