# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the rank that is to blame when several have ended: its error, not those that follow from it.

When one rank of a collective dies, the others fail a moment later because their peer is gone. The clocks of the nodes
may differ by more than that, so time alone is not sufficient. The last output of a rank is: an error that names a peer
is a consequence. If all that have ended name their peers, one of those that live is to blame.
"""

from __future__ import annotations

import signal
from collections import Counter
from typing import Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.train import error_words as words
from ansible_collections.gpumesh.cluster.plugins.module_utils.train import last_words, stack_place
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Cause, RankEnd

#: Signals by which a process ends because of its own error, so that its last words are about it.
OWN_SIGNALS = {signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
#: The exit statuses of a process that has aborted; a shell tells of the signal by 128 and its number.
_ABORTED = {status for number in (signal.SIGABRT, signal.SIGSEGV) for status in (-number, 128 + number)}
#: The words for a job whose memory was used up, with the remedy.
USED_UP = "the memory of the job on its node was used up (oom_kill). Request more with --sbatch --mem=SIZE"
#: The exit status by which a shell and podman tell of SIGKILL.
_KILLED = 128 + signal.SIGKILL


def follows(end: RankEnd) -> bool:
    """Whether this looks like a consequence of the end of another rank."""
    told = _told(end)
    return told is not None and told.follows and not _used_up(end)


def _used_up(end: RankEnd) -> bool:
    """Whether it ended because the memory of the job was used up. The kernel does not say whose process it has killed."""
    root = last_words.root(end.tail)
    killed = (root.status if root else end.status) in (-signal.SIGKILL, _KILLED) or last_words.lost_process(end.tail)
    return (end.memory and killed) or last_words.memory(end.tail)


def _told(end: RankEnd) -> Optional[last_words.Error]:
    """The error in the output of a rank that has ended it, if there is one."""
    root = last_words.root(end.tail)
    told = last_words.chosen(end.tail, root.rank if root else None)
    status = root.status if root else end.status
    # Who is killed has no last words, unless these are the end of its output.
    return told if told and (status > 0 or -status in OWN_SIGNALS or (told.last and not root)) else None


def error_line(end: RankEnd) -> str:
    """Why the rank ended, in a line."""
    root = last_words.root(end.tail)
    told = _told(end)
    said = root.error if root and root.error else told.text if told else ""
    parts = [_status(end.status)]
    if root:
        parts.append(f"torchrun's rank {root.rank}: {_status(root.status)}")
    if _used_up(end):
        parts.append(USED_UP)
    if not said and end.status > 0 and not root:
        said = last_words.last_line(end.tail)
    if said and not last_words.memory(said):
        parts.append(last_words.shortened(said))
    if told and told.before and words.SPACE.search(told.before) and not words.SPACE.search(said):
        # Without it, nobody would look for the room that was missing.
        parts[-1] += f", after '{last_words.shortened(told.before)}'"
    return ": ".join(parts)


def _status(status: int) -> str:
    """An exit status in words. A shell, and podman, tell of a signal by 128 and its number."""
    if status < 0:
        return f"killed by {signal_name(-status)}"
    named = signal_name(status - 128) if status > 128 else ""
    return f"exit status {status}" + (f" ({named})" if named.startswith("SIG") else "")


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGKILL, or its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def crash(ends: Sequence[RankEnd]) -> Optional[Cause]:
    """The cause according to the failed ranks; None if none has failed.

    Ranks whose errors are not consequences of others come first, and of these, the one that ended first. A rank whose
    node is at fault comes before all.
    """
    failed = [end for end in ends if end.status]
    if not failed:
        return None
    broken = _broken_nodes(failed)
    culprit = min(failed, key=lambda end: (end.node not in broken, _rank_of(end), end.at, end.rank))
    others = len(failed) - 1
    detail = f"rank {culprit.rank} on {culprit.node}: {error_line(culprit)}"
    fault = broken.get(culprit.node, "")
    if fault and fault not in detail:
        detail += f"; its output says '{last_words.shortened(fault)}'"
    if others:
        detail += f" ({others} other rank{'s' if others > 1 else ''} failed after it)"
    return Cause("crash", detail, culprit.rank, culprit.node, bool(fault))


def _rank_of(end: RankEnd) -> int:
    """The order of blame: an error of its own, an end by SIGTERM, which another rank or its launcher has caused, or by a
    connection that may have been one to a peer, and a consequence.
    """
    if follows(end):
        return 2
    told = _told(end)
    return 1 if end.status == -signal.SIGTERM or (told is not None and told.perhaps) else 0


def _broken_nodes(failed: Sequence[RankEnd]) -> Dict[str, str]:
    """The nodes at fault according to their ranks that have failed, and the words of these."""
    return _broken((end.node, end.tail) for end in failed)


def _broken(outputs: Iterable[Tuple[str, str]]) -> Dict[str, str]:
    """The same of pairs of a node and what a rank has printed there.

    What ranks of several nodes say alike is not the hardware of one: an interface that no node has, for example.
    """
    found = ((node, last_words.hardware(text)) for node, text in outputs)
    said = {node: text for node, text in found if text}
    common = {text for text, number in Counter(said.values()).items() if number > 1}
    return {node: text for node, text in said.items() if text not in common}


class Seen(NamedTuple):
    """What is known about the ranks when there is no more progress, by rank.

    ``stopped``: why a process does not run, according to the kernel; ``places``: where programs that can report it are;
    ``through``: ranks that have ended; ``errors``: those with which the output of ranks ends that have not.
    """

    nodes: Mapping[int, str]
    steps: Mapping[int, Optional[int]]
    stopped: Mapping[int, str]
    places: Mapping[int, str]
    through: Sequence[int] = ()
    errors: Mapping[int, str] = {}


def only_follow(ends: Sequence[RankEnd]) -> bool:
    """Whether ranks have failed, but all of them only name their peers, and no node is at fault."""
    failed = [end for end in ends if end.status]
    return bool(failed) and all(follows(end) for end in failed) and not _broken_nodes(failed)


def only_abort(ends: Sequence[RankEnd]) -> bool:
    """Whether ranks have aborted, and the others that have failed only name their peers."""
    failed = [end for end in ends if end.status]
    aborted = [end for end in failed if end.status in _ABORTED and not _used_up(end)]
    return bool(aborted) and all(end in aborted or follows(end) for end in failed)


def left_behind(ends: Sequence[RankEnd], seen: Seen) -> Optional[Cause]:
    """The cause if all ranks that have failed name their peers: a rank that lives; None if none stands out."""
    failed = sorted((end for end in ends if end.status), key=lambda end: (end.at, end.rank))
    ended = {end.rank for end in ends}
    living = [rank for rank in sorted(seen.nodes) if rank not in ended]
    steps = {rank: seen.steps.get(rank) for rank in living}
    told = [step for step in seen.steps.values() if step is not None]
    behind = [rank for rank, step in steps.items() if step is not None and step < max(told)]
    stopped = [rank for rank in living if rank in seen.stopped]
    wrong, broken = _wrong({rank: error for rank, error in seen.errors.items() if rank in living}, seen)
    if stopped:
        rank, kind, what = stopped[0], "hang", seen.stopped[stopped[0]]
    elif wrong is not None:
        rank, kind, what = wrong, "crash", f"still there after its error: {seen.errors[wrong]}"
    else:
        # Who waits in a collective is not the one for whom the others have waited.
        late = [rank for rank in behind or living if not stack_place.collective(seen.places.get(rank, ""))]
        if len(late) != 1:
            return None
        rank = late[0]
        where = f", in {seen.places[rank]}" if rank in seen.places else ""
        step = f" at step {steps[rank]}" if steps[rank] is not None else ""
        kind, what = "hang", f"still running{step}{where}"
    node = seen.nodes[rank]
    first = failed[0]
    others = f"{len(failed)} other rank{'s' if len(failed) > 1 else ''} gave up waiting for it"
    detail = f"rank {rank} on {node} is {what}; {others}: rank {first.rank}: {error_line(first)}"
    return Cause(kind, detail, rank, node, hardware=rank == wrong and broken)


def _wrong(errors: Mapping[int, str], seen: Seen) -> Tuple[Optional[int], bool]:
    """The first rank that is still there after its error, if any, and whether its node is at fault: such a rank comes first."""
    broken = _broken((seen.nodes[rank], error) for rank, error in errors.items())
    rank = min(errors, key=lambda rank: (seen.nodes[rank] not in broken, rank), default=None)
    return rank, rank is not None and seen.nodes[rank] in broken


def hang(seen: Seen, seconds: float) -> Cause:
    """The cause when there is no more progress.

    A stopped rank is blamed before one with an error, that before one that is behind, and that before one that is
    elsewhere in the program. If all are alike, none is blamed.
    """
    if seen.stopped:
        rank = min(seen.stopped)
        return _blamed(rank, seen, seen.stopped[rank])
    wrong, broken = _wrong(seen.errors, seen)
    if wrong is not None:
        cause = _blamed(wrong, seen, f"still there after its error: {seen.errors[wrong]}")
        return cause._replace(hardware=broken)
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
