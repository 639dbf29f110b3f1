# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exports and mount units, from a record."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._cluster.record import model, plan
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError, RecordError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers import storage

VOLUME = {"name": "data", "server": "n1", "path": "/srv/data", "mount_point": "/mnt/data"}


def desired_parameters(record: Any, machine: str, **options: Any) -> dict[str, Any]:
    defaults = {"storage_backend": "nfs", "storage_server": "kernel"}
    return storage.desired_parameters(record, machine, {**defaults, **options})


def build_record(*volumes: dict[str, Any], backend: str = "wireguard") -> model.Record:
    """Two members with a mesh, and the given volumes."""
    members = [
        {
            "machine": f"n{number}",
            "address": f"192.168.1.{number}",
            "interface": "eth0",
            "site": "default",
            "endpoint": None,
            "joined_at": "2026-01-01T00:00:00Z",
            "gpus": 0,
            "mesh": {"address": f"10.99.0.{number}", "public_key": None} if backend != "none" else None,
            "ssh_host_keys": [],
            "ssh_public_key": None,
        }
        for number in (1, 2)
    ]
    mesh = {"backend": backend, "subnet": "10.99.0.0/16", "port": 51820, "interface": "gpumesh0", "mtu": None}
    created = {"generation": 1, "at": "2026-01-01T00:00:00Z", "by": "root@n1", "change": "create", "detail": "made"}
    return model.parse(
        {
            "schema_version": 1,
            "id": "0" * 32,
            "name": "lab",
            "generation": 1,
            "subnet": "192.168.1.0/24",
            "manager": "n1",
            "members": members,
            "mesh": mesh,
            "storage": {"volumes": list(volumes)},
            "history": [created],
        }
    )


def test_volume_is_exported_only_to_members_with_root_squash() -> None:
    line = storage.render_exports(build_record(VOLUME), "n1")
    assert line.startswith('"/srv/data" 10.99.0.2(rw,sync,secure,no_subtree_check,root_squash,fsid=')
    assert line.count("(") == 1
    assert "*" not in line


def test_member_without_volumes_exports_nothing() -> None:
    assert storage.render_exports(build_record(VOLUME), "n2") == ""


def test_without_a_mesh_the_subnet_addresses_are_used() -> None:
    assert "192.168.1.2(" in storage.render_exports(build_record(VOLUME, backend="none"), "n1")


def test_mount_is_ordered_only_after_the_mesh() -> None:
    (mount,) = storage.list_mounts(build_record(VOLUME), "n2")
    assert mount["unit"] == "mnt-data"
    assert "What=10.99.0.1:/srv/data\n" in mount["mount"]
    assert "wg-quick@gpumesh0.service" in mount["mount"]
    assert ",soft,timeo=50,retrans=1," in mount["mount"]
    assert "softreval" not in mount["mount"]
    assert "softerr" not in mount["mount"]
    # Because of these, systemd stops logins and jobs before it is unmounted.
    assert ",_netdev," in mount["mount"]
    assert "nofail" not in mount["mount"]
    assert "StartLimitIntervalSec=0\n" in mount["mount"]
    assert "WantedBy=multi-user.target" in mount["automount"]
    # A cycle with local-fs.target, which a boot breaks by leaving out a part of itself.
    assert "After=" not in mount["automount"]


def test_server_has_its_volume_at_the_mount_point() -> None:
    (mount,) = storage.list_mounts(build_record(VOLUME), "n1")
    assert "What=/srv/data\n" in mount["mount"]
    assert "Options=bind,nosuid,nodev\n" in mount["mount"]


@pytest.mark.parametrize("path", ["/mnt/data", "/mnt/data-set", "/mnt//two/", "/", "/mnt/a b", "/.hidden", "/mnt/é"])
def test_unit_names_match_systemd_escape(path: str) -> None:
    if shutil.which("systemd-escape") is None:
        pytest.skip("not checked: this machine has no systemd-escape")
    told = subprocess.run(["systemd-escape", "--path", path], capture_output=True, text=True, check=True)
    assert storage.unit_name(path) == told.stdout.strip()


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"squash": False}, "squash"),
        ({"recovery": "never"}, "never"),
        ({"link": "carrier pigeon"}, "carrier pigeon"),
        ({"mount_point": "/srv/data"}, "own data"),
        ({"quota": "500GB"}, "quota is '500GB'"),
        ({"quota": 500}, "quota is 500"),
        ({"options": ["rw,suid"]}, "'rw,suid'"),
        ({"options": ["ro\nExecStart=/x"]}, "expected a mount option"),
        ({"read_only": "false"}, "expected a boolean"),
        ({"mode": "u+s"}, "permissions in octal"),
        ({"owner": "a b"}, "an account"),
    ],
)
def test_invalid_volumes_are_refused_by_name(extra: dict[str, Any], word: str) -> None:
    with pytest.raises(RecordError, match=r"storage\.volumes\[0\]") as caught:
        build_record({**VOLUME, **extra})
    assert word in str(caught.value)
    with pytest.raises(InputError, match="Volume 'data'") as refused:
        plan.set_storage(build_record(VOLUME), [{**VOLUME, **extra}])
    assert word in str(refused.value)


