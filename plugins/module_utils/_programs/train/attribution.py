# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the rank that is to blame when several have ended: its error, not those that follow from it.

When one rank of a collective dies, the others fail a moment later because their peer is gone. The clocks of the nodes
may differ by more than that moment, so time alone is not sufficient. The last output of a rank is: an error that names
a peer is a consequence. If all ranks that have ended name their peers, one of the ranks that are still running is to
blame.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import error_words as error_patterns
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import last_words, stack_place
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Cause, RankEnd

#: Signals by which a process ends because of its own error, so that its last output is about that error.
CRASH_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
#: The exit statuses of a process that has aborted; a shell reports a signal as 128 plus its number.
_ABORT_STATUSES = {status for number in (signal.SIGABRT, signal.SIGSEGV) for status in (-number, 128 + number)}
#: The message for a job whose memory was used up, with the remedy.
OUT_OF_MEMORY = "the memory of the job on its node was used up (oom_kill). Request more with --sbatch --mem=SIZE"
#: The exit status with which a shell and podman report SIGKILL.
_SIGKILL_STATUS = 128 + signal.SIGKILL


def is_consequence(rank_end: RankEnd) -> bool:
    """Whether this rank seems to have ended because another one did."""
    own_error = _find_own_error(rank_end)
    return own_error is not None and own_error.is_consequence and not _ran_out_of_memory(rank_end)


def _ran_out_of_memory(rank_end: RankEnd) -> bool:
    """Whether the rank ended because the memory of the job was used up.

    The kernel does not say which process it has killed.
    """
    root_cause = last_words.find_root_cause(rank_end.tail)
    was_killed = (root_cause.exit_code if root_cause else rank_end.status) in (
        -signal.SIGKILL,
        _SIGKILL_STATUS,
    ) or last_words.reports_killed_process(rank_end.tail)
    return (rank_end.memory and was_killed) or last_words.reports_out_of_memory(rank_end.tail)


def _find_own_error(rank_end: RankEnd) -> Optional[last_words.ReportedError]:
    """Return the error in the output of a rank that has ended it, if there is one."""
    root_cause = last_words.find_root_cause(rank_end.tail)
    last_error = last_words.choose_error(rank_end.tail, root_cause.rank if root_cause else None)
    exit_status = root_cause.exit_code if root_cause else rank_end.status
    # A killed rank has not reported why, unless its output ends with an error.
    return (
        last_error
        if last_error and (exit_status > 0 or -exit_status in CRASH_SIGNALS or (last_error.is_last and not root_cause))
        else None
    )


def format_error(rank_end: RankEnd) -> str:
    """Describe in one line why the rank ended."""
    root_cause = last_words.find_root_cause(rank_end.tail)
    own_error = _find_own_error(rank_end)
    error_text = (
        root_cause.reported_error if root_cause and root_cause.reported_error else own_error.text if own_error else ""
    )
    clauses = [_format_status(rank_end.status)]
    if root_cause:
        clauses.append(f"torchrun's rank {root_cause.rank}: {_format_status(root_cause.exit_code)}")
    if _ran_out_of_memory(rank_end):
        clauses.append(OUT_OF_MEMORY)
    if not error_text and rank_end.status > 0 and not root_cause:
        error_text = last_words.last_line(rank_end.tail)
    if error_text and not last_words.reports_out_of_memory(error_text):
        clauses.append(last_words.shorten(error_text))
    if (
        own_error
        and own_error.preceding_error
        and error_patterns.NO_SPACE.search(own_error.preceding_error)
        and not error_patterns.NO_SPACE.search(error_text)
    ):
        # Without the preceding error, nobody would see that the disk was full.
        clauses[-1] += f", after '{last_words.shorten(own_error.preceding_error)}'"
    return ": ".join(clauses)


def _format_status(exit_status: int) -> str:
    """Describe an exit status. A shell and podman report a signal as 128 plus its number."""
    if exit_status < 0:
        return f"killed by {signal_name(-exit_status)}"
    signal_label = signal_name(exit_status - 128) if exit_status > 128 else ""
    return f"exit status {exit_status}" + (f" ({signal_label})" if signal_label.startswith("SIG") else "")


def signal_name(signal_number: int) -> str:
    """Return the name of a signal, such as SIGKILL, or its number."""
    try:
        return signal.Signals(signal_number).name
    except ValueError:
        return f"signal {signal_number}"


