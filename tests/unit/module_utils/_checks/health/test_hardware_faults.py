# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Uncorrectable errors of the PCI bus and of memory. The messages are those that others have published."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import hardware_faults
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.plugins.module_utils._host.rdma import read_ports

#: https://github.com/wilicc/gpu-burn/issues/1
SURPRISE_DOWN = """pcieport 0000:00:02.0: AER: Corrected error received: id=0010
pcieport 0000:00:02.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, id=0010(Transmitter ID)
pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00001000/00002000
pcieport 0000:00:02.0:    [12] Replay Timer Timeout
pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: id=0010
pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, id=0010(Receiver ID)
pcieport 0000:00:02.0:   device [8086:6f04] error status/mask=00000020/00000000
pcieport 0000:00:02.0:    [ 5] Surprise Down Error    (First)
pcieport 0000:00:02.0: broadcast error_detected message
nvidia 0000:02:00.0: device has no AER-aware driver"""
#: https://github.com/rwth-i6/returnn/issues/1500
TIMEOUT = """pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:00:03.0
pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)
pcieport 0000:00:03.0:   device [8086:6f08] error status/mask=00004020/00000000
pcieport 0000:00:03.0:    [ 5] SDES
pcieport 0000:00:03.0:    [14] CmpltTO                (First)
nvidia 0000:03:00.0: AER: can't recover (no error_detected callback)"""
#: https://github.com/pop-os/pop/issues/3363 and https://github.com/NVIDIA/nvidia-docker/issues/1553: corrected.
CORRECTED = """pcieport 0000:00:03.1: AER: Correctable error message received from 0000:00:00.0
pcieport 0000:00:03.1: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)
pcieport 0000:00:03.1:   device [1022:1453] error status/mask=00001000/00006000
pcieport 0000:00:01.1: AER: Corrected error received: 0000:00:00.0
pcieport 0000:00:01.1: AER: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Receiver ID)"""
#: The kernel's Documentation/PCI/pcieaer-howto.rst, of a device without a driver.
HOWTO = """0000:50:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer, (Requester ID)
0000:50:00.0:   device [8086:0329] error status/mask=00100000/00000000
0000:50:00.0:    [20] UnsupReq               (First)"""


@pytest.mark.parametrize(
    ("text", "watched", "counts"),
    [
        (SURPRISE_DOWN, ["0000:00:02.0", "0000:02:00.0"], {"0000:00:02.0": 1}),
        (TIMEOUT, ["0000:00:03.0"], {"0000:00:03.0": 1}),
        (HOWTO, ["0000:50:00.0"], {"0000:50:00.0": 1}),
        # Not above a GPU: a disk that was pulled, for example.
        (SURPRISE_DOWN, ["0000:00:01.0"], {}),
        (CORRECTED, ["0000:00:03.1", "0000:00:01.1"], {}),
        # A program cannot have a name of this length.
        ("pcieport 0000:0[71]: PCIe Bus Error: severity=Uncorrected (Fatal)", ["0000:00:02.0"], {}),
    ],
)
def test_fatal_messages_of_watched_devices(text: str, watched: list[str], counts: dict[str, int]) -> None:
    assert hardware_faults.find_fatal_messages(text.splitlines(), watched) == counts


#: The lines of a healthy device, of https://github.com/sonic-net/sonic-utilities/pull/1169 and the kernel's
#: sysfs-bus-pci-devices-aer_stats.
NAMES = (
    *("Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC"),
    *("UnsupReq", "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr"),
)


class PciHost:
    """A host with two GPUs and an RDMA card below a switch, and a GPU at another root port."""

    PATHS = (
        "pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:00.0/0000:19:00.0",
        "pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:01.0/0000:1a:00.0",
        "pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:02.0/0000:1b:00.0",
        "pci0000:36/0000:36:01.0/0000:37:00.0",
        # The GPU of a BMC.
        "pci0000:00/0000:00:1c.0/0000:03:00.0",
    )
    MODALIASES = (
        "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00",
        "pci:v000015B3d00001021sv000015B3sd00000041bc02sc07i00",
        "pci:v00001002d000074A1sv00001002sd000074A1bc12sc00i00",
        "pci:v00001A03d00002000sv00001A03sd00002000bc03sc00i00",
    )

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, Tree(str(root))
        (root / "sys/bus/pci/devices").mkdir(parents=True)
        for path, modalias in zip(self.PATHS, self.MODALIASES):
            (root / "sys/devices" / path).mkdir(parents=True)
            (root / "sys/devices" / path / "modalias").write_text(f"{modalias}\n", encoding="utf-8")
            components = path.split("/")
            for number in range(1, len(components)):
                link = root / "sys/bus/pci/devices" / components[number]
                if not link.is_symlink():
                    link.symlink_to(f"../../../devices/{'/'.join(components[: number + 1])}")
        port = root / "sys/class/infiniband/mlx5_0/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n", encoding="utf-8")
        (root / "sys/class/infiniband/mlx5_0/device").symlink_to("../../../bus/pci/devices/0000:1b:00.0")

    def count(self, address: str, severity: str, **counts: int) -> None:
        lines = [f"{name} {counts.get(name, 0)}" for name in NAMES]
        text = "\n".join([*lines, f"TOTAL_ERR_{severity.upper()} {sum(counts.values())}"]) + "\n"
        (self.root / f"sys/bus/pci/devices/{address}/aer_dev_{severity}").write_text(text, encoding="utf-8")


