# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the layer on a node, with and without RDMA, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.command import Completed
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.job_environment import files, host
from ansible_collections.gpumesh.cluster.plugins.module_utils.net import rdma
from ansible_collections.gpumesh.cluster.plugins.module_utils.net.sysfs import Tree

SETTINGS = {
    "cluster": "lab",
    "members": {"n1": "10.99.0.1", "n2": "10.99.0.2"},
    "interface": "gpumesh0",
    "port_range": [15000, 24999],
    "rdma": {"devices": [], "peers": ["n1", "n2"]},
    "variables": {},
}
PROGRAMS = dict.fromkeys(("job_environment.bash", "task_prolog.py", "job_epilog.sh", "gpumesh_job.sh"), "text\n")
PARAMS = {"cluster": "lab", "machine": "n1", "settings": SETTINGS, "programs": PROGRAMS, "rdma": True}
PLAIN = host.Host(None, False, [])


def by_path(params: Any, node: host.Host) -> dict[str, Any]:
    return {entry["path"]: entry for entry in files.entries(params, node)}


def test_the_prolog_is_isolated_from_what_is_the_users() -> None:
    prolog = by_path(PARAMS, PLAIN)["/etc/gpumesh/task_prolog"]
    assert (prolog["content"], prolog["mode"]) == ("#!/usr/bin/python3 -IS\ntext\n", "0755")


def test_a_program_that_is_not_wanted_goes() -> None:
    login = "/etc/profile.d/gpumesh_job.sh"
    without = {name: text for name, text in PROGRAMS.items() if name != "gpumesh_job.sh"}
    assert by_path(PARAMS, PLAIN)[login]["content"] == "text\n"
    assert by_path({**PARAMS, "programs": without}, PLAIN)[login] == {"path": login, "state": "absent"}


def test_no_age_deletes_the_hostfile_of_a_long_job() -> None:
    text = by_path(PARAMS, PLAIN)["/etc/tmpfiles.d/gpumesh-jobs.conf"]["content"]
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        [*line.split(), "root", "root", "-"] for line in ("d /run/gpumesh 0755", "d /run/gpumesh/jobs 1777")
    ]


def test_memory_may_be_locked_where_the_host_may_allow_it() -> None:
    limits = "/etc/security/limits.d/60-gpumesh.conf"
    assert by_path(PARAMS, PLAIN)[limits]["state"] == "absent"
    assert by_path(PARAMS, PLAIN._replace(may_lock_memory=True))[limits]["state"] == "file"


def test_all_of_it_goes_but_the_folder_of_other_layers() -> None:
    there = {path for path, entry in by_path(PARAMS, PLAIN).items() if path not in ("/etc/gpumesh", "/run/gpumesh")}
    gone = files.entries_gone("lab")
    assert {entry["path"] for entry in gone} == there
    assert {entry["state"] for entry in gone} == {"absent"}


@pytest.mark.parametrize(
    ("peers", "devices", "lines"),
    [
        (["n1", "n2"], [], "NCCL_SOCKET_IFNAME==gpumesh0"),
        (["n1", "n2"], ["mlx5_0:1"], "NCCL_SOCKET_IFNAME==gpumesh0\nNCCL_IB_HCA==mlx5_0:1"),
        (["n1"], ["mlx5_0:1"], "NCCL_SOCKET_IFNAME==gpumesh0\nNCCL_IB_DISABLE=1"),
    ],
)
def test_nccl_conf_says_only_what_is_true_towards_everyone(peers: Any, devices: Any, lines: str) -> None:
    params = {**PARAMS, "settings": {**SETTINGS, "rdma": {"devices": [], "peers": peers}}}
    entries = by_path(params, PLAIN._replace(rdma_devices=devices))
    assert entries["/etc/nccl.conf"]["content"] == lines
    written = json.loads(entries["/etc/gpumesh/job_environment.json"]["content"])
    assert written == {**SETTINGS, "rdma": {"devices": devices, "peers": peers if devices else []}}


def test_rdma_that_is_not_wanted_is_switched_off_as_nccl_would_find_it() -> None:
    entries = by_path({**PARAMS, "rdma": False}, PLAIN._replace(rdma_devices=["mlx5_0:1"]))
    written = json.loads(entries["/etc/gpumesh/job_environment.json"]["content"])
    assert written["rdma"] == {"devices": ["mlx5_0:1"], "peers": []}
    assert entries["/etc/nccl.conf"]["content"].endswith("\nNCCL_IB_DISABLE=1")
    plain = by_path({**PARAMS, "rdma": False}, PLAIN)
    assert "NCCL_IB" not in plain["/etc/nccl.conf"]["content"]


