# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what follows an attempt: a restart in this allocation, another job, or the end of the run."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import failure
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Cause, Request

#: After this many repetitions, the same error is blamed on the node on which it occurs, or on the program if it occurs
#: elsewhere too, at the same step; failures of a node are blamed on the node, and jobs without a newer checkpoint on the
#: time that they have.
REPEATED = 3
#: Seconds: of a program that reports neither checkpoints nor steps, an attempt that has run for so long has got further.
_HELD = 3600.0
#: Causes after which no attempt follows.
_FINAL = {"finished": "finish", "cancelled": "cancel", "diverged": "fail"}
#: Causes that are not failures.
_BLAMELESS = ("finished", "warned", "grown", "cancelled", "volume")


class Decision(NamedTuple):
    """``action``: finish, cancel, fail, restart (on ``nodes``, in this allocation), resubmit (without
    ``excluded``), or requeue, which Slurm does itself.
    """

    action: str
    reason: str = ""
    nodes: Tuple[str, ...] = ()
    excluded: Tuple[str, ...] = ()


def unreliable(attempts: Sequence[Attempt]) -> List[str]:
    """Nodes that have failed so often that no attempt uses them again."""
    failures = Counter(attempt.cause.node for attempt in attempts if attempt.cause and attempt.cause.kind == "node")
    return sorted(node for node, number in failures.items() if node and number >= REPEATED)


def _disproof(attempts: Sequence[Attempt], number: int) -> Optional[Attempt]:
    """The attempt in which the error has occurred elsewhere for which the attempt at this index has excluded a node.

    None if there is none, or if it is an error of the hardware, which may fail on several nodes.
    """
    origin = attempts[number]
    if not origin.excluded or origin.cause is None or origin.cause.hardware:
        return None
    elsewhere = (one for one in _alike(attempts[number + 1 :], origin) if _node(one) != origin.excluded)
    return next(elsewhere, None)


def _alike(attempts: Sequence[Attempt], like: Attempt) -> List[Attempt]:
    """The attempts that have failed with the same error as this one on a known node, at whatever step.

    Of a process that was killed, the step is all that is known: at another one, something else may have killed it.
    """
    failed = [one for one in attempts if one.cause and one.cause.kind in failure.OF_PROGRAM and one.cause.node]
    if failure.killed(like):
        return [one for one in failed if failure.same([one, like])]
    return [one for one in failed if failure.error(one) == failure.error(like)]


def _node(attempt: Attempt) -> str:
    return attempt.cause.node if attempt.cause else ""


def barred(attempts: Sequence[Attempt]) -> Dict[str, str]:
    """The nodes that no attempt uses again, and why. One whose error has followed to another node may be used again."""
    found = dict.fromkeys(unreliable(attempts), f"it has failed {REPEATED} times in this run")
    for number, attempt in enumerate(attempts):
        if attempt.excluded and attempt.cause and _disproof(attempts, number) is None:
            found.setdefault(attempt.excluded, f"only there, so far: {attempt.cause.detail}")
    return found


def exclusion(attempts: Sequence[Attempt], replaceable: Callable[[str], bool]) -> str:
    """The node that no later attempt uses, since the last error may be that of the node; empty if there is none.

    A node is excluded at once for an error of its hardware, and for another one when it is repeated on this node only,
    while others worked: at any step, since that of a broken node is random. Who was killed at several steps was killed by
    anything, and who has used up the memory of the job did so everywhere. All this happens once for each error: if the
    same one then occurs elsewhere, such as one of rank 0 that moves with it, it is that of the program.
    ``replaceable``: whether the run could continue without a node.
    """
    last = attempts[-1] if attempts else None
    if last is None or last.cause is None or not last.cause.node or last.cause.kind not in failure.OF_PROGRAM:
        return ""
    alike = _alike(attempts, last)
    if any(attempt.excluded for attempt in alike):
        return ""
    if not last.cause.hardware:
        there = {_node(attempt) for attempt in alike} == {last.cause.node}
        if not there or len(alike) < REPEATED or failure.of_job(last):
            return ""
    return last.cause.node if replaceable(last.cause.node) else ""


