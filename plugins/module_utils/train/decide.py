# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows when an attempt has ended: start again here, queue the job again, or stop."""

from __future__ import annotations

from collections import Counter
from typing import List, NamedTuple, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Request

#: The same failure at the same step so many times is the program's, and so many failures of one node are the node's.
_REPEATED = 3


class Decision(NamedTuple):
    """``action``: finish, stop, restart (on ``nodes``, in this allocation), requeue (without ``excluded``)."""

    action: str
    reason: str
    nodes: Tuple[str, ...] = ()
    excluded: Tuple[str, ...] = ()


def unreliable(attempts: Sequence[Attempt]) -> List[str]:
    """Nodes that have failed so often that no attempt uses them any more."""
    failures = Counter(attempt.cause.node for attempt in attempts if attempt.cause and attempt.cause.kind == "node")
    return sorted(node for node, number in failures.items() if node and number >= _REPEATED)


def repeats(attempts: Sequence[Attempt]) -> bool:
    """Whether the last attempts have all failed in the same way at the same step."""
    last = attempts[-_REPEATED:]
    ends = {(attempt.cause.kind, _signature(attempt), attempt.last) for attempt in last if attempt.cause}
    return (
        len(last) == _REPEATED
        and len(ends) == 1
        and all(one.cause and one.cause.kind in ("crash", "hang") for one in last)
    )


def _signature(attempt: Attempt) -> str:
    """The error without what differs from attempt to attempt: which rank, which node, how many others."""
    detail = attempt.cause.detail if attempt.cause else ""
    return detail.partition(": ")[2].partition(" (")[0]


def restarts(attempts: Sequence[Attempt]) -> int:
    """How often the run has been started again for a failure. A time limit is none."""
    return sum(
        1 for attempt in attempts if attempt.cause and attempt.cause.kind not in ("finished", "warned", "cancelled")
    )


def usable(allocated: Sequence[str], healthy: Sequence[str], attempts: Sequence[Attempt]) -> List[str]:
    """Nodes of the allocation that the next attempt may have, those of the last one first, so that caches stay warm."""
    barred = {*unreliable(attempts)}
    last = attempts[-1].nodes if attempts else ()
    able = [node for node in allocated if node in healthy and node not in barred]
    return sorted(able, key=lambda node: (node not in last, allocated.index(node)))


def decide(request: Request, attempts: Sequence[Attempt], allocated: Sequence[str], healthy: Sequence[str]) -> Decision:
    """What follows the last attempt, or precedes the first one. ``healthy``: nodes of the allocation that answer."""
    cause = attempts[-1].cause if attempts else None
    if cause is not None:
        if cause.kind == "finished":
            return Decision("finish", "the program has ended well")
        if cause.kind == "cancelled":
            return Decision("stop", "it was cancelled")
        if cause.kind == "warned":
            return Decision("requeue", f"{cause.detail}, so it is queued again")
        if repeats(attempts):
            return Decision(
                "stop",
                f"the program has failed {_REPEATED} times at the same step in the same way: {cause.detail}. Mend it, then "
                f"run 'gpumesh-train resume {request.name}'.",
            )
        if restarts(attempts) > request.max_restarts:
            return Decision(
                "stop", f"it has been restarted {request.max_restarts} times (--max-restarts): {cause.detail}"
            )
    able = usable(allocated, healthy, attempts)
    if len(able) >= request.nodes:
        return Decision("restart", "", tuple(able[: request.nodes]))
    if len(able) >= request.min_nodes:
        return Decision("restart", f"with {len(able)} of {request.nodes} nodes", tuple(able))
    gone = sorted(set(allocated) - set(able))
    return Decision(
        "requeue",
        f"{len(able)} of the {request.min_nodes} nodes that it needs are left ({', '.join(gone)} cannot be used)",
        excluded=tuple(unreliable(attempts)),
    )
