# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two reports of the same error differ in ranks, times, processes and addresses, and different errors do not become equal."""

from __future__ import annotations

import pytest

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import attribution, failure
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause


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
        (
            "rank 1 on gpu1 is at step 5, the others at 6; the others wait for it in train.py:30",
            "rank 1 on gpu1 is at step 7, the others at 9; the others wait for it in train.py:42",
        ),
        *(
            (f"rank 0 on gpu1: exit status 1: {one}", f"rank 0 on gpu1: exit status 1: {other}")
            for one, other in (
                ("DataLoader worker (pid(s) 123) exited", "DataLoader worker (pid(s) 4711, 4712) exited"),
                ("train.sh: line 28: 8156 Killed python3 main.py", "train.sh: line 28: 29 Killed python3 main.py"),
                ("thread 'main' (30215) panicked at pan.rs:1:77", "thread 'main' (7) panicked at pan.rs:1:77"),
                ("python3[4711]: segfault", "python3[815]: segfault"),
                ("[4711] no such key", "[815] no such key"),
                ("[pid 4711] no such key", "[pid 815] no such key"),
                ("Gloo [127.0.0.1]:64729: timeout", "Gloo [10.0.0.3]:1031: timeout"),
                ("cannot bind to [::]:29500", "cannot bind to [::]:25007"),
                ("connect to [::ffff:10.0.0.1]:29500", "connect to [::ffff:10.0.0.9]:1"),
                ("connect to fe80::1%eth0", "connect to fe80::2:7%ens3"),
                ("dial tcp ('10.0.0.1', 29500)", "dial tcp ('10.0.0.2', 25000)"),
                ("connect to gpu1:29500", "connect to gpu2.cluster.local:25007"),
                ("Got completion from peer gpu1<10079>", "Got completion from peer gpu2<815>"),
                ("gpu1:4711:4720 [0] NCCL WARN x", "gpu2:33:815 [7] NCCL WARN x"),
                ("[gpu1:43   :0:43] Caught signal 11", "[gpu2:815  :0:816] Caught signal 11"),
                ("CUDA out of memory on GPU 0", "CUDA out of memory on GPU 3"),
                ("tensor on cuda:0", "tensor on cuda:7"),
                ("CUDA device ordinal 0", "CUDA device ordinal 11"),
                ("Memory access fault by GPU node-2", "Memory access fault by GPU node-5"),
                ("handle for GPU0000:03:00.0: Unknown", "handle for GPU0000:C1:00.0: Unknown"),
                ("Xid (PCI:0000:02:00): 79", "Xid (PCI:0000:c2:00): 79"),
                (
                    "GPU-6f0e2a51-31d4-9c1f-0a11-5b0f6a0c1d2e is lost",
                    "GPU-00000000-31d4-9c1f-0a11-5b0f6a0c1d2e is lost",
                ),
                ("local_rank: 3: no such key", "local_rank: 12: no such key"),
                ("watchdog(SeqNum=9141)", "watchdog(SeqNum=17)"),
                ("loss is nan at step 3", "loss is nan at step 12000"),
                ("cannot read out/checkpoint-60/model.pt", "cannot read out/checkpoint-1200/model.pt"),
                ("cannot read '/tmp/tmpk3j9x2ab/x'", "cannot read '/tmp/tmp00000000/x'"),
                ("barrier after 30 minutes", "barrier after 9 minutes"),
                ("cannot read rng_state_0.pth", "cannot read rng_state_13.pth"),
                ("bad zero_pp_rank_0_mp_rank_00_optim_states.pt", "bad zero_pp_rank_1_mp_rank_07_optim_states.pt"),
                ("cannot read '__0_0.distcp'", "cannot read '__7_1.distcp'"),
                ("cut off: model-00001-of-00004.safetensors", "cut off: model-00003-of-00004.safetensors"),
                ("[RANK 1] no such key", "[RANK 12] no such key"),
                ("RANK=1 has no data", "RANK=3 has no data"),
                ("rank-3: no such key", "rank-0: no such key"),
                ("daemon 1402342 is gone", "daemon 33 is gone"),
                ("expired at 1764150001", "expired at 1764159999.25"),
                ("2026/11/26 10:00:01 no such key", "2026/11/27 11:30:59 no such key"),
                ("Nov 26 10:00:01 no such key", "Dec  1 11:30:59 no such key"),
                # Longer than what is shown of an error, which is cut at another place each time.
                (f"Process 7 has 3.1 GiB {'x ' * 200}"[:300], f"Process 4711 has 13.75 GiB {'x ' * 200}"[:300]),
            )
        ),
    ],
)
def test_varying_parts_of_an_error_are_not_compared(one: str, other: str) -> None:
    assert failure.normalized_error(attempt(one)) == failure.normalized_error(attempt(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("rank 0 on gpu1: exit status 1: ValueError: bad sample 17", "rank 0 on gpu1: exit status 1: KeyError: 'x'"),
        ("rank 0 on gpu1: exit status 1: x", "rank 0 on gpu1: exit status 2: x"),
        ("rank 0 on gpu1: killed by SIGKILL", "rank 0 on gpu1: killed by SIGSEGV"),
        ("rank 0 on gpu1: exit status 1: bad sample (17)", "rank 0 on gpu1: exit status 1: bad sample (18)"),
        ("rank 0 on gpu1: exit status 1: got [3] at entry 0", "rank 0 on gpu1: exit status 1: got [4] at entry 0"),
        ("rank 0 on gpu1: exit status 1: as.c:2: main: failed", "rank 0 on gpu1: exit status 1: as.c:3: main: failed"),
        ("rank 0 on gpu1: exit status 1: c10::Error", "rank 0 on gpu1: exit status 1: std::bad_alloc"),
        (
            "rank 0 on gpu1: exit status 1: Xid (PCI:0000:02:00): 79",
            "rank 0 on gpu1: exit status 1: Xid (PCI:0000:02:00): 13",
        ),
        (
            "rank 0 on gpu1: exit status 1: cannot read shard_17.json",
            "rank 0 on gpu1: exit status 1: cannot read shard_18.json",
        ),
        ("rank 0 on gpu1: exit status 1: CUDA error 700", "rank 0 on gpu1: exit status 1: CUDA error 719"),
        # The file and the line are places of the program.
        ("rank 0 on gpu1: exit status 1: train.py:20", "rank 0 on gpu1: exit status 1: train.py:21"),
    ],
)
def test_different_errors_remain_different(one: str, other: str) -> None:
    assert failure.normalized_error(attempt(one)) != failure.normalized_error(attempt(other))


