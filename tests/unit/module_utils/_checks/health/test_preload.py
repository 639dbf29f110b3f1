# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of a pod that use its mesh, determined from an artificial /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.health.preload import (
    UncoveredProgram,
    find_uncovered_programs,
    judge_preload,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.sysfs import Tree

LIBRARY = "/usr/local/lib/gpumesh/libgpumesh-pod-0123456789abcdef.so"
LOADER = "7f00 r--p /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1AA2 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:1AA2 0100007F:C001 06 00000000:00000000 00:00000000 00000000     0        0 0 3
"""


def fake_process(root: Path, pid: int, name: str, maps: str, inode: int, user: int = 0) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text("slurmd\n")
    (folder / "exe").symlink_to(f"/usr/sbin/{name}")
    (folder / "status").write_text(f"Name:\tslurmd\nUid:\t{user}\t{user}\t{user}\t{user}\n")
    (folder / "maps").write_text(maps)
    (folder / "fd" / "3").symlink_to(f"socket:[{inode}]")


def test_programs_with_sockets_and_without_the_library(tmp_path: Path) -> None:
    (tmp_path / "proc" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "net" / "tcp").write_text(TABLE)
    fake_process(tmp_path, 10, "slurmd", f"{LOADER}\n7f01 r-xp {LIBRARY}\n", 4711)
    fake_process(tmp_path, 11, "sshd", LOADER, 4711)
    fake_process(tmp_path, 12, "rclone", "400000 r-xp /usr/bin/rclone\n", 4711)
    # A socket that is not a network socket, and a kernel thread.
    fake_process(tmp_path, 13, "bash", LOADER, 4712)
    fake_process(tmp_path, 14, "kthreadd", "", 4711)
    assert find_uncovered_programs(Tree(str(tmp_path))) == [
        UncoveredProgram("rclone", True, True),
        UncoveredProgram("sshd", False, True),
    ]


def test_uncovered_program_other_than_slurmd_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "proc" / "net").mkdir(parents=True)
    (tmp_path / "proc" / "net" / "tcp").write_text(TABLE)
    fake_process(tmp_path, 10, "x", "400000 r-xp /home/mallory/x\n", 4711, 65534)
    fake_process(tmp_path, 11, "slurmd", "400000 r-xp /home/mallory/slurmd\n", 4711, 65534)
    assert judge_preload(LIBRARY, find_uncovered_programs(Tree(str(tmp_path)))).status == "pass"
    fake_process(tmp_path, 12, "slurmd", "400000 r-xp /usr/sbin/slurmd\n", 4711)
    assert judge_preload(LIBRARY, find_uncovered_programs(Tree(str(tmp_path)))).status == "fail"


@pytest.mark.parametrize(
    ("listed", "running", "status", "actual"),
    [
        (
            LIBRARY,
            [UncoveredProgram("sshd", False, True), UncoveredProgram("tailscaled", True, True)],
            "pass",
            "active",
        ),
        (LIBRARY, [UncoveredProgram("rclone", True, False)], "pass", "active; not for rclone (static)"),
        (LIBRARY, [UncoveredProgram("slurmd", False, True)], "fail", "not loaded"),
        (LIBRARY, [UncoveredProgram("slurmd-wlm", False, True)], "fail", "not loaded"),
        ("/usr/lib/other.so", [], "fail", "not active"),
    ],
)
def test_the_judgement(listed: str, running: list[UncoveredProgram], status: str, actual: str) -> None:
    judgement = judge_preload(listed, running)
    assert (judgement.status, judgement.actual) == (status, actual)
    assert bool(judgement.remedy) == (status == "fail")