def test_external_volume_is_neither_exported_nor_mounted() -> None:
    external = {"name": "lustre", "mount_point": "/lustre", "filesystem": "lustre"}
    both = build_record(VOLUME, external)
    assert [mount["volume"] for mount in storage.list_mounts(both, "n2")] == ["data"]
    assert "lustre" not in storage.render_exports(both, "n1")
    assert storage.list_external(both) == [
        {"volume": "lustre", "mount_point": "/lustre", "filesystem": "lustre", "read_only": False}
    ]
    with pytest.raises(RecordError, match="unknown option 'quota'"):
        build_record({**external, "quota": "1T"})
    with pytest.raises(RecordError, match="unknown option 'root_squash'"):
        build_record({**external, "root_squash": True})


def mount_options_of(volume: dict[str, Any], backend: str = "wireguard") -> list[str]:
    (mount,) = storage.list_mounts(build_record(volume, backend=backend), "n2")
    (line,) = [line for line in mount["mount"].splitlines() if line.startswith("Options=")]
    return line.removeprefix("Options=").split(",")


@pytest.mark.parametrize(
    ("volume", "backend", "transfer"),
    [
        ({}, "wireguard", ["nconnect=4", "rsize=1048576", "wsize=1048576"]),
        ({}, "none", ["nconnect=4", "rsize=1048576", "wsize=1048576"]),
        ({}, "tailscale", ["nconnect=2", "rsize=262144", "wsize=262144"]),
        ({"link": "fast"}, "none", ["nconnect=8", "rsize=1048576", "wsize=1048576"]),
        ({"link": "userspace"}, "wireguard", ["nconnect=2", "rsize=262144", "wsize=262144"]),
    ],
)
def test_link_determines_transfer_options(volume: dict[str, Any], backend: str, transfer: list[str]) -> None:
    assert set(transfer) <= set(mount_options_of({**VOLUME, **volume}, backend))


def test_user_options_override_ours() -> None:
    given = ["nconnect=16", "hard", "rw", "nfsvers=4.1", "noatime"]
    options = mount_options_of({**VOLUME, "read_only": True, "options": given})
    assert options[-len(given) :] == given
    for name in ("vers=4.2", "soft", "nconnect=4", "ro"):
        assert name not in options
    assert {"_netdev", "rsize=1048576", "timeo=50"} <= set(options)


def test_setuid_and_devices_are_off_by_default() -> None:
    assert {"nosuid", "nodev"} <= set(mount_options_of(VOLUME))
    told = {**VOLUME, "options": ["suid", "dev", "noatime"]}
    assert not {"nosuid", "nodev"} & set(mount_options_of(told))
    (local,) = storage.list_mounts(build_record(told), "n1")
    assert "Options=bind,suid,dev\n" in local["mount"]


@pytest.mark.parametrize("outer", [{"server": "n2", "path": "/srv/outer"}, {}])
def test_nested_volume_is_refused(outer: dict[str, Any]) -> None:
    other = {"name": "outer", "mount_point": "/mnt", **outer}
    with pytest.raises(RecordError, match="at /mnt/data, within volume 'outer' at /mnt"):
        build_record(VOLUME, other)
    with pytest.raises(InputError, match="within volume 'outer' at /mnt"):
        plan.set_storage(build_record(VOLUME), [VOLUME, {**other, **({"server": "n1"} if "server" in other else {})}])
    assert len(storage.list_mounts(build_record(VOLUME, {**other, "mount_point": "/mnt/data2"}), "n1")) >= 1


def test_noresvport_is_refused() -> None:
    with pytest.raises(RecordError, match="noresvport"):
        build_record({**VOLUME, "options": ["noresvport"]})
    assert "PrivilegedPort = true;" in storage.render_exports(build_record(VOLUME), "n1", "ganesha")


def test_ganesha_exports_only_to_members_with_root_squash() -> None:
    other = {"name": "more", "server": "n1", "path": "/srv/more", "mount_point": "/mnt/more"}
    text = storage.render_exports(
        build_record(VOLUME, {**other, "read_only": True, "root_squash": False}), "n1", "ganesha"
    )
    data, more = text.split("EXPORT {")[1:]
    assert 'Path = "/srv/data";' in data
    assert "Access_Type = None;" in data
    assert "CLIENT { Clients = 10.99.0.2; Access_Type = RW; Squash = Root_Squash; }" in data
    assert "CLIENT { Clients = 10.99.0.2; Access_Type = RO; Squash = No_Root_Squash; }" in more
    # The number of a volume, which does not change when others are added.
    alone = storage.render_exports(build_record(VOLUME), "n1", "ganesha")
    assert alone.split("EXPORT {")[1] == data
    assert storage.render_exports(build_record(VOLUME), "n2", "ganesha") == ""


