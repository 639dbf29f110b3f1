# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs as text for users. Times are in seconds since 1970."""

from __future__ import annotations

import time
from typing import List, Optional

from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable
from ansible_collections.gpumesh.cluster.plugins.module_utils.train.shapes import Attempt, Request, Run, Straggler

#: Seconds after which what was reported is not taken for the present.
_STALE = 60.0
_SEPARATOR = " · "


def span(seconds: float) -> str:
    """A duration, such as ``40 s``, ``12 min`` or ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def line(run: Run, now: float, waits: str = "") -> str:
    """A run in one line. ``waits``: the state of its job in Slurm."""
    if run.state == "queued":
        return _joined(f"{run.name}: queued", f"job {run.job}" if run.job else "", waits, run.detail)
    if run.state == "running" and run.attempts:
        last = run.attempts[-1]
        where = f"{run.name}: job {last.job} on {', '.join(last.nodes)}"
        if last.end is not None:
            return _joined(where, f"attempt {last.number} has ended: {_cause(last)}", _silence(run, now))
        saved = run.checkpoint_at
        return _joined(
            where,
            run.detail,
            _step(run.step, run.steps),
            _loss(run),
            _speed(run, now),
            run.busy,
            _unwatched(run, last, now),
            _idle(last),
            "" if saved is None else f"last checkpoint {span(max(0.0, now - saved))} ago",
            "" if last.number == 1 else f"attempt {last.number}",
            *(slow(one) for one in last.stragglers if one.until is None),
        )
    return _joined(f"{run.name}: {run.state}", _step(run.step, run.steps), run.detail)


def _loss(run: Run) -> str:
    if run.nan_since is not None:
        return f"loss nan since step {run.nan_since}"
    return "" if run.loss is None else f"loss {run.loss:.4g}"


def _speed(run: Run, now: float) -> str:
    """The speed, unless it is that of a supervisor that no longer writes."""
    speed = "" if run.steps_per_second is None else f"{run.steps_per_second:.3g} steps/s"
    return _silence(run, now) or speed


def _silence(run: Run, now: float) -> str:
    """For how long its supervisor has written nothing, if that is long."""
    if run.updated is None or now - run.updated <= _STALE:
        return ""
    return f"last heard of {span(now - run.updated)} ago"


def _unwatched(run: Run, attempt: Attempt, now: float) -> str:
    """What a program that reports no progress misses, once it has had the time to report some."""
    if run.watched == "steps" or run.step is not None or run.updated is None or now - attempt.begin < _STALE:
        return ""
    if run.watched == "output":
        return "reports no steps, so a hang is noticed by its output"
    return "reports no steps, so a hang would not be noticed"


def _idle(attempt: Attempt) -> str:
    """The nodes of the job on which nothing runs: spares, and those that have failed or come back."""
    idle = [node for node in attempt.allocated if node not in attempt.nodes]
    return f"held idle: {', '.join(idle)}" if idle else ""


def goodput(run: Run, now: float) -> Optional[float]:
    """The fraction of the time of all nodes held that went into steps which count; None if no steps are known.

    Steps that a later attempt repeats do not count, nor does the time to start, to restart and to save.
    """
    held = useful = 0.0
    for number, one in enumerate(run.attempts):
        later = run.attempts[number + 1 :]
        begun = later[0].begin if later and later[0].job == one.job else one.end or now
        nodes = len(one.allocated or one.nodes)
        held += max(0.0, begun - one.begin) * nodes
        if one.first is None or one.last is None or not one.stepping:
            continue
        repeated = min((next_one.first for next_one in later if next_one.first is not None), default=one.last + 1)
        kept = max(0, min(one.last + 1, repeated) - one.first)
        useful += one.stepping * len(one.nodes) * kept / (one.last + 1 - one.first)
    return useful / held if held and useful else None


def _joined(*parts: str) -> str:
    return _one_line(_SEPARATOR.join(part for part in parts if part))


def _one_line(text: str) -> str:
    """Names and reasons of others cannot add lines either."""
    return printable(text).replace("\n", " ")


def _step(step: Optional[int], steps: Optional[int]) -> str:
    if step is None:
        return ""
    return f"step {step}" if steps is None else f"step {step} of {steps}"


def _cause(attempt: Attempt) -> str:
    cause = attempt.cause
    return "running" if cause is None else f"{cause.kind}: {cause.detail}" if cause.detail else cause.kind


def slow(straggler: Straggler) -> str:
    """A straggler as text."""
    who = straggler.node if straggler.rank is None else f"rank {straggler.rank} on {straggler.node}"
    return f"{who} slows the run down by about {straggler.cost:.0%}: {straggler.detail}"


def _past(straggler: Straggler, attempt: Attempt, now: float) -> str:
    until = straggler.until or attempt.end or now
    return f"{slow(straggler)} (for {span(max(0.0, until - straggler.since))})"


def attempts(run: Run, now: float) -> List[str]:
    """One line per attempt."""
    lines = []
    for one in run.attempts:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.begin))
        steps = "" if one.first is None else f"steps {one.first} to {one.last}"
        took = span((one.end or now) - one.begin)
        where = f"job {one.job} on {', '.join(one.nodes)}"
        lines.append(_joined(f"  {one.number}: {began}", took, where, steps, _cause(one), one.action))
        lines += [_one_line(f"     {_past(straggler, one, now)}") for straggler in one.stragglers]
    return lines


def full(request: Request, run: Run, now: float, waits: str = "") -> str:
    """All details of a run."""
    nodes = f"{request.nodes} node{'s' if request.nodes > 1 else ''}" + (
        f", at least {request.min_nodes}" if request.min_nodes < request.nodes else ""
    )
    command = _one_line(" ".join(request.command))
    heads = [line(run, now, waits), _one_line(f"  {nodes}, {request.folder}"), f"  {command}"]
    if request.code:
        heads.append(_one_line(f"  code of {request.code}" + (f", commit {request.commit}" if request.commit else "")))
    if request.stage:
        heads.append(_one_line(f"  data of {request.stage} in {request.stage_dir} on each node"))
    if request.profile:
        heads.append(_one_line(f"  profile ({request.profile}) in {request.folder}/profile"))
    share = goodput(run, now)
    if share is not None:
        heads.append(f"  goodput {share:.0%}: the time in steps that count, of all time for which nodes were held")
    return "\n".join([*heads, *attempts(run, now)])
