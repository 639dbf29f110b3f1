# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two reports of the same error differ in ranks, times, processes and addresses, and different errors do not become equal."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import failure
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause


def attempt(detail: str, node: str = "gpu1", last: int | None = 7, kind: str = "crash") -> Attempt:
    return Attempt(1, 41, ("gpu1", "gpu2", "gpu11"), 3, "gpu1", 0.0, 9.0, 0, last, None, Cause(kind, detail, 0, node))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 on gpu1: exit status 1: E: x", "rank 3 on gpu2: exit status 1: E: x (1 other rank failed after it)"),
        (
            "rank 1 on gpu1 is stopped (SIGSTOP); 1 other rank gave up waiting for it: rank 0: killed by SIGABRT",
            "rank 2 on gpu2 is stopped (SIGSTOP); 7 other ranks gave up waiting for it: rank 3: exit status 1: x",
        ),
        (
            "rank 1 on gpu1: exit status 1: [rank1]: ValueError: x",
            "rank 12 on gpu1: exit status 1: [rank12]: ValueError: x (15 other ranks failed after it)",
        ),
        (
            'rank 0 on gpu1: exit status 125: time="2026-11-26T10:00:01Z" level=error msg="invalid internal status"',
            'rank 0 on gpu1: exit status 125: time="2026-11-26T11:30:59Z" level=error msg="invalid internal status"',
        ),
        (
            "rank 0 on gpu1: exit status 1: [E1016 03:31:38.878 ProcessGroupNCCL.cpp:1515] watchdog",
            "rank 0 on gpu1: exit status 1: [E1017 13:01:02.001 ProcessGroupNCCL.cpp:1515] watchdog",
        ),
        (
            "rank 0 on gpu1: exit status 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
            "rank 0 on gpu1: exit status 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 514.00 MiB",
        ),
        (
            "rank 0 on gpu1: exit status 1: Process 4711 has 3.1 GiB memory in use at 0x7f00deadbeef",
            "rank 0 on gpu1: exit status 1: Process 815 has 2.9 GiB memory in use at 0x7fff00000010",
        ),
        (
            "rank 0 on gpu1: exit status 1: connect to 10.0.0.1:29500 failed after 300 s",
            "rank 0 on gpu1: exit status 1: connect to 10.0.0.12:25007 failed after 301 s",
        ),
        (
            "rank 0 on gpu1: exit status 1: no route to fd00::1:2:3",
            "rank 0 on gpu1: exit status 1: no route to fd00::1:2:4",
        ),
        (
            "rank 0 on gpu1: exit status 1: OSError: cannot reach gpu2",
            "rank 0 on gpu2: exit status 1: OSError: cannot reach gpu11",
        ),
    ],
)
def test_what_differs_between_two_reports_of_an_error_is_not_compared(one: str, other: str) -> None:
    assert failure.error(attempt(one)) == failure.error(attempt(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 on gpu1: exit status 1: ValueError: bad sample 17", "rank 0 on gpu1: exit status 1: KeyError: 'x'"),
        ("rank 0 on gpu1: exit status 1: x", "rank 0 on gpu1: exit status 2: x"),
        ("rank 0 on gpu1: killed by SIGKILL", "rank 0 on gpu1: killed by SIGSEGV"),
        ("rank 0 on gpu1: exit status 1: bad sample (17)", "rank 0 on gpu1: exit status 1: bad sample (18)"),
        # The file and the line are places of the program.
        ("rank 0 on gpu1: exit status 1: train.py:20", "rank 0 on gpu1: exit status 1: train.py:21"),
    ],
)
def test_different_errors_stay_different(one: str, other: str) -> None:
    assert failure.error(attempt(one)) != failure.error(attempt(other))


def test_only_known_failures_are_the_same() -> None:
    crash = attempt("rank 0 on gpu1: exit status 1: ValueError: x")
    assert failure.same([crash, crash])
    assert not failure.same([crash, crash._replace(last=8)])
    lost = attempt("gpu1 no longer responds", kind="node")
    assert not failure.same([lost, lost])
    killed = attempt("rank 0 on gpu1: killed by SIGKILL", last=None)
    assert not failure.same([killed, killed])
    used_up = attempt("rank 0 on gpu1: killed by SIGKILL: the memory of the job was used up", last=None)
    assert failure.same([used_up, used_up])
