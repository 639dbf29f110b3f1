# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs as text for users. Times are in seconds since 1970."""

from __future__ import annotations

import time
from typing import Any, Dict, List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.train.models import (
    ENDED_STATES,
    Attempt,
    RunRequest,
    Straggler,
    TrainingRun,
    format_run,
)

#: Seconds after which a report no longer counts as current.
_STALE_AFTER = 60.0
_SEPARATOR = " · "


def format_duration(seconds: float) -> str:
    """A duration, such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_line(run: TrainingRun, now: float, job_state: str = "") -> str:
    """A run in one line. ``job_state``: the state of its job in Slurm."""
    if run.state == "queued":
        return _join_parts(f"{run.name}: queued", f"job {run.job}" if run.job else "", job_state, run.detail)
    if run.state == "running" and run.attempts:
        last_attempt = run.attempts[-1]
        location = f"{run.name}: job {last_attempt.job} on {', '.join(last_attempt.nodes)}"
        if last_attempt.end is not None:
            return _join_parts(
                location,
                f"attempt {last_attempt.number} has ended: {_format_cause(last_attempt)}",
                _format_silence(run, now),
            )
        saved_at = run.checkpoint_at
        return _join_parts(
            location,
            run.detail,
            _format_step(run.step, run.steps),
            _format_loss(run),
            _format_speed(run, now),
            run.busy,
            _format_hang_warning(run, last_attempt, now),
            _format_unused_nodes(last_attempt),
            "" if saved_at is None else f"last checkpoint {format_duration(max(0.0, now - saved_at))} ago",
            "" if last_attempt.number == 1 else f"attempt {last_attempt.number}",
            *(format_straggler(straggler) for straggler in last_attempt.stragglers if straggler.until is None),
        )
    return _join_parts(f"{run.name}: {run.state}", _format_step(run.step, run.steps), run.detail)


def run_values(run: TrainingRun, job_state: str, directory: str) -> Dict[str, Any]:
    """A run as the results of modules. ``job_state``: the state of its job in Slurm."""
    return {
        "ended": run.state in ENDED_STATES,
        "summary": format_line(run, time.time(), job_state),
        "folder": directory,
        "run": format_run(run),
    }


def _format_loss(run: TrainingRun) -> str:
    if run.nan_since is not None:
        return f"loss nan since step {run.nan_since}"
    return "" if run.loss is None else f"loss {run.loss:.4g}"


def _format_speed(run: TrainingRun, now: float) -> str:
    """Return the speed, or the silence of a supervisor that no longer writes."""
    speed = "" if run.steps_per_second is None else f"{run.steps_per_second:.3g} steps/s"
    return _format_silence(run, now) or speed


def _format_silence(run: TrainingRun, now: float) -> str:
    """Return for how long the supervisor has written nothing, if that is long."""
    if run.updated is None or now - run.updated <= _STALE_AFTER:
        return ""
    return f"last heard of {format_duration(now - run.updated)} ago"


def _format_hang_warning(run: TrainingRun, attempt: Attempt, now: float) -> str:
    """Return what is missing without progress reports, once the program has had the time to make some."""
    if run.watched == "steps" or run.step is not None or run.updated is None or now - attempt.begin < _STALE_AFTER:
        return ""
    if run.watched == "output":
        return "reports no steps, so a hang is noticed by its output"
    return "reports no steps, so a hang would not be noticed"


def _format_unused_nodes(attempt: Attempt) -> str:
    """The nodes of the job on which nothing runs: spares and those that have failed, and those that are away."""
    idle_nodes = [node for node in attempt.allocated if node not in (*attempt.nodes, *attempt.away)]
    return _join_parts(
        f"held idle: {', '.join(idle_nodes)}" if idle_nodes else "",
        f"away: {', '.join(attempt.away)}" if attempt.away else "",
    )


def goodput(run: TrainingRun, now: float) -> Optional[float]:
    """The fraction of the time of all nodes held that went into steps which count; None if no steps are known.

    Steps that a later attempt repeats do not count, nor does the time to start, to restart and to save.
    """
    allocated_time = useful_time = 0.0
    for index, attempt in enumerate(run.attempts):
        later_attempts = run.attempts[index + 1 :]
        next_start = (
            later_attempts[0].begin if later_attempts and later_attempts[0].job == attempt.job else attempt.end or now
        )
        node_count = len(attempt.allocated or attempt.nodes)
        allocated_time += max(0.0, next_start - attempt.begin) * node_count
        if attempt.first is None or attempt.last is None or not attempt.stepping:
            continue
        first_repeated_step = min(
            (later_attempt.first for later_attempt in later_attempts if later_attempt.first is not None),
            default=attempt.last + 1,
        )
        steps_counted = max(0, min(attempt.last + 1, first_repeated_step) - attempt.first)
        useful_time += attempt.stepping * len(attempt.nodes) * steps_counted / (attempt.last + 1 - attempt.first)
    return useful_time / allocated_time if allocated_time and useful_time else None


def _join_parts(*parts: str) -> str:
    return _to_one_line(_SEPARATOR.join(part for part in parts if part))


def _to_one_line(text: str) -> str:
    """Return the text in one line: names and reasons from elsewhere cannot add lines."""
    return printable(text).replace("\n", " ")


def _format_step(step: Optional[int], step_count: Optional[int]) -> str:
    if step is None:
        return ""
    return f"step {step}" if step_count is None else f"step {step} of {step_count}"


def _format_cause(attempt: Attempt) -> str:
    cause = attempt.cause
    return "running" if cause is None else f"{cause.kind}: {cause.detail}" if cause.detail else cause.kind


def format_straggler(straggler: Straggler) -> str:
    """A straggler as text."""
    slow_party = straggler.node if straggler.rank is None else f"rank {straggler.rank} on {straggler.node}"
    return f"{slow_party} slows the run down by about {straggler.cost:.0%}: {straggler.detail}"


def _format_past_straggler(straggler: Straggler, attempt: Attempt, now: float) -> str:
    slow_until = straggler.until or attempt.end or now
    return f"{format_straggler(straggler)} (for {format_duration(max(0.0, slow_until - straggler.since))})"


def format_attempts(run: TrainingRun, now: float) -> List[str]:
    """One line per attempt."""
    lines = []
    for attempt in run.attempts:
        start_text = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attempt.begin))
        step_range = "" if attempt.first is None else f"steps {attempt.first} to {attempt.last}"
        duration = format_duration((attempt.end or now) - attempt.begin)
        location = f"job {attempt.job} on {', '.join(attempt.nodes)}"
        lines.append(
            _join_parts(
                f"  {attempt.number}: {start_text}",
                duration,
                location,
                step_range,
                _format_cause(attempt),
                attempt.action,
            )
        )
        lines += [
            _to_one_line(f"     {_format_past_straggler(straggler, attempt, now)}") for straggler in attempt.stragglers
        ]
    return lines


def format_details(request: RunRequest, run: TrainingRun, now: float, job_state: str = "") -> str:
    """All details of a run."""
    node_text = f"{request.nodes} node{'s' if request.nodes > 1 else ''}" + (
        f", at least {request.min_nodes}" if request.min_nodes < request.nodes else ""
    )
    command_line = _to_one_line(" ".join(request.command))
    header_lines = [
        format_line(run, now, job_state),
        _to_one_line(f"  {node_text}, {request.folder}"),
        f"  {command_line}",
    ]
    if request.code:
        header_lines.append(
            _to_one_line(f"  code of {request.code}" + (f", commit {request.commit}" if request.commit else ""))
        )
    if request.stage:
        header_lines.append(_to_one_line(f"  data of {request.stage} in {request.stage_dir} on each node"))
    if request.profile:
        header_lines.append(_to_one_line(f"  profile ({request.profile}) in {request.folder}/profile"))
    goodput_share = goodput(run, now)
    if goodput_share is not None:
        header_lines.append(
            f"  goodput {goodput_share:.0%}: the time in steps that count, of all time for which nodes were held"
        )
    return "\n".join([*header_lines, *format_attempts(run, now)])
