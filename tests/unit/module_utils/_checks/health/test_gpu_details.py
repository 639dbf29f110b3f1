# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Clocks, links and processes of GPUs, from nvidia-smi -q. The sections are as others have published them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import gpu, gpu_details, jobs, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import ExpectedState
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import CommandError, ParseError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree
from ansible_collections.gpumesh.cluster.tests.unit.module_utils._checks.health.test_hung import KILLED, NOT_KILLED

#: https://github.com/l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling: a V100 to which the BMC of its
#: server gives no power, before driver 535.
BRAKED = """    Clocks Throttle Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
"""
#: https://github.com/kubeflow/kubeflow/issues/68
OLD_IDLE = """    Clocks Throttle Reasons
        Idle                        : Active
        Applications Clocks Setting : Not Active
        SW Power Cap                : Not Active
        HW Slowdown                 : Not Active
            HW Thermal Slowdown     : Not Active
            HW Power Brake Slowdown : Not Active
        Sync Boost                  : Not Active
        SW Thermal Slowdown         : Not Active
"""
#: A published nvidia-smi -q of an idle GPU with 23028 MiB, which has a power brake whenever it is idle.
IDLE_WITH_BRAKE = """    Clocks Event Reasons
        Idle                              : Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
"""
#: A published nvidia-smi -q of a GeForce RTX 3050, driver 580, with the counters that follow the reasons since driver 565.
NEW_IDLE = """    Clocks Event Reasons
        Idle                                           : Active
        Applications Clocks Setting                    : Not Active
        SW Power Cap                                   : Not Active
        HW Slowdown                                    : Not Active
            HW Thermal Slowdown                        : Not Active
            HW Power Brake Slowdown                    : Not Active
        Sync Boost                                     : Not Active
        SW Thermal Slowdown                            : Not Active
        Display Clock Setting                          : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                               : 38610 us
        Sync Boost                                     : 0 us
        SW Thermal Slowdown                            : 0 us
        HW Thermal Slowdown                            : 149082138 us
        HW Power Braking                               : 0 us
    Sparse Operation Mode                              : N/A
"""
#: https://github.com/ollama/ollama/issues/13552: a GPU at work at 81 °C.
AT_WORK = """    Performance State                     : P0
    Clocks Event Reasons
        Idle                              : Not Active
        Applications Clocks Setting       : Not Active
        SW Power Cap                      : Not Active
        HW Slowdown                       : Not Active
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : Not Active
        Sync Boost                        : Not Active
        SW Thermal Slowdown               : Not Active
        Display Clock Setting             : Not Active
    Clocks Event Reasons Counters
        SW Power Capping                  : 165687 us
        Sync Boost                        : 0 us
        SW Thermal Slowdown               : 903158 us
        HW Thermal Slowdown               : 0 us
        HW Power Braking                  : 0 us
    Sparse Operation Mode                 : N/A
"""
#: https://github.com/bigstack-oss/cubecos/issues/312: a host of vGPUs, whose GPU does not call itself idle.
HOST_OF_VGPUS = AT_WORK.replace("P0", "P8").replace("165687", "1202176").replace("903158", "0")
POWER_LIMITED = OLD_IDLE.replace("Idle                        : Active", "Idle : Not Active").replace(
    "SW Power Cap                : Not Active", "SW Power Cap : Active"
)
WARM = POWER_LIMITED.replace("SW Thermal Slowdown         : Not Active", "SW Thermal Slowdown : Active")
OVERHEATED = NEW_IDLE.replace(": Active", ": Not Active").replace(
    "HW Slowdown                                    : Not Active\n            HW Thermal Slowdown                        : Not Active",
    "HW Slowdown                                    : Active\n            HW Thermal Slowdown                        : Active",
)
UNSUPPORTED = "    Clocks Event Reasons                               : N/A\n"