def port(device: str, rate: float | None = 400, kind: str = "InfiniBand", state: str = "active") -> Any:
    return {"device": device, "port": 1, "state": state, "link_layer": kind, "rate_gbps": rate}


def usable(ports: Any, behind: Any) -> list[str]:
    return [f"{port['device']}:{port['port']}" for port in rdma.usable_ports(ports, behind)]


def test_only_active_ports_count_and_each_once() -> None:
    roce, down = port("mlx5_0", kind="Ethernet"), port("mlx5_1", kind="Ethernet", state="down")
    assert usable([roce, down], [roce, roce, down, None]) == ["mlx5_0:1"]
    assert usable([down], [down]) == []


def test_infiniband_needs_no_interface_and_roce_does() -> None:
    cards = [port(f"mlx5_{number}") for number in (0, 1)]
    assert usable([*cards, port("mlx5_2", state="down")], []) == ["mlx5_0:1", "mlx5_1:1"]
    assert usable([port("mlx5_0", kind="Ethernet")], [None]) == []


@pytest.mark.parametrize(
    ("roce", "infiniband", "named"),
    [(25, 400, "mlx5_1:1"), (400, 40, "mlx5_0:1"), (200, 200, "mlx5_1:1"), (25, None, "mlx5_0:1")],
)
def test_of_roce_and_infiniband_the_faster_is_named_alone(roce: float, infiniband: float | None, named: str) -> None:
    ethernet = port("mlx5_0", roce, "Ethernet")
    assert usable([ethernet, port("mlx5_1", infiniband)], [ethernet]) == [named]


def test_the_ports_of_a_host_without_ipoib(tmp_path: Path) -> None:
    class_folder = tmp_path / "sys/class/infiniband"
    for number, (layer, rate) in enumerate([("Ethernet", "25 Gb/sec (1X EDR)"), ("InfiniBand", "400 Gb/sec (4X NDR)")]):
        folder = class_folder / f"mlx5_{number}/ports/1"
        folder.mkdir(parents=True)
        for name, text in (("state", "4: ACTIVE"), ("link_layer", layer), ("rate", rate)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "sys/class/net/eth0/device/infiniband/mlx5_0").mkdir(parents=True)
    addresses = json.dumps([{"ifindex": 2, "ifname": "eth0", "flags": ["UP"], "mtu": 1500, "link_type": "ether"}])
    found = host.look(lambda *_args, **_options: Completed(0, addresses, ""), Tree(str(tmp_path)))
    assert found.rdma_devices == ["mlx5_1:1"]


@pytest.mark.parametrize(
    ("ports", "refused"),
    [
        (None, False),
        ({"first": 32768, "last": 60999, "reserved": []}, False),
        ({"first": 1024, "last": 14999, "reserved": []}, False),
        ({"first": 20000, "last": 60999, "reserved": []}, True),
        ({"first": 20000, "last": 60999, "reserved": ["15000-24999"]}, False),
        # The kernel joins adjacent and overlapping ranges, such as with those of another service.
        ({"first": 1024, "last": 65535, "reserved": ["10000-30000"]}, False),
        ({"first": 20000, "last": 60999, "reserved": ["8080", "19000-22000", "22001-24999"]}, False),
        ({"first": 20000, "last": 60999, "reserved": ["8080", "15000-22000", "22002-24999"]}, True),
    ],
)
def test_a_port_that_an_outgoing_connection_may_have_is_refused(ports: Any, refused: bool) -> None:
    if not refused:
        host.refuse_ports(SETTINGS, ports)
        return
    with pytest.raises(HostStateError, match=r"15000-24999 .*20000-60999.*ip_local_reserved_ports=15000-24999"):
        host.refuse_ports(SETTINGS, ports)


def test_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {**PARAMS, "programs": {}}
    monkeypatch.setattr(files, "look", lambda *_: PLAIN)
    monkeypatch.setattr(files, "entries", lambda *_: [{"path": str(tmp_path / "settings"), "content": "{}\n"}])
    assert files.differences(None, here) == ([f"{tmp_path}/settings is missing"], True)
    (tmp_path / "settings").write_text("{}\n")
    assert files.differences(None, here) == ([], False)
    monkeypatch.setattr(
        files, "look", lambda *_: PLAIN._replace(local_ports={"first": 1, "last": 9**5, "reserved": []})
    )
    with pytest.raises(HostStateError):
        files.differences(None, here)
