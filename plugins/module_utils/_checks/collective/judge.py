# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge whether a collective is correct, complete and fast enough.

A pass requires every proof; a failure has a message.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.parse import ParsedOutput, ResultRow
from ansible_collections.gpumesh.cluster.plugins.module_utils._checks.collective.thresholds import Threshold
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names

#: The exit status of nccl-tests.
_EXIT_STATUS_TEXTS = {
    1: "it was called incorrectly, or failed before the test",
    2: "a CUDA call failed",
    3: "an NCCL call failed",
}
#: The exit statuses of shells, timeout, env and setpriv, and of the dynamic linker (127).
_NOT_EXECUTABLE_STATUS, _NOT_FOUND_STATUS = 126, 127
#: A program that could not be started, as slurmstepd, timeout, env and setpriv report it.
_START_FAILURE = re.compile(
    r"(?:execve\(\): |^(?:timeout|env|setpriv): (?:failed to \w+(?: command)? )?)(?P<path>.+?): "
    r"(?P<reason>Permission denied|No such file or directory)$"
)
#: mpirun names the program in another line.
_MPI_DENIED, _MPI_NOT_FOUND = "could not access", "was unable to find the specified executable"
_MISSING_LIBRARY = re.compile(r"(?P<path>\S+): error while loading shared libraries: (?P<library>[^:\s]+): ")


class ExpectedRun(NamedTuple):
    """The expected run. ``program`` is the path of what each rank runs, where it is known."""

    rank_count: int
    node_count: int
    timeout_s: float
    threshold: Optional[Threshold] = None
    program: str = ""


class CollectiveProblem(NamedTuple):
    """Why the test did not pass. ``kind`` is a key for programs."""

    kind: str
    message: str
    remedy: str


def find_largest_row(rows: List[ResultRow]) -> Optional[ResultRow]:
    """The row of the largest size, out of place if there is one, as training uses it."""
    measured = [row for row in rows if row["busbw_gbps"] is not None]
    if not measured:
        return None
    top = max(row["size_bytes"] for row in measured)
    return min((row for row in measured if row["size_bytes"] == top), key=lambda row: row["in_place"])


def _format_size(number: int) -> str:
    """A size in bytes in the largest binary unit that divides it."""
    for shift, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number and number % (1 << shift) == 0:
            return f"{number >> shift} {unit}"
    return f"{number} bytes"


def _find_killed_rank(failures: List[str]) -> Optional[str]:
    """The rank that, according to the launcher, ended early."""
    for line in failures:
        # srun: error: n3: task 2: Killed
        srun = re.search(r"^srun: error: (\S+): tasks? ([\d,-]+): (.+)$", line)
        # Other ranks are terminated because of it, and the program's own message explains an exit status better.
        if srun and not re.match(r"Terminated|Exited with exit code|.*cancelled", srun.group(3), re.IGNORECASE):
            return f"rank {srun.group(2)} on {srun.group(1)}: {srun.group(3).strip()}"
        mpi = re.search(r"process rank (\d+).*? on node (\S+) exited on signal (\d+)", line)
        if mpi:
            return f"rank {mpi.group(1)} on {mpi.group(2)}: killed by signal {mpi.group(3)}"
    return None


def _choose_failure_text(failures: List[str]) -> str:
    """Return the most informative line: the tool's own message; the launcher's only says that a task ended."""
    test_failures = [line for line in failures if re.search(r"Test (?:NCCL |CUDA |HIP )?failure|Test timeout", line)]
    quoted = [line for line in test_failures if "'" in line]
    error = [line for line in failures if re.match(r"[\w.]*(?:Error|Exception): |Invalid number of GPUs: ", line)]
    return (quoted or error or test_failures or failures)[0]


def _check_ranks(parsed_output: ParsedOutput, expected_run: ExpectedRun) -> Optional[CollectiveProblem]:
    seen_ranks = {device["rank"] for device in parsed_output["devices"]}
    seen_hosts = {device["host"] for device in parsed_output["devices"]}
    absent = sorted(set(range(expected_run.rank_count)) - seen_ranks)
    if absent:
        rank_names = join_names(absent)
        return CollectiveProblem(
            "missing_rank",
            f"{len(seen_ranks)} of {expected_run.rank_count} ranks took part: rank {rank_names} {'is' if len(absent) == 1 else 'are'} missing.",
            "Check that each rank can be started on each node, and that Slurm's MPI plugin matches the MPI (srun --mpi=list).",
        )
    if len(seen_ranks) > expected_run.rank_count:
        return CollectiveProblem(
            "wrong_ranks",
            f"{len(seen_ranks)} ranks reported instead of {expected_run.rank_count}.",
            "Set ranks to the number of GPUs that take part, or check the launcher's own options.",
        )
    if len(seen_hosts) != expected_run.node_count:
        return CollectiveProblem(
            "wrong_nodes",
            f"The ranks ran on {len(seen_hosts)} nodes ({', '.join(sorted(seen_hosts))}) instead of {expected_run.node_count}.",
            "Give the launcher one host per node, and check that the host names are unique.",
        )
    return None


