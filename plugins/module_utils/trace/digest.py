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

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.described import MOST_RANKS, Described, whole
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.read import read
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import (
    Exchange,
    Operation,
    RankTrace,
    Slices,
    Step,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.gpumesh_profile import ANCHOR

_STEP = re.compile(r"ProfilerStep#([0-9]{1,9})")
_ANCHOR = re.compile(re.escape(ANCHOR) + "([0-9]{1,19})")
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver")
_OPERATOR = "cpu_op"
_ANNOTATION = "user_annotation"
#: Annotations of communication on a CPU, and communication kernels.
_HOST_COMMUNICATION = re.compile(r"(?:gloo|mpi|ucc):(\w+)")
_KERNEL_COMMUNICATION = re.compile(r"(?:nccl|rccl|mscclpp?)\w*?(?:Kernel|KERNEL)_?([A-Za-z]*)")
#: Collectives that no rank can leave before all have entered.
_WAITING = ("allreduce", "allgather", "reducescatter", "barrier", "alltoall")
#: The name of the process group of all ranks, which older versions of PyTorch do not write.
_OF_ALL = ("", "0")
#: The maximum length of a name: names of kernels may have thousands of characters.
_LONGEST = 160
#: The most that is kept of a trace, in bytes; and of an event, without its texts, until all are evaluated. A small file
#: can contain any number of events.
MOST_KEPT = 1 << 30
_EVENT = 256
_DISTRIBUTED, _BASE_TIME = "distributedInfo", "baseTimeNanoseconds"
#: In place of the ID that a kernel shares with the call that started it.
_NONE = -1
#: The number of the only step in a trace without steps.
_WHOLE = 0
#: The latest plausible times, in microseconds and nanoseconds.
_LATEST = 1 << 62


def _kind(name: str) -> str:
    """The kind of an event, which is missing if PyTorch was built without Kineto, as in Debian 12."""
    own = _STEP.fullmatch(name) or _ANCHOR.fullmatch(name) or _HOST_COMMUNICATION.fullmatch(name)
    return _ANNOTATION if own else _OPERATOR if "::" in name or "Backward" in name else ""


_Key = TypeVar("_Key")


class _TooManyError(ValueError):
    """There are more events than can be kept."""


def _short(value: Any) -> str:
    return str(value)[:_LONGEST]


def _thread(value: Any) -> Union[int, str]:
    """The number or name of a process or a thread."""
    number = whole(value, -_LATEST, _LATEST)
    return _short(value) if number is None else number


def _correlation(values: Mapping[str, Any]) -> int:
    number = whole(values.get("correlation"), 0, _LATEST)
    return _NONE if number is None else number


class _Columns:
    """Events, by column."""

    def __init__(self) -> None:
        self.begin = array("d")
        self.length = array("d")
        self.name = array("l")
        self.thread = array("l")
        self.names: Dict[str, int] = {}
        self.threads: Dict[Tuple[Union[int, str], Union[int, str]], int] = {}
        self._kept = 0

    def keep(self, *values: object) -> None:
        """Count what is kept. Raises _TooManyError."""
        self._kept += _EVENT + sum(map(sys.getsizeof, values))
        if self._kept > MOST_KEPT:
            raise _TooManyError

    def add(self, event: Mapping[str, Any], name: str, begin: float, length: float) -> int:
        """Returns its number."""
        self.begin.append(begin)
        self.length.append(length)
        thread = (_thread(event.get("pid")), _thread(event.get("tid")))
        self.name.append(self._number(self.names, name))
        self.thread.append(self._number(self.threads, thread, *thread))
        self.keep()
        return len(self.begin) - 1

    def _number(self, numbers: Dict[_Key, int], key: _Key, *parts: object) -> int:
        if key not in numbers:
            self.keep(key, *parts)
            numbers[key] = len(numbers)
        return numbers[key]


class _Kernel(NamedTuple):
    """A communication kernel. ``correlation``: the ID that it shares with the call that started it."""

    name: str
    group: str
    correlation: int
    begin: float
    end: float


class Digest:
    """Takes the events of a trace, one after the other."""

    def __init__(self) -> None:
        self.steps: List[Step] = []
        self.anchor: Optional[Tuple[int, float]] = None
        self._columns = _Columns()
        self._on_gpu: List[int] = []
        self._operators: List[int] = []
        self._kernels: List[_Kernel] = []
        self._on_host: List[Tuple[str, float, float]] = []
        self._launched: Dict[int, float] = {}
        self._gpu_threads: Dict[int, None] = {}
        self._communicates: Dict[str, Optional[Match[str]]] = {}

    @property
    def gpu(self) -> bool:
        """Whether any work ran on a GPU."""
        return bool(self._on_gpu or self._kernels)

    def event(self, event: Mapping[str, Any]) -> None:
        """Process an event. Damaged ones are ignored. Raises _TooManyError."""
        if event.get("ph") != "X":
            return
        try:
            begin, length, name = float(event["ts"]), float(event["dur"]), _short(event["name"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not (abs(begin) < _LATEST and 0 <= length < _LATEST):
            return
        kind = str(event["cat"]).lower() if "cat" in event else _kind(name)
        if kind == "trace":
            # It spans the whole trace.
            return
        number = self._columns.add(event, name, begin, length)
        values = event.get("args")
        values = values if isinstance(values, dict) else {}
        if kind in _GPU:
            self._gpu_threads[self._columns.thread[number]] = None
            self._add_gpu(number, kind, name, values, begin, begin + length)
        elif kind == _OPERATOR:
            if not name.startswith("c10d::"):
                self._operators.append(number)
        elif kind == _ANNOTATION:
            self._annotate(name, begin, begin + length)
        elif kind in _LAUNCHES and _correlation(values) != _NONE:
            self._launched[_correlation(values)] = begin

    def _add_gpu(self, number: int, kind: str, name: str, values: Mapping[str, Any], begin: float, end: float) -> None:
        if name not in self._communicates:
            self._communicates[name] = _KERNEL_COMMUNICATION.search(name)
        found = self._communicates[name] if kind == "kernel" else None
        if not found:
            self._on_gpu.append(number)
            return
        kernel = _Kernel(
            printable(_short(values.get("Collective name") or found[1]))[:_LONGEST],
            _short(values.get("Process Group Name", "")),
            _correlation(values),
            begin,
            end,
        )
        self._columns.keep(*kernel)
        self._kernels.append(kernel)

    def _annotate(self, name: str, begin: float, end: float) -> None:
        step = _STEP.fullmatch(name)
        communication, anchor = _HOST_COMMUNICATION.fullmatch(name), _ANCHOR.fullmatch(name)
        if step:
            self.steps.append(Step(int(step[1]), begin, end))
        elif communication:
            self._on_host.append((communication[1], begin, end))
        elif anchor:
            self.anchor = (int(anchor[1]), begin)

    # What becomes of them

    def finish_steps(self, first: Optional[int]) -> None:
        """Number the steps as the program does, if that is known. Steps end where the next one starts.

        A trace without steps counts as one step.
        """
        if not self.steps:
            columns = self._columns
            ends = [begin + length for begin, length in zip(columns.begin, columns.length)]
            self.steps = [Step(_WHOLE, min(columns.begin, default=0.0), max(ends, default=0.0))]
        self.steps.sort(key=lambda step: step.begin)
        nexts = [step.begin for step in self.steps[1:]] + [self.steps[-1].end]
        further = 0 if first is None else first - self.steps[0].number
        self.steps = [
            Step(step.number + further, step.begin, max(step.begin, end)) for step, end in zip(self.steps, nexts)
        ]

    def exchanges(self, rank: int, groups: Mapping[str, Tuple[int, ...]]) -> List[Exchange]:
        """The exchanges, in the order in which they started. ``groups``: the ranks of each process group, by its name."""
        begins = [step.begin for step in self.steps]
        # Gloo never says in which group it communicates. All ranks are assumed only if no groups are known.
        own = {ranks for ranks in groups.values() if rank in ranks}
        several = len(own) != 1 if groups else any(one.group not in _OF_ALL for one in self._kernels)
        otherwise = None if several else next(iter(own), ())

        def made(name: str, group: str, started: float, begin: float, end: float) -> Exchange:
            place = bisect_right(begins, started) - 1
            number = self.steps[place].number if place >= 0 and started <= self.steps[-1].end else -1
            plain = name.replace("_", "").lower()
            members = groups.get(group, None if group and groups else otherwise)
            return Exchange(plain, members, number, begin, end, plain.startswith(_WAITING))

        found = [
            made(one.name, one.group, self._launched.get(one.correlation, one.begin), one.begin, one.end)
            for one in self._kernels
        ]
        found += [made(name, "", begin, begin, end) for name, begin, end in self._on_host]
        return sorted(found, key=lambda exchange: exchange.begin)

    def busy(self) -> spans.Busy:
        """The times in which it computed."""
        columns = self._columns
        numbers = self._on_gpu if self.gpu else self._operators
        made = spans.union((columns.begin[one], columns.begin[one] + columns.length[one]) for one in numbers)
        return spans.Busy(made)

    def operations(self) -> Dict[str, Operation]:
        """The operations in the steps, by name.

        The time of an operator excludes that of the operators that it calls.
        """
        window = (self.steps[0].begin, self.steps[-1].end)
        found: Dict[str, List[float]] = {}
        columns = self._columns
        names = [printable(name) for name in columns.names]

        def count(name: str, begin: float, time: float) -> None:
            if window[0] <= begin < window[1]:
                entry = found.setdefault(name, [0, 0.0])
                entry[0] += 1
                entry[1] += time

        if self.gpu:
            for one in self._on_gpu:
                count(names[columns.name[one]], columns.begin[one], columns.length[one])
            for kernel in self._kernels:
                count(f"nccl:{kernel.name}", kernel.begin, kernel.end - kernel.begin)
        else:
            for one, own in self._own_times():
                count(names[columns.name[one]], columns.begin[one], own)
        for name, begin, end in self._on_host:
            count(f"gloo:{name}", begin, end - begin)
        return {name: Operation(int(entry[0]), entry[1]) for name, entry in found.items()}

    def _own_times(self) -> List[Tuple[int, float]]:
        """The time of each operator without that of operators inside it, in the same thread."""
        columns = self._columns
        own = {one: columns.length[one] for one in self._operators}
        order = sorted(self._operators, key=lambda one: (columns.thread[one], columns.begin[one], -columns.length[one]))
        around: List[int] = []
        for one in order:
            while around and (
                columns.thread[around[-1]] != columns.thread[one]
                or columns.begin[around[-1]] + columns.length[around[-1]] <= columns.begin[one]
            ):
                around.pop()
            if around:
                own[around[-1]] -= columns.length[one]
            around.append(one)
        return [(one, max(0.0, time)) for one, time in own.items()]

    def slices(self, most: int) -> Slices:
        """The ``most`` longest events. An enclosing event is longer, so the parents of each are included."""
        columns = self._columns
        total = len(columns.begin)
        shortest = 0.0
        if total > most:
            shortest = sorted(columns.length, reverse=True)[most]
        kept = [one for one in range(total) if columns.length[one] > shortest or total <= most]
        on_gpu = self._gpu_threads
        labels = [
            f"GPU {process} {thread if str(thread).startswith('stream') else f'stream {thread}'}"
            if number in on_gpu
            else f"thread {thread}"
            for (process, thread), number in columns.threads.items()
        ]
        return Slices(
            array("d", (columns.begin[one] for one in kept)),
            array("d", (columns.length[one] for one in kept)),
            array("l", (columns.name[one] for one in kept)),
            array("l", (columns.thread[one] for one in kept)),
            [printable(name) for name in columns.names],
            [printable(label) for label in labels],
            shortest,
        )


def groups(about: Mapping[str, Any]) -> Dict[str, Tuple[int, ...]]:
    """The ranks of each process group, by its name."""
    told = about.get(_DISTRIBUTED)
    configured = told.get("pg_config") if isinstance(told, dict) else None
    found = {}
    for one in configured if isinstance(configured, list) else []:
        ranks = one.get("ranks") if isinstance(one, dict) else None
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found[_short(one.get("pg_name", ""))] = tuple(ranks)
    return found


def _rank(about: Mapping[str, Any], described: Optional[Described], otherwise: int) -> Tuple[int, int]:
    """The number of the rank, and the number of ranks."""
    if described:
        return described.rank, described.ranks
    told = about.get(_DISTRIBUTED)
    told = told if isinstance(told, dict) else {}
    rank = whole(told.get("rank"), 0, MOST_RANKS - 1)
    return otherwise if rank is None else rank, whole(told.get("world_size"), 0, MOST_RANKS) or 0


def digest(path: str, described: Optional[Described], rank: int, most: int) -> RankTrace:
    """Read a trace. ``described``: the description by its rank, if there is one. Raises GpumeshError.

    ``rank``: used if neither contains the number; ``most``: the number of events to keep for the timeline.
    """
    made = Digest()
    try:
        about, skipped = read(path, made.event, (_DISTRIBUTED, _BASE_TIME))
    except _TooManyError as failure:
        raise InputError(f"{path} has more events than can be examined.", "Record fewer steps.") from failure
    made.finish_steps(described.first if described else None)
    if made.steps[0].begin == made.steps[-1].end:
        raise InputError(
            f"{path} has no event with a duration.",
            "Give a directory with the traces of a run, and no other JSON files.",
        )
    base = whole(about.get(_BASE_TIME), 0, _LATEST) or 0
    origin = made.anchor[0] - int(made.anchor[1] * 1000) if made.anchor else base
    number, ranks = _rank(about, described, rank)
    return RankTrace(
        number,
        ranks,
        described.node if described else "",
        made.gpu,
        origin,
        made.steps,
        made.exchanges(number, groups(about)),
        made.busy(),
        made.operations(),
        made.slices(most),
        described.probes(origin) if described else [],
        list(described.links) if described else [],
        skipped,
    )