def query(*sections: str) -> str:
    """The output of nvidia-smi -q about GPUs with these sections."""
    head = f"\n==============NVSMI LOG==============\n\nAttached GPUs                             : {len(sections)}\n"
    return head + "\n".join(
        f"GPU 00000000:{0x1A + number:02X}:00.0\n    Product Name                          : NVIDIA H100 80GB HBM3\n"
        f"    Minor Number                          : {number}\n{section}"
        for number, section in enumerate(sections)
    )


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        ([BRAKED], "fail"),
        ([OVERHEATED], "fail"),
        ([NEW_IDLE, OVERHEATED], "fail"),
        ([OLD_IDLE] * 8, "pass"),
        ([NEW_IDLE] * 8, "pass"),
        ([AT_WORK] * 8, "pass"),
        ([HOST_OF_VGPUS] * 4, "pass"),
        ([IDLE_WITH_BRAKE], "pass"),
        ([POWER_LIMITED] * 8, "pass"),
        ([WARM], "pass"),
        ([UNSUPPORTED], "skipped"),
        ([""], "skipped"),
    ],
)
def test_hardware_slowdown_of_a_gpu_at_work_is_a_fault(sections: list[str], status: str) -> None:
    clock_state = gpu_details.find_slowdowns(gpu_details.parse_details(query(*sections)))
    assert gpu_details.judge_clocks(clock_state).status == status


def test_slowdown_is_named_with_its_gpu_and_reasons() -> None:
    clock_state = gpu_details.find_slowdowns(gpu_details.parse_details(query(OLD_IDLE, BRAKED)))
    judged = gpu_details.judge_clocks(clock_state)
    assert (judged.actual, judged.required) == (1, 2)
    assert "GPU 00000000:1B:00.0: hw slowdown, hw power brake slowdown." in judged.reason
    # It was another GPU a moment ago.
    assert gpu_details.judge_clocks(clock_state, ["00000000:1A:00.0"]).status == "pass"
    assert gpu_details.judge_clocks(clock_state, ["00000000:1B:00.0"]).status == "fail"


LINK = """    PCI
        Bus                                            : 0x01
        GPU Link Info
            PCIe Generation
                Max                                    : 4
                Current                                : {current}
                Device Current                         : {current}
                Device Max                             : 4
                Host Max                               : 5
            Link Width
                Max                                    : 16x
                Current                                : 8x
    Performance State                                  : {state}
    Utilization
        GPU                                            : {utilization} %
        Memory                                         : 0 %
"""


@pytest.mark.parametrize(
    ("current", "state", "utilization", "status"),
    [
        (4, "P0", 98, "pass"),
        (1, "P0", 98, "fail"),
        (3, "P0", 50, "fail"),
        # It saves power.
        (1, "P8", 0, "skipped"),
        (1, "P0", 6, "skipped"),
        (1, "P2", 98, "skipped"),
        ("N/A", "P0", 98, "skipped"),
    ],
)
def test_only_links_of_gpus_at_work_have_full_speed(current: object, state: str, utilization: int, status: str) -> None:
    section = LINK.format(current=current, state=state, utilization=utilization)
    assert gpu_details.judge_pcie_speed(gpu_details.parse_details(query(section))).status == status


#: In the form of the RTX 3050 above.
MEMORY = """    MIG Mode
        Current                                        : {mig}
        Pending                                        : N/A
    FB Memory Usage
        Total                                          : 81559 MiB
        Reserved                                       : 340 MiB
        Used                                           : {used} MiB
        Free                                           : 5793 MiB
    Processes{processes}
    Capabilities
        EGM                                            : disabled
"""


def memory(used: int, *processes: tuple[int, str], mig: str = "Disabled") -> str:
    listed = "".join(
        "\n        GPU instance ID                   : N/A\n        Compute instance ID               : N/A\n"
        f"        Process ID                        : {pid}\n            Type                          : {kind}\n"
        "            Name                          : /usr/bin/python3: train\n"
        "            Used GPU Memory               : 1024 MiB"
        for pid, kind in processes
    )
    return MEMORY.format(used=used, processes=listed or "                             : None", mig=mig)


