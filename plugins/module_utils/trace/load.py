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

from ansible_collections.gpumesh.cluster.plugins.module_utils import limited
from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import GpumeshError, HostStateError, InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.files import open_plain, refuse_foreign_link
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import from_json, whole_number
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import described, timeline
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.described import Described
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.digest import digest
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import RankTrace

#: The maximum number of traces that are read at the same time: each may need several hundred MB.
_AT_ONCE = 8
#: Larger files are not descriptions of traces.
_LARGEST = 1 << 20
#: The number of files that are listed of each recording.
_LISTED = 8
_NUMBER = re.compile(r"(\d+)")
#: What torch.profiler.tensorboard_trace_handler appends to the name of a process: the time of the cycle.
_CYCLE = re.compile(r"\.\d+\.pt\.trace\.json(\.gz)?$")
_REMEDY = "Record one with 'gpumesh-train --profile torch', or give the directory with the traces."


class Source(NamedTuple):
    """The trace of a rank.

    ``described``: the description by its rank; None for a trace that another program has written.
    """

    path: str
    described: Optional[Described]
    rank: int
    most: int


class Loaded(NamedTuple):
    """The traces by rank. ``cycles``: how often the program was profiled; ``cycle`` is the number of this time, from 1."""

    traces: Dict[int, RankTrace]
    cycle: int
    cycles: int


def folder_of(path: str, attempt: int) -> Path:
    """The directory with the traces of a run: ``path`` is its directory, or one with traces. Raises InputError."""
    given = Path(path)
    if not given.is_dir():
        raise InputError(f"There is neither a run nor a directory {path}.", "See 'gpumesh-train list'.")
    if not os.access(path, os.R_OK | os.X_OK):
        raise InputError(f"{path} cannot be read.", "Ask its owner to let you read it, or a copy of its profile.")
    profiles = given / "profile"
    if not profiles.is_dir():
        return given
    refuse_foreign_link(str(profiles))
    found = {int(one.name): one for one in profiles.iterdir() if one.is_dir() and whole_number(one.name)}
    kept = {number: one for number, one in sorted(found.items()) if any(one.glob("rank-*"))}
    if not kept:
        raise InputError(f"There is no profile in {profiles}.", _REMEDY)
    if attempt and attempt not in kept:
        raise InputError(f"Attempt {attempt} of {path} has no profile.", f"It has: {', '.join(map(str, kept))}.")
    chosen = kept[attempt or max(kept)]
    refuse_foreign_link(str(chosen))
    return chosen


def sources(folder: Path) -> List[Source]:
    """The traces in a directory. Raises GpumeshError."""
    paths = [path for path in sorted(folder.glob("rank-*.json")) if ".trace." not in path.name]
    told = {path.name: one for path, one in zip(paths, map(_described, paths)) if one}
    _check_recording(folder, told)
    found = [Source(str(folder / one.trace), one, one.rank, 0) for one in told.values()]
    if not found:
        paths = _foreign(folder)
        # A program without ranks does not write their numbers into its traces: each process counts as one.
        processes = list(dict.fromkeys(_CYCLE.sub("", path.name) for path in paths))
        found = [Source(str(path), None, processes.index(_CYCLE.sub("", path.name)), 0) for path in paths]
    if not found:
        reports = [*folder.glob("*.nsys-rep"), *folder.glob("*.qdstrm")]
        if reports:
            raise InputError(
                f"{folder} has reports of Nsight Systems.",
                "Open them with nsys-ui; gpumesh-trace reads what --profile torch has recorded.",
            )
        raise InputError(f"There is no trace in {folder}.", _REMEDY)
    most = timeline.share(len(found))
    return [one._replace(most=most) for one in found]


