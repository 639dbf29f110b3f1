# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Traces of a training with known timing, as written by PyTorch's profiler and gpumesh_profile.

In each step, a rank computes, half of it before it starts the first all-reduce, which the other half hides. Then it
starts the second one, which nothing hides. All ranks leave an all-reduce `transfer` after the last one has entered.
Then each rank has some time of its own, and the next step begins.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The start of the first rank in nanoseconds since 1970, and the base of the profilers' timestamps.
BEGIN = 1_790_000_000_000_000_000
BASE = 1_780_000_000_000_000_000
#: The first recorded step.
FIRST = 8


@dataclass(frozen=True)
class Scene:
    """Times in milliseconds, and by rank where they differ.

    `clock_offsets`: the difference of a rank's clock from the true time. `link_rates`: Mbit/s from a rank to the next
    one. `jitter_ms`: the maximum difference between the ends of a collective on different ranks. `detail_count`: short
    events in a step; on a GPU they are its kernels, with gaps between them. `process_groups`: the ranks of process
    groups that communicate independently, besides the group of all ranks.
    """

    ranks: int = 4
    steps: int = 5
    computing: float = 60.0
    hidden_transfer: float = 5.0
    transfer: float = 8.0
    own: float = 4.0
    more_computing: Mapping[int, float] = field(default_factory=dict)
    more_own: Mapping[int, float] = field(default_factory=dict)
    #: Additional computation by rank, in the fourth step only.
    once: Mapping[int, float] = field(default_factory=dict)
    offsets: Mapping[int, float] = field(default_factory=dict)
    drift: Mapping[int, float] = field(default_factory=dict)
    links: Mapping[int, float] = field(default_factory=dict)
    jitter: float = 0.02
    gpu: bool = False
    probes: bool = True
    probe_error: float = 0.05
    per_node: int = 1
    details: int = 0
    groups: tuple[tuple[int, ...], ...] = ()
    #: The cycle of the profiler's schedule, from 0. ``restart_step_numbers``: each cycle is that of another profiler,
    #: which counts its steps from 0.
    cycle: int = 0
    anew: bool = False

    def write(self, folder: Path, compress: bool = True, only: range | None = None) -> Path:
        """Write a trace of each rank and its description. Returns the directory."""
        folder.mkdir(parents=True, exist_ok=True)
        plan = list(self._plan())
        for rank in only or range(self.ranks):
            text = f"{{{self._head(rank)}\n{self._events(rank, plan)}\n]}}"
            name = f"rank-{rank}.trace.json"
            if compress:
                (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), 1))
            else:
                (folder / name).write_text(text, encoding="utf-8")
            about = self._about(rank, plan, f"{name}.gz" if compress else name)
            (folder / f"rank-{rank}.json").write_text(json.dumps(about), encoding="utf-8")
        return folder

    def write_foreign(self, folder: Path, only: range | None = None) -> Path:
        """Write what torch.profiler.tensorboard_trace_handler leaves of a cycle. Returns the directory."""
        self.write(folder, only=only)
        for rank in only or range(self.ranks):
            (folder / f"rank-{rank}.json").unlink()
            name = f"gpu{rank}_{100 + rank}.17000000{self.cycle:02}{rank:03}.pt.trace.json.gz"
            (folder / f"rank-{rank}.trace.json.gz").rename(folder / name)
        return folder

    # The truth

    def _plan(self) -> Iterator[list[dict[str, float]]]:
        """Yield, for each step, the true times of all events of each rank in milliseconds."""
        chance = random.Random(7)
        begins = [0.0] * self.ranks
        for step in range(self.steps):
            parts = []
            for rank in range(self.ranks):
                own = self.more_own.get(rank, 0.0)
                computing = self.computing + self.more_computing.get(rank, 0.0)
                computing += self.once.get(rank, 0.0) if step == 3 else 0.0
                first = begins[rank] + own + computing / 2
                parts.append(
                    {"begin": begins[rank], "work": begins[rank] + own, "first": first, "computing": computing}
                )
            for members in self.groups or (range(self.ranks),):
                self._exchange([parts[rank] for rank in members], chance)
            for rank, part in enumerate(parts):
                begins[rank] = part["end"] + self.own
            yield parts

    def _exchange(self, parts: list[dict[str, float]], chance: random.Random) -> None:
        """Add the times of the two exchanges of a group."""
        ended = max(part["first"] for part in parts) + self.hidden_transfer
        for part in parts:
            part["first_end"] = ended + chance.uniform(0, self.jitter)
            computed = part["work"] + part["computing"]
            # Gloo starts both as soon as they are requested, a GPU stream one after the other.
            part["computed"], part["second"] = computed, max(computed, part["first_end"]) if self.gpu else computed
        # The second one cannot start on the wire before the first one has ended.
        ended = max([ended, *(part["second"] for part in parts)]) + self.transfer
        for part in parts:
            part["end"] = ended + chance.uniform(0, self.jitter)

    def clock(self, rank: int, true: float) -> float:
        """Return the time on the clock of a rank, in milliseconds since the start of the true time."""
        return (true + 10_000.0 * self.cycle) * (1 + self.drift.get(rank, 0.0)) + self.offsets.get(rank, 0.0)

    # The files

    def _ts(self, rank: int, true: float) -> float:
        return (BEGIN - BASE) / 1e3 + self.clock(rank, true) * 1e3

    def _about(self, rank: int, plan: list[list[dict[str, float]]], name: str) -> dict[str, Any]:
        chance = random.Random(rank)
        clocks = []
        for true in (-100.0, plan[-1][rank]["end"] + 10) if rank and self.probes else ():
            ahead = self.clock(0, true) - self.clock(rank, true) + chance.uniform(-self.probe_error, self.probe_error)
            at = BEGIN + int(self.clock(rank, true) * 1e6)
            clocks.append({"at": at, "ahead": int(ahead * 1e6), "error": int(self.probe_error * 1e6)})
        link = {"to": (rank + 1) % self.ranks, "ms": 0.2, "mbits": self.links.get(rank, 9400.0)}
        return {
            "rank": rank,
            "ranks": self.ranks,
            "node": f"n{rank // self.per_node + 1}",
            "run": "nano",
            "trace": name,
            "first": FIRST,
            "clocks": clocks,
            "links": [link] if self.links else [],
        }

    def _group(self, members: tuple[int, ...]) -> str:
        """Return the name of a process group; "0" is the one of all ranks."""
        return str(self.groups.index(members) + 1) if members in self.groups else "0"

    def _head(self, rank: int) -> str:
        groups = [tuple(range(self.ranks)), *(members for members in self.groups if rank in members)]
        configured = [
            {"pg_name": self._group(members), "pg_size": len(members), "ranks": members} for members in groups
        ]
        told = {
            "schemaVersion": 1,
            "distributedInfo": {
                "rank": rank,
                "world_size": self.ranks,
                "pg_count": len(groups),
                "pg_config": configured,
            },
            "baseTimeNanoseconds": BASE,
        }
        return json.dumps(told, indent=2)[1:-1].rstrip() + ',\n  "traceEvents": ['

    def _events(self, rank: int, plan: list[list[dict[str, float]]]) -> str:
        made = [json.dumps({"ph": "M", "name": "process_name", "pid": 100 + rank, "args": {"name": "python3"}})]
        anchor = BEGIN + int(self.clock(rank, 0.5) * 1e6)
        made.append(self._event(rank, "user_annotation", f"gpumesh clock {anchor}", 0.5, 0.51))
        for step, parts in enumerate(plan):
            made += self._step(rank, step, parts[rank])
        return ",\n".join(made)

    def _event(
        self,
        rank: int,
        kind: str,
        name: str,
        begin: float,
        end: float,
        thread: int = 1,
        on_gpu: bool = False,
        **args: Any,
    ) -> str:
        first, last = self._ts(rank, begin), self._ts(rank, end)
        return (
            f'{{\n"ph": "X", "cat": "{kind}", "name": "{name}", "pid": {0 if on_gpu else 100 + rank}, "tid": {thread},\n'
            f'"ts": {first:.3f}, "dur": {last - first:.3f}, "args": {json.dumps(args)}\n}}'
        )

    def _step(self, rank: int, step: int, part: dict[str, float]) -> Iterator[str]:
        # An operation that was started in a step belongs to that step, even if it runs later, as in PyTorch.
        number = step + 2 + (0 if self.anew else self.cycle * (self.steps + 2))
        yield self._event(
            rank, "user_annotation", f"ProfilerStep#{number}", part["begin"], part["end"] + self.own - 0.01
        )
        middle = part["work"] + part["computing"] / 2
        for number, (begin, end) in enumerate(((part["work"], middle), (middle, part["computed"]))):
            yield from self._computing(rank, step * 2 + number, begin, end)
        members = next((members for members in self.groups if rank in members), ())
        collectives = ((part["first"], part["first_end"]), (part["second"], part["end"]))
        for number, (begin, end) in enumerate(collectives):
            if self.gpu:
                correlation = 10_000 + step * 10 + number
                launch = part["begin"] + 0.1 + number * 0.01
                yield self._event(
                    rank, "cuda_runtime", "cudaLaunchKernel", launch, launch + 0.005, correlation=correlation
                )
                yield self._event(
                    rank,
                    "kernel",
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    begin,
                    end,
                    20,
                    True,
                    correlation=correlation,
                    **{"Collective name": "allreduce", "Process Group Name": self._group(members)},
                )
            else:
                yield self._event(rank, "user_annotation", "gloo:all_reduce", begin, end, 2)
        chance = random.Random(step)
        for number in range(self.details):
            begin = part["work"] + part["computing"] * number / self.details
            end = begin + part["computing"] / self.details * chance.uniform(0.1, 0.9)
            ids = {"External id": number, "Record function id": 0, "Sequence number": number, "Ev Idx": number}
            kind, thread = ("kernel", 7) if self.gpu else ("cpu_op", 1)
            yield self._event(rank, kind, f"aten::detail_{number % 50}", begin, end, thread, self.gpu, **ids)

    def _computing(self, rank: int, number: int, begin: float, end: float) -> Iterator[str]:
        if self.gpu and not self.details:
            for place, name in enumerate(("gemm", "softmax")):
                first = begin + (end - begin) * 0.75 * place
                last = begin + (end - begin) * (0.75, 1.0)[place]
                correlation = number * 2 + place
                yield self._event(
                    rank, "kernel", f"void {name}<float>()", first, last, 7, True, correlation=correlation
                )
        else:
            yield self._event(rank, "cpu_op", "aten::linear", begin, end)
            yield self._event(rank, "cpu_op", "aten::addmm", begin + (end - begin) * 0.1, end - (end - begin) * 0.1)