def test_uses_of_gpus_are_read() -> None:
    sections = [
        memory(4),
        memory(900, (2355, "G")),
        memory(40000, (4711, "C"), (4712, "C+G"), (4713, "M+C")),
        memory(40000),
        memory(40000, mig="Enabled"),
    ]
    uses = list(gpu_details.read_gpu_uses(gpu_details.parse_details(query(*sections))).values())
    assert [use.minor_number for use in uses] == [0, 1, 2, 3, 4]
    assert [use.compute_pids for use in uses] == [[], [], [4711, 4712, 4713], [], []]
    assert [use.unexplained_mib for use in uses] == [0, 0, 0, 40000, 0]


def test_processes_of_older_drivers_are_read() -> None:
    """The section of https://github.com/anderskm/gputil/issues/38, from before the partitions of an A100."""
    processes = "    Processes\n        Process ID                  : 1628\n            Type                    : C+G\n"
    (use,) = list(gpu_details.read_gpu_uses(gpu_details.parse_details(query(processes))).values())
    assert use.compute_pids == [1628]


def test_memory_of_a_grace_hopper_is_also_that_of_the_host() -> None:
    text = query(memory(40000)).replace("NVIDIA H100 80GB HBM3", "NVIDIA GH200 480GB")
    (use,) = list(gpu_details.read_gpu_uses(gpu_details.parse_details(text)).values())
    assert use.unexplained_mib == 0


@pytest.mark.parametrize(("mode", "unexplained_mib"), [("VGPU", 0), ("Pass-Through", 40000), ("None", 40000)])
def test_part_of_a_gpu_in_a_virtual_machine_may_have_memory_in_use(mode: str, unexplained_mib: int) -> None:
    section = f"    GPU Virtualization Mode\n        Virtualization Mode               : {mode}\n"
    (use,) = list(gpu_details.read_gpu_uses(gpu_details.parse_details(query(section + memory(40000)))).values())
    assert use.unexplained_mib == unexplained_mib


def test_gpus_of_a_job_are_those_of_slurms_numbers() -> None:
    uses = gpu_details.read_gpu_uses(gpu_details.parse_details(query(memory(4), memory(4))))
    assert gpu_details.select_job_gpus(uses, [1]) == ["00000000:1B:00.0"]
    other_order = {address: use._replace(minor_number=1 - number) for number, (address, use) in enumerate(uses.items())}
    assert gpu_details.select_job_gpus(other_order, [1]) == []
    assert jobs.parse_job_gpus("0,3") == [0, 3]
    assert jobs.parse_job_gpus("") == jobs.parse_job_gpus("0-3") == []


#: Of a process on the first of two GPUs, whose user has put line breaks into the name of the program.
NAMED_PROCESS = """    Processes
        GPU instance ID                   : N/A
        Process ID                        : 1628
            Type                          : C
            Name                          : /home/mallory/{}
            Used GPU Memory               : 400 MiB
"""


@pytest.mark.parametrize(
    "name", ["python3", "x\n    Clocks Event Reasons\n        HW Slowdown : Active", "x\n        y : z"]
)
def test_name_of_a_process_begins_no_section(name: str) -> None:
    details = gpu_details.parse_details(query(NAMED_PROCESS.format(name), AT_WORK))
    assert {path[0] for path, _value in details["00000000:1A:00.0"]} == {"product name", "minor number", "processes"}
    assert details["00000000:1B:00.0"] == gpu_details.parse_details(query("", AT_WORK))["00000000:1B:00.0"]


@pytest.mark.parametrize("head", ["", "\nAttached GPUs : 9"])
@pytest.mark.parametrize("number", ["1A", "1B", "1C"])
def test_name_of_a_process_is_no_gpu(number: str, head: str) -> None:
    name = f"x{head}\nGPU 00000000:{number}:00.0\n    Fabric\n        State : In Progress"
    text = query(NAMED_PROCESS.format(name), AT_WORK)
    with pytest.raises(ParseError, match="section"):
        gpu_details.parse_details(text)


