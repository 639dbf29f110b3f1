# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Links that flap and links that damage data, from counters in two snapshots, and the snapshots themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import links, program, run, snapshots
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.settings import HealthSettings
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import read_ports

BOOT_ID = "11111111-2222-3333-4444-555555555555"


class Host:
    """A host with an InfiniBand port and an interface, both on the PCI bus."""

    def __init__(self, root: Path, keeps_snapshots: bool = True) -> None:
        self.root = root
        self.write("proc/sys/kernel/random/boot_id", BOOT_ID)
        if keeps_snapshots:
            (root / "var/lib/gpumesh/health").mkdir(parents=True)
        for bus_address in ("0000:19:00.0", "0000:1a:00.0"):
            (root / "sys/devices/pci0000:19" / bus_address).mkdir(parents=True)
        (root / "sys/bus/pci").mkdir(parents=True)
        (root / "sys/devices/pci0000:19/0000:1a:00.0/subsystem").symlink_to("../../../bus/pci")
        self.port = "sys/class/infiniband/mlx5_0/ports/1"
        self.write(f"{self.port}/state", "4: ACTIVE")
        (root / "sys/class/infiniband/mlx5_0/device").symlink_to("../../../devices/pci0000:19/0000:19:00.0")
        self.set(link_downed=1, symbol_error=5, port_rcv_errors=0)
        self.interface = "sys/class/net/enp26s0"
        self.write(f"{self.interface}/carrier_down_count", "1")
        self.write(f"{self.interface}/statistics/rx_crc_errors", "0")
        (root / self.interface / "device").symlink_to("../../../devices/pci0000:19/0000:1a:00.0")
        # One without a route, and one that is no device.
        self.write("sys/class/net/enp27s0/carrier_down_count", "70")
        self.write("sys/class/net/docker0/carrier_down_count", "70")
        self.write(
            "proc/net/route",
            "Iface\tDestination\tGateway \tFlags\nenp26s0\t00000000\t0100000A\t0003\ndocker0\t000011AC\t00000000\t0001",
        )

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(f"{text}\n", encoding="utf-8")

    def set(self, **counters: int) -> None:
        for name, value in counters.items():
            self.write(f"{self.port}/counters/{name}", str(value))

    def examine(self, uptime: float) -> dict[str, Any]:
        """The results of the checks, as Slurm runs them, so many seconds after the boot."""
        self.write("proc/uptime", f"{uptime:.2f} 9000.00")
        settings = HealthSettings("lab", "n1", "", [], 95)
        check_context = run.CheckContext(
            ExpectedState(),
            Tree(str(self.root)),
            lambda *_argv, **_options: CommandResult(0, "", ""),
            lambda _name: None,
        )
        results = program.run_checks(settings, check_context, ["link_flaps", "link_errors"])
        return {result["id"].partition("_")[2]: result for result in results}


def read_counters(root: Path) -> dict[str, dict[str, int]]:
    tree = Tree(str(root))
    return links.read_link_counters(tree, read_ports(tree))


