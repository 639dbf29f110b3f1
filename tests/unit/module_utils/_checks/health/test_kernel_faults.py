# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Messages of drivers as others have published them. Each row has its source, the messages, and the faults in them."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, kernel_faults

NVSENTINEL = "https://github.com/NVIDIA/NVSentinel"
GPUD = "https://github.com/leptonai/gpud"
ROCM = "https://github.com/ROCm/legacy-rocm-build"
XID_CATALOGUE = "https://docs.nvidia.com/deploy/xid-errors/"
MEMORY_ERRORS = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"

FAULTY = [
    (
        MEMORY_ERRORS,
        ["NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"],
        {"Xid 94 (contained memory error) on 0000:01:00": 1},
    ),
    (
        "https://github.com/NVIDIA/open-gpu-kernel-modules (kernel_rc.c)",
        ["NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 79, GPU has fallen off the bus."],
        {"Xid 79 (fell off the bus) on 0000:01:00": 1},
    ),
    (
        "https://github.com/akash-network/support/issues/244",
        ["NVRM: Xid (PCI:0000:00:08): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No"],
        {"Xid 94 (contained memory error) on 0000:00:08": 1},
    ),
    (
        "https://github.com/stas00/ml-engineering (compute/accelerator/nvidia/debug.md)",
        [
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate."
        ],
        {"Xid 63 (memory row remapped, not yet in effect) on 0000:10:1c": 1},
    ),
    (
        f"{NVSENTINEL} (tests of its parser of Xids)",
        [
            (
                "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x025525c6 0x00000000 0x00000000 "
                "0x00000000 0x00000000 0x00000000)"
            )
        ],
        {"Xid 149 (fatal NVLink error) on 0018:01:00": 1},
    ),
    (
        f"{GPUD}/pull/1174",
        ["NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000 0x00000000)"],
        {"Xid 149 (fatal NVLink error) on 0019:01:00": 1},
    ),
    (
        f"{NVSENTINEL} (tests of its parser of Xids)",
        [
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        ],
        {"Xid 154 (the driver requires: GPU Reset Required) on 0008:01:00": 1},
    ),
    (
        # The driver says the same three times.
        "A public report with driver 610",
        [
            "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
            "NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.",
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        ],
        {
            "Xid 79 (fell off the bus) on 0000:01:00": 1,
            "Xid 154 (the driver requires: OS Reboot) on 0000:01:00": 1,
        },
    ),
    (
        f"{NVSENTINEL}/issues/155",
        [
            (
                "NVRM: The NVIDIA GPU 0000:b3:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\\x0a"
                "NVRM: fallen off the bus and is not responding to commands."
            ),
            "NVRM: The NVIDIA probe routine failed for 1 device(s).",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        ],
        {"GPU 0000:b3:00.0 fell off the bus": 1},
    ),
    (
        "The same in a record for each line",
        [
            "NVRM: The NVIDIA GPU 0000:b3:00.0",
            "NVRM: (PCI ID: 10de:26b5) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
        {"GPU 0000:b3:00.0 fell off the bus": 1},
    ),
    (
        "A public report about an RTX 2080 Ti in a virtual machine",
        [
            (
                "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1e07) installed in this\\x0a"
                "NVRM: system has fallen off the bus and is not responding to commands."
            )
        ],
        {"GPU 0000:01:00.0 fell off the bus": 1},
    ),
    (
        "A public report about an external GPU",
        [
            (
                "NVRM: The NVIDIA GPU 0000:05:00.0 installed in this system has fallen off the bus and is not responding to "
                "commands."
            )
        ],
        {"GPU 0000:05:00.0 fell off the bus": 1},
    ),
    (
        "https://pipci.jeffgeerling.com, of a card in a Raspberry Pi",
        [
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x62:0xffff:1863)",
            "NVRM: GPU 0000:01:00.0: rm_init_adapter failed, device minor number 0",
        ],
        {"the driver could not start GPU 0000:01:00.0": 1},
    ),
    (
        "A report of 2011 with driver 285",
        ["NVRM: RmInitAdapter failed! (0x27:0x38:1193)", "NVRM: rm_init_adapter(0) failed"],
        {"the driver could not start a GPU": 1},
    ),
    (
        "A public report about H100 GPUs in a virtual machine",
        ["NVRM: GPU 0000:00:07.0 / 0000:00:0b.0: RmInitAdapter failed! (0x62:0x40:2028)"],
        {"the driver could not start GPU 0000:00:07.0": 1},
    ),
    (
        f"{NVSENTINEL} (tests of its parser of SXids)",
        ["nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)"],
        {"SXid 24007 (fatal NVSwitch error) on 0000:c3:00.0": 1},
    ),
    (
        f"{GPUD}, after https://docs.nvidia.com/datacenter/tesla/pdf/fabric-manager-user-guide.pdf",
        [
            "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
            "nvidia-nvswitch3: SXid (PCI:0000:87:00.0): 20034, Data {0x50610002, 0x10100030, 0x00000000, 0x10100030}",
        ],
        {"SXid 20034 (fatal NVSwitch error) on 0000:87:00.0": 1},
    ),
    (
        f"{ROCM}/issues/4021",
        ["amdgpu 0000:68:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"],
        {"uncorrectable hardware error of GPU 0000:68:00.0": 1},
    ),
    (
        f"{ROCM}/issues/1886",
        [
            "amdgpu 0000:e3:00.0: amdgpu: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
            "amdgpu 0000:e3:00.0: amdgpu: GPU reset begin!",
            "amdgpu 0000:e3:00.0: amdgpu: GPU reset end with ret = -62",
            "amdgpu 0000:e3:00.0: amdgpu: GPU reset begin!",
        ],
        {
            "uncorrectable hardware error of GPU 0000:e3:00.0": 1,
            "failed reset of GPU 0000:e3:00.0 (GPU reset end with ret = -62)": 1,
        },
    ),
    (
        "amdgpu_ras.c of Linux 6.8",
        [
            "amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 1 new uncorrectable hardware errors detected in umc block",
            "amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 1 uncorrectable hardware errors detected in total in umc block",
        ],
        {"uncorrectable errors in the umc block of GPU 0000:9d:00.0": 1},
    ),
    (
        "amdgpu_ras.c of Linux 5.15",
        ["amdgpu 0000:c1:00.0: amdgpu: 2 uncorrectable hardware errors detected in xgmi_wafl block"],
        {"uncorrectable errors in the xgmi_wafl block of GPU 0000:c1:00.0": 1},
    ),
    (
        f"{ROCM}/issues/1552",
        ["amdgpu 0000:03:00.0: amdgpu: Fatal error during GPU init"],
        {"the driver could not start GPU 0000:03:00.0": 1},
    ),
    (
        "amdgpu_ras_eeprom.c of Linux 5.15",
        [
            (
                "amdgpu 0000:03:00.0: amdgpu: RAS records:260 exceed threshold:256, GPU will not be initialized. Replace this "
                "GPU or increase the threshold"
            )
        ],
        {"too many bad memory pages of GPU 0000:03:00.0": 1},
    ),
    (
        "https://lists.freedesktop.org/mailman/listinfo/amd-gfx, of 2021",
        ["amdgpu 0000:03:00.0: amdgpu: Saved bad pages(256) reaches threshold value(256)."],
        {"too many bad memory pages of GPU 0000:03:00.0": 1},
    ),
    (
        "The same in amdgpu_ras_eeprom.c of Linux 6.8",
        ["amdgpu 0000:9d:00.0: amdgpu: Saved bad pages 256 reaches threshold value 256"],
        {"too many bad memory pages of GPU 0000:9d:00.0": 1},
    ),
    (
        "Public reports about GPUs that left the bus under load",
        ["amdgpu 0000:03:00.0: amdgpu: device lost from bus!"],
        {"GPU 0000:03:00.0 fell off the bus": 1},
    ),
    (
        "https://lists.freedesktop.org/mailman/listinfo/amd-gfx, without the name of the driver",
        ["amdgpu 0000:0a:00.0: GPU reset(2) failed", "amdgpu 0000:0a:00.0: GPU reset end with ret = -110"],
        {"failed reset of GPU 0000:0a:00.0 (GPU reset end with ret = -110)": 1},
    ),
]

