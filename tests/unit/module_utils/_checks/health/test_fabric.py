# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The connection of GPUs to NVSwitches, from nvidia-smi. The sections are as others have published them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.catalogue import DRAINING_CHECKS
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

UNUSED_FABRIC = """    Fabric
        State                                          : N/A
        Status                                         : N/A
        CliqueId                                       : N/A
        ClusterUUID                                    : N/A
        Health
            Summary                                    : N/A
            Bandwidth                                  : N/A
            Route Recovery in progress                 : N/A
            Route Unhealthy                            : N/A
            Access Timeout Recovery                    : N/A
            Incorrect Configuration                    : N/A
"""
#: A published nvidia-smi -q of 8 H100 80GB HBM3, with driver 550.
REGISTERED = """    Fabric
        State                             : Completed
        Status                            : Success
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
        Health
            Bandwidth                     : N/A
"""
#: https://github.com/NVIDIA/gpu-operator/issues/2511, driver 580.
REGISTERING = UNUSED_FABRIC.replace("State                                          : N/A", "State : In Progress")
#: https://github.com/NVIDIA/NVSentinel/pull/1382 names this state of a host without a running fabric manager.
NOT_STARTED = UNUSED_FABRIC.replace("State                                          : N/A", "State : Not Started")
#: https://github.com/Azure/azhpc-images/pull/506
REFUSED = """    Fabric
        State                             : Completed
        Status                            : Insufficient Resources
        CliqueId                          : 0
        ClusterUUID                       : 00000000-0000-0000-0000-000000000000
"""
#: https://github.com/NVIDIA/NVSentinel/issues/883
BROKEN = REFUSED.replace("Insufficient Resources", "Unknown Error")
#: https://github.com/NVIDIA/k8s-test-infra (nvml-mock), in the form of driver 580.
HEALTHY_SUMMARY = """    Fabric
        State                                          : Completed
        Status                                         : Success
        CliqueId                                       : 4026
        ClusterUUID                                    : 9c6f5af3-53bf-49b5-a436-b66766c413c3
        Health
            Summary                                    : Healthy
            Bandwidth                                  : Full
            Route Recovery in progress                 : False
            Route Unhealthy                            : False
            Access Timeout Recovery                    : False
            Incorrect Configuration                    : None
"""
DEGRADED = HEALTHY_SUMMARY.replace("Full", "Degraded").replace("Healthy", "Limited Capacity", 1)
UNROUTED = HEALTHY_SUMMARY.replace("Unhealthy                            : False", "Unhealthy : True")
RECOVERING = HEALTHY_SUMMARY.replace("progress                 : False", "progress : True")


def query(*fabrics: str, model: str = "NVIDIA H100 80GB HBM3") -> str:
    """The output of nvidia-smi -q about GPUs with these sections."""
    head = f"\n==============NVSMI LOG==============\n\nAttached GPUs                             : {len(fabrics)}\n"
    sections = [
        f"GPU 00000000:{0x1A + number:02X}:00.0\n"
        f"    Product Name                          : {model}\n"
        "    ECC Mode\n"
        "        Current                           : Enabled\n"
        f"{fabric}"
        "    Processes                             : None\n"
        "    Capabilities\n"
        "        EGM                               : disabled\n"
        "        State                             : a later section\n"
        for number, fabric in enumerate(fabrics)
    ]
    return head + "\n".join(sections)


@pytest.mark.parametrize(
    ("fabrics", "has_switch", "status"),
    [
        ([REGISTERED] * 8, True, "pass"),
        # NVLink 5 and virtual machines: no device files of NVSwitches.
        ([REGISTERED] * 8, False, "pass"),
        ([HEALTHY_SUMMARY] * 4, False, "pass"),
        ([RECOVERING] * 4, False, "pass"),
        ([REGISTERED, REGISTERING], True, "fail"),
        ([REGISTERING] * 8, False, "fail"),
        ([REGISTERED, REFUSED], False, "fail"),
        ([REGISTERED, BROKEN], True, "fail"),
        ([HEALTHY_SUMMARY, DEGRADED], False, "fail"),
        ([HEALTHY_SUMMARY, UNROUTED], False, "fail"),
        ([NOT_STARTED] * 8, True, "fail"),
        ([REGISTERED, NOT_STARTED], False, "fail"),
        # No NVSwitch: cards, a single GPU of a board, an A100, and drivers that do not know the section.
        ([NOT_STARTED] * 2, False, None),
        ([UNUSED_FABRIC] * 8, True, None),
        ([UNUSED_FABRIC] * 2, False, None),
        ([UNUSED_FABRIC.replace("N/A", "Not Supported")], False, None),
        ([""] * 8, True, None),
    ],
)
def test_gpus_have_to_register_with_nvswitches(fabrics: list[str], has_switch: bool, status: str | None) -> None:
    judged = gpu.judge_fabric(query(*fabrics), has_switch)
    assert (judged and judged.status) == status, judged


