# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ranks on one timeline, for Perfetto (https://ui.perfetto.dev) or chrome://tracing.

Each rank is shown as a process. Its first track shows its activity: computing, communicating, or waiting for another
rank. Below are its threads and its GPU, as in its own trace, with times by the clock of rank 0.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import secrets
from typing import Dict, Iterator, List, Mapping, TextIO

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, Clock, RankTrace

#: The maximum number of events of all ranks together: browsers cannot handle many more.
MOST = 1_000_000
#: The minimum number for each rank.
_LEAST = 2_000
#: The number of events that are written at a time.
_PIECE = 4_096
_STATES = 0
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def share(ranks: int) -> int:
    """The number of events per rank."""
    return max(_LEAST, MOST // max(1, ranks))


def _named(kind: str, rank: int, thread: int, **values: object) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": rank, "tid": thread, "args": values})


def _about(trace: RankTrace) -> Iterator[str]:
    rank = trace.rank
    yield _named("process_name", rank, 0, name=f"rank {rank}" + (f" on {trace.node}" if trace.node else ""))
    yield _named("process_sort_index", rank, 0, sort_index=rank)
    yield _named("thread_name", rank, _STATES, name="what it does")
    for number, label in enumerate(trace.slices.threads, 1):
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


def _states(analysis: Analysis) -> Iterator[str]:
    for rank, found in analysis.activity.items():
        for begin, end, what, awaited in found:
            name = f"waiting for rank {awaited}" if what == "waiting" else what
            yield (
                f'{{"ph":"X","pid":{rank},"tid":{_STATES},"ts":{begin:.3f},"dur":{end - begin:.3f},"name":"{name}"}}'
            )


def _events(traces: Mapping[int, RankTrace], analysis: Analysis) -> Iterator[str]:
    for rank in sorted(traces):
        yield from _about(traces[rank])
        yield from _slices(traces[rank], analysis.clocks[rank])
    yield from _states(analysis)


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
