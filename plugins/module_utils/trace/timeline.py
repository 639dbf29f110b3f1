# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ranks on one timeline, for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Each rank is shown as a process. Its first track shows its activity: computing, communicating, or waiting for another
rank. Below are its threads and its GPU, as in its own trace, with times by the clock of rank 0.

All ranks have the same share of the events. Three quarters of it are for what is in its trace, the longest events, and
the rest is for the names and the first track.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import secrets
from typing import Dict, Iterator, List, Mapping, Sequence, TextIO

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, Clock, RankTrace, State

#: The maximum number of events of all ranks together: browsers cannot handle many more.
MOST = 1_000_000
#: The number of events that are written at a time.
_PIECE = 4_096
_STATES = 0
#: The number of events that name a rank and its first track.
_NAMES = 3
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def share(ranks: int) -> int:
    """The number of events that are kept of a rank's trace."""
    return MOST // max(1, ranks) * 3 // 4


def _named(kind: str, rank: int, thread: int, **values: object) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": values})


def _about(trace: RankTrace, threads: int) -> Iterator[str]:
    rank = trace.rank
    yield _named("process_name", rank, 0, name=f"rank {rank}" + (f" on {trace.node}" if trace.node else ""))
    yield _named("process_sort_index", rank, 0, sort_index=rank)
    yield _named("thread_name", rank, _STATES, name="what it does")
    for number, label in enumerate(trace.slices.threads[:threads], 1):
        yield _named("thread_name", rank, number, name=label)
        yield _named("thread_sort_index", rank, number, sort_index=number)


def _slices(trace: RankTrace, clock: Clock) -> Iterator[str]:
    slices = trace.slices
    names = [json.dumps(name) for name in slices.names]
    scale = 1.0 + clock.drift
    for begin, length, name, thread in zip(slices.begin, slices.length, slices.name, slices.thread):
        yield (
            f'{{"ph":"X","pid":{trace.rank},"tid":{thread + 1},"ts":{clock.at(begin):.3f},'
            f'"dur":{length * scale:.3f},"name":{names[name]}}}'
        )


def _states(rank: int, activity: Sequence[State], most: int) -> Iterator[str]:
    found = [
        (begin, end, f"waiting for rank {awaited}" if what == "waiting" else what)
        for begin, end, what, awaited in activity
    ]
    if len(found) > most:
        shortest = 2 * (found[-1][1] - found[0][0]) / (most - 1) if most > 1 else math.inf
        found = list(spans.predominant(found, shortest))
    for begin, end, name in found:
        yield f'{{"ph":"X","pid":{rank},"tid":{_STATES},"ts":{begin:.3f},"dur":{end - begin:.3f},"name":"{name}"}}'


def _events(traces: Mapping[int, RankTrace], analysis: Analysis) -> Iterator[str]:
    for rank, trace in sorted(traces.items()):
        room = MOST // len(traces) - len(trace.slices.begin)
        threads = min(len(trace.slices.threads), max(0, room // 2 - _NAMES) // 2)
        yield from _about(trace, threads)
        yield from _slices(trace, analysis.clocks[rank])
        yield from _states(rank, analysis.activity[rank], room - _NAMES - 2 * threads)


def _write(stream: TextIO, events: Iterator[str], about: Dict[str, object]) -> None:
    stream.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(about) + ',"traceEvents":[\n')
    piece: List[str] = []
    first = True
    for event in events:
        piece.append(event)
        if len(piece) == _PIECE:
            stream.write(("" if first else ",\n") + ",\n".join(piece))
            first = False
            piece.clear()
    if piece:
        stream.write(("" if first else ",\n") + ",\n".join(piece))
    stream.write("\n]}\n")


def write(path: str, traces: Mapping[int, RankTrace], analysis: Analysis) -> None:
    """Replace the file once the new one is complete. Raises HostStateError."""
    errors = {str(rank): clock.error for rank, clock in sorted(analysis.clocks.items())}
    about: Dict[str, object] = {"run": analysis.name, "clock_error_us": errors, "left_out_below_us": analysis.shortest}
    # The directory may belong to another user, who could have created a link there.
    draft = f"{path}.{secrets.token_hex(6)}"
    try:
        with open(os.open(draft, _NEW, 0o644), "wb") as raw, gzip.open(raw, "wt", 1, encoding="ascii") as stream:
            _write(stream, _events(traces, analysis), about)
        os.replace(draft, path)
    except OSError as failure:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise HostStateError(
            f"{path} cannot be written: {failure.strerror}.", "Give another directory with --output."
        ) from failure