def test_fabric_fault_is_named_with_its_gpu() -> None:
    judged = gpu.judge_fabric(query(REGISTERED, REFUSED, REGISTERING), True)
    assert judged is not None
    assert (judged.actual, judged.required) == (1, 3)
    assert judged.reason == (
        "Not all GPUs can use the NVLink fabric: GPU 00000000:1B:00.0: its registration ended with insufficient "
        "resources; GPU 00000000:1C:00.0: its state is in progress."
    )
    assert "nvidia-fabricmanager" in judged.remedy


@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    judged = gpu.judge_fabric(query(text), True)
    assert judged is None or judged.status in ("pass", "fail")


@pytest.mark.parametrize(
    ("files", "service", "fabric", "status"),
    [
        # NVSwitches of an HGX H100: the service, and each GPU.
        (["dev/nvidia-nvswitch0"], "active", REGISTERED, "pass"),
        (["dev/nvidia-nvswitch0"], "active", REGISTERING, "fail"),
        (["dev/nvidia-nvswitch0"], "failed", REGISTERED, "fail"),
        # An A100 has no such state.
        (["dev/nvidia-nvswitch0"], "active", UNUSED_FABRIC, "pass"),
        # An HGX B200, and a virtual machine.
        ([], "inactive", REGISTERED, "pass"),
        ([], "inactive", REGISTERING, "fail"),
        ([], "inactive", UNUSED_FABRIC, "skipped"),
    ],
)
def test_service_and_state_are_both_judged(
    tmp_path: Path, files: list[str], service: str, fabric: str, status: str
) -> None:
    for name in ("proc/driver/nvidia/version", *files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    answers = {"-q": query(fabric, fabric), "nvlink": nvlink("NVIDIA B200", 18, 0), "is-active": f"{service}\n"}
    check_context = run.CheckContext(
        ExpectedState(),
        Tree(str(tmp_path)),
        lambda argv, **_options: CommandResult(0, answers[argv[1]], ""),
        lambda name: f"/bin/{name}" if name in ("nvidia-smi", "systemctl") else None,
    )
    (result,) = run.run_selected_checks(check_context, "n1", ["fabric_manager"])
    assert result["status"] == status, result


@pytest.mark.parametrize(
    ("nvlink_output", "expected"),
    [
        # Cards without NVLink, of which some drivers print nothing.
        ("GPU 0: NVIDIA L40S (UUID: GPU-d1b93026)\nGPU 1: NVIDIA RTX A6000 (UUID: GPU-d1b93027)\n", False),
        (
            "GPU 0: Tesla T4 (UUID: GPU-d1b93026)\n\t NVML: Unable to retrieve NVLink information: Not Supported\n",
            False,
        ),
        ("", False),
        ("NVLink is not supported\n", False),
        # A board, also without any link that is up, and a model that is not known, with links.
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-d1b93026)\n", True),
        ("GPU 0: NVIDIA L40S (UUID: GPU-d1b93026)\nGPU 1: NVIDIA X1 (UUID: GPU-2)\n\t Link 0: 53.125 GB/s\n", True),
        ("Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.\n", True),
    ],
)
def test_all_fields_are_only_queried_of_gpus_that_may_have_a_fabric(
    tmp_path: Path, nvlink_output: str, expected: bool
) -> None:
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("", encoding="utf-8")
    queries = []

    def run_command(argv: list[str], **_options: object) -> CommandResult:
        queries.append(argv[1])
        return CommandResult(0, nvlink_output if argv[1] == "nvlink" else query(UNUSED_FABRIC), "")

    check_context = run.CheckContext(ExpectedState(), Tree(str(tmp_path)), run_command, lambda name: f"/bin/{name}")
    run.run_selected_checks(check_context, "n1", ["fabric_manager"])
    assert queries == (["nvlink", "-q"] if expected else ["nvlink"])


