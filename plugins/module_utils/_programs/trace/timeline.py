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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import HostStateError
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.messages import STEP_PARTS
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    Analysis,
    RankClock,
    RankState,
    RankTrace,
)

#: The maximum number of events of all ranks together: browsers cannot handle many more.
MAX_EVENTS = 1_000_000
#: The number of events that are written at a time.
_EVENTS_PER_WRITE = 4_096
_STATE_TRACK = 0
#: The number of events that name a rank and its first track.
_NAME_EVENT_COUNT = 3
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def event_share(rank_count: int) -> int:
    """The number of events that are kept of a rank's trace."""
    return MAX_EVENTS // max(1, rank_count) * 3 // 4


def _format_name_event(event_name: str, rank: int, thread: int, **arguments: object) -> str:
    return json.dumps({"ph": "M", "name": event_name, "pid": rank, "tid": thread, "args": arguments})


def _name_events(trace: RankTrace, thread_count: int) -> Iterator[str]:
    rank = trace.rank
    yield _format_name_event("process_name", rank, 0, name=f"rank {rank}" + (f" on {trace.node}" if trace.node else ""))
    yield _format_name_event("process_sort_index", rank, 0, sort_index=rank)
    yield _format_name_event("thread_name", rank, _STATE_TRACK, name="activity")
    for number, label in enumerate(trace.slices.threads[:thread_count], 1):
        yield _format_name_event("thread_name", rank, number, name=label)
        yield _format_name_event("thread_sort_index", rank, number, sort_index=number)


def _slice_events(trace: RankTrace, clock: RankClock) -> Iterator[str]:
    slices = trace.slices
    names = [json.dumps(name) for name in slices.names]
    scale = 1.0 + clock.drift
    for start, length, name, thread in zip(slices.starts, slices.durations, slices.name_indexes, slices.thread_indexes):
        yield (
            f'{{"ph":"X","pid":{trace.rank},"tid":{thread + 1},"ts":{clock.to_reference(start):.3f},'
            f'"dur":{length * scale:.3f},"name":{names[name]}}}'
        )


def _state_events(rank: int, rank_states: Sequence[RankState], max_events: int) -> Iterator[str]:
    labels = {part: label.lower() for part, label in STEP_PARTS}
    state_spans = [
        (start, end, f"waiting for rank {awaited_rank}" if activity == "waiting" else labels[activity])
        for start, end, activity, awaited_rank in rank_states
    ]
    if len(state_spans) > max_events:
        shortest = 2 * (state_spans[-1][1] - state_spans[0][0]) / (max_events - 1) if max_events > 1 else math.inf
        state_spans = list(spans.merge_short_parts(state_spans, shortest))
    for start, end, name in state_spans:
        yield f'{{"ph":"X","pid":{rank},"tid":{_STATE_TRACK},"ts":{start:.3f},"dur":{end - start:.3f},"name":"{name}"}}'


def _all_events(trace_by_rank: Mapping[int, RankTrace], analysis: Analysis) -> Iterator[str]:
    for rank, trace in sorted(trace_by_rank.items()):
        event_budget = MAX_EVENTS // len(trace_by_rank) - len(trace.slices.starts)
        thread_count = min(len(trace.slices.threads), max(0, event_budget // 2 - _NAME_EVENT_COUNT) // 2)
        yield from _name_events(trace, thread_count)
        yield from _slice_events(trace, analysis.clocks[rank])
        yield from _state_events(rank, analysis.activity[rank], event_budget - _NAME_EVENT_COUNT - 2 * thread_count)


def _write_events(stream: TextIO, events: Iterator[str], other_header: Dict[str, object]) -> None:
    stream.write('{"displayTimeUnit":"ms","otherData":' + json.dumps(other_header) + ',"traceEvents":[\n')
    batch: List[str] = []
    is_first = True
    for event in events:
        batch.append(event)
        if len(batch) == _EVENTS_PER_WRITE:
            stream.write(("" if is_first else ",\n") + ",\n".join(batch))
            is_first = False
            batch.clear()
    if batch:
        stream.write(("" if is_first else ",\n") + ",\n".join(batch))
    stream.write("\n]}\n")


def write_timeline(path: str, trace_by_rank: Mapping[int, RankTrace], analysis: Analysis) -> None:
    """Replace the file once the new one is complete. Raises HostStateError."""
    error_by_rank = {str(rank): clock.error for rank, clock in sorted(analysis.clocks.items())}
    run_header: Dict[str, object] = {
        "run": analysis.name,
        "clock_error_us": error_by_rank,
        "left_out_below_us": analysis.shortest_kept,
    }
    # The directory may belong to another user, who could have created a link there.
    draft_path = f"{path}.{secrets.token_hex(6)}"
    try:
        with open(os.open(draft_path, _CREATE_FLAGS, 0o644), "wb") as raw_stream, gzip.open(
            raw_stream, "wt", 1, encoding="ascii"
        ) as stream:
            _write_events(stream, _all_events(trace_by_rank, analysis), run_header)
        os.replace(draft_path, path)
    except OSError as failure:
        with contextlib.suppress(OSError):
            os.unlink(draft_path)
        raise HostStateError(
            f"{path} cannot be written: {failure.strerror}.", "Give another directory with --output."
        ) from failure