def attribute_crash(rank_ends: Sequence[RankEnd]) -> Optional[Cause]:
    """Return the cause according to the failed ranks; None if no rank has failed.

    A rank whose node is at fault is blamed first, then the first to end of those whose errors are no consequences.
    """
    failed_ends = [rank_end for rank_end in rank_ends if rank_end.status]
    if not failed_ends:
        return None
    hardware_errors = _find_faulty_nodes(failed_ends)
    culprit = min(
        failed_ends,
        key=lambda rank_end: (rank_end.node not in hardware_errors, _blame_order(rank_end), rank_end.at, rank_end.rank),
    )
    other_count = len(failed_ends) - 1
    detail = f"rank {culprit.rank} on {culprit.node}: {format_error(culprit)}"
    hardware_error = hardware_errors.get(culprit.node, "")
    if hardware_error and hardware_error not in detail:
        detail += f"; its output says '{last_words.shorten(hardware_error)}'"
    if other_count:
        detail += f" ({other_count} other rank{'s' if other_count > 1 else ''} failed after it)"
    return Cause("crash", detail, culprit.rank, culprit.node, bool(hardware_error))


def _blame_order(rank_end: RankEnd) -> int:
    """Return the order of blame: 0 for an error of the rank itself, 2 for a consequence, and 1 for what may be either.

    SIGTERM comes from another rank or the launcher, and a lost connection may have been a connection to a peer.
    """
    if is_consequence(rank_end):
        return 2
    own_error = _find_own_error(rank_end)
    return 1 if rank_end.status == -signal.SIGTERM or (own_error is not None and own_error.maybe_consequence) else 0


def _find_faulty_nodes(failed_ends: Sequence[RankEnd]) -> Dict[str, str]:
    """Return the nodes at fault according to their failed ranks, with the hardware errors that these report."""
    return _find_hardware_errors((rank_end.node, rank_end.tail) for rank_end in failed_ends)