def suspects(attempts: Sequence[Attempt]) -> List[str]:
    """Nodes on which a failure occurred: their health is checked before they are used again."""
    causes = [attempt.cause for attempt in attempts if attempt.cause and attempt.cause.kind not in _BLAMELESS]
    return sorted({cause.node for cause in causes if cause.node})


def left_out(attempts: Sequence[Attempt], before: Sequence[str], unfit: Mapping[str, str]) -> List[str]:
    """A description of the nodes ``before`` that are no longer used, and of those that may be used again.

    ``unfit``: why nodes cannot be used now.
    """
    reasons = {**unfit, **{node: f"is no longer used: {reason}" for node, reason in barred(attempts).items()}}
    found = [f"{node} {reasons[node]}" for node in before if node in reasons]
    for number, attempt in enumerate(attempts):
        if attempts[-1] is _disproof(attempts, number):
            found.append(f"{attempt.excluded} may be used again: its error has followed to {_node(attempts[-1])}")
    return found


def repeats(attempts: Sequence[Attempt]) -> bool:
    """Whether the last attempts have all failed in the same way at the same step."""
    return len(attempts) >= REPEATED and failure.same(attempts[-REPEATED:])


def _since_newest(attempts: Sequence[Attempt], reached: Sequence[Optional[int]]) -> Sequence[Attempt]:
    """The attempts since the one that got furthest, which comes first. ``reached``: how far each of them got."""
    begin, newest = 0, -1
    for number, step in enumerate(reached):
        if step is not None and step > newest:
            begin, newest = number, step
    return attempts[begin:]


def _since_progress(attempts: Sequence[Attempt]) -> Tuple[Sequence[Attempt], str]:
    """The attempts since the run last got further, and what shows that: checkpoints, or else steps, or else time."""
    checkpoints = [attempt.checkpoint for attempt in attempts]
    steps = [attempt.last for attempt in attempts]
    if any(step is not None for step in checkpoints):
        return _since_newest(attempts, checkpoints), "the last new checkpoint"
    if any(step is not None for step in steps):
        return _since_newest(attempts, steps), "the furthest step"
    held = [number if failure.lasted(attempt) >= _HELD else None for number, attempt in enumerate(attempts)]
    return _since_newest(attempts, held), "the last attempt that has run for an hour"


def restarts(attempts: Sequence[Attempt]) -> int:
    """The number of attempts that have failed since the run last got further. One ended by a time limit has not failed."""
    latest, _since = _since_progress(attempts)
    return sum(1 for attempt in latest if attempt.cause and attempt.cause.kind not in _BLAMELESS)


def volume_failures(attempts: Sequence[Attempt]) -> int:
    """How many attempts in a row have just failed because of the shared volume, since the run last got further.

    The last one may not have ended yet.
    """
    kinds = [attempt.cause.kind for attempt in _since_progress(attempts)[0] if attempt.cause]
    return len(list(takewhile(lambda kind: kind == "volume", reversed(kinds))))


def fruitless(request: Request, attempts: Sequence[Attempt]) -> List[int]:
    """The last jobs that have ended for their time limit or a preemption without a newer checkpoint.

    One that was shorter than a checkpoint may take had no chance, and does not count. Of a program that reports no
    checkpoints, the last step tells how far it got; nothing is known about one that reports neither.
    """
    reached = [attempt.checkpoint for attempt in attempts]
    if all(step is None for step in reached):
        reached = [attempt.last for attempt in attempts]
    if all(step is None for step in reached):
        return []
    found: Dict[int, float] = {}
    for attempt in _since_newest(attempts, reached)[1:]:
        if attempt.cause and attempt.cause.kind == "warned" and not attempt.cause.node:
            found[attempt.job] = found.get(attempt.job, 0.0) + failure.lasted(attempt)
    return [job for job, lasted in found.items() if lasted > request.grace]