def test_only_links_that_carry_traffic_are_read(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert read_counters(tmp_path) == {
        "mlx5_0:1": {links.DOWNS: 1, "symbol errors": 5, "receive errors": 0},
        "enp26s0": {links.DOWNS: 1, "CRC errors": 0},
    }
    (tmp_path / "sys/class/net/enp27s0/device").symlink_to("../../../devices/pci0000:19/0000:1a:00.0")
    (tmp_path / "sys/class/net/enp27s0/master").symlink_to("../bond0")
    assert "enp27s0" not in read_counters(tmp_path)
    host.write("proc/net/route", "Iface\tDestination\nbond0\t00000000")
    assert "enp27s0" in read_counters(tmp_path)


def test_wireless_interface_may_lose_its_connection(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / host.interface / "phy80211").mkdir()
    assert list(read_counters(tmp_path)) == ["mlx5_0:1"]


def test_suspends_take_links_down(tmp_path: Path) -> None:
    """A laptop that is closed and opened again, or a node that is suspended to save power."""
    host = Host(tmp_path)
    for number in range(1, 8):
        host.write("sys/power/suspend_stats/success", str(number))
        host.write(f"{host.interface}/carrier_down_count", str(number))
        flaps = host.examine(300 * number)["flaps"]
    assert flaps["status"] == "pass"
    host.write(f"{host.interface}/carrier_down_count", "17")
    assert host.examine(2400)["flaps"]["status"] == "fail"


def test_administrator_may_change_the_settings_of_an_interface(tmp_path: Path) -> None:
    """Drivers take the link down for a change of the MTU, the number of queues, or the length of its rings."""
    host = Host(tmp_path)
    host.examine(1000)
    for uptime, count in ((1300, 4), (1600, 9)):
        host.write(f"{host.interface}/carrier_down_count", str(count))
        assert host.examine(uptime)["flaps"]["status"] == "pass"


def test_container_with_an_uptime_of_its_own_starts_again(tmp_path: Path) -> None:
    """lxcfs shows the time since the start of the container, and the host's boot."""
    host = Host(tmp_path)
    for uptime, count in ((1000, 1), (500_000, 2), (500_300, 3), (100, 3), (400, 4), (700, 4)):
        host.set(link_downed=count)
        flaps = host.examine(uptime)["flaps"]
    assert flaps["status"] == "pass"
    host.write("proc/uptime", "900.00 0.0")
    assert snapshots.read_snapshot(Tree(str(tmp_path)), "var/lib/gpumesh/health/snapshot.json")["uptime"] == 700.0


def test_healthy_links_pass_from_the_second_snapshot_on(tmp_path: Path) -> None:
    host = Host(tmp_path)
    assert {result["status"] for result in host.examine(1000).values()} == {"skipped"}
    for uptime in range(1300, 4000, 300):
        host.set(symbol_error=5 + uptime // 300)
        assert {result["status"] for result in host.examine(uptime).values()} == {"pass"}


def test_link_that_goes_down_three_times_a_day_flaps(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.examine(1000)
    for uptime, count in ((1300, 2), (5300, 3)):
        host.set(link_downed=count)
        assert host.examine(uptime)["flaps"]["status"] == "pass"
    host.set(link_downed=4)
    # The snapshot of a job's prolog soon after does not count it twice.
    assert host.examine(70000)["flaps"]["status"] == "fail"
    flaps = host.examine(70010)["flaps"]
    assert (flaps["status"], flaps["actual"], flaps["required"]) == ("fail", 1, 2)
    assert flaps["reason"] == "Links go down and come up again: mlx5_0:1: 3 downs in a day."
    # A day after the first one.
    assert host.examine(1300 + 86400)["flaps"]["status"] == "pass"


def test_interface_that_flaps_is_named(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.examine(1000)
    host.write(f"{host.interface}/carrier_down_count", "12")
    assert "enp26s0: 11 downs" in host.examine(1300)["flaps"]["reason"]


def test_reboot_of_the_other_side_damages_no_link(tmp_path: Path) -> None:
    """The errors of a link that goes down say nothing about its cable."""
    host = Host(tmp_path)
    host.examine(1000)
    host.set(link_downed=2, symbol_error=70000, port_rcv_errors=900)
    results = host.examine(1300)
    assert (results["flaps"]["status"], results["errors"]["status"]) == ("pass", "pass")


def test_errors_of_an_hour_are_added_up(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.examine(1000)
    statuses = []
    for number in range(1, 6):
        host.set(symbol_error=5 + 30 * number)
        errors = host.examine(1000 + 300 * number)["errors"]
        statuses.append(errors["status"])
    assert statuses == ["pass", "pass", "pass", "pass", "fail"]
    assert errors["reason"] == "Links damage data: mlx5_0:1: 150 symbol errors in an hour."
    assert host.examine(6200)["errors"]["status"] == "pass"


def test_counter_that_starts_again_has_not_counted(tmp_path: Path) -> None:
    """A driver that is loaded again resets them."""
    host = Host(tmp_path)
    host.set(link_downed=200)
    host.examine(1000)
    host.set(link_downed=2)
    assert host.examine(1300)["flaps"]["status"] == "pass"


def test_snapshots_before_a_boot_do_not_count(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.set(link_downed=0)
    host.examine(1000)
    host.write("proc/sys/kernel/random/boot_id", "other")
    host.set(link_downed=50)
    assert host.examine(100)["flaps"]["status"] == "skipped"


@pytest.mark.parametrize("text", ["", "[]", "{", json.dumps({"links": 7, "boot_id": BOOT_ID})])
def test_damaged_snapshot_is_replaced(tmp_path: Path, text: str) -> None:
    host = Host(tmp_path)
    host.write("var/lib/gpumesh/health/snapshot.json", text)
    assert host.examine(1000)["flaps"]["status"] == "skipped"
    assert host.examine(1300)["flaps"]["status"] == "pass"


def test_host_without_a_record_keeps_no_snapshot(tmp_path: Path) -> None:
    host = Host(tmp_path, keeps_snapshots=False)
    host.examine(1000)
    assert host.examine(1300)["flaps"]["status"] == "skipped"
    assert not (tmp_path / "var").exists()


def test_recent_snapshot_is_only_replaced_by_what_is_urgent(tmp_path: Path) -> None:
    host, tree, path = Host(tmp_path), Tree(str(tmp_path)), "var/lib/gpumesh/health/snapshot.json"
    host.write("proc/uptime", "1000.00 0.0")
    snapshots.write_snapshot(tree, path, {"links": {"a": 1}}, {})
    host.write("proc/uptime", "1030.00 0.0")
    snapshots.write_snapshot(tree, path, {"links": {"a": 2}}, {"occupied_gpus": ["b"]})
    assert snapshots.read_snapshot(tree, path) == {
        "links": {"a": 1},
        "occupied_gpus": ["b"],
        "uptime": 1000.0,
        "boot_id": BOOT_ID,
    }
    assert json.loads((tmp_path / path).read_text(encoding="utf-8"))["uptime"] == 1000.0
    host.write("proc/uptime", "1061.00 0.0")
    snapshots.write_snapshot(tree, path, {"links": {"a": 3}}, {})
    assert snapshots.read_snapshot(tree, path)["links"] == {"a": 3}