def nvlink(model: str, *links: int) -> str:
    """The output of nvidia-smi nvlink --status about GPUs with so many links each, as drivers since 550 print it."""
    lines = []
    for index, count in enumerate(links):
        lines.append(f"GPU {index}: {model} (UUID: GPU-d1b93026-6d5b-03bd-3a71-f85b47a61bd{index})")
        lines += [f"\t Link {number}: 53.125 GB/s" for number in range(count)]
        if not count:
            lines.append("NVML: Unable to retrieve NVLink information as all links are inActive")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("model", "links", "status"),
    [
        ("NVIDIA B200", [18, 18, 0, 18], "fail"),
        ("NVIDIA B200", [18, 18, 17, 18], "fail"),
        ("NVIDIA B200", [18] * 8, "pass"),
        ("NVIDIA B300 SXM6 AC", [18, 0], "fail"),
        ("NVIDIA GB200", [18, 18, 18, 0], "fail"),
        ("NVIDIA H200", [18, 0], "fail"),
        ("NVIDIA H20", [18, 0], "fail"),
        ("NVIDIA H100 80GB HBM3", [18, 0], "fail"),
        ("NVIDIA A100-SXM4-80GB", [12, 12, 12, 0], "fail"),
        ("Tesla V100-SXM2-32GB", [6, 6, 6, 0], "fail"),
        # A virtual machine with GPUs that are not connected.
        ("NVIDIA B200", [0], "skipped"),
        ("NVIDIA H100 80GB HBM3", [0, 0], "skipped"),
        # Cards, of which bridges connect some.
        ("NVIDIA H200 NVL", [18, 18, 0], "pass"),
        ("NVIDIA H100 NVL", [12, 12, 0, 0], "pass"),
        ("NVIDIA H800 PCIe", [12, 12, 0], "pass"),
        ("NVIDIA A100 80GB PCIe", [12, 12, 0], "pass"),
        ("NVIDIA A40", [4, 4, 0], "pass"),
        ("NVIDIA RTX A6000", [4, 4, 0, 0], "pass"),
        ("NVIDIA GeForce RTX 3090", [4, 4, 0], "pass"),
        ("NVIDIA GH200 480GB", [0], "skipped"),
    ],
)
def test_boards_connect_all_gpus_also_without_visible_nvswitches(model: str, links: list[int], status: str) -> None:
    judged = gpu.judge_nvlink(nvlink(model, *links))
    assert judged.status == status, judged
    if status == "fail":
        faulty = links.index(min(links))
        assert judged.reason == f"GPU {faulty} has {min(links)} of {max(links)} links."


def test_gpu_without_links_is_a_fault_whatever_nvidia_smi_exits_with() -> None:
    assert gpu.judge_nvlink(nvlink("NVIDIA B200", 18, 18, 0, 18), 255).status == "fail"
    assert gpu.judge_nvlink(nvlink("NVIDIA B200", 18, 18), 255).status == "error"


def test_single_links_that_are_down_are_counted() -> None:
    """A GPU of https://github.com/Azure/azhpc-diagnostics/issues/73 beside one whose links are all up."""
    output = nvlink("Tesla V100-SXM2-32GB", 6, 6).replace("53.125", "25.781")
    links = [f"\t Link {number}: {'<inactive>' if number in (3, 5) else '25.781 GB/s'}" for number in range(6)]
    output += "\n".join(["GPU 3: Tesla V100-SXM2-32GB (UUID: ...)", *links]) + "\n"
    assert gpu.judge_nvlink(output).reason == "GPU 3 has 4 of 6 links."


def test_partitioned_gpus_of_a_board_do_not_use_nvlink() -> None:
    assert gpu.judge_nvlink(nvlink("NVIDIA A100-SXM4-80GB", 12, 12, 0), 0, False, ["2"]).status == "pass"


@pytest.mark.parametrize(
    ("nvlink_output", "files", "expected"),
    [
        (
            nvlink("NVIDIA L40S", 0, 0),
            [],
            ["--query-gpu", "--query-remapped-rows", "nvlink"],
        ),
        (
            nvlink("NVIDIA H100 80GB HBM3", 18, 18),
            ["dev/nvidia-nvswitch0"],
            ["--query-gpu", "--query-gpu", "--query-remapped-rows", "-q", "nvlink"],
        ),
    ],
)
def test_passive_checks_query_the_gpus_a_few_times(
    tmp_path: Path, nvlink_output: str, files: list[str], expected: list[str]
) -> None:
    """They run beside training, every few minutes: docs/guides/health.md has these numbers."""
    for name in ("proc/driver/nvidia/version", *files):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    queries = []

    def run_command(argv: list[str], **_options: object) -> CommandResult:
        if argv[0] == "nvidia-smi":
            queries.append(argv[1].partition("=")[0])
        row = "0, NVIDIA GPU, 0, [N/A], 16, 16, 31\n"
        answers = {"nvlink": nvlink_output, "-q": query(REGISTERED, REGISTERED)}
        return CommandResult(
            0, answers.get(argv[1], row * 2 if argv[1].startswith("--query-gpu=index,name") else ""), ""
        )

    check_context = run.CheckContext(
        ExpectedState(drains=True),
        Tree(str(tmp_path)),
        run_command,
        lambda name: f"/bin/{name}" if name in ("nvidia-smi", "systemctl") else None,
    )
    run.run_selected_checks(check_context, "n1", DRAINING_CHECKS)
    assert sorted(queries) == expected
