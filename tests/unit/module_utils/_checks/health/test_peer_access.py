# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import peer_access, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._checks.health.test_fabric import nvlink
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._checks.health.test_hardware_faults import PciHost

#: https://github.com/noonghunna/club-3090/issues/1229: two GeForce RTX 5090.
GEFORCE = """ \tGPU0\tGPU1\t
 GPU0\tX\tGNS\t
 GPU1\tGNS\tX\t

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  DR   = Disabled by regkey
  U    = Unknown
"""


def matrix(*rows: str) -> str:
    """A matrix in the same form, with the states in each row."""
    head = "".join(f"GPU{number}\t" for number in range(len(rows)))
    lines = [" \t" + head, *(f" GPU{number}\t" + "\t".join(row.split()) + "\t" for number, row in enumerate(rows))]
    return "\n".join(lines) + GEFORCE[GEFORCE.index("\n\nLegend") :]


@pytest.mark.parametrize(
    ("text", "exit_status", "is_board", "status"),
    [
        (matrix("X OK", "OK X"), 0, True, "pass"),
        (matrix("X OK OK", "OK X TNS", "OK TNS X"), 0, True, "fail"),
        (matrix("X CNS", "CNS X"), 0, True, "fail"),
        (matrix("X DR", "DR X"), 0, True, "fail"),
        # Models without it, and sockets between which there is none.
        (GEFORCE, 0, False, "skipped"),
        (matrix("X OK CNS", "OK X CNS", "CNS CNS X"), 0, False, "skipped"),
        (matrix("X OK", "OK X"), 0, False, "pass"),
        (matrix("X"), 0, True, "skipped"),
        ("", 0, True, "skipped"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n", 15, True, "error"),
        ("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 0, True, "error"),
    ],
)
def test_access_between_gpus(text: str, exit_status: int, is_board: bool, status: str) -> None:
    assert peer_access.judge_p2p(text, exit_status, is_board).status == status


def test_pairs_without_access_are_named_once() -> None:
    judged = peer_access.judge_p2p(matrix("X OK OK", "OK X TNS", "OK TNS X"), 0, True)
    assert (judged.actual, judged.required) == (2, 3)
    assert judged.reason == "GPUs have no access to each other's memory: GPU1 and GPU2 (TNS)."


@given(st.text())
def test_any_matrix_is_accepted(text: str) -> None:
    peer_access.judge_p2p(text, 0, True)


def config_space(control: int | None) -> bytes:
    """The configuration space of a port with AER, and with ACS whose control register has this value."""
    space = bytearray(0x1000)
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | 0x148 << 20)
    if control is None:
        struct.pack_into("<I", space, 0x148, 0x0019 | 1 << 16)
    else:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x5F, control)
    return bytes(space)


#: The values that lspci shows as "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-", which
#: the kernel sets with an IOMMU, the same with DirectTrans+, and SrcValid+ alone.
REDIRECTS, TRANSLATED, HARMLESS = 0x1D, 0x5D, 0x01


@pytest.mark.parametrize(
    ("control", "is_redirecting"),
    [(REDIRECTS, True), (0x04, True), (0x08, True), (TRANSLATED, False), (HARMLESS, False), (0, False), (None, False)],
)
def test_control_register(control: int | None, is_redirecting: bool) -> None:
    assert peer_access.parse_acs_control(config_space(control)) == control
    assert peer_access.is_redirecting(control) == is_redirecting


@pytest.mark.parametrize("header", [0x0001 | 2 << 16 | 0x100 << 20, 0xFFFFFFFF, 0x0001 | 0xFFC << 20])
def test_damaged_list_of_capabilities_ends(header: int) -> None:
    space = bytearray(0x1000)
    struct.pack_into("<I", space, 0x100, header)
    assert peer_access.parse_acs_control(bytes(space)) is None