@given(st.text())
def test_any_text_is_accepted(text: str) -> None:
    try:
        details = gpu_details.parse_details(query(text))
    except ParseError:
        return
    gpu_details.judge_clocks(gpu_details.find_slowdowns(details))
    gpu_details.judge_pcie_speed(details)
    gpu_details.read_gpu_uses(details)


#: A thread that waits for a lock of the driver, and one that waits for a file system of a user.
DRIVER_STACK = """[<0>] os_acquire_rwlock_write+0x3d/0x50 [nvidia]
[<0>] _nv042653rm+0x10/0x40 [nvidia]
[<0>] nvidia_close+0xe5/0x2a0 [nvidia]
[<0>] __fput+0x9a/0x2d0
"""
FUSE_STACK = """[<0>] request_wait_answer+0x12f/0x210 [fuse]
[<0>] fuse_flush+0x14a/0x1d0 [fuse]
[<0>] filp_flush+0x35/0x80
"""


class Node:
    """A host with two GPUs, of which nvidia-smi -q tells ``sections``."""

    def __init__(self, root: Path, *sections: str) -> None:
        self.root = root
        self.sections = list(sections)
        self.queries: list[list[str]] = []
        for name in ("proc/driver/nvidia/version", "var/lib/gpumesh/health/keep"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("", encoding="utf-8")

    def add_process(
        self, pid: int, state: str = "D (disk sleep)", signals: str = KILLED, stack: str = DRIVER_STACK
    ) -> None:
        """Add a process whose second thread has this state."""
        for thread in (pid, pid + 1):
            self._add_thread(f"proc/{pid}/task/{thread}", pid, state if thread > pid else "Z (zombie)", signals, stack)

    def _add_thread(self, name: str, pid: int, state: str, signals: str, stack: str) -> None:
        process = self.root / name
        process.mkdir(parents=True)
        (process / "stack").write_text(stack, encoding="utf-8")
        status = (
            f"Name:\tpython3\nUmask:\t0022\nState:\t{state}\nTgid:\t{pid}\nSigPnd:\t{signals}\nShdPnd:\t{NOT_KILLED}\n"
        )
        (process / "status").write_text(status, encoding="utf-8")

    def context(self, *job_gpus: int) -> run.CheckContext:
        def run_command(argv: list[str], **_options: object) -> CommandResult:
            self.queries.append(argv)
            return CommandResult(0, query(*self.sections), "")

        return run.CheckContext(
            ExpectedState(job_gpus=job_gpus),
            Tree(str(self.root)),
            run_command,
            lambda name: f"/bin/{name}" if name == "nvidia-smi" else None,
        )


@pytest.mark.parametrize(
    ("state", "signals", "stack", "status"),
    [
        ("D (disk sleep)", KILLED, DRIVER_STACK, "fail"),
        # It waits for what its user may never answer.
        ("D (disk sleep)", KILLED, FUSE_STACK, "pass"),
        ("D (disk sleep)", KILLED, "", "pass"),
        # It waits for something, or ends right now.
        ("D (disk sleep)", NOT_KILLED, DRIVER_STACK, "pass"),
        ("R (running)", KILLED, DRIVER_STACK, "pass"),
        # A user's process outside of a job, or that of another job with a part of the GPU.
        ("S (sleeping)", NOT_KILLED, DRIVER_STACK, "pass"),
    ],
)
def test_unkillable_process_occupies_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, signals: str, stack: str, status: str
) -> None:
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: None)
    node = Node(tmp_path, memory(4), memory(40000, (4711, "C")))
    node.add_process(4711, state, signals, stack)
    check_context = node.context(1)
    (result,) = run.run_selected_checks(check_context, "n1", ["gpu_processes"])
    assert result["status"] == status, result
    assert check_context.urgent_snapshot.get("occupied_gpus", []) == (["00000000:1B:00.0"] if status == "fail" else [])
    if status == "fail":
        assert "GPU 00000000:1B:00.0: python3 (4711)." in result["reason"]
    # The other GPU is free.
    (result,) = run.run_selected_checks(node.context(0), "n1", ["gpu_processes"])
    assert result["status"] == "pass"


