# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import passed
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import ParseError

HEALTHY = "0, NVIDIA H100 80GB HBM3, 0, [N/A], 16, 16, 31\n1, NVIDIA H100 80GB HBM3, 0, [N/A], 16, 16, 33\n"
GEFORCE = "0, NVIDIA GeForce RTX 4090, [N/A], [N/A], 8, 16, 41\n"


def test_healthy_gpus_pass() -> None:
    gpus = gpu.parse_query(HEALTHY)
    assert [judgement["index"] for judgement in gpus] == ["0", "1"]
    assert gpu.judge_ecc(gpus).status == "pass"
    assert gpu.judge_pcie(gpus) == passed("x16", "x16")


def test_unsupported_features_are_skipped() -> None:
    gpus = gpu.parse_query(GEFORCE)
    assert gpu.judge_ecc(gpus).status == "skipped"
    assert gpu.judge_retired(gpus, None).status == "skipped"


def test_a_narrow_link_is_named() -> None:
    judged = gpu.judge_pcie(gpu.parse_query(GEFORCE))
    assert (judged.status, judged.reason) == ("fail", "GPU 0 at x8 of x16.")


def test_an_uncorrected_error_is_named_with_its_gpu() -> None:
    judged = gpu.judge_ecc(
        gpu.parse_query(HEALTHY.replace("1, NVIDIA H100 80GB HBM3, 0", "1, NVIDIA H100 80GB HBM3, 3"))
    )
    assert (judged.status, judged.actual, judged.reason) == ("fail", 3, "Uncorrected memory errors: GPU 1: 3.")
    assert judged.remedy


@pytest.mark.parametrize(
    ("remapped", "status"),
    [
        ("00000000:1B:00.0, 0, 0\n", "pass"),
        ("00000000:1B:00.0, 1, 0\n", "fail"),
        ("00000000:1B:00.0, 0, 1\n", "fail"),
        ("00000000:1B:00.0, No, No\n", "pass"),
        ("00000000:1B:00.0, Yes, No\n", "fail"),
        ("00000000:1B:00.0, No, Yes\n", "fail"),
        ("00000000:1B:00.0, [N/A], [N/A]\n", "skipped"),
        ("No remapped rows\n", "skipped"),
    ],
)
def test_remapped_rows(remapped: str, status: str) -> None:
    assert gpu.judge_retired(gpu.parse_query(HEALTHY), remapped).status == status


def test_an_error_message_of_nvidia_smi_is_not_a_table() -> None:
    with pytest.raises(ParseError):
        gpu.parse_query("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n")


@pytest.mark.parametrize(
    ("present_count", "problem", "expected", "status"),
    [
        (8, None, 8, "pass"),
        (7, None, 8, "fail"),
        (9, None, 8, "fail"),
        (0, "no driver", 8, "fail"),
        (2, None, None, "skipped"),
        (0, None, 0, "pass"),
        (0, "no driver", 0, "fail"),
        (7, "one has no file", 8, "fail"),
        # The other one may be that of a virtual machine.
        (7, "one has no file", 7, "pass"),
        (7, "one has no file", None, "skipped"),
    ],
)
def test_count(present_count: int, problem: str | None, expected: int | None, status: str) -> None:
    assert gpu.judge_gpu_count(present_count, problem, expected).status == status


@pytest.mark.parametrize(
    ("recovery_output", "names"),
    [
        ("0, None\n1, None\n", []),
        ("0, None\n1, Reset\n", ["GPU 1 (Reset)"]),
        ("0, Drain P2P\n1, Drain and Reset\n", ["GPU 0 (Drain P2P)", "GPU 1 (Drain and Reset)"]),
        ("0, Reboot\n", ["GPU 0 (Reboot)"]),
        ("0, [N/A]\n", []),
        # Older drivers.
        ('Field "gpu_recovery_action" is not a valid field to query.\n\n', []),
        ("", []),
    ],
)
def test_gpu_that_requires_a_reset(recovery_output: str, names: list[str]) -> None:
    judged = gpu.judge_recovery(recovery_output, 8, 8)
    assert (judged is None) == (not names)
    if judged:
        assert (judged.status, judged.actual, judged.required) == ("fail", 8 - len(names), 8)
        assert all(name in judged.reason for name in names)