def _check_one_test(parsed_output: ParsedOutput) -> Optional[CollectiveProblem]:
    """The problem if processes ran tests of their own, or None. Then the same rank reported more than once."""
    hosts_by_rank: Dict[int, List[str]] = {}
    for device in parsed_output["devices"]:
        hosts_by_rank.setdefault(device["rank"], []).append(device["host"])
    rank, hosts = max(hosts_by_rank.items(), key=lambda item: (len(item[1]), -item[0]), default=(0, []))
    if len(hosts) < 2:
        return None
    return CollectiveProblem(
        "wrong_ranks",
        f"Every process ran a separate test: rank {rank} reported {len(hosts)} times (on {join_names(sorted(set(hosts)))}).",
        "The binary was built without MPI: build it with MPI=1, after make clean. If it was built with MPI, that MPI does "
        "not match the launcher: with srun, set mpi to a plugin that it supports (srun --mpi=list).",
    )


def _describe_timeout(parsed_output: ParsedOutput, expected_run: ExpectedRun) -> CollectiveProblem:
    largest_row = find_largest_row(parsed_output["rows"])
    ranks = {device["rank"] for device in parsed_output["devices"]}
    silent_ranks = sorted(set(range(expected_run.rank_count)) - ranks)
    progress_text = f"after {largest_row['size_bytes']} bytes" if largest_row else "before the first size"
    silent_text = f" Rank {join_names(silent_ranks)} reported nothing." if silent_ranks and ranks else ""
    # The launcher kills all ranks at the time limit; a single rank must have ended before.
    deaths = [line for line in parsed_output["failures"] if _find_killed_rank([line])]
    cause = (
        f" Before that, it lost {_find_killed_rank(deaths)}."
        if len(deaths) == 1 and expected_run.rank_count > 1
        else ""
    )
    return CollectiveProblem(
        "timeout",
        f"It did not finish within {expected_run.timeout_s:g} s and stopped {progress_text}.{silent_text}{cause}",
        "A hang is usually caused by a closed port range, an interface that others cannot reach, or the path MTU: see "
        "the reachability matrix, and run with NCCL_DEBUG=INFO.",
    )


def _check_started(parsed_output: ParsedOutput) -> Optional[CollectiveProblem]:
    """The problem if it was not started as requested, or None."""
    if parsed_output["usage"]:
        return CollectiveProblem(
            "usage",
            "The program printed its usage: it does not know one of the options.",
            "Use nccl-tests 2.0 or later, or rccl-tests.",
        )
    if any("Requested nodes are busy" in line for line in parsed_output["failures"]):
        return CollectiveProblem(
            "busy",
            "Not run: other jobs use the nodes.",
            "Run it again when the nodes are free.",
        )
    if any("No module named 'torch'" in line for line in parsed_output["failures"]):
        return CollectiveProblem(
            "not_installed",
            "The nodes have neither nccl-tests nor PyTorch.",
            "Install python3-torch on the nodes, or set path to the directory of the nccl-tests binaries.",
        )
    return None


