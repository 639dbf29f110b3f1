# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The action storage: the parameters of the module with the same name, and when packages are installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.action.storage import ActionModule
from ansible_collections.gpumesh.cluster.tests.support.action_runs import ActionRun, play_action

NAME = "gpumesh.cluster.storage"
VOLUME = {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data"}
STORAGE_RESULT = {"changed": True, "missing": []}
RECORD = {
    "schema_version": 1,
    "id": "0" * 32,
    "name": "lab",
    "generation": 1,
    "subnet": "192.168.1.0/24",
    "manager": "n1",
    "members": [
        {
            "machine": f"n{number}",
            "address": f"192.168.1.{number}",
            "interface": "eth0",
            "site": "default",
            "endpoint": None,
            "joined_at": "2026-01-01T00:00:00Z",
            "gpus": 0,
            "rdma": None,
            "mesh": None,
            "ssh_host_keys": [],
            "ssh_public_key": None,
        }
        for number in (1, 2)
    ],
    "mesh": {"backend": "none", "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": None},
    "storage": {"volumes": [VOLUME]},
    "history": [{"generation": 1, "at": "2026-01-01T00:00:00Z", "by": "root@n1", "change": "create", "detail": "made"}],
}


def run_storage(
    *results: dict[str, Any],
    check_mode: bool = False,
    manager: str = "apt",
    host: str = "n2",
    hosts: Sequence[str] = ("n1", "n2"),
    skipped: Sequence[str] = (),
    volumes: Sequence[dict[str, Any]] | None = None,
    force: bool = False,
    **options: Any,
) -> ActionRun:
    """Run the action on a member. ``hosts``: those of the play. ``skipped``: the userspace-only members.

    ``volumes``: those to preview. ``options``: others of the role.
    """
    variables = {
        "inventory_hostname": host,
        "ansible_facts": {"pkg_mgr": manager},
        "ansible_play_batch": list(hosts),
        "cluster_userspace_only": list(skipped),
        "cluster_force": force,
        "storage_volumes": volumes,
        **options,
    }
    modules = {NAME: results, f"ansible.builtin.{manager}": [{"changed": True}]}
    return play_action(ActionModule, {"record": RECORD, "preview": volumes is not None}, modules, variables, check_mode)


def test_the_host_receives_only_its_volumes() -> None:
    played = run_storage(STORAGE_RESULT, force=True, storage_server="ganesha")
    assert played.result == STORAGE_RESULT
    ((name, given),) = played.module_calls
    assert name == NAME
    assert "record" not in given
    assert (given["force"], given["server"], given["serves"]) == (True, "ganesha", False)
    assert [mount["mount_point"] for mount in given["mounts"]] == ["/mnt/data"]


def test_given_volumes_are_compared_before_they_are_recorded() -> None:
    assert run_storage(STORAGE_RESULT, volumes=[]).module_calls[0][1]["mounts"] == []
    # A form may leave fields empty.
    given = run_storage(
        STORAGE_RESULT, host="n1", volumes=[{**VOLUME, "mount_point": "/data", "quota": None}]
    ).module_calls[0][1]
    assert [mount["mount_point"] for mount in given["mounts"]] == ["/data"]
    assert given["quotas"] == []


def test_invalid_volumes_are_refused_before_the_module_runs() -> None:
    played = run_storage(volumes=[{**VOLUME, "server": "n9"}])
    assert played.result["failed"]
    assert "The server 'n9' of volume 'data' is not among the members" in played.result["msg"]
    assert played.module_calls == []


@pytest.mark.parametrize(
    "volumes", [[], [{**VOLUME, "path": "/srv/other"}], [{**VOLUME, "server": "n2"}], [{**VOLUME, "name": "new"}]]
)
def test_no_volume_is_withdrawn_from_members_outside_the_play(volumes: list[dict[str, Any]]) -> None:
    refused = run_storage(host="n1", hosts=["n1"], volumes=volumes)
    assert refused.module_calls == []
    assert refused.result["msg"].startswith("Not in this play, or unreachable: n2. Volume data may be in use there")
    assert "cluster_force=true" in refused.result["msg"]
    assert refused.result["error"]["machines"] == ["n2"]
    # With all members that mount it, their own checks decide; whoever forces it has read the message.
    assert not run_storage(STORAGE_RESULT, host="n1", volumes=volumes).result.get("failed")
    assert not run_storage(STORAGE_RESULT, host="n1", hosts=["n1"], skipped=["n2"], volumes=volumes).result.get(
        "failed"
    )
    assert not run_storage(STORAGE_RESULT, host="n1", hosts=["n1"], force=True, volumes=volumes).result.get("failed")


def test_backend_none_withdraws_no_export_from_members_outside_the_play() -> None:
    def check(result: dict[str, Any] | None = None, **given: Any) -> dict[str, Any]:
        return run_storage(result or STORAGE_RESULT, check_mode=True, storage_backend="none", **given).result

    refused = check(host="n1", hosts=["n1"])
    assert refused["msg"].startswith("Not in this play, or unreachable: n2. Volume data may be in use there")
    assert not check(host="n1").get("failed")
    assert not check(host="n1", hosts=["n1"], force=True).get("failed")
    # The host exports nothing, or no longer does.
    assert not check(host="n2", hosts=["n2"]).get("failed")
    assert not check({"changed": False, "missing": []}, host="n1", hosts=["n1"]).get("failed")


def test_a_change_without_a_withdrawn_export_needs_only_its_hosts() -> None:
    other = {**VOLUME, "name": "other", "mount_point": "/mnt/other"}
    for volumes in ([VOLUME, other], [{**VOLUME, "mount_point": "/data", "read_only": True}]):
        assert not run_storage(STORAGE_RESULT, host="n1", hosts=["n1"], volumes=volumes).result.get("failed")


@pytest.mark.parametrize(
    ("manager", "packages"), [("apt", ["nfs-common", "xfsprogs"]), ("dnf", ["nfs-utils", "xfsprogs"])]
)
def test_missing_packages_are_installed(manager: str, packages: list[str]) -> None:
    played = run_storage({"changed": True, "missing": ["client", "quota"]}, STORAGE_RESULT, manager=manager)
    assert played.result == STORAGE_RESULT
    assert [name for name, _given in played.module_calls] == [NAME, f"ansible.builtin.{manager}", NAME]
    assert played.module_calls[1][1]["name"] == packages


def test_nothing_is_installed_in_check_mode() -> None:
    missing = {"changed": True, "missing": ["client"]}
    assert run_storage(missing, check_mode=True).result == missing