def _find_hardware_errors(rank_outputs: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    """Return the hardware errors by node, from pairs of a node and the output of a rank there.

    An error that is the same on several nodes is no hardware fault of one of them, such as an interface that none has.
    """
    node_errors = ((node, last_words.find_hardware_error(error_text)) for node, error_text in rank_outputs)
    errors_by_node = {node: error_text for node, error_text in node_errors if error_text}
    shared_errors = {
        error_text for error_text, node_count in Counter(errors_by_node.values()).items() if node_count > 1
    }
    return {node: error_text for node, error_text in errors_by_node.items() if error_text not in shared_errors}


class StallSnapshot(NamedTuple):
    """The state of the ranks when there is no more progress, by rank.

    ``stop_reasons``: why a process does not run, according to the kernel; ``stack_locations``: where programs are, if
    they can report it; ``ended_ranks``: ranks that have ended; ``errors_by_rank``: the errors with which the output of
    the other ranks ends.
    """

    node_by_rank: Mapping[int, str]
    step_by_rank: Mapping[int, Optional[int]]
    stop_reasons: Mapping[int, str]
    stack_locations: Mapping[int, str]
    ended_ranks: Sequence[int] = ()
    errors_by_rank: Mapping[int, str] = {}


def all_consequences(rank_ends: Sequence[RankEnd]) -> bool:
    """Whether ranks have failed, but all of them only name their peers, and no node is at fault."""
    failed_ends = [rank_end for rank_end in rank_ends if rank_end.status]
    return (
        bool(failed_ends)
        and all(is_consequence(rank_end) for rank_end in failed_ends)
        and not _find_faulty_nodes(failed_ends)
    )


def only_aborts(rank_ends: Sequence[RankEnd]) -> bool:
    """Whether ranks have aborted, and the others that have failed only name their peers."""
    failed_ends = [rank_end for rank_end in rank_ends if rank_end.status]
    aborted_ends = [
        rank_end for rank_end in failed_ends if rank_end.status in _ABORT_STATUSES and not _ran_out_of_memory(rank_end)
    ]
    return bool(aborted_ends) and all(rank_end in aborted_ends or is_consequence(rank_end) for rank_end in failed_ends)


def blame_survivor(rank_ends: Sequence[RankEnd], snapshot: StallSnapshot) -> Optional[Cause]:
    """Blame a rank that is still running if all failed ranks name their peers; return None if none stands out."""
    failed_ends = sorted(
        (rank_end for rank_end in rank_ends if rank_end.status), key=lambda rank_end: (rank_end.at, rank_end.rank)
    )
    ended_ranks = {rank_end.rank for rank_end in rank_ends}
    living_ranks = [rank for rank in sorted(snapshot.node_by_rank) if rank not in ended_ranks]
    step_by_rank = {rank: snapshot.step_by_rank.get(rank) for rank in living_ranks}
    reported_steps = [step_clause for step_clause in snapshot.step_by_rank.values() if step_clause is not None]
    lagging_ranks = [
        rank
        for rank, step_clause in step_by_rank.items()
        if step_clause is not None and step_clause < max(reported_steps)
    ]
    stopped_ranks = [rank for rank in living_ranks if rank in snapshot.stop_reasons]
    erring_rank, node_faulty = _find_erring_rank(
        {rank: error for rank, error in snapshot.errors_by_rank.items() if rank in living_ranks}, snapshot
    )
    if stopped_ranks:
        rank, cause_kind, description = stopped_ranks[0], "hang", snapshot.stop_reasons[stopped_ranks[0]]
    elif erring_rank is not None:
        rank, cause_kind, description = (
            erring_rank,
            "crash",
            f"still there after its error: {snapshot.errors_by_rank[erring_rank]}",
        )
    else:
        # A rank that waits in a collective is not the rank for which the others have waited.
        suspect_ranks = [
            rank
            for rank in lagging_ranks or living_ranks
            if not stack_place.is_collective(snapshot.stack_locations.get(rank, ""))
        ]
        if len(suspect_ranks) != 1:
            return None
        rank = suspect_ranks[0]
        location_clause = f", in {snapshot.stack_locations[rank]}" if rank in snapshot.stack_locations else ""
        step_clause = f" at step {step_by_rank[rank]}" if step_by_rank[rank] is not None else ""
        cause_kind, description = "hang", f"still running{step_clause}{location_clause}"
    node = snapshot.node_by_rank[rank]
    first_failure = failed_ends[0]
    others_clause = f"{len(failed_ends)} other rank{'s' if len(failed_ends) > 1 else ''} gave up waiting for it"
    detail = f"rank {rank} on {node} is {description}; {others_clause}: rank {first_failure.rank}: {format_error(first_failure)}"
    return Cause(cause_kind, detail, rank, node, hardware=rank == erring_rank and node_faulty)


def _find_erring_rank(errors_by_rank: Mapping[int, str], snapshot: StallSnapshot) -> Tuple[Optional[int], bool]:
    """Return the first rank that is still there after its error, if any, and whether its node is at fault.

    A rank whose node is at fault comes first.
    """
    hardware_errors = _find_hardware_errors(
        (snapshot.node_by_rank[erring_rank], error) for erring_rank, error in errors_by_rank.items()
    )
    erring_rank = min(
        errors_by_rank,
        key=lambda erring_rank: (snapshot.node_by_rank[erring_rank] not in hardware_errors, erring_rank),
        default=None,
    )
    return erring_rank, erring_rank is not None and snapshot.node_by_rank[erring_rank] in hardware_errors


def attribute_hang(snapshot: StallSnapshot, idle_seconds: float) -> Cause:
    """Return the cause when there is no more progress.

    The first of these is blamed: a stopped rank, a rank with an error, a rank that is behind, and a rank that is
    elsewhere in the program. If all ranks are in the same state, none is blamed.
    """
    if snapshot.stop_reasons:
        rank = min(snapshot.stop_reasons)
        return _blame_rank(rank, snapshot, snapshot.stop_reasons[rank])
    erring_rank, node_faulty = _find_erring_rank(snapshot.errors_by_rank, snapshot)
    if erring_rank is not None:
        cause = _blame_rank(
            erring_rank, snapshot, f"still there after its error: {snapshot.errors_by_rank[erring_rank]}"
        )
        return cause._replace(hardware=node_faulty)
    running_ranks = sorted(set(snapshot.node_by_rank) - set(snapshot.ended_ranks))
    if len(running_ranks) == 1 and snapshot.ended_ranks:
        return _blame_rank(running_ranks[0], snapshot, "still running, although all others have ended")
    reported_steps = {rank: step for rank, step in snapshot.step_by_rank.items() if step is not None}
    lagging_ranks = [rank for rank, step in reported_steps.items() if step == min(reported_steps.values())]
    if len(lagging_ranks) == 1 and len(reported_steps) > 1:
        return _blame_rank(
            lagging_ranks[0],
            snapshot,
            f"at step {reported_steps[lagging_ranks[0]]}, the others at {max(reported_steps.values())}",
        )
    common_locations = Counter(snapshot.stack_locations.values()).most_common(2)
    if (
        len(common_locations) == 2
        and common_locations[0][1] > common_locations[1][1] == 1
        and len(snapshot.stack_locations) == len(snapshot.node_by_rank)
    ):
        rank = next(rank for rank, location in snapshot.stack_locations.items() if location == common_locations[1][0])
        if sum(1 for location in snapshot.stack_locations.values() if location != common_locations[0][0]) == 1:
            return _blame_rank(rank, snapshot, f"in {snapshot.stack_locations[rank]}")
    shared_location = f"; all are in {common_locations[0][0]}" if len(common_locations) == 1 else ""
    return Cause("hang", f"no progress for {idle_seconds:.0f} s{shared_location}")


def _blame_rank(rank: int, snapshot: StallSnapshot, description: str) -> Cause:
    node = snapshot.node_by_rank.get(rank, "")
    waiting_location = Counter(
        location for other_rank, location in snapshot.stack_locations.items() if other_rank != rank
    ).most_common(1)
    location_clause = f" in {waiting_location[0][0]}" if waiting_location else ""
    others_clause = "" if snapshot.ended_ranks else f"; the others wait for it{location_clause}"
    return Cause("hang", f"rank {rank} on {node} is {description}{others_clause}", rank, node)