def _describe_start_failure(
    parsed_output: ParsedOutput, expected_run: ExpectedRun, exit_status: int
) -> Optional[CollectiveProblem]:
    """The problem if the program could not be started, or None. Slurm passes on the kernel's error as exit status."""
    for line in parsed_output["failures"]:
        missing_library = _MISSING_LIBRARY.search(line)
        if missing_library:
            return CollectiveProblem(
                "not_started",
                f"{missing_library.group('path')} cannot be started: {missing_library.group('library')} is not installed, "
                "or not where the dynamic linker looks.",
                "Install the library on each node, in a folder of ldconfig, or give its folder in LD_LIBRARY_PATH.",
            )
    reports = "\n".join(parsed_output["failures"])
    start_failure = next(filter(None, map(_START_FAILURE.search, parsed_output["failures"])), None)
    program = (
        start_failure.group("path").strip("'\"\u2018\u2019") if start_failure else expected_run.program or "The program"
    )
    reason = start_failure.group("reason") if start_failure else ""
    status = f"It exited {exit_status}: " if exit_status in (_NOT_EXECUTABLE_STATUS, _NOT_FOUND_STATUS) else ""
    if reason == "Permission denied" or (
        not reason and (exit_status == _NOT_EXECUTABLE_STATUS or _MPI_DENIED in reports)
    ):
        return CollectiveProblem(
            "not_started",
            f"{status}{program} cannot be executed by the account that runs the test, or its folder is closed to it.",
            "Let that account enter each folder of the path and execute the file (chmod a+rx), or install it where every "
            "account can, such as in /opt, and set path.",
        )
    if reason or exit_status == _NOT_FOUND_STATUS or _MPI_NOT_FOUND in reports:
        return CollectiveProblem(
            "not_started",
            f"{status}{program}, or a program or library that it needs, was not found.",
            "Install it under the same path on each node, or set path to its folder; for the built-in program, set python. "
            "`ldd` shows missing libraries.",
        )
    return None


def _check_completed(
    parsed_output: ParsedOutput, expected_run: ExpectedRun, exit_status: int
) -> Optional[CollectiveProblem]:
    """The problem if it did not complete, or reports an error itself, or None."""
    # nccl-tests completes and exits 1 if values are wrong.
    if parsed_output["concluded"] and (exit_status == 0 or parsed_output["out_of_bounds"]):
        return None
    start_failure = _describe_start_failure(parsed_output, expected_run, exit_status)
    if start_failure:
        return start_failure
    killed = _find_killed_rank(parsed_output["failures"])
    if killed:
        return CollectiveProblem(
            "rank_died",
            f"A process ended early: {killed}.",
            "Check the kernel log and slurmd's log on that node for out-of-memory or GPU errors.",
        )
    if parsed_output["failures"]:
        return CollectiveProblem(
            "failed",
            f"It failed: {_choose_failure_text(parsed_output['failures']).rstrip('.')}.",
            "Check that node first. NCCL_DEBUG=INFO shows details.",
        )
    if exit_status != 0:
        status_text = _EXIT_STATUS_TEXTS.get(exit_status)
        return CollectiveProblem(
            "exit_status",
            f"It exited {exit_status}{f': {status_text}' if status_text else ''}.",
            "Run it manually with NCCL_DEBUG=INFO.",
        )
    return CollectiveProblem(
        "truncated",
        "Its output ends before the footer, so it is not known whether it finished.",
        "Run it again. If the error persists, a rank exits silently: check the kernel log of the nodes.",
    )


def _check_measurements(parsed_output: ParsedOutput, threshold: Optional[Threshold]) -> Optional[CollectiveProblem]:
    """The problem if values are wrong, or it is too slow, or None."""
    wrong = sum(row["wrong"] or 0 for row in parsed_output["rows"])
    if parsed_output["out_of_bounds"] or wrong:
        return CollectiveProblem(
            "wrong_values",
            f"{max(wrong, parsed_output['out_of_bounds'] or 0)} values are wrong: data was corrupted in transit.",
            "Do not train on these nodes. Look for ECC errors and bad links with node_health, and find the pair by "
            "running it on two nodes at a time.",
        )
    largest_row = find_largest_row(parsed_output["rows"])
    if largest_row is None:
        return CollectiveProblem(
            "no_rows", "The output has a footer but no measurements.", "Check min_bytes and max_bytes."
        )
    bus_bandwidth = largest_row["busbw_gbps"] or 0.0
    if threshold is not None and bus_bandwidth < threshold.required_gbps:
        return CollectiveProblem(
            "slow",
            f"{bus_bandwidth:g} GB/s at {_format_size(largest_row['size_bytes'])}, but {threshold.required_gbps:g} are required ({threshold.source}).",
            "Find the slow pair of nodes, then check its cable, NIC rate, PCIe width and the interface that NCCL chose.",
        )
    return None


def judge_output(
    parsed_output: ParsedOutput, expected_run: ExpectedRun, rc: int, timed_out: bool
) -> Optional[CollectiveProblem]:
    """The first problem, the most telling first; None for a pass."""
    own_tests = _check_one_test(parsed_output)
    if timed_out or own_tests:
        return own_tests or _describe_timeout(parsed_output, expected_run)
    return (
        _check_started(parsed_output)
        or _check_completed(parsed_output, expected_run, rc)
        or _check_ranks(parsed_output, expected_run)
        or _check_measurements(parsed_output, expected_run.threshold)
    )