def kmsg(*messages: str, facility: int = 0) -> str:
    """Records in the form of /dev/kmsg, with the level of an error."""
    return "".join(f"{facility * 8 + 3},{5000 + i},99000{i},-;{text}\n" for i, text in enumerate(messages))


def test_xid_of_hardware_fails_and_of_a_program_does_not() -> None:
    program = "NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=python3, MMU Fault"
    assert gpu.judge_xid(kmsg(program)).status == "pass"
    judged = gpu.judge_xid(kmsg(program, "NVRM: Xid (PCI:0000:3d:00): 79, pid=2, GPU has fallen off the bus."))
    assert (judged.status, judged.actual) == ("fail", 1)
    assert "fell off the bus" in judged.reason and "0000:3d:00" in judged.reason
    assert gpu.judge_xid(None).status == "error"


def test_host_state_invisible_in_a_container_is_skipped() -> None:
    assert gpu.judge_xid(None, container=True).status == "skipped"
    assert gpu.judge_xid(kmsg("NVRM: Xid (PCI:0000:3d:00): 79, fell off the bus"), container=True).status == "fail"
    assert gpu.judge_fabric_manager(None, True, container=True).status == "skipped"
    assert gpu.judge_fabric_manager("failed", True, container=True).status == "fail"
    assert gpu.judge_fabric_manager(None, True).status == "error"
    assert gpu.judge_fabric_manager(None, False).status == "skipped"


@pytest.mark.parametrize(
    "real",
    [
        "NVRM: Xid (PCI:0000:3D:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3d:00.0): 79",
        "NVRM: Xid (0000:3d:00): 48, Double Bit ECC Error",
        "NVRM: Xid (PCI:00010000:3d:00): 119, pid=7, name=x, Timeout after 6s of waiting for RPC response",
    ],
)
def test_xid_message_formats_of_the_driver(real: str) -> None:
    assert gpu.judge_xid(kmsg(real)).status == "fail"


@pytest.mark.parametrize(
    "forged",
    [
        # A program's name, up to 15 characters, starts the kernel's message about its crash, which also has its file's
        # name.
        "NVRM: Xid (0): [4711]: segfault at 0 ip 0000555 sp 00007ff error 6 in NVRM: Xid (0): 79[1139,555+1000]",
        "a[9]: segfault at 0 ip 01 sp 07 error 6 in NVRM: Xid (PCI:0000:3d:00): 79, fell off[1139,555+1000]",
        "NVRM: Xid (): 7[4711]: segfault at 0 ip 0000555 sp 00007ff error 6",
        # The name has a line break, which the kernel escapes here, but prints elsewhere.
        "a[9]: segfault at 0 error 6 in x\\x0aNVRM: Xid (PCI:0000:3d:00): 79, fell off[1139,555+1000]",
        "NVRM: Xid (PCI:0000:3d:00): 79x",
        "NVRM: Xid (PCI:0000:3d:00): 790",
        "NVRM: Xid (PCI:zzzz:3d:00): 79, GPU has fallen off the bus.",
    ],
)
def test_messages_that_users_can_cause_are_not_xids(forged: str) -> None:
    assert gpu.judge_xid(kmsg(forged)).status == "pass"


def test_only_the_kernels_own_records_count() -> None:
    real = "NVRM: Xid (PCI:0000:3d:00): 79, GPU has fallen off the bus."
    assert gpu.judge_xid(kmsg(real, facility=1)).status == "pass"
    assert gpu.judge_xid(kmsg("usb 1-1: plugged") + f" DEVICE={real}\n").status == "pass"
    assert gpu.judge_xid(real).status == "pass"


NVLINK = """GPU 0: NVIDIA A100 (UUID: GPU-1)
\t Link 0: 25 GB/s
\t Link 1: 25 GB/s
GPU 1: NVIDIA A100 (UUID: GPU-2)
\t Link 0: 25 GB/s
\t Link 1: <inactive>
"""


