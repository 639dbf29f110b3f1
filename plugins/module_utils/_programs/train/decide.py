# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what follows an attempt: a restart in this allocation, another job, or the end of the run."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train import failure
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import Attempt, Cause, RunRequest

#: The number of repetitions after which the same error is blamed on its node, or on the program if it also occurs
#: elsewhere at the same step; after which a failing node is barred; and after which jobs without a newer checkpoint
#: fail the run.
REPEAT_LIMIT = 3
#: Seconds after which an attempt of a program that reports neither checkpoints nor steps counts as progress.
_LONG_RUN_SECONDS = 3600.0
#: Causes after which no attempt follows, and the action then.
_FINAL_ACTIONS = {"finished": "finish", "cancelled": "cancel", "diverged": "fail"}
#: Causes that are not failures.
_BLAMELESS_KINDS = ("finished", "warned", "grown", "cancelled", "volume")


class Decision(NamedTuple):
    """The action that follows an attempt.

    ``action``: finish, cancel, fail, restart (on ``nodes``, in this allocation), resubmit (without ``excluded_nodes``),
    or requeue, which Slurm does itself.
    """

    action: str
    reason: str = ""
    nodes: Tuple[str, ...] = ()
    excluded_nodes: Tuple[str, ...] = ()


def unreliable_nodes(attempts: Sequence[Attempt]) -> List[str]:
    """Return the nodes that have failed so often that no attempt uses them again."""
    failures_by_node = Counter(
        attempt.cause.node for attempt in attempts if attempt.cause and attempt.cause.kind == "node"
    )
    return sorted(node for node, failure_count in failures_by_node.items() if node and failure_count >= REPEAT_LIMIT)


def _find_disproof(attempts: Sequence[Attempt], attempt_index: int) -> Optional[Attempt]:
    """Return a later attempt with the same error on another node than the one that the attempt at this index excluded.

    None if there is none, or if the hardware is at fault, which may fail on several nodes.
    """
    suspect_attempt = attempts[attempt_index]
    if not suspect_attempt.excluded or suspect_attempt.cause is None or suspect_attempt.cause.hardware:
        return None
    later_elsewhere = (
        attempt
        for attempt in _similar_attempts(attempts[attempt_index + 1 :], suspect_attempt)
        if _culprit_node(attempt) != suspect_attempt.excluded
    )
    return next(later_elsewhere, None)


def _similar_attempts(attempts: Sequence[Attempt], reference: Attempt) -> List[Attempt]:
    """Return the attempts that have failed with the same error as this one on a known node, at any step.

    For a process that was killed, the step is all that is known: at another step, something else may have killed it.
    """
    failed_attempts = [
        attempt
        for attempt in attempts
        if attempt.cause and attempt.cause.kind in failure.PROGRAM_KINDS and attempt.cause.node
    ]
    if failure.was_killed(reference):
        return [attempt for attempt in failed_attempts if failure.have_same_failure([attempt, reference])]
    return [
        attempt
        for attempt in failed_attempts
        if failure.normalized_error(attempt) == failure.normalized_error(reference)
    ]


def _culprit_node(attempt: Attempt) -> str:
    return attempt.cause.node if attempt.cause else ""


def barred_nodes(attempts: Sequence[Attempt]) -> Dict[str, str]:
    """Return the nodes that no attempt uses again, and why.

    A node whose error has also occurred on another node may be used again.
    """
    reasons_by_node = dict.fromkeys(unreliable_nodes(attempts), f"it has failed {REPEAT_LIMIT} times in this run")
    for attempt_index, attempt in enumerate(attempts):
        if attempt.excluded and attempt.cause and _find_disproof(attempts, attempt_index) is None:
            reasons_by_node.setdefault(attempt.excluded, f"only there, so far: {attempt.cause.detail}")
    return reasons_by_node


def choose_excluded_node(attempts: Sequence[Attempt], is_replaceable: Callable[[str], bool]) -> str:
    """Choose the node that no later attempt uses, since it may have caused the last error; empty if there is none.

    A node is excluded at once for a hardware error. For any other error, it is excluded when the error is repeated on
    this node only, while others worked: at any step, since a broken node fails at random ones. Kills at several steps
    may have any origin, and the memory of a job is used up on any node. A node is excluded only once for each error: if
    the same error then occurs elsewhere, such as an error of rank 0 that moves with that rank, the program is at fault.
    ``is_replaceable``: whether the run could continue without a node.
    """
    last_attempt = attempts[-1] if attempts else None
    if (
        last_attempt is None
        or last_attempt.cause is None
        or not last_attempt.cause.node
        or last_attempt.cause.kind not in failure.PROGRAM_KINDS
    ):
        return ""
    similar_attempts = _similar_attempts(attempts, last_attempt)
    if any(attempt.excluded for attempt in similar_attempts):
        return ""
    if not last_attempt.cause.hardware:
        same_node_only = {_culprit_node(attempt) for attempt in similar_attempts} == {last_attempt.cause.node}
        if not same_node_only or len(similar_attempts) < REPEAT_LIMIT or failure.ran_out_of_memory(last_attempt):
            return ""
    return last_attempt.cause.node if is_replaceable(last_attempt.cause.node) else ""


