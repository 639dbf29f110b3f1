# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank is to blame when many have ended: its error, not those that follow from it.

When one rank of a collective dies, the others fail a moment later, since their peer has gone. The clocks of the nodes may be
apart by more than that moment, so time alone does not tell. What a rank wrote last does: an error that names a peer is a
consequence.
"""

from __future__ import annotations

import re
import signal
from typing import Dict, Optional, Sequence

from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, RankEnd

#: What the libraries of collectives and of rendezvous write when a peer has gone.
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
    """Whether it looks like a consequence of another rank's end."""
    return end.status > 0 and _CONSEQUENCE.search(end.tail) is not None


def error_line(end: RankEnd) -> str:
    """The line that says best why the rank has ended."""
    if end.status < 0:
        return f"killed by {signal_name(-end.status)}"
    lines = [line.strip() for line in end.tail.splitlines() if line.strip()]
    named = [line for line in lines if _ERROR_LINE.match(line)]
    said = (named or lines or [""])[-1]
    return f"exit status {end.status}" + (f": {said[:_LONGEST]}" if said else "")


def signal_name(number: int) -> str:
    """Such as SIGKILL; a number for those without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crash(ends: Sequence[RankEnd]) -> Optional[Cause]:
    """The cause by the ranks that have failed; None where none has.

    First come those whose errors follow from no other, and of these the one that ended first.
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


def hang(stopped: Dict[int, str], nodes: Dict[int, str], steps: Dict[int, Optional[int]], seconds: float) -> Cause:
    """The cause where nothing moves any more.

    ``stopped``: ranks whose processes do not run, with what the kernel says of them; ``nodes`` and ``steps`` by rank. One
    that is stopped is to blame before one that is behind; where all are alike nobody is.
    """
    if stopped:
        rank = min(stopped)
        return Cause(
            "hang", f"rank {rank} on {nodes[rank]} is {stopped[rank]}; the others wait for it", rank, nodes[rank]
        )
    told = {rank: step for rank, step in steps.items() if step is not None}
    behind = [rank for rank, step in told.items() if step == min(told.values())] if told else []
    if told and len(behind) == 1 and min(told.values()) < max(told.values()):
        rank = behind[0]
        return Cause(
            "hang",
            f"rank {rank} on {nodes[rank]} is at step {told[rank]}, the others at {max(told.values())}",
            rank,
            nodes[rank],
        )
    return Cause("hang", f"no rank has made progress for {seconds:.0f} s")