def nvlink(*gpus: str) -> str:
    """The output about GPUs with these links, each up (x) or down (-)."""
    lines = []
    for index, links in enumerate(gpus):
        lines.append(f"GPU {index}: NVIDIA A100 (UUID: GPU-{index})")
        lines += [
            f"\t Link {number}: {'25 GB/s' if link == 'x' else '<inactive>'}" for number, link in enumerate(links)
        ]
        if not links:
            lines.append("\t NVML: Unable to retrieve NVLink information as all links are inActive")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("gpus", "switched", "partitioned", "status"),
    [
        # Bridges: between some GPUs, with some of their slots.
        (["xx", "xx", "--", "--"], False, [], "pass"),
        (["xx--", "xx--"], False, [], "pass"),
        (["xx", "xx", "", ""], False, [], "pass"),
        (["xxxx", "xxxx", "xx--", "xx--"], False, [], "fail"),
        (["--", "--"], False, [], "skipped"),
        # NVSwitches: each GPU with each of its links.
        (["xxx", "xxx"], True, [], "pass"),
        (["xx-", "xx-"], True, [], "fail"),
        (["xxx", "---"], True, [], "fail"),
        (["xxx", ""], True, [], "fail"),
        (["---", "---"], True, [], "fail"),
        (["", ""], True, [], "fail"),
        # Partitioned GPUs do not use them.
        (["xxx", "---"], True, ["1"], "pass"),
        (["---", "---"], True, ["0", "1"], "skipped"),
    ],
)
def test_nvlink_state_by_topology(gpus: list[str], switched: bool, partitioned: list[str], status: str) -> None:
    judged = gpu.judge_nvlink(nvlink(*gpus), 0, switched, partitioned)
    assert judged.status == status, judged
    assert bool(judged.reason) == (status != "pass")


def test_partitioned_gpus_are_those_with_mig() -> None:
    assert gpu.parse_partitioned("0, Enabled\n1, Disabled\n2, [N/A]\n") == ["0"]
    assert gpu.parse_partitioned('Field "mig.mode.current" is not a valid field to query.\n') == []


def test_nvlink() -> None:
    judged = gpu.judge_nvlink(NVLINK)
    assert (judged.status, judged.actual, judged.required) == ("fail", 3, 4)
    assert gpu.judge_nvlink(NVLINK.replace("<inactive>", "25 GB/s")).status == "pass"
    assert gpu.judge_nvlink("").status == "skipped"


@pytest.mark.parametrize(
    ("text", "rc", "status"),
    [
        ("", 1, "error"),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.", 15, "error"),
        (NVLINK.replace("<inactive>", "25 GB/s"), 15, "error"),
        ("Failed to initialize NVML: Unknown Error", 0, "error"),
        ("NVML: Unable to get NVLink state: Not Supported", 0, "skipped"),
        ("NVML: Unable to get NVLink state: Not Supported", 3, "skipped"),
        ("GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-1)\n", 0, "skipped"),
    ],
)
def test_unknown_nvlink_state_is_an_error(text: str, rc: int, status: str) -> None:
    judged = gpu.judge_nvlink(text, rc)
    assert (judged.status, bool(judged.reason)) == (status, True)


def dcgm(status: str) -> str:
    test = {"name": "PCIe", "results": [{"gpu_ids": "0", "status": status, "warnings": [{"warning": "slow link"}]}]}
    good = {"name": "Memory", "results": [{"gpu_ids": "0", "status": "Pass"}]}
    categories = [{"category": "Integration", "tests": [good, test]}]
    return "Some banner\n" + json.dumps({"DCGM Diagnostic": {"test_categories": categories}})


@pytest.mark.parametrize(
    ("status", "expected"), [("Pass", "pass"), ("Skip", "pass"), ("Warn", "pass"), ("Fail", "fail")]
)
def test_dcgm_is_judged_by_each_result(status: str, expected: str) -> None:
    judged = gpu.judge_dcgm(dcgm(status))
    assert judged.status == expected
    if expected == "fail":
        assert judged.reason == "Integration / PCIe Fail (slow link)."


def test_dcgm_without_tests_does_not_pass() -> None:
    assert gpu.judge_dcgm("").status == "error"
    assert gpu.judge_dcgm("{}").status == "error"
    assert gpu.judge_dcgm('{"a": [{"status": "Skip"}]}').status == "error"


@given(st.text())
def test_parsers_accept_any_text(text: str) -> None:
    assert gpu.judge_nvlink(text).status in ("pass", "fail", "skipped", "error")
    assert gpu.judge_xid(text).status in ("pass", "fail")
    assert gpu.judge_dcgm(text).status != "pass"


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["status", "warnings", "name", "x"]), inner),
    )
)
def test_dcgm_accepts_any_json(value: object) -> None:
    gpu.judge_dcgm(json.dumps({"top": value}))
