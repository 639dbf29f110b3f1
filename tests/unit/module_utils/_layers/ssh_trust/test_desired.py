# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.ssh_trust import desired
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import ssh_trust

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 40 + "{}"


def build_record(backend: str = "wireguard") -> Any:
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


def test_known_hosts_has_all_names_and_addresses() -> None:
    assert desired.render_known_hosts(build_record()).splitlines() == [
        f"n1,10.99.0.1,10.77.0.1 {KEY.format(1)}",
        f"n2.example.net,n2,10.99.0.2,10.77.0.2 {KEY.format(2)}",
    ]


def test_nonstandard_port_is_part_of_the_name() -> None:
    assert desired.render_known_hosts(build_record("none"), 2222).startswith("[n1]:2222,[10.77.0.1]:2222 ")


def test_certificates_are_accepted_only_from_the_addresses_of_the_member() -> None:
    assert desired.render_authorized_keys(build_record()).splitlines()[0] == (
        f'cert-authority,from="10.99.0.1,10.77.0.1" {KEY.format(4)} gpumesh lab n1'
    )


def test_member_without_a_key_has_no_line() -> None:
    cluster = build_record()
    cluster["members"][0]["ssh_public_key"] = None
    assert "n1" not in desired.render_authorized_keys(cluster)


@pytest.mark.parametrize("user", ["", "root,all", "a b", "../x", "SIGNING", "x\n"])
def test_invalid_user_is_refused(user: str) -> None:
    with pytest.raises(InputError, match="ssh_trust_users"):
        desired.render_client_config(build_record(), [user])


def ssh_settings(tmp_path: Path, host: str, users: list[str], port: int = 22) -> list[str]:
    """How ssh itself interprets the file."""
    config = tmp_path / "config"
    config.write_text(desired.render_client_config(build_record(), users, port))
    completed_process = subprocess.run(
        ["ssh", "-G", "-F", str(config), host], capture_output=True, text=True, check=True
    )
    return completed_process.stdout.splitlines()


def current_user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("host", ["n1", "n2", "n2.example.net", "10.99.0.2", "10.77.0.1"])
def test_ssh_to_members_uses_our_key_and_strict_checking(tmp_path: Path, host: str) -> None:
    settings = ssh_settings(tmp_path, host, ["alice", current_user()], 2222)
    assert "stricthostkeychecking true" in settings and "port 2222" in settings
    assert "globalknownhostsfile /etc/gpumesh/ssh/lab/known_hosts /etc/ssh/ssh_known_hosts" in settings
    identities = [line for line in settings if line.startswith(("identityfile", "certificatefile"))]
    assert f"certificatefile /etc/gpumesh/ssh/lab/{current_user()}-cert.pub" in [
        line.replace("%u", current_user()) for line in identities
    ]
    assert "identityfile ~/.ssh/id_rsa" in identities


def test_ssh_to_members_has_a_connect_timeout(tmp_path: Path) -> None:
    assert "connecttimeout 30" in ssh_settings(tmp_path, "n1", [current_user()])
    assert "connecttimeout none" in ssh_settings(tmp_path, "n3", [current_user()])


def test_ssh_settings_of_other_hosts_and_users_are_unchanged(tmp_path: Path) -> None:
    assert not [line for line in ssh_settings(tmp_path, "n3", [current_user()]) if "gpumesh" in line]
    assert not [line for line in ssh_settings(tmp_path, "n1", ["alice"]) if line.startswith("certificatefile")]


HOST = {"signing_key": KEY.format(4) + " comment", "host_keys": [KEY.format(1)]}


def test_only_changed_keys_are_registered() -> None:
    assert ssh_trust.key_registration(build_record(), "n1", HOST) is None
    changed = {"ssh_public_key": KEY.format(9)}, {"ssh_host_keys": [KEY.format(8)]}
    assert [
        ssh_trust.key_registration(build_record(), "n1", {**HOST, "signing_key": KEY.format(9)}),
        ssh_trust.key_registration(build_record(), "n1", {**HOST, "host_keys": [KEY.format(8)]}),
    ] == [{"machine": "n1", **entry} for entry in changed]


def test_machine_that_is_no_member_or_has_no_key_is_not_registered() -> None:
    assert ssh_trust.key_registration(build_record(), "n1", {"signing_key": None, "host_keys": []}) is None
    assert ssh_trust.key_registration(build_record(), "stranger", HOST) is None


def test_logins_are_tested_from_all_other_members() -> None:
    def logins(machine: str, cluster: Any) -> tuple[Any, ...]:
        options = {"ssh_trust_users": ["root"], "ssh_trust_port": 2222}
        wanted = desired.derive_parameters(cluster, ssh_trust.given_parameters(cluster, machine, options))
        return wanted["peers"], wanted["address"]

    assert logins("n1", build_record()) == ({"10.99.0.2": "n2.example.net"}, "10.99.0.1")
    assert logins("n2.example.net", build_record("none")) == ({"10.77.0.1": "n1"}, "10.77.0.2")
    three = build_record()
    three["members"].append({**three["members"][0], "machine": "n3", "address": "10.77.0.3", "mesh": None})
    assert logins("n1", three)[0] == {"10.99.0.2": "n2.example.net", "10.77.0.3": "n3"}
    alone = build_record()
    del alone["members"][1]
    assert logins("n1", alone) == ({"10.99.0.1": "n1"}, "10.99.0.1")
