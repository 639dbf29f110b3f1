# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank that prints goes on while the volume with its log does not answer, or is full."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest
from waiting import wait_until

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import rank_log
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.agent import RankProcess
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.rank_log import RankLog


class Volume:
    """A volume that does not answer until it is back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.back = threading.Event()
        self.asked = threading.Event()
        self._write = rank_log.write_all
        monkeypatch.setattr(rank_log, "write_all", self.write)

    def write(self, descriptor: int, data: bytes) -> None:
        self.asked.set()
        assert self.back.wait(240)
        self._write(descriptor, data)


def test_a_hanging_volume_does_not_block_a_printing_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(monkeypatch)
    program = "import sys\nfor n in range(20000): print('step', n, 'x' * 40)\n"
    variables = {**os.environ, "GPUMESH_PROGRESS_FILE": str(tmp_path / "progress")}
    rank = RankProcess(0, [sys.executable, "-c", program], str(tmp_path), variables, tmp_path / "log")
    wait_until("the rank has ended", rank.reap)
    assert rank.status == 0 and "step 19999" in rank.output_tail()
    volume.back.set()
    rank._rank_log.close(60)
    assert (tmp_path / "log").read_text().count("\n") == 20000


def test_dropped_output_is_marked_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume = Volume(monkeypatch)
    log = RankLog(tmp_path / "attempt" / "log", buffer_limit=100)
    log.add(b"first\n")
    assert volume.asked.wait(240)
    for number in range(100):
        log.add(b"line %03d\n" % number)
    volume.back.set()
    log.close(60)
    lines = (tmp_path / "attempt" / "log").read_text().splitlines()
    assert (lines[0], lines[-1]) == ("first", "line 099")
    kept = [line for line in lines if line.startswith("line ")]
    missing = 900 - 9 * len(kept)
    assert f"[gpumesh-train: {missing} bytes are missing here, since the volume did not answer]" in lines


def test_a_full_volume_takes_the_later_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = [0]
    write = rank_log.write_all

    def full(descriptor: int, data: bytes) -> None:
        attempts[0] += 1
        if attempts[0] == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, data)

    monkeypatch.setattr(rank_log, "write_all", full)
    log = RankLog(tmp_path / "log")
    log.add(b"lost\n")
    wait_until("it has tried to write", lambda: attempts[0])
    log.add(b"kept\n")
    log.close(60)
    assert (tmp_path / "log").read_text() == "kept\n"