def suspect_nodes(attempts: Sequence[Attempt]) -> List[str]:
    """Return the nodes on which a failure occurred, whose health is checked before they are used again."""
    causes = [attempt.cause for attempt in attempts if attempt.cause and attempt.cause.kind not in _BLAMELESS_KINDS]
    return sorted({cause.node for cause in causes if cause.node})


def describe_excluded_nodes(
    attempts: Sequence[Attempt], previous_nodes: Sequence[str], unfit_reasons: Mapping[str, str]
) -> List[str]:
    """Describe which of the previous nodes are no longer used, and which nodes may be used again.

    ``unfit_reasons``: why nodes cannot be used now.
    """
    reasons_by_node = {
        **unfit_reasons,
        **{node: f"is no longer used: {reason}" for node, reason in barred_nodes(attempts).items()},
    }
    sentences = [f"{node} {reasons_by_node[node]}" for node in previous_nodes if node in reasons_by_node]
    for attempt_index, attempt in enumerate(attempts):
        if attempts[-1] is _find_disproof(attempts, attempt_index):
            sentences.append(
                f"{attempt.excluded} may be used again: the same error occurred on {_culprit_node(attempts[-1])}"
            )
    return sentences


def has_repeated_failure(attempts: Sequence[Attempt]) -> bool:
    """Whether the last attempts have all failed in the same way at the same step."""
    return len(attempts) >= REPEAT_LIMIT and failure.have_same_failure(attempts[-REPEAT_LIMIT:])


def _attempts_since_furthest(attempts: Sequence[Attempt], progress_marks: Sequence[Optional[int]]) -> Sequence[Attempt]:
    """Return the attempts since the one that got furthest, which comes first.

    ``progress_marks``: how far each attempt got.
    """
    start_index, furthest_mark = 0, -1
    for attempt_index, progress_mark in enumerate(progress_marks):
        if progress_mark is not None and progress_mark > furthest_mark:
            start_index, furthest_mark = attempt_index, progress_mark
    return attempts[start_index:]


def _attempts_since_progress(attempts: Sequence[Attempt]) -> Tuple[Sequence[Attempt], str]:
    """Return the attempts since the run last progressed, and what shows it: checkpoints, or else steps, or else time."""
    checkpoint_steps = [attempt.checkpoint for attempt in attempts]
    last_steps = [attempt.last for attempt in attempts]
    if any(step is not None for step in checkpoint_steps):
        return _attempts_since_furthest(attempts, checkpoint_steps), "the last new checkpoint"
    if any(step is not None for step in last_steps):
        return _attempts_since_furthest(attempts, last_steps), "the furthest step"
    long_attempts = [
        attempt_index if failure.run_seconds(attempt) >= _LONG_RUN_SECONDS else None
        for attempt_index, attempt in enumerate(attempts)
    ]
    return _attempts_since_furthest(attempts, long_attempts), "the last attempt that has run for an hour"


def restart_count(attempts: Sequence[Attempt]) -> int:
    """Count the attempts that have failed since the run last progressed. An attempt that a time limit ended has not."""
    recent_attempts, _milestone = _attempts_since_progress(attempts)
    return sum(1 for attempt in recent_attempts if attempt.cause and attempt.cause.kind not in _BLAMELESS_KINDS)


def volume_failure_count(attempts: Sequence[Attempt]) -> int:
    """Count the attempts in a row, up to the last one, that failed because of the shared volume without progress.

    The last attempt may not have ended yet.
    """
    cause_kinds = [attempt.cause.kind for attempt in _attempts_since_progress(attempts)[0] if attempt.cause]
    return len(list(takewhile(lambda kind: kind == "volume", reversed(cause_kinds))))


def fruitless_jobs(request: RunRequest, attempts: Sequence[Attempt]) -> List[int]:
    """Return the last jobs that a time limit or a preemption has ended without a newer checkpoint.

    A job that was shorter than a checkpoint may take had no chance, and does not count. If a program reports no
    checkpoints, the last step shows how far it got; nothing is known about a program that reports neither.
    """
    progress_marks = [attempt.checkpoint for attempt in attempts]
    if all(step is None for step in progress_marks):
        progress_marks = [attempt.last for attempt in attempts]
    if all(step is None for step in progress_marks):
        return []
    seconds_by_job: Dict[int, float] = {}
    for attempt in _attempts_since_furthest(attempts, progress_marks)[1:]:
        if attempt.cause and attempt.cause.kind == "warned" and not attempt.cause.node:
            seconds_by_job[attempt.job] = seconds_by_job.get(attempt.job, 0.0) + failure.run_seconds(attempt)
    return [job for job, run_seconds in seconds_by_job.items() if run_seconds > request.grace]


