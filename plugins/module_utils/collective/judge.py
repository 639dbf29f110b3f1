# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge whether a collective is correct, complete and fast enough.

A pass requires every proof; a failure has a message.
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.parse import (
    Output,
    Row,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.collective.thresholds import (
    Threshold,
)

#: The exit status of nccl-tests.
_EXIT_CODES = {
    1: "it was called incorrectly, or failed before the test",
    2: "a CUDA call failed",
    3: "an NCCL call failed",
}


class Expected(NamedTuple):
    """The expected run."""

    ranks: int
    nodes: int
    timeout_s: float
    threshold: Optional[Threshold] = None


class Problem(NamedTuple):
    """Why the test did not pass. ``kind`` is a key for programs."""

    kind: str
    message: str
    remedy: str


def largest(rows: List[Row]) -> Optional[Row]:
    """The row of the largest size, out of place if there is one, as training uses it."""
    measured = [row for row in rows if row["busbw_gbps"] is not None]
    if not measured:
        return None
    top = max(row["size_bytes"] for row in measured)
    return min((row for row in measured if row["size_bytes"] == top), key=lambda row: row["in_place"])


def _size(number: int) -> str:
    """A size in bytes in the largest binary unit that divides it."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return f"{number} bytes"


def _killed(failures: List[str]) -> Optional[str]:
    """The rank that, according to the launcher, ended early."""
    for line in failures:
        # srun: error: n3: task 2: Killed
        srun = re.search(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", line)
        # The others are terminated because of it, and the program's own message explains an exit status better.
        if srun and not re.match(r"Terminated|Exited with exit code|.*cancelled", srun.group(3), re.IGNORECASE):
            return f"rank {srun.group(2)} on {srun.group(1)}: {srun.group(3).strip()}"
        mpi = re.search(r"process rank (\d+).*? on node (\S+) exited on signal (\d+)", line)
        if mpi:
            return f"rank {mpi.group(1)} on {mpi.group(2)}: killed by signal {mpi.group(3)}"
    return None


def _failure_text(failures: List[str]) -> str:
    """The most informative line: the tool's own message rather than the launcher's, which only says that a task ended."""
    own = [line for line in failures if re.search(r"Test (?:NCCL |CUDA |HIP )?failure|Test timeout", line)]
    quoted = [line for line in own if "'" in line]
    error = [line for line in failures if re.match(r"[\w.]*(?:Error|Exception): ", line)]
    return (quoted or own or error or failures)[0]


def _missing(output: Output, expected: Expected) -> Optional[Problem]:
    ranks = {device["rank"] for device in output["devices"]}
    hosts = {device["host"] for device in output["devices"]}
    absent = sorted(set(range(expected.ranks)) - ranks)
    if absent:
        named = ", ".join(str(rank) for rank in absent[:8]) + (" and more" if len(absent) > 8 else "")
        return Problem(
            "missing_rank",
            f"{len(ranks)} of {expected.ranks} ranks took part: rank {named} is missing.",
            "Check that each rank can be started on each node, and that Slurm's MPI plugin matches the MPI (srun --mpi=list).",
        )
    if len(ranks) > expected.ranks or len(output["devices"]) != len(ranks):
        return Problem(
            "wrong_ranks",
            f"{len(output['devices'])} ranks reported instead of {expected.ranks}.",
            "The binary may have been built without MPI, so that every process runs its own test: build it with MPI=1.",
        )
    if len(hosts) != expected.nodes:
        return Problem(
            "wrong_nodes",
            f"The ranks ran on {len(hosts)} nodes ({', '.join(sorted(hosts))}) instead of {expected.nodes}.",
            "Give the launcher one host per node, and check that the host names are unique.",
        )
    return None


def _timeout(output: Output, expected: Expected) -> Problem:
    reached = largest(output["rows"])
    ranks = {device["rank"] for device in output["devices"]}
    silent = sorted(set(range(expected.ranks)) - ranks)
    where = f"after {reached['size_bytes']} bytes" if reached else "before the first size"
    who = f" Rank {', '.join(map(str, silent[:8]))} never reported." if silent and ranks else ""
    # When the time is over, the launcher kills all ranks; a single rank must have ended before.
    deaths = [line for line in output["failures"] if _killed([line])]
    cause = f" It had lost {_killed(deaths)}." if len(deaths) == 1 and expected.ranks > 1 else ""
    return Problem(
        "timeout",
        f"It did not finish within {expected.timeout_s:g} s and stopped {where}.{who}{cause}",
        "A hang is usually caused by a closed port range, an interface that others cannot reach, or the path MTU: see "
        "the reachability matrix, and run with NCCL_DEBUG=INFO.",
    )


def _not_run(output: Output) -> Optional[Problem]:
    """The problem if it was not started as requested, or None."""
    if output["usage"]:
        return Problem(
            "usage",
            "The program printed its usage: it does not know one of the options.",
            "Use nccl-tests 2.0 or later, or rccl-tests.",
        )
    if any("Requested nodes are busy" in line for line in output["failures"]):
        return Problem(
            "busy",
            "Not run: other jobs use the nodes.",
            "Run it again when the nodes are free.",
        )
    if any("No module named 'torch'" in line for line in output["failures"]):
        return Problem(
            "not_installed",
            "The nodes have neither nccl-tests nor PyTorch.",
            "Install python3-torch on the nodes, or set path to the directory of the nccl-tests binaries.",
        )
    return None


def _broken_off(output: Output, rc: int) -> Optional[Problem]:
    """The problem if it did not complete, or reports an error itself, or None."""
    if rc == 0 and output["concluded"]:
        return None
    killed = _killed(output["failures"])
    if killed:
        return Problem(
            "rank_died",
            f"A process ended early: {killed}.",
            "Check the kernel log and slurmd's log on that node for out-of-memory or GPU errors.",
        )
    if output["failures"]:
        return Problem(
            "failed",
            f"It failed: {_failure_text(output['failures']).rstrip('.')}.",
            "Check that node first. NCCL_DEBUG=INFO shows details.",
        )
    if rc != 0:
        known = _EXIT_CODES.get(rc)
        return Problem(
            "exit_status", f"It exited {rc}{f': {known}' if known else ''}.", "Run it manually with NCCL_DEBUG=INFO."
        )
    return Problem(
        "truncated",
        "Its output ends before the footer, so it is not known whether it finished.",
        "Run it again. If the error persists, a rank exits silently: check the kernel log of the nodes.",
    )


def _measured(output: Output, threshold: Optional[Threshold]) -> Optional[Problem]:
    """The problem if values are wrong, or it is too slow, or None."""
    wrong = sum(row["wrong"] or 0 for row in output["rows"])
    if output["out_of_bounds"] or wrong:
        return Problem(
            "wrong_values",
            f"{max(wrong, output['out_of_bounds'] or 0)} values are wrong: data was corrupted in transit.",
            "Do not train on these nodes. Look for ECC errors and bad links with node_health, and find the pair by "
            "running it on two nodes at a time.",
        )
    reached = largest(output["rows"])
    if reached is None:
        return Problem("no_rows", "The output has a footer but no measurements.", "Check min_bytes and max_bytes.")
    value = reached["busbw_gbps"] or 0.0
    if threshold is not None and value < threshold.gbps:
        return Problem(
            "slow",
            f"{value:g} GB/s at {_size(reached['size_bytes'])}, but {threshold.gbps:g} are required ({threshold.source}).",
            "Find the slow pair of nodes, then check its cable, NIC rate, PCIe width and the interface that NCCL chose.",
        )
    return None


def judge(output: Output, expected: Expected, rc: int, timed_out: bool) -> Optional[Problem]:
    """The first problem, the most telling first; None for a pass."""
    if timed_out:
        return _timeout(output, expected)
    return (
        _not_run(output)
        or _broken_off(output, rc)
        or _missing(output, expected)
        or _measured(output, expected.threshold)
    )