def test_memory_that_is_freed_a_moment_later_occupies_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, pauses = Node(tmp_path, memory(40000)), []
    monkeypatch.setattr(run.time, "sleep", pauses.append)
    (result,) = run.run_selected_checks(node.context(0), "n1", ["gpu_processes"])
    assert (result["status"], len(pauses)) == ("fail", 1)
    assert "40000 MiB without a process" in result["reason"]

    monkeypatch.setattr(run.time, "sleep", lambda _seconds: node.sections.__setitem__(0, memory(4)))
    check_context = node.context(0)
    (result,) = run.run_selected_checks(check_context, "n1", ["gpu_processes"])
    assert result["status"] == "pass"
    assert "occupied_gpus" not in check_context.urgent_snapshot


@pytest.mark.parametrize(
    ("uid", "path", "status"),
    [
        # A user can keep memory without a process that nvidia-smi shows, as long as a process has a file of the driver.
        (1000, "/dev/nvidiactl", "pass"),
        (1000, "/dev/null", "fail"),
        # nvidia-persistenced, which has them always.
        (114, "/dev/nvidia0", "fail"),
    ],
)
def test_memory_that_a_user_may_keep_drains_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, path: str, status: str
) -> None:
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: None)
    node = Node(tmp_path, memory(40000))
    (tmp_path / "proc/71/fd").mkdir(parents=True)
    (tmp_path / "proc/71/status").write_text(f"Name:\tx\nUid:\t{uid}\t0\t0\t0\n", encoding="utf-8")
    (tmp_path / "proc/71/fd/7").symlink_to(path)
    (result,) = run.run_selected_checks(node.context(0), "n1", ["gpu_processes"])
    assert result["status"] == status, result


def test_gpus_are_not_examined_without_a_job(tmp_path: Path) -> None:
    node = Node(tmp_path, memory(40000, (4711, "C")))
    (result,) = run.run_selected_checks(node.context(), "n1", ["gpu_processes"])
    assert (result["status"], node.queries) == ("skipped", [])


def test_one_query_serves_all_checks(tmp_path: Path) -> None:
    node = Node(tmp_path, memory(4), memory(4))
    checks = ["gpu_processes", "fabric_manager", "gpu_clocks", "pcie_speed"]
    run.run_selected_checks(node.context(0), "n1", checks)
    assert sorted(node.queries) == [("nvidia-smi", "-q"), ("nvidia-smi", "nvlink", "--status")]


def test_query_that_fails_is_not_run_again(tmp_path: Path) -> None:
    """Each of the checks would otherwise wait as long as the first one."""
    node, queries = Node(tmp_path), []

    def time_out(argv: list[str], **_options: object) -> CommandResult:
        queries.append(tuple(argv))
        raise CommandError(argv[:1], "did not end within 20 s")

    check_context = node.context(0)
    check_context.run_command = time_out
    results = run.run_selected_checks(
        check_context, "n1", ["gpu_processes", "gpu_clocks", "pcie_speed", "gpu_ecc", "pcie"]
    )
    assert {result["status"] for result in results} == {"error"}
    assert sorted(queries) == sorted([gpu.QUERY_COMMAND, gpu.DETAILS_COMMAND])


def test_slowdown_of_a_moment_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, BRAKED)
    monkeypatch.setattr(run.time, "sleep", lambda _seconds: None)
    (result,) = run.run_selected_checks(node.context(), "n1", ["gpu_clocks"])
    assert (result["status"], len(node.queries)) == ("fail", 2)

    def recover(_seconds: float) -> None:
        node.sections = [POWER_LIMITED]

    monkeypatch.setattr(run.time, "sleep", recover)
    (result,) = run.run_selected_checks(node.context(), "n1", ["gpu_clocks"])
    assert result["status"] == "pass"