def test_server_has_a_directory_exports_and_a_quota() -> None:
    desired = desired_parameters(build_record({**VOLUME, "quota": "5G", "owner": "alice"}), "n1")
    assert desired["serves"]
    folder = {"path": "/srv/data", "owner": "alice", "group": None, "mode": None}
    assert desired["folders"] == [{**folder, "state": "directory", "new_mode": "1777"}]
    assert desired["quotas"] == [{"name": "data", "path": "/srv/data", "quota": "5G"}]
    files = {entry["path"]: entry for entry in desired["files"]}
    assert files["/etc/exports.d"]["state"] == "directory"
    assert '"/srv/data" 10.99.0.2(' in files["/etc/exports.d/gpumesh-lab.exports"]["content"]
    for path in ("/etc/ganesha/gpumesh-lab.conf", "/etc/ganesha/ganesha.conf"):
        assert files[path]["state"] == "absent"
    assert set(desired["exports"].values()) <= set(files)


def test_recorded_numeric_mode_is_used_unchanged() -> None:
    (folder,) = desired_parameters(build_record({**VOLUME, "mode": 1777}), "n1")["folders"]
    assert folder["mode"] == "1777"


@pytest.mark.parametrize(
    ("volumes", "number"),
    [
        ([{}], 4),
        ([{"link": "userspace"}], 2),
        ([{"options": ["nconnect=16"]}], 16),
        # A member has the same connections for both.
        ([{}, {"name": "more", "path": "/srv/more", "mount_point": "/mnt/more", "link": "fast"}], 8),
        ([{"server": "n2"}], 0),
    ],
)
def test_expected_connections_of_a_server(volumes: list[dict[str, Any]], number: int) -> None:
    made = build_record(*({**VOLUME, **volume} for volume in volumes))
    assert desired_parameters(made, "n1")["connections"] == number
    assert desired_parameters(made, "n1", storage_server="ganesha")["connections"] == 0
    assert desired_parameters(made, "n1", storage_backend="none")["connections"] == 0


def test_server_of_pods_expects_at_least_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """With none, it would remove what another cluster of the host writes for it, in turns."""
    monkeypatch.setattr(storage.derive, "is_pod", lambda _record, machine: machine == "n2")
    assert desired_parameters(build_record(VOLUME), "n1")["connections"] == 1


def test_ganesha_includes_our_exports_file() -> None:
    desired = desired_parameters(build_record(VOLUME), "n1", storage_server="ganesha")
    assert (desired["serves"], desired["server"]) == (True, "ganesha")
    files = {entry["path"]: entry for entry in desired["files"]}
    assert "EXPORT {" in files["/etc/ganesha/gpumesh-lab.conf"]["content"]
    assert files["/etc/ganesha/ganesha.conf"]["content"] == '%include "/etc/ganesha/gpumesh-lab.conf"'
    assert files["/etc/exports.d/gpumesh-lab.exports"]["state"] == "absent"
    assert "/etc/exports.d" not in files


def test_member_without_volumes_only_mounts() -> None:
    desired = desired_parameters(build_record({**VOLUME, "quota": "5G"}), "n2")
    assert (desired["serves"], desired["folders"], desired["quotas"]) == (False, [], [])
    assert {entry["state"] for entry in desired["files"]} == {"absent"}
    assert [mount["volume"] for mount in desired["mounts"]] == ["data"]


def test_backend_none_sets_up_nothing() -> None:
    external = {"name": "lustre", "mount_point": "/lustre"}
    desired = desired_parameters(build_record(VOLUME, external), "n1", storage_backend="none")
    assert (desired["serves"], desired["folders"], desired["quotas"]) == (False, [], [])
    assert (desired["mounts"], desired["external"]) == ([], [])
    assert {entry["state"] for entry in desired["files"]} == {"absent"}


def test_external_backend_refuses_volumes_with_a_server() -> None:
    with pytest.raises(InputError, match=r"storage_backend is external, and volume data has a server\. Remove server"):
        desired_parameters(build_record(VOLUME), "n2", storage_backend="external")
    external = {"name": "lustre", "mount_point": "/lustre"}
    assert [
        one["volume"]
        for one in desired_parameters(build_record(external), "n2", storage_backend="external")["external"]
    ] == ["lustre"]