HEALTHY = [
    (
        "https://github.com/akash-network/support/issues/244",
        [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024",
            "NVRM: GPU at PCI:0000:00:05: GPU-efbdfde9-5798-a6e7-4c46-12518fa15375",
            "NVRM: GPU Board Serial Number: 1650423013443",
            "NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008",
            (
                "NVRM: Xid (PCI:0000:00:07): 31, pid=2512125, name=python3.10, Ch 00000008, intr 00000000. MMU Fault: ENGINE "
                "GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
            ),
        ],
    ),
    (
        f"{GPUD}/pull/46",
        [
            "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
            (
                "NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC "
                "7, SM 0): Illegal Instruction Parameter"
            ),
            (
                "NVRM: Xid (PCI:0000:cb:00): 109, pid=1797828, name=pt_main_thread, Ch 00000008, errorString CTX SWITCH "
                "TIMEOUT, Info 0x58005"
            ),
        ],
    ),
    (
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1150, of a GPU that was not at fault itself",
        ["NVRM: Xid (PCI:0000:97:00): 45, pid=1818987, name=python3, Ch 00000003 caused by previous Xid 145"],
    ),
    (
        "A program's fault on a partitioned GPU",
        ["NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception"],
    ),
    (
        f"{GPUD}/pull/1160",
        [
            "NVRM: Xid (PCI:0000:01:00): 144, SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000)",
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001)",
        ],
    ),
    (
        "A GPU that was reset",
        [
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        ],
    ),
    (
        f"{NVSENTINEL} (tests of its parser of SXids)",
        [
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate",
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 28006, Non-fatal, Link 29 MC TS crumbstore MCTO",
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
        ],
    ),
    (
        "https://github.com/NVIDIA/nvtrust/issues/55, and then another driver",
        [
            "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.10",
            (
                "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:2330)\\x0aNVRM: installed in this system is not supported by "
                "the\\x0aNVRM: NVIDIA 550.90.07 driver release."
            ),
            "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x26:0x56:1474)",
            "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.10",
        ],
    ),
    (
        "https://github.com/lamikr/rocm_sdk_builder/issues/141: a program's fault, after which the GPU works again",
        [
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset begin!",
            "amdgpu 0000:c3:00.0: amdgpu: MODE2 reset",
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset succeeded, trying to resume",
            "[drm] PCIE GART of 512M enabled (table at 0x000000807FD00000).",
            "amdgpu 0000:c3:00.0: amdgpu: SMU is resumed successfully!",
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset(1) succeeded!",
        ],
    ),
    (
        "https://lists.freedesktop.org/mailman/listinfo/amd-gfx, of 2026",
        [
            "amdgpu 0000:0a:00.0: Ring gfx_0.0.0 reset failed",
            "amdgpu 0000:0a:00.0: GPU reset begin!. Source:  1",
            "amdgpu 0000:0a:00.0: Guilty job already signaled, skipping HW reset",
            "amdgpu 0000:0a:00.0: GPU reset(1) succeeded!",
            "amdgpu 0000:0a:00.0: [drm] device wedged, but recovered through reset",
        ],
    ),
    (
        "Starts of GPUs in several public logs",
        [
            "amdgpu 0000:05:00.0: amdgpu: RAS: optional ras ta ucode is not available",
            "amdgpu 0000:05:00.0: amdgpu: SECUREDISPLAY: securedisplay ta ucode is not available",
            "amdgpu 0000:05:00.0: amdgpu: SMU is resuming...",
            "[drm] VRAM is lost due to GPU reset!",
        ],
    ),
    (
        "A reset that worked at the second attempt",
        [
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset(1) failed",
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset end with ret = -110",
            "amdgpu 0000:c3:00.0: amdgpu: GPU reset(2) succeeded!",
        ],
    ),
    (
        f"{ROCM}/issues/1886, at the start",
        ["amdgpu 0000:e3:00.0: amdgpu: MEM ECC is active.", "amdgpu 0000:e3:00.0: amdgpu: SRAM ECC is active."],
    ),
    (
        "A card that sleeps, whose registers rocm-smi --showrasinfo reads: each reading adds 0xffff0",
        [
            "amdgpu 0000:0b:00.0: 1048560 correctable hardware errors detected in umc block",
            "amdgpu 0000:0b:00.0: 2097120 uncorrectable hardware errors detected in umc block",
        ],
    ),
    (
        "amdgpu_ras.c: errors that were corrected, or whose data nobody used",
        [
            "amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 4 new correctable hardware errors detected in umc block",
            "amdgpu 0000:9d:00.0: {1}socket: 6, die: 1, 1 new deferred hardware errors detected in umc block",
            "amdgpu 0000:c3:00.0: amdgpu: no uncorrectable hardware errors detected in umc block",
            "amdgpu 0000:c3:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block",
        ],
    ),
]

