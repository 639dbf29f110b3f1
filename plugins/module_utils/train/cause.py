# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the rank that is to blame when several have ended: its error, not those that follow from it.

When one rank of a collective dies, the others fail a moment later because their peer is gone. The clocks of the nodes
may differ by more than that, so time alone is not sufficient. The last output of a rank is: an error that names a peer
is a consequence.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import Mapping, NamedTuple, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, RankEnd

#: The messages of collective and rendezvous libraries when a peer is gone.
_CONSEQUENCE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Connection refused|Broken pipe|ncclRemoteError|"
    r"remote process exited or there was a network error|NCCL communicator was aborted|"
    r"Watchdog caught collective operation timeout|Socket [Tt]imeout|Timed out waiting|DistNetworkError|"
    r"DistStoreError|recvValue failed|sendBytes failed|failed to recv|Connection was likely closed|"
    r"Lost connection|coordination service .*(?:unavailable|heartbeat)",
)
#: The last line of a traceback: a class with its module, then the message.
_ERROR_LINE = re.compile(
    r"^(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Warning)\b.*|Killed|Segmentation fault.*)"
)
_LONGEST = 300


def follows(end: RankEnd) -> bool:
    """Whether this looks like a consequence of the end of another rank."""
    return end.status > 0 and _CONSEQUENCE.search(end.tail) is not None


def error_line(end: RankEnd) -> str:
    """The line that best explains why the rank ended."""
    if end.status < 0:
        return f"killed by {signal_name(-end.status)}"
    lines = [line.strip() for line in end.tail.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR_LINE.match(line)]
    said = (named or lines or [""])[-1]
    return f"exit status {end.status}" + (f": {said[:_LONGEST]}" if said else "")


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crash(ends: Sequence[RankEnd]) -> Optional[Cause]:
    """The cause according to the failed ranks; None if none has failed.

    Ranks whose errors are not consequences of others come first, and of these, the one that ended first.
    """
    failed = [end for end in ends if end.status]
    if not failed:
        return None
    culprit = min(failed, key=lambda end: (follows(end), end.at, end.rank))
    others = len(failed) - 1
    detail = f"rank {culprit.rank} on {culprit.node}: {error_line(culprit)}"
    if others:
        detail += f" ({others} other rank{'s' if others > 1 else ''} failed after it)"
    return Cause("crash", detail, culprit.rank, culprit.node)


class Seen(NamedTuple):
    """What is known about the ranks when there is no more progress, by rank.

    ``stopped``: why a process does not run, according to the kernel; ``places``: where programs that can report it are;
    ``through``: ranks that have completed.
    """

    nodes: Mapping[int, str]
    steps: Mapping[int, Optional[int]]
    stopped: Mapping[int, str]
    places: Mapping[int, str]
    through: Sequence[int] = ()


def hang(seen: Seen, seconds: float) -> Cause:
    """The cause when there is no more progress.

    A stopped rank is blamed before one that is behind, and that before one that is elsewhere in the program. If all are
    alike, none is blamed.
    """
    if seen.stopped:
        rank = min(seen.stopped)
        return _blamed(rank, seen, seen.stopped[rank])
    left = sorted(set(seen.nodes) - set(seen.through))
    if len(left) == 1 and seen.through:
        return _blamed(left[0], seen, "still running, although all others have ended")
    told = {rank: step for rank, step in seen.steps.items() if step is not None}
    behind = [rank for rank, step in told.items() if step == min(told.values())]
    if len(behind) == 1 and len(told) > 1:
        return _blamed(behind[0], seen, f"at step {told[behind[0]]}, the others at {max(told.values())}")
    common = Counter(seen.places.values()).most_common(2)
    if len(common) == 2 and common[0][1] > common[1][1] == 1 and len(seen.places) == len(seen.nodes):
        rank = next(rank for rank, place in seen.places.items() if place == common[1][0])
        if sum(1 for place in seen.places.values() if place != common[0][0]) == 1:
            return _blamed(rank, seen, f"in {seen.places[rank]}")
    everywhere = f"; all are in {common[0][0]}" if len(common) == 1 else ""
    return Cause("hang", f"no progress for {seconds:.0f} s{everywhere}")


def _blamed(rank: int, seen: Seen, what: str) -> Cause:
    node = seen.nodes.get(rank, "")
    waiting = Counter(place for other, place in seen.places.items() if other != rank).most_common(1)
    where = f" in {waiting[0][0]}" if waiting else ""
    others = "" if seen.through else f"; the others wait for it{where}"
    return Cause("hang", f"rank {rank} on {node} is {what}{others}", rank, node)


#: Where ranks wait for each other, in PyTorch, JAX and mpi4py, and in common wrappers around them.
_COLLECTIVE = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|all_?to_?all|broadcast|barrier|gather|scatter|backward|synchronize|recv|wait"
)
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+) in (\S+)$', re.MULTILINE)


def place(tail: str) -> str:
    """Where a program is, by the last stack that faulthandler has printed; empty if there is none.

    This is the collective in which it waits, or its innermost function.
    """
    _before, found, stack = tail.rpartition("(most recent call first):")
    frames = _FRAME.findall(stack.split("\n\n", 1)[0]) if found else []
    if not frames:
        return ""
    waiting = [frame for frame in frames if _COLLECTIVE.search(frame[2])]
    path, line, function = (waiting or frames)[0]
    return f"{function} ({path.rpartition('/')[2]}:{line})"
