# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The choice of an RDMA port, the call of perftest, and the parsing of its output."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability import listener, perftest, runner
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.reachability.models import LocalMember
from ansible_collections.gpumesh.cluster.plugins.module_utils._core import command
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.lease import Lease
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

FIXTURES = Path(__file__).parent / "fixtures" / "perftest"
BROKEN_OFF = "Completion with error at client, Failed status 12: wr_id 0 syndrom 0x81"
#: The results of each fixture: Gbit/s, microseconds, and the message of a failure.
CASES: dict[str, tuple[float | None, float | None, str]] = {
    "bandwidth-infiniband": (394.86, None, ""),
    "bandwidth-roce-clocks": (97.12, None, ""),
    "bandwidth-mebibytes": (96.854, None, ""),
    "bandwidth-all-sizes": (92.61, None, ""),
    "bandwidth-processor": (48.56, None, ""),
    "latency": (None, 0.98, ""),
    "latency-duration": (None, 0.98, ""),
    "no-device": (None, None, "Did not detect devices"),
    "no-server": (None, None, "Couldn't connect to 10.99.0.2:18515"),
    "unknown-option": (None, None, "ib_write_lat: unrecognized option '--bogus'"),
    "broken-off": (None, None, BROKEN_OFF),
    "duration-broken-off": (None, None, BROKEN_OFF),
    "duration-broken-off-stderr-first": (None, None, BROKEN_OFF),
    "status-by-name": (
        None,
        None,
        "Completion with error at client, Failed status-transport retry counter exceeded (12): wr_id 0 syndrom 0x81",
    ),
    "died-without-a-word": (None, None, "it printed no result"),
    "warnings-of-libibverbs": (None, None, "ethernet_read_keys: Couldn't read remote address"),
    "bandwidth-duration-a40": (181.46, None, ""),
    "empty": (None, None, "it printed no result"),
}


def text(name: str) -> str:
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