FORGED = [
    # The name of a program has up to 15 characters, and its file may have any name.
    "NVRM: fallen of[4711]: segfault at 0 ip 01 sp 07 error 6 in NVRM: fallen off the bus[1139,555+1000]",
    "NVRM: GPU 0000:[4711]: segfault at 0 ip 01 sp 07 error 6 in 01:00.0: RmInitAdapter failed![1139,555+1000]",
    "nvidia-nvswitch[4711]: segfault at 0 ip 01 sp 07 error 6 in nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 1, Fatal[1]",
    "nvidia 0000:03:[4711]: segfault at 0 ip 01 sp 07 error 6 in nvidia 0000:03:00.0: AER: can't recover[1139,555+1000]",
    "amdgpu 0000:9d:[4711]: segfault at 0 ip 01 sp 07 error 6 in amdgpu 0000:9d:00.0: device lost from bus![1]",
    "a[9]: segfault at 0 error 6 in x\\x0aamdgpu 0000:9d:00.0: GPU reset end with ret = -62[1139,555+1000]",
    "a[9]: segfault at 0 error 6 in x\\x0aNVRM: fallen off the bus and is not responding to commands.[1139,555+1000]",
    # The name of the program that has an Xid.
    "NVRM: Xid (PCI:0018:01:00): 145, pid=1, name=x Fatal, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)",
]