def _foreign(folder: Path) -> List[Path]:
    """Traces made by another program, in the order of the numbers in their names."""
    found = [path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")) and path.is_file()]
    found = [path for path in found if not path.name.startswith(("timeline", "report"))]
    return sorted(found, key=lambda path: [int(word) if word.isdigit() else 0 for word in _NUMBER.split(path.name)])


def _described(path: Path) -> Optional[Described]:
    """The description of a trace; None for a trace that has this name itself, as what is larger than any description."""
    try:
        with os.fdopen(open_plain(str(path)), encoding="utf-8") as stream:
            text = limited.read(stream, _LARGEST)
        if text is None:
            return None
        values = from_json(text)
        return None if isinstance(values, dict) and "traceEvents" in values else described.parse(values)
    except (OSError, ValueError) as failure:
        raise HostStateError(f"{path} cannot be read: {failure}.", "Record the profile again.") from failure


def _check_recording(folder: Path, told: Mapping[str, Described]) -> None:
    """Raise InputError if the traces are of several recordings: one that has failed leaves those of an earlier one."""
    for what in ("ranks", "recording"):
        by_value: Dict[Any, List[str]] = {}
        for name, one in told.items():
            # Ranks that could not reach rank 0 do not know the recording.
            if getattr(one, what):
                by_value.setdefault(getattr(one, what), []).append(name)
        if len(by_value) > 1:
            listed = [
                ", ".join(names[:_LISTED]) + (" and others" if len(names) > _LISTED else "")
                for names in by_value.values()
            ]
            raise InputError(
                f"{folder} has traces of different recordings: {'; '.join(listed)}.",
                "Delete those of the earlier recording, and record each profile in its own directory.",
            )


def _digest(source: Source) -> RankTrace:
    return digest(source.path, source.described, source.rank, source.most)


def _try(source: Source) -> Any:
    """Errors are returned as values: exceptions would lose their attributes when passed between processes."""
    try:
        return _digest(source)
    except GpumeshError as failure:
        return {"message": failure.message, "remedy": failure.remedy}


def load(wanted: Sequence[Source], cycle: int = 0, processes: Optional[int] = None) -> Loaded:
    """The traces of a cycle; by default of the last one that all ranks have. Raises GpumeshError.

    torch.profiler.schedule repeats, and each cycle may leave a trace of its own.
    """
    traces = _load(wanted, processes)
    cycles = _cycles(traces)
    if not 0 <= cycle <= len(cycles):
        raise InputError(
            f"{os.path.dirname(wanted[0].path)} has no cycle {cycle} of the profiler.",
            f"It has {len(cycles)}: give another number with --cycle.",
        )
    chosen = cycle or max(range(1, len(cycles) + 1), key=lambda number: (len(cycles[number - 1]), number))
    places = sorted(cycles[chosen - 1].items())
    if len(cycles) > 1:
        # The timeline has room for more events of each trace.
        most = timeline.share(len(places))
        traces = _load([wanted[place]._replace(most=most) for _rank, place in places], processes)
        places = [(rank, place) for place, (rank, _place) in enumerate(places)]
    return Loaded({rank: traces[place] for rank, place in places}, chosen, len(cycles))


def _cycles(traces: Sequence[RankTrace]) -> List[Dict[int, int]]:
    """The places of the traces of each cycle, by rank, in the order of time.

    All ranks count their steps alike, and a profiler goes on counting in its next cycle. One that was made anew begins
    again: then the first traces of all ranks belong together, the second ones, and so on.
    """
    times = [trace.origin + int(trace.steps[0].begin * 1000) for trace in traces]
    if len({trace.rank for trace in traces}) == len(traces):
        return [{trace.rank: place for place, trace in enumerate(traces)}]
    found: List[Tuple[Set[int], Dict[int, int]]] = []
    for place in sorted(range(len(traces)), key=times.__getitem__):
        rank, steps = traces[place].rank, {step.number for step in traces[place].steps}
        shared = (one for one in found if rank not in one[1] and not steps.isdisjoint(one[0]))
        known, places = next(shared, (set(), {}))
        if not places:
            found.append((known, places))
        known |= steps
        places[rank] = place
    return sorted((places for _steps, places in found), key=lambda places: times[places[min(places)]])


def _load(wanted: Sequence[Source], processes: Optional[int]) -> List[RankTrace]:
    number = min(processes or len(os.sched_getaffinity(0)), _AT_ONCE, len(wanted))
    if number == 1:
        return list(map(_digest, wanted))
    with ProcessPoolExecutor(number, mp_context=multiprocessing.get_context("fork")) as pool:
        try:
            results = list(pool.map(_try, wanted))
        except BrokenProcessPool as failure:
            raise HostStateError(
                f"One of the {number} processes that read the traces was killed.",
                "If it ran out of memory (see the kernel log), read one trace at a time: "
                "taskset -c 0 gpumesh-trace ...",
            ) from failure
    for result in results:
        if not isinstance(result, RankTrace):
            raise HostStateError(result["message"], result["remedy"])
    return results