def test_every_fixture_is_tested() -> None:
    assert {path.stem for path in FIXTURES.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_fixture(name: str) -> None:
    gbps, latency, failure = CASES[name]
    assert perftest.parse_bandwidth(text(name)) == gbps
    assert perftest.parse_latency(text(name)) == latency
    if failure:
        assert perftest.parse_failure(text(name)) == failure


def test_only_a_refused_connection_is_retried() -> None:
    assert [name for name in CASES if perftest.is_refused(text(name))] == ["no-server"]


def test_a_healthy_run_has_no_line_that_reads_like_a_failure() -> None:
    for name, (gbps, latency, _failure) in CASES.items():
        if gbps is not None or latency is not None:
            assert perftest.parse_failure(text(name)) == "it printed no result", name


def test_unit_of_newer_versions_without_gbits() -> None:
    table = "bandwidth-mebibytes"
    assert perftest.parse_bandwidth(text(table).replace("[MB/sec]", "[MiB/sec]")) == CASES[table][0]


@given(st.sampled_from(sorted(CASES)), st.integers(0, 2000))
def test_truncated_output_is_not_a_measurement(name: str, cut_index: int) -> None:
    cut = text(name)[:cut_index]
    for parse, whole in ((perftest.parse_bandwidth, CASES[name][0]), (perftest.parse_latency, CASES[name][1])):
        measured = parse(cut)
        # A number may itself be truncated, and a table may have a row of a smaller size.
        assert measured is None or whole is not None
    assert perftest.parse_failure(cut)


@given(st.text())
def test_parsers_accept_any_text(failure_text: str) -> None:
    perftest.parse_bandwidth(failure_text)
    perftest.parse_latency(failure_text)
    assert isinstance(perftest.parse_failure(failure_text), str)


def gid(index: int, kind: str | None, interface: str | None, address: str = "fe80:0000:0000:0000:0a00:0000:0000:0001"):
    return {"index": index, "gid": address, "type": kind, "interface": interface}


def port(device: str, **changes: Any) -> Any:
    rdma_port = {
        "device": device,
        "port": 1,
        "state": "active",
        "physical_state": "linkup",
        "link_layer": "InfiniBand",
        "rate_gbps": 400.0,
        "driver": "mlx5_core",
        "pci_address": "0000:18:00.0",
        "gids": [gid(0, "IB/RoCE v1", None)],
    }
    return {**rdma_port, **changes}


MAPPED = "0000:0000:0000:0000:0000:ffff:0a63:0001"
ROCE = [
    gid(0, "IB/RoCE v1", "eth1"),
    gid(1, "RoCE v2", "eth1"),
    gid(2, "IB/RoCE v1", "eth1", MAPPED),
    gid(3, "RoCE v2", "eth1", MAPPED),
]


def find_any_program(_program: str) -> str:
    return "/usr/bin/there"


class TestChoose:
    def test_port_behind_the_interface_is_preferred_to_a_faster_one(self) -> None:
        ports = [port("mlx5_0"), port("mlx5_1", link_layer="Ethernet", rate_gbps=100.0, gids=ROCE)]
        assert perftest.choose_endpoint(ports, "eth1", find_any_program) == {
            "device": "mlx5_1",
            "port": 1,
            "gid_index": 3,
            "rate_gbps": 100.0,
            "reason": "",
        }

    def test_fastest_active_port_is_chosen_for_a_mesh(self) -> None:
        ports = [port("mlx5_0", state="down"), port("mlx5_1", rate_gbps=100.0), port("mlx5_2"), port("mlx5_3")]
        end = perftest.choose_endpoint(ports, "wg0", find_any_program)
        assert (end["device"], end["gid_index"]) == ("mlx5_2", None)

    def test_rate_of_a_software_device_is_ignored(self) -> None:
        end = perftest.choose_endpoint(
            [port("rxe0", pci_address=None, link_layer="Ethernet", gids=ROCE)], "eth1", find_any_program
        )
        assert (end["device"], end["rate_gbps"]) == ("rxe0", None)

    @pytest.mark.parametrize(
        ("ports", "installed_programs", "reason"),
        [
            ([], ("ib_write_bw", "ib_write_lat"), "no RDMA device"),
            ([port("mlx5_0", state="down")], ("ib_write_bw", "ib_write_lat"), "no port of mlx5_0 is active"),
            ([port("mlx5_0")], ("ib_write_bw",), "ib_write_lat of perftest is not installed"),
            ([port("mlx5_0")], (), "ib_write_bw and ib_write_lat of perftest are not installed"),
        ],
    )
    def test_missing_endpoint_has_a_reason(self, ports: list, installed_programs: tuple, reason: str) -> None:
        end = perftest.choose_endpoint(
            ports, "eth1", lambda program: program if program in installed_programs else None
        )
        assert (end["device"], end["reason"]) == ("", reason)


def test_client_and_server_get_the_same_options() -> None:
    end = perftest.choose_endpoint([port("mlx5_1", link_layer="Ethernet", gids=ROCE)], "eth1", find_any_program)
    server = perftest.build_command("bandwidth", end, 40000, 3)
    client = perftest.build_command("bandwidth", end, 40000, 3, "10.99.0.2")
    assert client == [*server, "10.99.0.2"]
    assert server[0] == "ib_write_bw"
    assert {"--ib-dev=mlx5_1", "--gid-index=3", "--port=40000", "--duration=3", "--report_gbits"} <= set(server)
    assert perftest.build_command("latency", end, 40000, 3)[0] == "ib_write_lat"


def test_rdma_time_is_reserved_only_if_two_hosts_support_it() -> None:
    def peers(*rdma: bool) -> list:
        return [
            {"machine": f"n{index}", "address": "", "ports": [], "rdma": has_rdma}
            for index, has_rdma in enumerate(rdma)
        ]

    plain = runner.half_round_seconds(peers(False, False, False), 3)
    assert runner.half_round_seconds(peers(True, False, False), 3) == plain
    assert runner.half_round_seconds(peers(True, False, True), 3) >= plain + 2 * 3


#: Stands in for both programs: the server listens after a delay, and the client reports whether it finds it.
PROGRAM = """#!{python}
import pathlib, socket, sys, time
port = next(int(word.partition("=")[2]) for word in sys.argv if word.startswith("--port="))
if sys.argv[-1].startswith("--"):
    time.sleep(0.7)
    with socket.create_server(("127.0.0.1", port)) as server:
        server.accept()[0].close()
    sys.exit()
try:
    socket.create_connection((sys.argv[-1], port)).close()
except OSError:
    sys.exit(f"Couldn't connect to {{sys.argv[-1]}}:{{port}}")
name = "bandwidth-infiniband" if sys.argv[0].endswith("bw") else "latency"
print(pathlib.Path({fixtures!r}, name + ".txt").read_text())
"""


def test_two_hosts_measure_with_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dialogue of a runner and a listener, with a server that is slow to start."""
    for name in perftest.PROGRAM_BY_MEASUREMENT.values():
        (tmp_path / name).write_text(PROGRAM.format(python=sys.executable, fixtures=str(FIXTURES)))
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    end = perftest.choose_endpoint([port("mlx5_0")], "eth1", command.find_program)
    with socket.create_server(("127.0.0.1", 0)) as opened, socket.socket(socket.AF_UNIX) as control:
        control.bind(str(tmp_path / "control"))
        control.listen()
        settings = listener.ListenerSettings("run", "T0ken", "127.0.0.1", 1500, [], end)
        term = Lease(60, None, Tree())
        serving = multiprocessing.get_context("fork").Process(
            target=listener.run_listener, args=(settings, [opened], control, term)
        )
        serving.start()
        number = opened.getsockname()[1]
    peer: Any = {
        "machine": "n2",
        "address": "127.0.0.1",
        "ports": [{"port": number, "role": "named", "protocol": "tcp", "state": "listening"}],
        "rdma": True,
    }
    local_member = LocalMember("n1", "127.0.0.1", "lo")
    try:
        work = runner.ThroughputRunner(local_member, "T0ken", {"n2": peer}, [], 3, end, term)
        assert work.measure_rdma("n2", time.monotonic() + 60) == {"gbps": 394.86, "latency_us": 0.98, "error": ""}
        nobody = runner.ThroughputRunner(local_member, "T0ken", {"n2": {**peer, "rdma": False}}, [], 3, end, term)
        assert nobody.measure_rdma("n2", time.monotonic() + 60) == {"gbps": None, "latency_us": None, "error": ""}
    finally:
        serving.kill()
        serving.join()
        serving.close()
