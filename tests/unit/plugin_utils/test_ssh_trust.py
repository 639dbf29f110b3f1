# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils import ssh_trust

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 40 + "{}"


def record(backend: str = "wireguard") -> Any:
    return {
        "name": "lab",
        "mesh": {"backend": backend},
        "members": [
            {
                "machine": machine,
                "address": f"10.77.0.{number}",
                "mesh": {"address": f"10.99.0.{number}", "public_key": None},
                "ssh_host_keys": [KEY.format(number)],
                "ssh_public_key": KEY.format(number + 3),
            }
            for number, machine in enumerate(("n1", "n2.example.net"), 1)
        ],
    }


def test_a_member_is_known_by_all_its_names_and_addresses() -> None:
    assert ssh_trust.known_hosts(record()).splitlines() == [
        f"n1,10.99.0.1,10.77.0.1 {KEY.format(1)}",
        f"n2.example.net,n2,10.99.0.2,10.77.0.2 {KEY.format(2)}",
    ]


def test_another_port_is_part_of_the_name() -> None:
    assert ssh_trust.known_hosts(record("none"), 2222).startswith("[n1]:2222,[10.77.0.1]:2222 ")


def test_a_members_users_are_let_in_from_that_members_addresses_alone() -> None:
    assert ssh_trust.authorized_keys(record()).splitlines()[0] == (
        f'cert-authority,from="10.99.0.1,10.77.0.1" {KEY.format(4)} gpumesh lab n1'
    )


def test_a_member_without_a_key_has_no_line() -> None:
    cluster = record()
    cluster["members"][0]["ssh_public_key"] = None
    assert "n1" not in ssh_trust.authorized_keys(cluster)


@pytest.mark.parametrize("user", ["", "root,all", "a b", "../x", "SIGNING", "x\n"])
def test_what_is_no_user_is_refused(user: str) -> None:
    with pytest.raises(InputError, match="ssh_trust_users"):
        ssh_trust.client_config(record(), [user])


def ssh_settings(tmp_path: Path, host: str, users: list[str], port: int = 22) -> list[str]:
    """What ssh itself makes of the file."""
    config = tmp_path / "config"
    config.write_text(ssh_trust.client_config(record(), users, port))
    done = subprocess.run(["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def me() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("host", ["n1", "n2", "n2.example.net", "10.99.0.2", "10.77.0.1"])
def test_ssh_uses_our_key_and_checks_strictly_towards_members(tmp_path: Path, host: str) -> None:
    settings = ssh_settings(tmp_path, host, ["alice", me()], 2222)
    assert "stricthostkeychecking true" in settings and "port 2222" in settings
    assert "globalknownhostsfile /etc/gpumesh/ssh/lab/known_hosts /etc/ssh/ssh_known_hosts" in settings
    identities = [line for line in settings if line.startswith(("identityfile", "certificatefile"))]
    assert f"certificatefile /etc/gpumesh/ssh/lab/{me()}-cert.pub" in [line.replace("%u", me()) for line in identities]
    assert "identityfile ~/.ssh/id_rsa" in identities


def test_ssh_leaves_other_hosts_and_other_users_alone(tmp_path: Path) -> None:
    assert not [line for line in ssh_settings(tmp_path, "n3", [me()]) if "gpumesh" in line]
    assert not [line for line in ssh_settings(tmp_path, "n1", ["alice"]) if line.startswith("certificatefile")]


def host(*users: str, **changes: Any) -> dict[str, Any]:
    """What module ssh_trust_info gives for a host that has what it needs."""
    accounts = {user: {"uid": 1000, "gid": 1000, "home": f"/home/{user}"} for user in users}
    server = {"public_key_login": True, "root_login": "no", "authorized_keys": [".ssh/authorized_keys"]}
    return {
        "accounts": accounts,
        "server": {**server, **changes},
        "host_keys": [KEY.format(1)],
        "signing_key": KEY.format(4) + " comment",
        "uncertified": [],
        "trusted": accounts,
    }


def test_only_what_differs_is_registered() -> None:
    assert ssh_trust.registrations(record(), {"n1": host()}) == []
    assert ssh_trust.registrations(record(), {"n1": {**host(), "signing_key": KEY.format(9)}}) == [
        {"machine": "n1", "ssh_public_key": KEY.format(9)}
    ]
    assert ssh_trust.registrations(record(), {"n1": {**host(), "host_keys": [KEY.format(8)]}}) == [
        {"machine": "n1", "ssh_host_keys": [KEY.format(8)]}
    ]


def test_a_member_that_is_not_in_the_play_or_has_no_key_yet_is_left_as_it_is() -> None:
    found = {"n1": {"signing_key": None, "host_keys": []}, "stranger": host()}
    assert ssh_trust.registrations(record(), found) == []


def test_a_host_that_would_let_nobody_in_is_refused_with_every_reason() -> None:
    assert ssh_trust.refusals(["alice"], host("alice")) == []
    closed = {"public_key_login": False, "root_login": "no", "authorized_keys": ["/etc/keys/%u"]}
    reasons = " ".join(ssh_trust.refusals(["root", "bob"], host("root", **closed)))
    for words in ("no user bob", "PubkeyAuthentication no", "PermitRootLogin no", "does not read ~/.ssh"):
        assert words in reasons


def test_a_user_who_is_not_named_any_more_loses_keys_and_lines() -> None:
    files = {entry["path"]: entry for entry in ssh_trust.trust_files(record(), ["alice"], host("alice", "bob"))}
    assert files["/home/alice/.ssh/authorized_keys"]["state"] == "block"
    assert files["/home/bob/.ssh/authorized_keys"]["state"] == "absent"
    assert files["/home/bob/.ssh/authorized_keys"]["marker"]
    assert files["/etc/gpumesh/ssh/lab/bob"]["state"] == "absent"
    assert "/etc/gpumesh/ssh/lab" not in files


def test_without_users_nothing_of_the_trust_stays() -> None:
    found = host("alice")
    found["trusted"]["gone"] = None
    files = {entry["path"]: entry["state"] for entry in ssh_trust.trust_files(record(), [], found)}
    assert files == {
        "/etc/ssh/ssh_config.d/gpumesh-lab.conf": "absent",
        "/etc/gpumesh/ssh/lab": "absent",
        "/home/alice/.ssh/authorized_keys": "absent",
    }
