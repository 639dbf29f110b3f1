# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Find the traces of a run, and read those of all ranks in parallel."""

from __future__ import annotations

import multiprocessing
import os
import re
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core import bounded_read
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import (
    GpumeshError,
    HostStateError,
    InputError,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.files import open_regular_file, refuse_foreign_link
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import (
    join_names,
    parse_json,
    parse_whole_number,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import rank_metadata, timeline
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.digest import digest_trace
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import RankTrace
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.rank_metadata import RankMetadata

#: The maximum number of traces that are read at the same time: each may need several hundred MB.
_MAX_PROCESSES = 8
#: Larger files are not descriptions of traces.
_MAX_METADATA_BYTES = 1 << 20
#: The number of files that are listed of each recording.
_MAX_LISTED = 8
_NUMBER_PATTERN = re.compile(r"(\d+)")
#: The time of the cycle, which torch.profiler.tensorboard_trace_handler appends to the name of a process.
_CYCLE_SUFFIX = re.compile(r"\.\d+\.pt\.trace\.json(\.gz)?$")
_RECORD_REMEDY = "Record one with 'gpumesh-train --profile torch', or give the directory with the traces."


class TraceSource(NamedTuple):
    """The trace of a rank.

    ``metadata``: the description by its rank; None for a trace that another program has written.
    """

    path: str
    metadata: Optional[RankMetadata]
    rank: int
    max_events: int


class LoadedCycle(NamedTuple):
    """The traces of a cycle by rank. ``cycle``: its number, from 1, of the ``cycle_count`` cycles of the profiler."""

    traces: Dict[int, RankTrace]
    cycle: int
    cycle_count: int


def find_trace_dir(run_path: str, attempt: int) -> Path:
    """The directory with the traces of a run: ``run_path`` is its directory, or one with traces. Raises InputError."""
    directory = Path(run_path)
    if not directory.is_dir():
        raise InputError(f"There is neither a run nor a directory {run_path}.", "See 'gpumesh-train list'.")
    if not os.access(run_path, os.R_OK | os.X_OK):
        raise InputError(f"{run_path} cannot be read.", "Ask its owner to let you read it, or a copy of its profile.")
    profiles_dir = directory / "profile"
    if not profiles_dir.is_dir():
        return directory
    refuse_foreign_link(str(profiles_dir))
    attempt_dirs = {
        int(attempt_dir.name): attempt_dir
        for attempt_dir in profiles_dir.iterdir()
        if attempt_dir.is_dir() and parse_whole_number(attempt_dir.name)
    }
    profiled_dirs = {
        attempt_number: attempt_dir
        for attempt_number, attempt_dir in sorted(attempt_dirs.items())
        if any(attempt_dir.glob("rank-*"))
    }
    if not profiled_dirs:
        raise InputError(f"There is no profile in {profiles_dir}.", _RECORD_REMEDY)
    if attempt and attempt not in profiled_dirs:
        raise InputError(
            f"Attempt {attempt} of {run_path} has no profile.", f"It has: {', '.join(map(str, profiled_dirs))}."
        )
    chosen_dir = profiled_dirs[attempt or max(profiled_dirs)]
    refuse_foreign_link(str(chosen_dir))
    return chosen_dir


def find_sources(trace_dir: Path) -> List[TraceSource]:
    """The traces in a directory. Raises GpumeshError."""
    paths = [path for path in sorted(trace_dir.glob("rank-*.json")) if ".trace." not in path.name]
    metadata_by_name = {path.name: entry for path, entry in zip(paths, map(_read_metadata, paths)) if entry}
    _check_recording(trace_dir, metadata_by_name)
    trace_sources = [
        TraceSource(str(trace_dir / entry.trace_name), entry, entry.rank, 0) for entry in metadata_by_name.values()
    ]
    if not trace_sources:
        paths = _find_foreign_traces(trace_dir)
        # A program without ranks does not write their numbers into its traces: each process counts as one.
        process_names = list(dict.fromkeys(_CYCLE_SUFFIX.sub("", path.name) for path in paths))
        trace_sources = [
            TraceSource(str(path), None, process_names.index(_CYCLE_SUFFIX.sub("", path.name)), 0) for path in paths
        ]
    if not trace_sources:
        nsight_reports = [*trace_dir.glob("*.nsys-rep"), *trace_dir.glob("*.qdstrm")]
        if nsight_reports:
            raise InputError(
                f"{trace_dir} has reports of Nsight Systems.",
                "Open them with nsys-ui; gpumesh-trace reads what --profile torch has recorded.",
            )
        raise InputError(f"There is no trace in {trace_dir}.", _RECORD_REMEDY)
    max_events = timeline.event_share(len(trace_sources))
    return [entry._replace(max_events=max_events) for entry in trace_sources]


def _find_foreign_traces(trace_dir: Path) -> List[Path]:
    """Traces made by another program, in the order of the numbers in their names."""
    trace_paths = [path for path in trace_dir.iterdir() if path.name.endswith((".json", ".json.gz")) and path.is_file()]
    trace_paths = [path for path in trace_paths if not path.name.startswith(("timeline", "report"))]
    return sorted(
        trace_paths,
        key=lambda path: [
            int(name_part) if name_part.isdigit() else 0 for name_part in _NUMBER_PATTERN.split(path.name)
        ],
    )


def _read_metadata(path: Path) -> Optional[RankMetadata]:
    """Return the description of a trace; None if the file is a trace itself, or larger than any description."""
    try:
        with os.fdopen(open_regular_file(str(path)), encoding="utf-8") as stream:
            text = bounded_read.read(stream, _MAX_METADATA_BYTES)
        if text is None:
            return None
        values = parse_json(text)
        return None if isinstance(values, dict) and "traceEvents" in values else rank_metadata.parse_metadata(values)
    except (OSError, ValueError) as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", "Record the profile again.") from failure


def _check_recording(trace_dir: Path, metadata_by_name: Mapping[str, RankMetadata]) -> None:
    """Raise InputError if the traces are of several recordings: one that has failed leaves those of an earlier one."""
    for field in ("ranks", "recording"):
        names_by_value: Dict[Any, List[str]] = {}
        for name, metadata in metadata_by_name.items():
            # Ranks that could not reach rank 0 do not know the recording.
            if getattr(metadata, field):
                names_by_value.setdefault(getattr(metadata, field), []).append(name)
        if len(names_by_value) > 1:
            name_lists = [join_names(names, "") for names in names_by_value.values()]
            raise InputError(
                f"{trace_dir} has traces of different recordings: {'; '.join(name_lists)}.",
                "Delete those of the earlier recording, and record each profile in its own directory.",
            )


def _digest(source: TraceSource) -> RankTrace:
    return digest_trace(source.path, source.metadata, source.rank, source.max_events)


def _try_digest(source: TraceSource) -> Any:
    """Errors are returned as values: exceptions would lose their attributes when passed between processes."""
    try:
        return _digest(source)
    except GpumeshError as failure:
        return {"message": failure.message, "remedy": failure.remedy}


def load_traces(trace_sources: Sequence[TraceSource], cycle: int = 0, processes: Optional[int] = None) -> LoadedCycle:
    """Read the traces of a cycle, by default of the last one that all ranks have. Raises GpumeshError.

    torch.profiler.schedule repeats, and each cycle may leave a trace of its own.
    """
    traces = _read_traces(trace_sources, processes)
    cycles = _group_cycles(traces)
    if not 0 <= cycle <= len(cycles):
        raise InputError(
            f"{os.path.dirname(trace_sources[0].path)} has no cycle {cycle} of the profiler.",
            f"It has {len(cycles)}: give another number with --cycle.",
        )
    chosen_cycle = cycle or max(range(1, len(cycles) + 1), key=lambda number: (len(cycles[number - 1]), number))
    rank_indexes = sorted(cycles[chosen_cycle - 1].items())
    if len(cycles) > 1:
        # The timeline can hold more events of each trace of a single cycle.
        max_events = timeline.event_share(len(rank_indexes))
        traces = _read_traces(
            [trace_sources[trace_index]._replace(max_events=max_events) for _rank, trace_index in rank_indexes],
            processes,
        )
        rank_indexes = [(rank, trace_index) for trace_index, (rank, _trace_index) in enumerate(rank_indexes)]
    return LoadedCycle({rank: traces[trace_index] for rank, trace_index in rank_indexes}, chosen_cycle, len(cycles))


def _group_cycles(traces: Sequence[RankTrace]) -> List[Dict[int, int]]:
    """Return, in the order of time, the indexes of the traces of each cycle by rank.

    All ranks count their steps alike, and a profiler continues counting in its next cycle. A new profiler starts again:
    then the first traces of all ranks belong together, the second ones, and so on.
    """
    start_times = [trace.origin + int(trace.steps[0].start * 1000) for trace in traces]
    if len({trace.rank for trace in traces}) == len(traces):
        return [{trace.rank: trace_index for trace_index, trace in enumerate(traces)}]
    cycles: List[Tuple[Set[int], Dict[int, int]]] = []
    for trace_index in sorted(range(len(traces)), key=start_times.__getitem__):
        rank, steps = traces[trace_index].rank, {step.number for step in traces[trace_index].steps}
        matching_cycles = (
            candidate for candidate in cycles if rank not in candidate[1] and not steps.isdisjoint(candidate[0])
        )
        known_steps, index_by_rank = next(matching_cycles, (set(), {}))
        if not index_by_rank:
            cycles.append((known_steps, index_by_rank))
        known_steps |= steps
        index_by_rank[rank] = trace_index
    return sorted(
        (index_by_rank for _steps, index_by_rank in cycles),
        key=lambda index_by_rank: start_times[index_by_rank[min(index_by_rank)]],
    )


def _read_traces(trace_sources: Sequence[TraceSource], processes: Optional[int]) -> List[RankTrace]:
    process_count = min(processes or len(os.sched_getaffinity(0)), _MAX_PROCESSES, len(trace_sources))
    if process_count == 1:
        return list(map(_digest, trace_sources))
    with ProcessPoolExecutor(process_count, mp_context=multiprocessing.get_context("fork")) as pool:
        try:
            results = list(pool.map(_try_digest, trace_sources))
        except BrokenProcessPool as failure:
            raise HostStateError(
                f"One of the {process_count} processes that read the traces was killed.",
                "If it ran out of memory (see the kernel log), read one trace at a time: "
                "taskset -c 0 gpumesh-trace ...",
            ) from failure
    for result in results:
        if not isinstance(result, RankTrace):
            raise HostStateError(result["message"], result["remedy"])
    return results
