# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Errors of AMD GPUs in sysfs, in the form that the kernel's Documentation/gpu/amdgpu/ras.rst and amd-smi expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import CheckResult, ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

ADDRESSES = {"renderD128": "0000:05:00.0", "renderD129": "0000:9d:00.0"}


def check(tmp_path: Path, name: str, files: dict[str, str]) -> CheckResult:
    """The result of a check on a host with two GPUs of AMD, of which the second one has these files."""
    contents = {"dev/kfd": "", "sys/class/drm/placeholder": ""}
    for node, address in ADDRESSES.items():
        contents[f"dev/dri/{node}"] = ""
        contents[f"sys/devices/pci0000:00/{address}/vendor"] = "0x1002\n"
        contents[f"sys/devices/pci0000:00/{address}/drm/{node}/uevent"] = ""
    device = f"sys/devices/pci0000:00/{ADDRESSES['renderD129']}"
    contents.update({f"{device}/ras/{file}": text for file, text in files.items()})
    for path, text in contents.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    for node, address in ADDRESSES.items():
        (tmp_path / f"sys/devices/pci0000:00/{address}/drm/{node}/device").symlink_to("../..")
        (tmp_path / f"sys/class/drm/{node}").symlink_to(f"../../devices/pci0000:00/{address}/drm/{node}")
    check_context = run.CheckContext(
        ExpectedState(gpus=2),
        Tree(str(tmp_path)),
        lambda _argv, **_options: CommandResult(0, "", ""),
        lambda _name: None,
    )
    (result,) = run.run_selected_checks(check_context, "n1", [name])
    return result


@pytest.mark.parametrize(
    ("files", "status", "reason"),
    [
        ({"umc_err_count": "ue: 0\nce: 0\n", "gfx_err_count": "ue: 0\nce: 0\n", "features": "feature mask: 0x1\n"}, "pass", ""),
        ({"umc_err_count": "ue: 0\nce: 17\n"}, "pass", ""),
        ({"aca_umc": "ue: 0\nce: 3\nde: 2\n"}, "pass", ""),
        # A card that sleeps: each reading adds 0xffff0.
        ({"umc_err_count": "ue: 2097120\nce: 2097120\n"}, "pass", ""),
        (
            {"umc_err_count": "ue: 1\nce: 0\n", "xgmi_wafl_err_count": "ue: 2\nce: 0\n"},
            "fail",
            "Uncorrectable errors: GPU 0000:9d:00.0, block umc: 1, GPU 0000:9d:00.0, block xgmi_wafl: 2.",
        ),
        ({"aca_gfx": "ue: 4\nce: 0\nde: 0\n"}, "fail", "Uncorrectable errors: GPU 0000:9d:00.0, block gfx: 4."),
        ({}, "skipped", "These GPUs do not report memory errors (RAS)."),
        ({"umc_err_count": "Operation not supported\n"}, "skipped", "These GPUs do not report memory errors (RAS)."),
    ],
)  # fmt: skip
def test_uncorrectable_errors_of_amd_gpus(tmp_path: Path, files: dict[str, str], status: str, reason: str) -> None:
    result = check(tmp_path, "gpu_ecc", files)
    assert (result["status"], result["reason"]) == (status, reason)


@pytest.mark.parametrize(
    ("pages", "status"),
    [
        ("", "pass"),
        ("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P\n", "pass"),
        ("0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : F\n", "fail"),
    ],
)
def test_bad_pages_of_amd_gpus(tmp_path: Path, pages: str, status: str) -> None:
    result = check(tmp_path, "gpu_retired", {"gpu_vram_bad_pages": pages})
    assert result["status"] == status
    assert ("0000:9d:00.0" in result["reason"]) == (status == "fail")


def test_amd_gpus_without_a_list_of_bad_pages_are_skipped(tmp_path: Path) -> None:
    assert check(tmp_path, "gpu_retired", {})["status"] == "skipped"


MESSAGES = (
    "4,2001,9000000001,-;amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 1 new uncorrectable hardware errors detected in umc "
    "block\n3,2003,9000000900,-;amdgpu 0000:9d:00.0: amdgpu: GPU reset end with ret = -62\n"
)


def test_kernel_log_of_an_amd_node_is_judged(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(MESSAGES, encoding="utf-8")
    result = check(tmp_path, "gpu_xid", {})
    assert (result["status"], result["actual"]) == ("fail", 2)
    assert "umc block of GPU 0000:9d:00.0" in result["reason"]


def test_kernel_log_of_an_nvidia_node_with_an_amd_display_is_not_judged_by_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").write_text("", encoding="utf-8")
    (tmp_path / "dev/kmsg").write_text(MESSAGES, encoding="utf-8")
    assert check(tmp_path, "gpu_xid", {})["status"] == "pass"


def test_kernel_log_tells_why_a_driver_did_not_start(tmp_path: Path) -> None:
    """The GPU has no device file, and the driver that did not start has no files in /proc."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kmsg").write_text(
        "3,1001,1843308145,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system "
        "has\\x0aNVRM: fallen off the bus and is not responding to commands.\n",
        encoding="utf-8",
    )
    check_context = run.CheckContext(
        ExpectedState(gpus=1),
        Tree(str(tmp_path)),
        lambda _argv, **_options: CommandResult(0, "", ""),
        lambda _name: None,
    )
    (result,) = run.run_selected_checks(check_context, "n1", ["gpu_xid"])
    assert (result["status"], result["reason"]) == ("fail", "GPU 0000:b3:00.0 fell off the bus, 1 ×.")
