# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide what follows an attempt: a restart in this allocation, another job, or the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Request

#: After this many repetitions, the same failure at the same step is blamed on the program, and failures of a node on
#: the node.
REPEATED = 3
#: Causes that are not failures.
_BLAMELESS = ("finished", "warned", "cancelled")


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


def suspects(attempts: Sequence[Attempt]) -> List[str]:
    """Nodes on which a failure occurred: their health is checked before they are used again."""
    causes = [attempt.cause for attempt in attempts if attempt.cause and attempt.cause.kind not in _BLAMELESS]
    return sorted({cause.node for cause in causes if cause.node})


def left_out(attempts: Sequence[Attempt], before: Sequence[str], unfit: Mapping[str, str]) -> List[str]:
    """A description of the nodes ``before`` that are no longer used. ``unfit``: why nodes cannot be used now."""
    barred = unreliable(attempts)
    words = dict.fromkeys(barred, f"is no longer used: it has failed {REPEATED} times in this run")
    return [f"{node} {words.get(node) or unfit[node]}" for node in before if node in barred or node in unfit]


def repeats(attempts: Sequence[Attempt]) -> bool:
    """Whether the last attempts have all failed in the same way at the same step."""
    last = attempts[-REPEATED:]
    causes = [attempt.cause for attempt in last if attempt.cause and attempt.cause.kind in ("crash", "hang", "start")]
    ends = {(attempt.cause.kind, _error(attempt.cause.detail), attempt.last) for attempt in last if attempt.cause}
    return len(causes) == REPEATED and len(ends) == 1


def _error(detail: str) -> str:
    """The error without what differs between attempts: the rank, the node, the number of others."""
    return detail.partition(": ")[2].partition(" (")[0]


def restarts(attempts: Sequence[Attempt]) -> int:
    """The number of failed attempts. An attempt ended by a time limit has not failed."""
    return sum(1 for attempt in attempts if attempt.cause and attempt.cause.kind not in _BLAMELESS)


def verdict(request: Request, attempts: Sequence[Attempt]) -> Optional[Decision]:
    """Whether the run ends or leaves its job after the last of these attempts; None if it is to be restarted."""
    cause = attempts[-1].cause if attempts else None
    if cause is None:
        return None
    if cause.kind == "finished":
        return Decision("finish")
    if cause.kind == "cancelled":
        return Decision("cancel")
    if cause.kind == "warned" and not cause.node:
        return Decision("resubmit", cause.detail)
    if repeats(attempts):
        return Decision(
            "fail",
            f"the program has failed {REPEATED} times at the same step in the same way: {cause.detail}. Correct it, then "
            f"run 'gpumesh-train resume {request.name}'.",
        )
    if restarts(attempts) > request.max_restarts:
        return Decision("fail", f"{request.max_restarts} restarts were not enough (--max-restarts): {cause.detail}")
    return None


def placement(request: Request, attempts: Sequence[Attempt], allocated: Sequence[str], fit: Sequence[str]) -> Decision:
    """Where the next attempt runs. ``fit``: nodes of the allocation that can be used and respond.

    Nodes of the last attempt come first, so that files that they have read are still in memory.
    """
    barred = unreliable(attempts)
    last = attempts[-1].nodes if attempts else ()
    able = [node for node in allocated if node in fit and node not in barred]
    chosen = sorted(able, key=lambda node: (node not in last, allocated.index(node)))[: request.nodes]
    if len(chosen) >= request.min_nodes:
        fewer = f"with {len(chosen)} of {request.nodes} nodes" if len(chosen) < request.nodes else ""
        return Decision("restart", fewer, tuple(chosen))
    gone = [node for node in allocated if node not in able]
    return Decision(
        "resubmit",
        f"{len(able)} of the {request.min_nodes} required nodes are left: {', '.join(gone)} cannot be used",
        excluded=tuple(gone),
    )
