# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node remembers of its faults, and what it says of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health import fault_history, gpu, run
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.fault_history import (
    NotedFault,
    update_faults,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.models import (
    ExpectedState,
    Judgement,
    failed,
    passed,
    skipped,
    unknown,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.command import CommandResult
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

DAY = 86400.0
XID, ECC = "health.gpu_xid", "health.gpu_ecc"
GPU = "GPU 0000:3d:00"


def faulty(*devices: str) -> Judgement:
    return failed(1, 0, "broken.", "Reboot.", devices=devices)


def test_a_fault_is_noted_when_it_begins_and_counted_when_it_comes_back() -> None:
    began = NotedFault(XID, GPU, 0.0, False, 1)
    faults = update_faults([], {XID: faulty(GPU), ECC: passed(0, 0)}, 0.0)
    assert faults == [began]
    # It lasts, and a check that could not be made says nothing.
    assert update_faults(faults, {XID: faulty(GPU)}, 300.0) == [began]
    assert update_faults(faults, {XID: unknown("no answer", "")}, 300.0) == [began]
    for well in (passed(0, 0), skipped("no driver"), faulty("GPU 0000:4d:00")):
        assert began._replace(is_over=True) in update_faults(faults, {XID: well}, 300.0)
    assert update_faults(faults, {ECC: passed(0, 0)}, 300.0)[0].is_over, "the check is no longer made"
    faults = [began._replace(is_over=True)]
    for number, day in ((2, 1), (3, 2)):
        faults = update_faults(faults, {XID: faulty(GPU)}, day * DAY)
        assert fault_history.describe_occurrences(faults, XID, [GPU]).startswith(("second", "third")[number - 2])
        faults = update_faults(faults, {XID: passed(0, 0)}, day * DAY + 1)
        assert fault_history.describe_occurrences(faults, XID, [GPU]) == "", "it is over"
    # The first ones were more than seven days ago, but are still remembered.
    faults = update_faults(faults, {XID: faulty(GPU)}, 8.5 * DAY)
    assert (len(faults), faults[-1].occurrence) == (4, 2)
    assert len(update_faults(faults, {XID: faulty(GPU)}, 30.5 * DAY)) == 3


def test_each_gpu_of_a_check_has_its_own_faults() -> None:
    faults = update_faults([], {ECC: faulty("GPU 0")}, 0.0)
    faults = update_faults(faults, {ECC: passed(0, 0)}, 1.0)
    faults = update_faults(faults, {ECC: faulty("GPU 0", "GPU 1")}, 2.0)
    described = fault_history.describe_occurrences(faults, ECC, ("GPU 0", "GPU 1"))
    assert described == "second time in 7 days on GPU 0"
    # Of many checks, no device is known.
    faults = update_faults([NotedFault("health.rdma", "", 0.0, True, 1)], {"health.rdma": faulty()}, 1.0)
    assert fault_history.describe_occurrences(faults, "health.rdma", ()) == "second time in 7 days"


def test_the_memory_is_bounded_and_keeps_what_lasts() -> None:
    faults = [NotedFault(XID, f"GPU {number}", float(number), number > 0, 1) for number in range(300)]
    kept = update_faults(faults, {XID: unknown("no answer", "")}, 300.0)
    assert len(kept) == 200
    assert kept[-1] == faults[0], "the only one that lasts"


@pytest.mark.parametrize(
    ("number", "ordinal"),
    [
        (2, "second"),
        (3, "third"),
        (10, "tenth"),
        (11, "11th"),
        (13, "13th"),
        (21, "21st"),
        (22, "22nd"),
        (111, "111th"),
    ],
)
def test_ordinals_are_plain_english(number: int, ordinal: str) -> None:
    assert fault_history.format_ordinal(number) == ordinal


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"faults": 3}', '{"faults": [3, {"check_id": "a"}]}',
     '{"faults": [{"check_id": "a", "device": 1, "began": 1, "is_over": false, "occurrence": 1}]}'],
)  # fmt: skip
def test_a_damaged_file_is_an_empty_memory(text: str) -> None:
    assert fault_history.parse_faults(text) == []


def test_the_file_is_for_root_alone_and_only_written_for_news(tmp_path: Path) -> None:
    folder = tmp_path / "health"
    assert fault_history.note_faults(str(folder), {XID: passed(0, 0)}, 1.0) == []
    with pytest.raises(FileNotFoundError):
        fault_history.note_faults(str(folder), {XID: faulty(GPU)}, 2.0)
    folder.mkdir(0o700)
    noted = fault_history.note_faults(str(folder), {XID: faulty(GPU)}, 2.0)
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert fault_history.read_faults(str(folder)) == noted == [NotedFault(XID, GPU, 2.0, False, 1)]
    inode = file.stat().st_ino
    fault_history.note_faults(str(folder), {XID: faulty(GPU)}, 3.0)
    assert file.stat().st_ino == inode


def test_the_reason_of_a_check_says_how_often_it_has_failed(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    (tmp_path / "dev/kmsg").write_text("3,1,1,-;NVRM: Xid (PCI:0000:3D:00): 79, pid=1, GPU has fallen off the bus.\n")
    context = run.CheckContext(
        ExpectedState(), Tree(str(tmp_path)), lambda *_given, **_options: CommandResult(0, "", "")
    )
    (plain,) = run.run_selected_checks(context, "n1", [XID])
    assert plain["reason"] == "Xid 79 (fell off the bus) on 0000:3D:00, 1 ×."
    (repeated,) = run.run_selected_checks(context, "n1", [XID], [NotedFault(XID, GPU, 1.0, False, 3)])
    assert repeated["reason"] == "Xid 79 (fell off the bus) on 0000:3D:00, 1 × (third time in 7 days)."
    assert set(plain) == set(repeated), "a result has the form of all others"


def devices(judgement: Any) -> tuple[str, ...]:
    assert judgement.status == "fail"
    return tuple(judgement.devices)


def test_judgements_name_the_gpus() -> None:
    table = gpu.parse_query("0, NVIDIA A100, 3, Yes, 8, 16, 31\n1, NVIDIA A100, 0, No, 16, 16, 33\n")
    for judge in (gpu.judge_ecc, gpu.judge_pcie, lambda rows: gpu.judge_retired(rows, None)):
        assert devices(judge(table)) == ("GPU 0",)
    rows = "00000000:3D:00.0, 0, 1\n00000000:4D:00.0, 0, 0\n"
    assert devices(gpu.judge_retired(table, rows)) == ("GPU 00000000:3d:00",)
    links = "GPU 0: NVIDIA A100 (UUID: a)\n\t Link 0: 25 GB/s\nGPU 1: NVIDIA A100 (UUID: b)\n\t Link 0: <inactive>\n"
    assert devices(gpu.judge_nvlink(links, has_switches=True)) == ("GPU 1",)
    log = itertools.count(1)
    messages = (
        "NVRM: Xid (PCI:0000:3D:00): 79, pid=1",
        "NVRM: GPU 0000:3d:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:4d:00.0: RmInitAdapter failed! (0x26:0xffff:1456)",
        "nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 20001, Fatal, Link 30",
        "NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    )
    judged = gpu.judge_xid("".join(f"3,{next(log)},1,-;{message}\n" for message in messages))
    assert devices(judged) == ("GPU 0000:3d:00", "GPU 0000:4d:00", "GPU 0000:5d:00", "NVSwitch 0000:87:00")