def test_watched_devices_are_gpus_and_rdma_cards_with_their_bridges(tmp_path: Path) -> None:
    tree = PciHost(tmp_path).tree
    assert hardware_faults.find_watched_devices(tree, read_ports(tree)) == {
        "0000:19:00.0": ["0000:16:02.0", "0000:17:00.0", "0000:18:00.0", "0000:19:00.0"],
        "0000:1a:00.0": ["0000:16:02.0", "0000:17:00.0", "0000:18:01.0", "0000:1a:00.0"],
        "0000:1b:00.0": ["0000:16:02.0", "0000:17:00.0", "0000:18:02.0", "0000:1b:00.0"],
        "0000:37:00.0": ["0000:36:01.0", "0000:37:00.0"],
    }


def test_counters_of_fatal_errors_and_damaged_data(tmp_path: Path) -> None:
    host = PciHost(tmp_path)
    addresses = ["0000:19:00.0", "0000:1a:00.0", "0000:1b:00.0", "0000:37:00.0"]
    host.count("0000:19:00.0", "fatal")
    # A request that the device does not support is normal when its driver starts.
    host.count("0000:19:00.0", "nonfatal", UnsupReq=12, CmpltTO=1)
    assert hardware_faults.read_pci_errors(host.tree, addresses) == {}
    host.count("0000:1a:00.0", "fatal", DLP=2)
    host.count("0000:1b:00.0", "nonfatal", TLP=1, ECRC=3, UnsupReq=12)
    assert hardware_faults.read_pci_errors(host.tree, addresses) == {"0000:1a:00.0": 2, "0000:1b:00.0": 4}


def test_errors_of_the_bus_are_judged() -> None:
    assert hardware_faults.judge_pci_errors(0, {}, {}, False).status == "skipped"
    assert hardware_faults.judge_pci_errors(8, {}, {}, False).status == "pass"
    assert hardware_faults.judge_pci_errors(8, {}, None, False).status == "error"
    assert hardware_faults.judge_pci_errors(8, {}, None, True).status == "pass"
    judged = hardware_faults.judge_pci_errors(8, {"0000:1a:00.0": 2}, {"0000:1a:00.0": 1, "0000:18:01.0": 3}, False)
    assert (judged.status, judged.actual) == ("fail", 5)
    assert judged.reason == "Uncorrectable errors on the PCI bus: 0000:18:01.0: 3, 0000:1a:00.0: 2."


@pytest.mark.parametrize(
    "message",
    [
        # An AMD server, a write-up of its memory errors: the last of the lines about one error.
        "mce: Uncorrected hardware memory error in user-access at 79d6c8440",
        "Memory failure: 0x79d6c8: recovery action for unsplit thp: Ignored",
        # linux-mm, 2021 (Ice Lake) and 2023.
        "EDAC MC3: 1 UE memory read error on CPU_SrcID#0_MC#3_Chan#0_DIMM#0 (channel:0 slot:0 page:0x7e025e offset:0x400)",
        "Memory failure: 0x7740c0: recovery action for dirty page: Recovered",
        # The forms of mce_amd and of print_mce in the kernel.
        "[Hardware Error]: Uncorrected, software restartable error.",
        "mce: [Hardware Error]: CPU 49: Machine Check Exception: 7 Bank 1: bd80000000100134",
    ],
)
def test_uncorrectable_memory_errors(message: str) -> None:
    locations = hardware_faults.find_memory_messages([message, message])
    assert len(locations) == 1
    assert hardware_faults.judge_memory_errors({}, locations, False).status == "fail"


@pytest.mark.parametrize(
    "message",
    [
        "mce: [Hardware Error]: Machine check events logged",
        "EDAC MC1: 1 CE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0 (channel:0 slot:0)",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:64:0a.0 (INTERRUPT)",
        "[Hardware Error]: Corrected error, no action required.",
        "[Hardware Error]: Deferred error, no action required.",
        "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
        # The firmware reports at each boot what has reset the machine, also a power button that was pressed for long.
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 5: bea0000000000108",
        "Memory: 527846580K/536518748K available (14336K kernel code)",
        # What users can cause, with programs of these names.
        "EDAC MC0: 1 UE [4711]: segfault at 0 ip 0000555 sp 00007ff error 6 in x (deleted)",
        "EDAC MC0: 1 UE invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
        "Memory failure:[4711]: segfault at 0x79d6c8: recovery action for ",
        "Memory failure: invoked oom-killer: gfp_mask=0x0, order=0",
    ],
)
def test_corrected_errors_and_names_of_programs_are_no_fault(message: str) -> None:
    assert hardware_faults.find_memory_messages([message]) == []


def test_memory_controllers_count(tmp_path: Path) -> None:
    for name, count in (("mc0", 0), ("mc1", 2)):
        (tmp_path / f"sys/devices/system/edac/mc/{name}").mkdir(parents=True)
        (tmp_path / f"sys/devices/system/edac/mc/{name}/ue_count").write_text(f"{count}\n", encoding="utf-8")
    counts = hardware_faults.read_memory_errors(Tree(str(tmp_path)))
    assert counts == {"mc1": 2}
    # The kernel log names the same error.
    judged = hardware_faults.judge_memory_errors(counts, ["MC1"], False)
    assert judged.reason == "Uncorrectable errors of memory or processors: mc1: 2."
    assert hardware_faults.judge_memory_errors(counts, None, True).status == "fail"


def test_memory_without_errors_or_log() -> None:
    assert hardware_faults.judge_memory_errors({}, [], False).status == "pass"
    assert hardware_faults.judge_memory_errors({}, None, False).status == "error"
    assert hardware_faults.judge_memory_errors({}, None, True).status == "skipped"


@given(st.text())
def test_any_message_is_accepted(message: str) -> None:
    assert hardware_faults.find_memory_messages([message]) == []
    assert hardware_faults.find_fatal_messages([message], ["0000:00:02.0"]) == {}
