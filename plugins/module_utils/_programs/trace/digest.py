# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reduce the events of a trace to what is needed.

On a GPU, kernels and copies are counted, those of NCCL and RCCL as communication. On a CPU, these are the operators of
PyTorch, and the work of Gloo, which the trace contains as annotations. The remaining time is the program's own: Python,
reading data, starting kernels.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_right
from typing import Any, Dict, List, Mapping, Match, NamedTuple, Optional, Tuple, TypeVar, Union

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    Exchange,
    OperationTotals,
    ProfiledStep,
    RankTrace,
    TimelineSlices,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.rank_metadata import (
    MAX_RANKS,
    RankMetadata,
    bounded_int,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.read import read_events

#: As in gpumesh_profile, which imports nothing of the collection, and of which a report needs nothing else.
CLOCK_EVENT_PREFIX = "gpumesh clock "
_STEP_NAME = re.compile(r"ProfilerStep#([0-9]{1,9})")
_ANCHOR_NAME = re.compile(re.escape(CLOCK_EVENT_PREFIX) + "([0-9]{1,19})")
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH_CATEGORIES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_OPERATOR_CATEGORY = "cpu_op"
_ANNOTATION_CATEGORY = "user_annotation"
#: Annotations of communication on a CPU, and communication kernels.
_HOST_COMMUNICATION = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
_KERNEL_COMMUNICATION = re.compile(r"(?:nccl|rccl|mscclpp?)\w*?(?:Kernel|KERNEL)_?([A-Za-z]*)")
#: Collectives that no rank can leave before all have entered.
_BLOCKING_COLLECTIVES = ("allreduce", "allgather", "reducescatter", "barrier", "alltoall")
#: The name of the process group of all ranks, which older versions of PyTorch do not write.
_DEFAULT_GROUP_NAMES = ("", "0")
#: The maximum length of a name: names of kernels may have thousands of characters.
_MAX_NAME_LENGTH = 160
#: The most that is kept of a trace, in bytes; and of an event, without its texts, until all are evaluated. A small file
#: can contain any number of events.
MAX_KEPT_BYTES = 1 << 30
_EVENT_BYTES = 256
_DISTRIBUTED_KEY, _BASE_TIME_KEY = "distributedInfo", "baseTimeNanoseconds"
#: A placeholder for the missing ID that a kernel shares with the call that started it.
_NO_CORRELATION = -1
#: The number of the only step in a trace without steps.
_WHOLE_TRACE_STEP = 0
#: The latest plausible times, in microseconds and nanoseconds.
_MAX_TIME = 1 << 62


def _guess_category(name: str) -> str:
    """The kind of an event, which is missing if PyTorch was built without Kineto, as in Debian 12."""
    is_annotation = _STEP_NAME.fullmatch(name) or _ANCHOR_NAME.fullmatch(name) or _HOST_COMMUNICATION.fullmatch(name)
    return _ANNOTATION_CATEGORY if is_annotation else _OPERATOR_CATEGORY if "::" in name or "Backward" in name else ""


_Key = TypeVar("_Key")


class _TooManyError(ValueError):
    """The trace has more events than can be kept."""


def _shorten(value: Any) -> str:
    return str(value)[:_MAX_NAME_LENGTH]


def _thread_id(value: Any) -> Union[int, str]:
    """The number or name of a process or a thread."""
    number = bounded_int(value, -_MAX_TIME, _MAX_TIME)
    return _shorten(value) if number is None else number


def _correlation(values: Mapping[str, Any]) -> int:
    number = bounded_int(values.get("correlation"), 0, _MAX_TIME)
    return _NO_CORRELATION if number is None else number


class _EventColumns:
    """Events, by column."""

    def __init__(self) -> None:
        self.starts = array("d")
        self.durations = array("d")
        self.name_indexes = array("l")
        self.thread_indexes = array("l")
        self.names: Dict[str, int] = {}
        self.threads: Dict[Tuple[Union[int, str], Union[int, str]], int] = {}
        self._kept_bytes = 0

    def count_bytes(self, *kept_objects: object) -> None:
        """Count the memory of kept events and objects. Raises _TooManyError."""
        self._kept_bytes += _EVENT_BYTES + sum(map(sys.getsizeof, kept_objects))
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise _TooManyError

    def add_event(self, event: Mapping[str, Any], name: str, start: float, length: float) -> int:
        """Add an event, and return its index."""
        self.starts.append(start)
        self.durations.append(length)
        thread_key = (_thread_id(event.get("pid")), _thread_id(event.get("tid")))
        self.name_indexes.append(self._number_key(self.names, name))
        self.thread_indexes.append(self._number_key(self.threads, thread_key, *thread_key))
        self.count_bytes()
        return len(self.starts) - 1

    def _number_key(self, number_by_key: Dict[_Key, int], key: _Key, *parts: object) -> int:
        if key not in number_by_key:
            self.count_bytes(key, *parts)
            number_by_key[key] = len(number_by_key)
        return number_by_key[key]


class _Kernel(NamedTuple):
    """A communication kernel. ``correlation``: the ID that it shares with the call that started it."""

    name: str
    group: str
    correlation: int
    start: float
    end: float


class TraceDigest:
    """Reduces the events of a trace, one after the other."""

    def __init__(self) -> None:
        self.steps: List[ProfiledStep] = []
        self.anchor: Optional[Tuple[int, float]] = None
        self._columns = _EventColumns()
        self._gpu_events: List[int] = []
        self._operators: List[int] = []
        self._kernels: List[_Kernel] = []
        self._host_communication: List[Tuple[str, float, float]] = []
        self._launch_times: Dict[int, float] = {}
        self._gpu_threads: Dict[int, None] = {}
        self._communication_matches: Dict[str, Optional[Match[str]]] = {}

    @property
    def uses_gpu(self) -> bool:
        """Whether any work ran on a GPU."""
        return bool(self._gpu_events or self._kernels)

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Process an event. Damaged ones are ignored. Raises _TooManyError."""
        if event.get("ph") != "X":
            return
        try:
            start, length, name = float(event["ts"]), float(event["dur"]), _shorten(event["name"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not (abs(start) < _MAX_TIME and 0 <= length < _MAX_TIME):
            return
        category = str(event["cat"]).lower() if "cat" in event else _guess_category(name)
        if category == "trace":
            # This event spans the whole trace.
            return
        event_index = self._columns.add_event(event, name, start, length)
        arguments = event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if category in _GPU_CATEGORIES:
            self._gpu_threads[self._columns.thread_indexes[event_index]] = None
            self._add_gpu_event(event_index, category, name, arguments, start, start + length)
        elif category == _OPERATOR_CATEGORY:
            if not name.startswith("c10d::"):
                self._operators.append(event_index)
        elif category == _ANNOTATION_CATEGORY:
            self._add_annotation(name, start, start + length)
        elif category in _LAUNCH_CATEGORIES and _correlation(arguments) != _NO_CORRELATION:
            self._launch_times[_correlation(arguments)] = start

    def _add_gpu_event(
        self, event_index: int, category: str, name: str, arguments: Mapping[str, Any], start: float, end: float
    ) -> None:
        if name not in self._communication_matches:
            self._communication_matches[name] = _KERNEL_COMMUNICATION.search(name)
        communication = self._communication_matches[name] if category == "kernel" else None
        if not communication:
            self._gpu_events.append(event_index)
            return
        kernel = _Kernel(
            printable(_shorten(arguments.get("Collective name") or communication[1]))[:_MAX_NAME_LENGTH],
            _shorten(arguments.get("Process Group Name", "")),
            _correlation(arguments),
            start,
            end,
        )
        self._columns.count_bytes(*kernel)
        self._kernels.append(kernel)

    def _add_annotation(self, name: str, start: float, end: float) -> None:
        step = _STEP_NAME.fullmatch(name)
        communication, anchor = _HOST_COMMUNICATION.fullmatch(name), _ANCHOR_NAME.fullmatch(name)
        if step:
            self.steps.append(ProfiledStep(int(step[1]), start, end))
        elif communication:
            self._host_communication.append((communication[1], start, end))
        elif anchor:
            self.anchor = (int(anchor[1]), start)

    # Results

    def finish_steps(self, first_step: Optional[int]) -> None:
        """Number the steps as the program does, if that is known. Steps end where the next one starts.

        A trace without steps counts as one step.
        """
        if not self.steps:
            columns = self._columns
            event_ends = [start + length for start, length in zip(columns.starts, columns.durations)]
            self.steps = [
                ProfiledStep(_WHOLE_TRACE_STEP, min(columns.starts, default=0.0), max(event_ends, default=0.0))
            ]
        self.steps.sort(key=lambda step: step.start)
        next_starts = [step.start for step in self.steps[1:]] + [self.steps[-1].end]
        number_offset = 0 if first_step is None else first_step - self.steps[0].number
        self.steps = [
            ProfiledStep(step.number + number_offset, step.start, max(step.start, end))
            for step, end in zip(self.steps, next_starts)
        ]

    def build_exchanges(self, rank: int, groups: Mapping[str, Tuple[int, ...]]) -> List[Exchange]:
        """Return the exchanges in the order of their start. ``groups``: the ranks of each process group, by its name."""
        step_starts = [step.start for step in self.steps]
        # Gloo never says in which group it communicates. All ranks are assumed only if no groups are known.
        rank_groups = {ranks for ranks in groups.values() if rank in ranks}
        is_ambiguous = (
            len(rank_groups) != 1
            if groups
            else any(kernel.group not in _DEFAULT_GROUP_NAMES for kernel in self._kernels)
        )
        default_members = None if is_ambiguous else next(iter(rank_groups), ())

        def build_exchange(name: str, group: str, started_at: float, start: float, end: float) -> Exchange:
            step_index = bisect_right(step_starts, started_at) - 1
            step_number = self.steps[step_index].number if step_index >= 0 and started_at <= self.steps[-1].end else -1
            plain_name = name.replace("_", "").lower()
            members = groups.get(group, None if group and groups else default_members)
            return Exchange(plain_name, members, step_number, start, end, plain_name.startswith(_BLOCKING_COLLECTIVES))

        exchanges = [
            build_exchange(
                kernel.name,
                kernel.group,
                self._launch_times.get(kernel.correlation, kernel.start),
                kernel.start,
                kernel.end,
            )
            for kernel in self._kernels
        ]
        exchanges += [build_exchange(name, "", start, start, end) for name, start, end in self._host_communication]
        return sorted(exchanges, key=lambda exchange: exchange.start)

    def busy_time(self) -> spans.BusyTime:
        """Return the times in which the rank computed."""
        columns = self._columns
        event_indexes = self._gpu_events if self.uses_gpu else self._operators
        busy_spans = spans.union(
            (columns.starts[event_index], columns.starts[event_index] + columns.durations[event_index])
            for event_index in event_indexes
        )
        return spans.BusyTime(busy_spans)

    def count_operations(self) -> Dict[str, OperationTotals]:
        """The operations in the steps, by name.

        The time of an operator excludes that of the operators that it calls.
        """
        window = (self.steps[0].start, self.steps[-1].end)
        totals_by_name: Dict[str, List[float]] = {}
        columns = self._columns
        names = [printable(name) for name in columns.names]

        def add_call(name: str, start: float, time: float) -> None:
            if window[0] <= start < window[1]:
                totals = totals_by_name.setdefault(name, [0, 0.0])
                totals[0] += 1
                totals[1] += time

        if self.uses_gpu:
            for event_index in self._gpu_events:
                add_call(
                    names[columns.name_indexes[event_index]],
                    columns.starts[event_index],
                    columns.durations[event_index],
                )
            for kernel in self._kernels:
                add_call(f"nccl:{kernel.name}", kernel.start, kernel.end - kernel.start)
        else:
            for event_index, exclusive_time in self._exclusive_times():
                add_call(names[columns.name_indexes[event_index]], columns.starts[event_index], exclusive_time)
        for name, start, end in self._host_communication:
            add_call(f"gloo:{name}", start, end - start)
        return {name: OperationTotals(int(entry[0]), entry[1]) for name, entry in totals_by_name.items()}

    def _exclusive_times(self) -> List[Tuple[int, float]]:
        """The time of each operator without that of operators inside it, in the same thread."""
        columns = self._columns
        exclusive_times = {event_index: columns.durations[event_index] for event_index in self._operators}
        nesting_order = sorted(
            self._operators,
            key=lambda event_index: (
                columns.thread_indexes[event_index],
                columns.starts[event_index],
                -columns.durations[event_index],
            ),
        )
        enclosing: List[int] = []
        for event_index in nesting_order:
            while enclosing and (
                columns.thread_indexes[enclosing[-1]] != columns.thread_indexes[event_index]
                or columns.starts[enclosing[-1]] + columns.durations[enclosing[-1]] <= columns.starts[event_index]
            ):
                enclosing.pop()
            if enclosing:
                exclusive_times[enclosing[-1]] -= columns.durations[event_index]
            enclosing.append(event_index)
        return [(event_index, max(0.0, time)) for event_index, time in exclusive_times.items()]

    def longest_slices(self, max_events: int) -> TimelineSlices:
        """Return the longest events. An enclosing event is longer, so the parents of each are included."""
        columns = self._columns
        event_count = len(columns.starts)
        shortest = 0.0
        if event_count > max_events:
            shortest = sorted(columns.durations, reverse=True)[max_events]
        kept_indexes = [
            event_index
            for event_index in range(event_count)
            if columns.durations[event_index] > shortest or event_count <= max_events
        ]
        gpu_threads = self._gpu_threads
        thread_labels = [
            f"GPU {process} {thread if str(thread).startswith('stream') else f'stream {thread}'}"
            if number in gpu_threads
            else f"thread {thread}"
            for (process, thread), number in columns.threads.items()
        ]
        return TimelineSlices(
            array("d", (columns.starts[event_index] for event_index in kept_indexes)),
            array("d", (columns.durations[event_index] for event_index in kept_indexes)),
            array("l", (columns.name_indexes[event_index] for event_index in kept_indexes)),
            array("l", (columns.thread_indexes[event_index] for event_index in kept_indexes)),
            [printable(name) for name in columns.names],
            [printable(label) for label in thread_labels],
            shortest,
        )


def process_groups(header: Mapping[str, Any]) -> Dict[str, Tuple[int, ...]]:
    """The ranks of each process group, by its name."""
    distributed = header.get(_DISTRIBUTED_KEY)
    group_configs = distributed.get("pg_config") if isinstance(distributed, dict) else None
    ranks_by_group = {}
    for config in group_configs if isinstance(group_configs, list) else []:
        ranks = config.get("ranks") if isinstance(config, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            ranks_by_group[_shorten(config.get("pg_name", ""))] = tuple(ranks)
    return ranks_by_group


def _rank_and_count(header: Mapping[str, Any], metadata: Optional[RankMetadata], default_rank: int) -> Tuple[int, int]:
    """The number of the rank, and the number of ranks."""
    if metadata:
        return metadata.rank, metadata.ranks
    distributed = header.get(_DISTRIBUTED_KEY)
    distributed = distributed if isinstance(distributed, dict) else {}
    rank = bounded_int(distributed.get("rank"), 0, MAX_RANKS - 1)
    return default_rank if rank is None else rank, bounded_int(distributed.get("world_size"), 0, MAX_RANKS) or 0


def digest_trace(path: str, metadata: Optional[RankMetadata], rank: int, max_events: int) -> RankTrace:
    """Read a trace. ``metadata``: the description by its rank, if there is one. Raises GpumeshError.

    ``rank``: used if neither contains the number; ``max_events``: the number of events to keep for the timeline.
    """
    trace_digest = TraceDigest()
    try:
        header, skipped = read_events(path, trace_digest.add_event, (_DISTRIBUTED_KEY, _BASE_TIME_KEY))
    except _TooManyError as failure:
        raise InputError(f"{path} has more events than can be examined.", "Record fewer steps.") from failure
    trace_digest.finish_steps(metadata.first_step if metadata else None)
    if trace_digest.steps[0].start == trace_digest.steps[-1].end:
        raise InputError(
            f"{path} has no event with a duration.",
            "Give a directory with the traces of a run, and no other JSON files.",
        )
    base_time = bounded_int(header.get(_BASE_TIME_KEY), 0, _MAX_TIME) or 0
    origin = trace_digest.anchor[0] - int(trace_digest.anchor[1] * 1000) if trace_digest.anchor else base_time
    rank_number, rank_count = _rank_and_count(header, metadata, rank)
    return RankTrace(
        rank_number,
        rank_count,
        metadata.node if metadata else "",
        trace_digest.uses_gpu,
        origin,
        trace_digest.steps,
        trace_digest.build_exchanges(rank_number, process_groups(header)),
        trace_digest.busy_time(),
        trace_digest.count_operations(),
        trace_digest.longest_slices(max_events),
        metadata.clock_probes(origin) if metadata else [],
        list(metadata.links) if metadata else [],
        skipped,
    )