def verdict(request: Request, attempts: Sequence[Attempt]) -> Optional[Decision]:
    """Whether the run ends or leaves its job after the last of these attempts; None if it is to be restarted."""
    last = attempts[-1] if attempts else None
    if last is None or last.cause is None:
        return None
    cause = last.cause
    if cause.kind in _FINAL:
        return Decision(_FINAL[cause.kind], "" if cause.kind == "cancelled" else cause.detail)
    if cause.kind == "warned" and not cause.node:
        return _after_warning(request, attempts, cause)
    if last.excluded:
        # The next attempt shows whether the error is that of the node or of the program.
        return None
    if repeats(attempts):
        return Decision(
            "fail",
            f"the program has failed {REPEATED} times at the same step in the same way: {cause.detail}. Correct it, then "
            f"run 'gpumesh-train resume {request.name}', with '-- COMMAND' for another command.",
        )
    origin = _followed(attempts)
    if origin:
        return Decision(
            "fail",
            f"the same error has occurred on {origin.excluded}, then on {cause.node} without it, so it is that of the "
            f"program: {cause.detail}. Correct it, then run 'gpumesh-train resume {request.name}'.",
        )
    if restarts(attempts) > request.max_restarts:
        return Decision(
            "fail",
            f"{request.max_restarts} restarts since {_since_progress(attempts)[1]} were not enough (--max-restarts): "
            f"{cause.detail}",
        )
    return None


def _followed(attempts: Sequence[Attempt]) -> Optional[Attempt]:
    """The attempt that has excluded a node for an error that has now followed to another one.

    None if the run has got further since this error first occurred: then it may be rare enough for the run to finish.
    """
    for number, attempt in enumerate(attempts):
        if _disproof(attempts, number) is not None and attempts[-1] in _alike(attempts, attempt):
            begin = _since_progress(attempts)[0][0]
            return attempt if begin.number <= _alike(attempts, attempt)[0].number else None
    return None


def _after_warning(request: Request, attempts: Sequence[Attempt], cause: Cause) -> Decision:
    jobs = fruitless(request, attempts)
    if len(jobs) < REPEATED:
        return Decision("resubmit", cause.detail)
    return Decision(
        "fail",
        f"{len(jobs)} jobs in a row have brought no newer checkpoint ({', '.join(map(str, jobs))}): save more often, "
        f"allow more time for a checkpoint (--grace, now {request.grace:g} s) or for a job (--time), then run "
        f"'gpumesh-train resume {request.name}'.",
    )


def placement(
    request: Request,
    attempts: Sequence[Attempt],
    allocated: Sequence[str],
    fit: Sequence[str],
    cut_off: Sequence[str] = (),
) -> Decision:
    """Where the next attempt runs. ``fit``: nodes of the allocation that can be used and respond. ``cut_off``: those that
    another job can use.

    Nodes of the last attempt come first, so that files that they have read are still in memory.
    """
    out = barred(attempts)
    last = attempts[-1].nodes if attempts else ()
    able = [node for node in allocated if node in fit and node not in out]
    chosen = sorted(able, key=lambda node: (node not in last, allocated.index(node)))[: request.nodes]
    if cut_off and len(chosen) < request.nodes:
        return Decision(
            "resubmit",
            f"Slurm has taken a node out of the job, and starts nothing on {', '.join(cut_off)} for it any more",
            excluded=tuple(node for node in allocated if node not in able and node not in cut_off),
        )
    if len(chosen) >= request.min_nodes:
        fewer = f"with {len(chosen)} of {request.nodes} nodes" if len(chosen) < request.nodes else ""
        return Decision("restart", fewer, tuple(chosen))
    gone = [node for node in allocated if node not in able]
    return Decision(
        "resubmit",
        f"{len(able)} of the {request.min_nodes} required nodes are left: {', '.join(gone)} cannot be used",
        excluded=tuple(gone),
    )