def test_switch_ports_are_those_between_two_devices() -> None:
    paths = {
        "a": ["root", "up", "down1", "a"],
        "b": ["root", "up", "down2", "b"],
        "c": ["other", "c"],
        # Two functions below a root port, without a switch.
        "d": ["third", "d"],
        "e": ["third", "e"],
        # A switch below a switch.
        "f": ["root", "up", "down3", "up2", "down4", "f"],
    }
    assert peer_access.find_switch_ports(paths) == ["down1", "down2", "down3", "down4", "up2"]


@pytest.mark.parametrize(
    ("controls", "size", "status"),
    [
        ([REDIRECTS, REDIRECTS, REDIRECTS], 0x1000, "fail"),
        ([HARMLESS, REDIRECTS, HARMLESS], 0x1000, "fail"),
        ([0, 0, 0], 0x1000, "pass"),
        ([None, None, None], 0x1000, "pass"),
        # As anybody but root can read it.
        ([REDIRECTS, REDIRECTS, REDIRECTS], 0x40, "error"),
        # A virtual machine with a bus that is not PCI Express.
        ([None, None, None], 0x100, "pass"),
    ],
)
def test_switch_of_a_host(tmp_path: Path, controls: list[int | None], size: int, status: str) -> None:
    host = PciHost(tmp_path)
    for address, control in zip(("0000:18:00.0", "0000:18:01.0", "0000:18:02.0"), controls):
        (tmp_path / f"sys/bus/pci/devices/{address}/config").write_bytes(config_space(control)[:size])
    check_context = run.CheckContext(ExpectedState(), host.tree, lambda *_argv: CommandResult(0, "", ""))
    (result,) = run.run_selected_checks(check_context, "n1", ["acs"])
    assert result["status"] == status, result
    if status == "fail":
        assert ("0000:18:00.0" in result["reason"]) == (controls[0] == REDIRECTS)
        assert "setpci" in result["remedy"]


def test_container_does_not_judge_its_host(tmp_path: Path) -> None:
    host = PciHost(tmp_path)
    (tmp_path / ".dockerenv").write_text("", encoding="utf-8")
    check_context = run.CheckContext(ExpectedState(), host.tree, lambda *_argv: CommandResult(0, "", ""))
    (result,) = run.run_selected_checks(check_context, "n1", ["acs"])
    assert (result["status"], result["reason"]) == (
        "skipped",
        "This is a container, and the settings of the PCI bus are those of its host.",
    )


@pytest.mark.parametrize(
    ("model", "link_counts", "mig_modes", "status"),
    [
        ("NVIDIA H100 80GB HBM3", [18, 18], ["Disabled", "Disabled"], "fail"),
        # A driver without this field, and a GPU that is partitioned on purpose.
        ("NVIDIA H100 80GB HBM3", [18, 18], [], "fail"),
        ("NVIDIA H100 80GB HBM3", [18, 18], ["Disabled", "Enabled"], "pass"),
        # A virtual machine with GPUs of a board that are not connected, and cards with a bridge.
        ("NVIDIA H100 80GB HBM3", [0, 0], [], "skipped"),
        ("NVIDIA A40", [4, 4], [], "skipped"),
    ],
)
def test_only_gpus_that_nvlink_connects_must_have_access(
    tmp_path: Path, model: str, link_counts: list[int], mig_modes: list[str], status: str
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("", encoding="utf-8")
    mig = "--query-gpu=index,mig.mode.current"
    modes = "".join(f"{number}, {mode}\n" for number, mode in enumerate(mig_modes))
    answers = {"topo": matrix("X NS", "NS X"), "nvlink": nvlink(model, *link_counts), mig: modes}
    check_context = run.CheckContext(
        ExpectedState(),
        PciHost(tmp_path).tree,
        lambda argv, **_options: CommandResult(0, answers[argv[1]], ""),
        lambda name: f"/bin/{name}" if name == "nvidia-smi" else None,
    )
    (result,) = run.run_selected_checks(check_context, "n1", ["gpu_access"])
    assert result["status"] == status, result