def test_only_program_failures_are_compared() -> None:
    crash = attempt("rank 0 on gpu1: exit status 1: ValueError: x")
    assert failure.have_same_failure([crash, crash])
    assert not failure.have_same_failure([crash, crash._replace(last=8)])
    lost = attempt("gpu1 no longer responds", kind="node")
    assert not failure.have_same_failure([lost, lost])


@pytest.mark.parametrize(
    ("end", "known"),
    [
        ("killed by SIGKILL", False),
        ("killed by SIGTERM", False),
        # By a shell and by podman, after whatever the program has printed last.
        ("exit status 137 (SIGKILL)", False),
        ("exit status 137 (SIGKILL): step 12", False),
        ("exit status 143 (SIGTERM)", False),
        ("exit status 137 (SIGKILL): train.sh: line 28: 8156 Killed python3 main.py", False),
        ("exit status 1: torchrun's rank 1: killed by SIGKILL", False),
        ("exit status 1: torchrun's rank 1: exit status 137 (SIGKILL)", False),
        ("exit status 137 (SIGKILL): torchrun's rank 1: killed by SIGKILL", False),
        ("exit status 1: RuntimeError: DataLoader worker (pid 192) is killed by signal: Killed.", False),
        ("exit status 1: ProcessExitedException: process 0 terminated with signal SIGKILL", False),
        # By these, a process ends because of its own error.
        ("killed by SIGSEGV", True),
        ("exit status 134 (SIGABRT): terminate called", True),
        ("exit status 1: torchrun's rank 1: exit status 1: ValueError: x", True),
        ("exit status 255", True),
        (f"killed by SIGKILL: {attribution.OUT_OF_MEMORY}", True),
        (f"exit status 137 (SIGKILL): {attribution.OUT_OF_MEMORY}: step 12", True),
    ],
)
def test_kills_without_a_step_are_never_the_same_failure(end: str, known: bool) -> None:
    one, other = attempt(f"rank 0 on gpu1: {end}", last=None), attempt(f"rank 1 on gpu2: {end}", "gpu2", last=None)
    assert failure.have_same_failure([one, other, one]) is known
    assert failure.was_killed(one) is not known
    # With a step, it is at the same place of the program.
    assert failure.have_same_failure([one._replace(last=7), other._replace(last=7)])
