# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files of the layer on a node, with and without RDMA, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from program_builds import push_options

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.push import missing_contents
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host import rdma
from ansible_collections.gpumesh.cluster.plugins.module_utils._layers.job_environment import files, host
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._layers.job_environment import program_sources

SETTINGS = {
    "cluster": "lab",
    "members": {"n1": "10.99.0.1", "n2": "10.99.0.2"},
    "interface": "gpumesh0",
    "port_range": [15000, 24999],
    "rdma": {"devices": [], "peers": ["n1", "n2"]},
    "variables": {},
}
PARAMS = {"cluster": "lab", "machine": "n1", "settings": SETTINGS, **push_options(program_sources()), "rdma": True}
PLAIN = host.JobHost(None, False, [])
NO_RDMA = "NCCL_IB_DISABLE=1\nNCCL_IBEXT_DISABLE=1"


def entries_by_path(params: Any, node: host.JobHost) -> dict[str, Any]:
    return {entry["path"]: entry for entry in files.desired_entries(params, node)}


def nccl_settings(entries: dict[str, Any]) -> str:
    """The lines of /etc/nccl.conf, each of which has a comment with its reason."""
    lines = entries["/etc/nccl.conf"]["content"].splitlines()
    assert [line[0] for line in lines] == ["#", "N"] * (len(lines) // 2)
    return "\n".join(lines[1::2])


@pytest.fixture(name="program_paths")
def _program_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The paths of the programs by name, in this folder."""
    paths = {name: tmp_path / Path(path).name for name, (path, _mode) in files.PROGRAM_FILES.items()}
    modes = {name: mode for name, (_path, mode) in files.PROGRAM_FILES.items()}
    monkeypatch.setattr(files, "PROGRAM_FILES", {name: (str(path), modes[name]) for name, path in paths.items()})
    return paths


def test_prolog_ignores_the_user_environment(program_paths: dict[str, Path]) -> None:
    for change in files.program_changes(PARAMS).values():
        change.apply()
    prolog = program_paths["task_prolog.py"]
    assert prolog.read_text(encoding="utf-8").startswith("#!/usr/bin/python3 -IS\n# Copyright")
    assert prolog.stat().st_mode & 0o7777 == 0o755
    assert program_paths["gpumesh_job.sh"].stat().st_mode & 0o7777 == 0o644


def test_programs_are_requested_where_they_differ(program_paths: dict[str, Path]) -> None:
    assert missing_contents(files.program_changes({**PARAMS, "contents": {}}).values()) == list(program_paths)
    for change in files.program_changes(PARAMS).values():
        change.apply()
    program_paths["job_epilog.sh"].write_text("exit 1\n", encoding="ascii")
    assert missing_contents(files.program_changes({**PARAMS, "contents": {}}).values()) == ["job_epilog.sh"]


def test_unconfigured_program_is_removed() -> None:
    login = "/etc/profile.d/gpumesh_job.sh"
    without = {name: digest for name, digest in PARAMS["digests"].items() if name != "gpumesh_job.sh"}
    assert login not in entries_by_path(PARAMS, PLAIN) and login in files.program_changes(PARAMS)
    assert entries_by_path({**PARAMS, "digests": without}, PLAIN)[login] == {"path": login, "state": "absent"}
    assert login not in files.program_changes({**PARAMS, "digests": without})


def test_tmpfiles_entry_has_no_age() -> None:
    text = entries_by_path(PARAMS, PLAIN)["/etc/tmpfiles.d/gpumesh-jobs.conf"]["content"]
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert lines == [
        [*line.split(), "root", "root", "-"] for line in ("d /run/gpumesh 0755", "d /run/gpumesh/jobs 1777")
    ]


def test_memlock_limit_depends_on_the_host() -> None:
    limits = "/etc/security/limits.d/60-gpumesh.conf"
    assert entries_by_path(PARAMS, PLAIN)[limits]["state"] == "absent"
    assert entries_by_path(PARAMS, PLAIN._replace(may_lock_memory=True))[limits]["state"] == "file"


def test_removal_keeps_the_shared_directory() -> None:
    there = {
        path for path, entry in entries_by_path(PARAMS, PLAIN).items() if path not in ("/etc/gpumesh", "/run/gpumesh")
    } | files.program_changes(PARAMS).keys()
    gone = files.removal_entries("lab")
    assert {entry["path"] for entry in gone} == there
    assert {entry["state"] for entry in gone} == {"absent"}


@pytest.mark.parametrize(
    ("peers", "devices", "lines"),
    [
        (["n1", "n2"], [], "NCCL_SOCKET_IFNAME==gpumesh0"),
        (["n1", "n2"], ["mlx5_0:1"], "NCCL_SOCKET_IFNAME==gpumesh0\nNCCL_IB_HCA==mlx5_0:1"),
        (["n1"], ["mlx5_0:1"], f"NCCL_SOCKET_IFNAME==gpumesh0\n{NO_RDMA}"),
        ([], ["mlx5_0:1"], f"NCCL_SOCKET_IFNAME==gpumesh0\n{NO_RDMA}\nNCCL_NET=Socket"),
    ],
)
def test_nccl_conf_contains_only_settings_valid_for_all_peers(peers: Any, devices: Any, lines: str) -> None:
    params = {**PARAMS, "settings": {**SETTINGS, "rdma": {"devices": [], "peers": peers}}}
    entries = entries_by_path(params, PLAIN._replace(rdma_devices=devices))
    assert nccl_settings(entries) == lines
    written = json.loads(entries["/etc/gpumesh/job_environment.json"]["content"])
    assert written == {**SETTINGS, "rdma": {"devices": devices, "peers": peers if devices else []}}


def test_disabled_rdma_is_disabled_in_nccl() -> None:
    entries = entries_by_path({**PARAMS, "rdma": False}, PLAIN._replace(rdma_devices=["mlx5_0:1"]))
    written = json.loads(entries["/etc/gpumesh/job_environment.json"]["content"])
    assert written["rdma"] == {"devices": ["mlx5_0:1"], "peers": []}
    assert nccl_settings(entries).endswith(f"\n{NO_RDMA}\nNCCL_NET=Socket")
    plain = entries_by_path({**PARAMS, "rdma": False}, PLAIN)
    assert "NCCL_IB" not in plain["/etc/nccl.conf"]["content"]


@pytest.mark.parametrize(
    ("peers", "enabled", "others", "lines"),
    [
        # The plugin finds its ports itself.
        (["n1", "n2"], True, [], ""),
        # It would be of no use if NCCL itself found others: those of NVSwitches.
        (["n1", "n2"], True, ["ibp198s0f0:1"], "\nNCCL_IB_HCA==rdmap85s0:1"),
        # What a job with a node at another site gets cannot be undone in other jobs.
        (["n1"], True, [], ""),
        (["n1"], True, ["ibp198s0f0:1"], "\nNCCL_IB_HCA==rdmap85s0:1"),
        ([], True, [], "\nNCCL_NET=Socket"),
        (["n1", "n2"], False, ["ibp198s0f0:1"], "\nNCCL_NET=Socket"),
    ],
)
def test_network_plugin_is_used_between_its_peers_only(peers: Any, enabled: bool, others: Any, lines: str) -> None:
    rdma = {"devices": [], "peers": [], "plugin_peers": peers}
    params = {**PARAMS, "settings": {**SETTINGS, "rdma": rdma}, "rdma": enabled}
    node = PLAIN._replace(plugin_fabric="efa", plugin_devices=["rdmap85s0:1"], other_rdma_devices=others)
    entries = entries_by_path(params, node)
    assert nccl_settings(entries) == "NCCL_SOCKET_IFNAME==gpumesh0" + lines
    written = json.loads(entries["/etc/gpumesh/job_environment.json"]["content"])["rdma"]
    devices = ["rdmap85s0:1"] if others else []
    assert written == {"devices": devices, "peers": peers if enabled else [], "plugin": "efa"}


def rdma_port(device: str, rate: float | None = 400, kind: str = "InfiniBand", state: str = "active") -> Any:
    return {"device": device, "port": 1, "state": state, "link_layer": kind, "rate_gbps": rate}


def usable_device_names(ports: Any, behind: Any) -> list[str]:
    return [f"{port['device']}:{port['port']}" for port in rdma.select_usable_ports(ports, behind)]


def test_active_ports_are_listed_once() -> None:
    roce, down = rdma_port("mlx5_0", kind="Ethernet"), rdma_port("mlx5_1", kind="Ethernet", state="down")
    assert usable_device_names([roce, down], [roce, roce, down, None]) == ["mlx5_0:1"]
    assert usable_device_names([down], [down]) == []


@pytest.mark.parametrize(
    ("kind", "gids", "expected"),
    [
        ("Ethernet", [["fe80::1", "fd93::1"], ["2001:db8::1"]], True),
        ("Ethernet", [["fe80::1", "fd93::1"], ["2001:db8::1", "::ffff:10.0.0.1"]], False),
        ("Ethernet", [["fd93::1"], ["fe80::1"]], False),
        ("Ethernet", [["fd93::1"], []], False),
        ("InfiniBand", [["fec0::1"]], False),
        ("Ethernet", [], False),
    ],
)
def test_ipv6_is_named_where_no_port_has_ipv4(kind: str, gids: list[list[str]], expected: bool) -> None:
    ports = [{**rdma_port("mlx5_0", kind=kind), "gids": [{"gid": gid} for gid in of_port]} for of_port in gids]
    assert rdma.have_ipv6_only(ports) is expected


def test_only_roce_requires_an_interface() -> None:
    cards = [rdma_port(f"mlx5_{number}") for number in (0, 1)]
    assert usable_device_names([*cards, rdma_port("mlx5_2", state="down")], []) == ["mlx5_0:1", "mlx5_1:1"]
    assert usable_device_names([rdma_port("mlx5_0", kind="Ethernet")], [None]) == []


@pytest.mark.parametrize(
    ("roce", "infiniband", "named"),
    [(25, 400, "mlx5_1:1"), (400, 40, "mlx5_0:1"), (200, 200, "mlx5_1:1"), (25, None, "mlx5_0:1")],
)
def test_only_the_faster_fabric_is_used(roce: float, infiniband: float | None, named: str) -> None:
    ethernet = rdma_port("mlx5_0", roce, "Ethernet")
    assert usable_device_names([ethernet, rdma_port("mlx5_1", infiniband)], [ethernet]) == [named]


def test_ports_without_ipoib(tmp_path: Path) -> None:
    class_folder = tmp_path / "sys/class/infiniband"
    for number, (layer, rate) in enumerate([("Ethernet", "25 Gb/sec (1X EDR)"), ("InfiniBand", "400 Gb/sec (4X NDR)")]):
        folder = class_folder / f"mlx5_{number}/ports/1"
        folder.mkdir(parents=True)
        for name, text in (("state", "4: ACTIVE"), ("link_layer", layer), ("rate", rate)):
            (folder / name).write_text(f"{text}\n")
    (tmp_path / "sys/class/net/eth0/device/infiniband/mlx5_0").mkdir(parents=True)
    addresses = json.dumps([{"ifindex": 2, "ifname": "eth0", "flags": ["UP"], "mtu": 1500, "link_type": "ether"}])
    found = host.read_job_host(
        lambda *_args, **_options: CommandResult(0, addresses, ""), Tree(str(tmp_path)), SETTINGS
    )
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
def test_overlap_with_ephemeral_ports_is_refused(ports: Any, refused: bool) -> None:
    if not refused:
        host.refuse_ephemeral_ports(SETTINGS, ports)
        return
    with pytest.raises(HostStateError, match=r"15000-24999 .*20000-60999.*ip_local_reserved_ports=15000-24999"):
        host.refuse_ephemeral_ports(SETTINGS, ports)


def test_differences_are_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {**PARAMS, "digests": {}}
    monkeypatch.setattr(files, "read_job_host", lambda *_: PLAIN)
    monkeypatch.setattr(files, "desired_entries", lambda *_: [{"path": str(tmp_path / "settings"), "content": "{}\n"}])
    assert files.find_differences(None, here) == ([f"{tmp_path}/settings is missing"], True)
    (tmp_path / "settings").write_text("{}\n")
    assert files.find_differences(None, here) == ([], False)
    monkeypatch.setattr(
        files, "read_job_host", lambda *_: PLAIN._replace(local_ports={"first": 1, "last": 9**5, "reserved": []})
    )
    with pytest.raises(HostStateError):
        files.find_differences(None, here)
