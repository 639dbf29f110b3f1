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
START_TIME = 1_790_000_000_000_000_000
BASE_TIME = 1_780_000_000_000_000_000
#: The first recorded step.
FIRST_STEP = 8


@dataclass(frozen=True)
class TraceScenario:
    """Times in milliseconds, and by rank where they differ.

    `clock_offsets`: the difference of a rank's clock from the true time. `link_rates`: Mbit/s from a rank to the next
    one. `jitter_ms`: the maximum difference between the ends of a collective on different ranks. `detail_count`: short
    events in a step; on a GPU they are its kernels, with gaps between them. `process_groups`: the ranks of process
    groups that communicate independently, besides the group of all ranks.
    """

    ranks: int = 4
    steps: int = 5
    compute_ms: float = 60.0
    hidden_transfer_ms: float = 5.0
    transfer_ms: float = 8.0
    other_ms: float = 4.0
    extra_compute_ms: Mapping[int, float] = field(default_factory=dict)
    extra_other_ms: Mapping[int, float] = field(default_factory=dict)
    #: Additional computation by rank, in the fourth step only.
    fourth_step_extra_ms: Mapping[int, float] = field(default_factory=dict)
    clock_offsets: Mapping[int, float] = field(default_factory=dict)
    clock_drift: Mapping[int, float] = field(default_factory=dict)
    link_rates: Mapping[int, float] = field(default_factory=dict)
    jitter_ms: float = 0.02
    on_gpu: bool = False
    clock_probes: bool = True
    probe_error_ms: float = 0.05
    ranks_per_node: int = 1
    detail_count: int = 0
    process_groups: tuple[tuple[int, ...], ...] = ()
    #: The cycle of the profiler's schedule, from 0. ``restart_step_numbers``: each cycle is that of another profiler,
    #: which counts its steps from 0.
    cycle_number: int = 0
    restart_step_numbers: bool = False

    def write(self, directory: Path, compress: bool = True, selected_ranks: range | None = None) -> Path:
        """Write a trace of each rank and its description. Returns the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        times_by_step = list(self._plan_steps())
        for rank in selected_ranks or range(self.ranks):
            text = f"{{{self._trace_header(rank)}\n{self._trace_events(rank, times_by_step)}\n]}}"
            name = f"rank-{rank}.trace.json"
            if compress:
                (directory / f"{name}.gz").write_bytes(gzip.compress(text.encode(), 1))
            else:
                (directory / name).write_text(text, encoding="utf-8")
            metadata = self._build_metadata(rank, times_by_step, f"{name}.gz" if compress else name)
            (directory / f"rank-{rank}.json").write_text(json.dumps(metadata), encoding="utf-8")
        return directory

    def write_foreign(self, directory: Path, selected_ranks: range | None = None) -> Path:
        """Write what torch.profiler.tensorboard_trace_handler leaves of a cycle. Returns the directory."""
        self.write(directory, selected_ranks=selected_ranks)
        for rank in selected_ranks or range(self.ranks):
            (directory / f"rank-{rank}.json").unlink()
            name = f"gpu{rank}_{100 + rank}.17000000{self.cycle_number:02}{rank:03}.pt.trace.json.gz"
            (directory / f"rank-{rank}.trace.json.gz").rename(directory / name)
        return directory

    # The truth

    def _plan_steps(self) -> Iterator[list[dict[str, float]]]:
        """Yield, for each step, the true times of all events of each rank in milliseconds."""
        random_source = random.Random(7)
        step_starts = [0.0] * self.ranks
        for step in range(self.steps):
            times_by_rank = []
            for rank in range(self.ranks):
                other_ms = self.extra_other_ms.get(rank, 0.0)
                compute_ms = self.compute_ms + self.extra_compute_ms.get(rank, 0.0)
                compute_ms += self.fourth_step_extra_ms.get(rank, 0.0) if step == 3 else 0.0
                first_exchange_start = step_starts[rank] + other_ms + compute_ms / 2
                times_by_rank.append(
                    {
                        "begin": step_starts[rank],
                        "work": step_starts[rank] + other_ms,
                        "first": first_exchange_start,
                        "computing": compute_ms,
                    }
                )
            for members in self.process_groups or (range(self.ranks),):
                self._add_exchanges([times_by_rank[rank] for rank in members], random_source)
            for rank, rank_times in enumerate(times_by_rank):
                step_starts[rank] = rank_times["end"] + self.other_ms
            yield times_by_rank

    def _add_exchanges(self, rank_times: list[dict[str, float]], random_source: random.Random) -> None:
        """Add the times of the two exchanges of a group."""
        transfer_end = max(times["first"] for times in rank_times) + self.hidden_transfer_ms
        for times in rank_times:
            times["first_end"] = transfer_end + random_source.uniform(0, self.jitter_ms)
            compute_end = times["work"] + times["computing"]
            # Gloo starts both as soon as they are requested, a GPU stream one after the other.
            times["computed"], times["second"] = (
                compute_end,
                max(compute_end, times["first_end"]) if self.on_gpu else compute_end,
            )
        # The second one cannot start on the wire before the first one has ended.
        transfer_end = max([transfer_end, *(times["second"] for times in rank_times)]) + self.transfer_ms
        for times in rank_times:
            times["end"] = transfer_end + random_source.uniform(0, self.jitter_ms)

    def clock_reading(self, rank: int, true_ms: float) -> float:
        """Return the time on the clock of a rank, in milliseconds since the start of the true time."""
        return (true_ms + 10_000.0 * self.cycle_number) * (
            1 + self.clock_drift.get(rank, 0.0)
        ) + self.clock_offsets.get(rank, 0.0)

    # The files

    def _timestamp(self, rank: int, true_ms: float) -> float:
        return (START_TIME - BASE_TIME) / 1e3 + self.clock_reading(rank, true_ms) * 1e3

    def _build_metadata(
        self, rank: int, times_by_step: list[list[dict[str, float]]], trace_name: str
    ) -> dict[str, Any]:
        random_source = random.Random(rank)
        clock_samples = []
        for true_ms in (-100.0, times_by_step[-1][rank]["end"] + 10) if rank and self.clock_probes else ():
            ahead = (
                self.clock_reading(0, true_ms)
                - self.clock_reading(rank, true_ms)
                + random_source.uniform(-self.probe_error_ms, self.probe_error_ms)
            )
            local_time = START_TIME + int(self.clock_reading(rank, true_ms) * 1e6)
            clock_samples.append({"at": local_time, "ahead": int(ahead * 1e6), "error": int(self.probe_error_ms * 1e6)})
        link = {"to": (rank + 1) % self.ranks, "ms": 0.2, "mbits": self.link_rates.get(rank, 9400.0)}
        return {
            "rank": rank,
            "ranks": self.ranks,
            "node": f"n{rank // self.ranks_per_node + 1}",
            "run": "nano",
            "trace": trace_name,
            "first": FIRST_STEP,
            "clocks": clock_samples,
            "links": [link] if self.link_rates else [],
        }

    def _group_name(self, members: tuple[int, ...]) -> str:
        """Return the name of a process group; "0" is the one of all ranks."""
        return str(self.process_groups.index(members) + 1) if members in self.process_groups else "0"

    def _trace_header(self, rank: int) -> str:
        rank_groups = [tuple(range(self.ranks)), *(members for members in self.process_groups if rank in members)]
        group_configs = [
            {"pg_name": self._group_name(members), "pg_size": len(members), "ranks": members} for members in rank_groups
        ]
        header = {
            "schemaVersion": 1,
            "distributedInfo": {
                "rank": rank,
                "world_size": self.ranks,
                "pg_count": len(rank_groups),
                "pg_config": group_configs,
            },
            "baseTimeNanoseconds": BASE_TIME,
        }
        return json.dumps(header, indent=2)[1:-1].rstrip() + ',\n  "traceEvents": ['

    def _trace_events(self, rank: int, times_by_step: list[list[dict[str, float]]]) -> str:
        event_texts = [json.dumps({"ph": "M", "name": "process_name", "pid": 100 + rank, "args": {"name": "python3"}})]
        anchor = START_TIME + int(self.clock_reading(rank, 0.5) * 1e6)
        event_texts.append(self._format_event(rank, "user_annotation", f"gpumesh clock {anchor}", 0.5, 0.51))
        for step, times_by_rank in enumerate(times_by_step):
            event_texts += self._step_events(rank, step, times_by_rank[rank])
        return ",\n".join(event_texts)

    def _format_event(
        self,
        rank: int,
        category: str,
        name: str,
        start_ms: float,
        end_ms: float,
        thread: int = 1,
        on_gpu: bool = False,
        **args: Any,
    ) -> str:
        start_timestamp, end_timestamp = self._timestamp(rank, start_ms), self._timestamp(rank, end_ms)
        return (
            f'{{\n"ph": "X", "cat": "{category}", "name": "{name}", "pid": {0 if on_gpu else 100 + rank}, "tid": {thread},\n'
            f'"ts": {start_timestamp:.3f}, "dur": {end_timestamp - start_timestamp:.3f}, "args": {json.dumps(args)}\n}}'
        )

    def _step_events(self, rank: int, step: int, times: dict[str, float]) -> Iterator[str]:
        # An operation that was started in a step belongs to that step, even if it runs later, as in PyTorch.
        number = step + 2 + (0 if self.restart_step_numbers else self.cycle_number * (self.steps + 2))
        yield self._format_event(
            rank, "user_annotation", f"ProfilerStep#{number}", times["begin"], times["end"] + self.other_ms - 0.01
        )
        compute_middle = times["work"] + times["computing"] / 2
        for number, (start_ms, end_ms) in enumerate(
            ((times["work"], compute_middle), (compute_middle, times["computed"]))
        ):
            yield from self._compute_events(rank, step * 2 + number, start_ms, end_ms)
        members = next((members for members in self.process_groups if rank in members), ())
        collectives = ((times["first"], times["first_end"]), (times["second"], times["end"]))
        for number, (start_ms, end_ms) in enumerate(collectives):
            if self.on_gpu:
                correlation = 10_000 + step * 10 + number
                launch_ms = times["begin"] + 0.1 + number * 0.01
                yield self._format_event(
                    rank, "cuda_runtime", "cudaLaunchKernel", launch_ms, launch_ms + 0.005, correlation=correlation
                )
                yield self._format_event(
                    rank,
                    "kernel",
                    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                    start_ms,
                    end_ms,
                    20,
                    True,
                    correlation=correlation,
                    **{"Collective name": "allreduce", "Process Group Name": self._group_name(members)},
                )
            else:
                yield self._format_event(rank, "user_annotation", "gloo:all_reduce", start_ms, end_ms, 2)
        random_source = random.Random(step)
        for number in range(self.detail_count):
            start_ms = times["work"] + times["computing"] * number / self.detail_count
            end_ms = start_ms + times["computing"] / self.detail_count * random_source.uniform(0.1, 0.9)
            event_ids = {"External id": number, "Record function id": 0, "Sequence number": number, "Ev Idx": number}
            category, thread = ("kernel", 7) if self.on_gpu else ("cpu_op", 1)
            yield self._format_event(
                rank, category, f"aten::detail_{number % 50}", start_ms, end_ms, thread, self.on_gpu, **event_ids
            )

    def _compute_events(self, rank: int, number: int, start_ms: float, end_ms: float) -> Iterator[str]:
        if self.on_gpu and not self.detail_count:
            for kernel_index, name in enumerate(("gemm", "softmax")):
                kernel_start = start_ms + (end_ms - start_ms) * 0.75 * kernel_index
                kernel_end = start_ms + (end_ms - start_ms) * (0.75, 1.0)[kernel_index]
                correlation = number * 2 + kernel_index
                yield self._format_event(
                    rank, "kernel", f"void {name}<float>()", kernel_start, kernel_end, 7, True, correlation=correlation
                )
        else:
            yield self._format_event(rank, "cpu_op", "aten::linear", start_ms, end_ms)
            yield self._format_event(
                rank, "cpu_op", "aten::addmm", start_ms + (end_ms - start_ms) * 0.1, end_ms - (end_ms - start_ms) * 0.1
            )
