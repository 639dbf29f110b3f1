# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module refuses a host on which it could not finish before it changes anything there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import apply as ssh_trust
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import host, server
from ansible_collections.gpumesh.cluster.plugins.modules import ssh_trust as ssh_trust_module

ACCEPTS = server.parse_sshd_settings("pubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\n")


@pytest.fixture(autouse=True)
def _ssh_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the module find the programs of the SSH client, whether this machine has them or not."""
    monkeypatch.setattr(host, "find_missing_programs", list)


def test_programs_that_the_host_lacks_are_returned_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "find_missing_programs", lambda: ["ssh", "ssh-keygen"])
    monkeypatch.setattr(host, "read_host_trust", lambda *_: pytest.fail("the host is read without a client"))
    params = {"state": "present", "cluster": "lab", "users": ["root"], "machine": "n1"}
    for check_mode in (False, True):
        outcome = ssh_trust.work(params, check_mode)
        assert outcome.changed == check_mode
        assert outcome.return_values == {"missing": ["ssh", "ssh-keygen"]}


def test_a_host_without_a_client_leaves_the_trust_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "find_missing_programs", lambda: ["ssh", "ssh-keygen"])
    monkeypatch.setattr(host, "trust_directory_path", lambda _cluster: str(tmp_path / "lab"))
    monkeypatch.setattr(host, "read_host_trust", lambda *_: host.HostTrust({}, {}, [], None, [], {}))
    texts = dict.fromkeys(("known_hosts", "client_config", "authorized_keys"))
    params = {"state": "absent", "cluster": "lab", "users": ["root"], "machine": "n1", "peers": {}, **texts}
    assert "missing" not in ssh_trust.work(params, True).return_values


@pytest.mark.parametrize("state", ["present", "absent"])
def test_an_incomplete_block_is_refused_before_keys_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    keys = tmp_path / "home" / ".ssh" / "authorized_keys"
    keys.parent.mkdir(parents=True)
    keys.write_text("# BEGIN gpumesh cluster lab\ncert-authority old\nssh-ed25519 admin\n")
    folder = tmp_path / "lab"
    account = host.UserAccount(0, str(tmp_path / "home"), True, ["root"])
    found = host.HostTrust(
        {"root": account}, {"root": [server.SshdResponse(ACCEPTS, [])]}, [], None, ["root"], {"root": account}
    )
    monkeypatch.setattr(host, "trust_directory_path", lambda _cluster: str(folder))
    monkeypatch.setattr(host, "read_host_trust", lambda *_: found)
    texts = dict.fromkeys(("known_hosts", "client_config", "authorized_keys"), "x\n")
    login: dict[str, Any] = {"address": "10.0.0.1", "peers": {"10.0.0.2": "n2"}, "port": 22}
    before = keys.read_text()
    with pytest.raises(HostStateError) as refused:
        ssh_trust.work({"state": state, "cluster": "lab", "machine": "n1", "users": ["root"], **login, **texts}, False)
    assert refused.value.details["path"] == str(keys)
    assert keys.read_text() == before and not folder.exists()


def test_a_server_that_distinguishes_too_many_members_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = host.UserAccount(0, str(tmp_path), True, ["root"])
    first = server.SshdResponse(ACCEPTS, [server.PeerLogin("n2", "10.0.0.2", "10.0.0.1", 22)])
    found = host.HostTrust({"root": account}, {"root": [first]}, [], None, [], {"root": account})
    monkeypatch.setattr(host, "read_host_trust", lambda *_: found)
    texts = dict.fromkeys(("known_hosts", "client_config", "authorized_keys"), "x\n")
    login = {"machine": "n1", "address": "10.0.0.1", "port": 22, "peers": {"10.0.0.2": "n2", "10.0.0.3": "n3"}}
    warned: list[str] = []
    params = {"state": "present", "cluster": "lab", "users": ["root"], **login, **texts}
    outcome = ssh_trust_module.report(SimpleNamespace(params=params, check_mode=True, warn=warned.append))
    assert outcome.return_values["unqueried"] == 1
    assert "n1: the Match blocks" in warned[0] and "only 1 of 2 members" in warned[0]