def verdict(request: RunRequest, attempts: Sequence[Attempt]) -> Optional[Decision]:
    """Decide whether the run ends or leaves its job after the last of these attempts; None if it is to be restarted."""
    last_attempt = attempts[-1] if attempts else None
    if last_attempt is None or last_attempt.cause is None:
        return None
    cause = last_attempt.cause
    if cause.kind in _FINAL_ACTIONS:
        return Decision(_FINAL_ACTIONS[cause.kind], "" if cause.kind == "cancelled" else cause.detail)
    if cause.kind == "warned" and not cause.node:
        return _decide_after_warning(request, attempts, cause)
    if last_attempt.excluded:
        # The next attempt shows whether the node or the program is at fault.
        return None
    if has_repeated_failure(attempts):
        return Decision(
            "fail",
            f"the program has failed {REPEAT_LIMIT} times at the same step in the same way: {cause.detail}. Correct it, then "
            f"run 'gpumesh-train resume {request.name}', with '-- COMMAND' for another command.",
        )
    excluding_attempt = _find_followed_attempt(attempts)
    if excluding_attempt:
        return Decision(
            "fail",
            f"the same error has occurred on {excluding_attempt.excluded}, then on {cause.node} without it, so it comes from the "
            f"program: {cause.detail}. Correct it, then run 'gpumesh-train resume {request.name}'.",
        )
    if restart_count(attempts) > request.max_restarts:
        return Decision(
            "fail",
            f"{request.max_restarts} restarts since {_attempts_since_progress(attempts)[1]} were not enough (--max-restarts): "
            f"{cause.detail}",
        )
    return None


def _find_followed_attempt(attempts: Sequence[Attempt]) -> Optional[Attempt]:
    """Return the attempt that excluded a node for an error that has now occurred on another node.

    None if the run has progressed since this error first occurred: it may then be rare enough for the run to finish.
    """
    for attempt_index, attempt in enumerate(attempts):
        if _find_disproof(attempts, attempt_index) is not None and attempts[-1] in _similar_attempts(attempts, attempt):
            furthest_attempt = _attempts_since_progress(attempts)[0][0]
            return attempt if furthest_attempt.number <= _similar_attempts(attempts, attempt)[0].number else None
    return None


def _decide_after_warning(request: RunRequest, attempts: Sequence[Attempt], cause: Cause) -> Decision:
    unproductive_jobs = fruitless_jobs(request, attempts)
    if len(unproductive_jobs) < REPEAT_LIMIT:
        return Decision("resubmit", cause.detail)
    return Decision(
        "fail",
        f"{len(unproductive_jobs)} jobs in a row produced no newer checkpoint ({', '.join(map(str, unproductive_jobs))}): save more often, "
        f"allow more time for a checkpoint (--grace, now {request.grace:g} s) or for a job (--time), then run "
        f"'gpumesh-train resume {request.name}'.",
    )


def choose_placement(
    request: RunRequest,
    attempts: Sequence[Attempt],
    allocated_nodes: Sequence[str],
    fit_nodes: Sequence[str],
    cut_off_nodes: Sequence[str] = (),
) -> Decision:
    """Choose the nodes of the next attempt.

    ``fit_nodes``: nodes of the allocation that respond and can be used; ``cut_off_nodes``: those that only another job
    can use. Nodes of the last attempt come first, so that files that they have read are still in memory.
    """
    excluded = barred_nodes(attempts)
    last_nodes = attempts[-1].nodes if attempts else ()
    usable_nodes = [node for node in allocated_nodes if node in fit_nodes and node not in excluded]
    chosen_nodes = sorted(usable_nodes, key=lambda node: (node not in last_nodes, allocated_nodes.index(node)))[
        : request.nodes
    ]
    if cut_off_nodes and len(chosen_nodes) < request.nodes:
        return Decision(
            "resubmit",
            f"Slurm has taken a node out of the job, and starts nothing on {', '.join(cut_off_nodes)} for it any more",
            excluded_nodes=tuple(
                node for node in allocated_nodes if node not in usable_nodes and node not in cut_off_nodes
            ),
        )
    if len(chosen_nodes) >= request.min_nodes:
        shortage = f"with {len(chosen_nodes)} of {request.nodes} nodes" if len(chosen_nodes) < request.nodes else ""
        return Decision("restart", shortage, tuple(chosen_nodes))
    unusable_nodes = [node for node in allocated_nodes if node not in usable_nodes]
    return Decision(
        "resubmit",
        f"{len(usable_nodes)} of the {request.min_nodes} required nodes are left: {', '.join(unusable_nodes)} cannot be used",
        excluded_nodes=tuple(unusable_nodes),
    )