def kmsg(messages: list[str]) -> str:
    return "".join(f"4,{4001 + number},9000000001,-;{text}\n" for number, text in enumerate(messages))


@pytest.mark.parametrize(("source", "messages", "faults"), FAULTY, ids=range(len(FAULTY)))
def test_published_faults_are_found(source: str, messages: list[str], faults: dict[str, int]) -> None:
    assert kernel_faults.read_faults(messages, True).count_faults() == faults, source
    judged = gpu.judge_xid(kmsg(messages))
    assert (judged.status, judged.actual, bool(judged.remedy)) == ("fail", sum(faults.values()), True)
    assert all(name in judged.reason for name in faults)


@pytest.mark.parametrize(("source", "messages"), HEALTHY, ids=range(len(HEALTHY)))
def test_messages_of_healthy_gpus_are_not_faults(source: str, messages: list[str]) -> None:
    assert gpu.judge_xid(kmsg(messages)).status == "pass", source


@pytest.mark.parametrize(
    ("number", "status"),
    [
        # What NVIDIA's catalogue of 2025 wants to have reset, restarted or mechanically checked.
        *((number, "fail") for number in (48, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158)),
        # What it wants to have ignored, or only the program restarted, or programs can cause.
        *((number, "pass") for number in (13, 31, 32, 43, 45, 46, 68, 69, 106, 109, 121, 137, 141, 155, 160, 162)),
    ],
)
def test_xids_are_judged_by_their_documented_action(number: int, status: str) -> None:
    message = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1, name=python3, text"
    assert gpu.judge_xid(kmsg([message])).status == status


@pytest.mark.parametrize("message", FORGED)
def test_users_cannot_cause_faults_in_the_log(message: str) -> None:
    assert gpu.judge_xid(kmsg([message])).status == "pass"


def test_amd_gpus_for_a_display_are_not_judged() -> None:
    messages = ["amdgpu 0000:c3:00.0: amdgpu: GPU reset end with ret = -62"]
    assert gpu.judge_xid(kmsg(messages), judges_amd=False).status == "pass"
