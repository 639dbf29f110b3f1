# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of a run as text, for the page and for the terminal. Pure."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    Analysis,
    RankShare,
    SlowRanks,
)

#: The parts of a step.
STEP_PARTS = (
    ("computing", "Computation"),
    ("communicating", "Exposed communication"),
    ("waiting", "Waiting"),
    ("other", "Other"),
)
#: Ranks that are listed by number.
_MAX_LISTED = 8
#: Parts of a rank's additional time below this share are not mentioned.
_MIN_SHARE = 0.02
_METHOD_NAMES = {
    "reference": "the reference",
    "probes": "time queries",
    "collectives": "ends of collectives",
    "none": "nothing",
}


class AnalysisWarning(NamedTuple):
    """A reason why the figures of a run may be wrong. ``problem`` is a clause; the other fields are sentences."""

    problem: str
    reason: str
    remedy: str = ""


def format_ms(microseconds: float) -> str:
    """A time with its unit."""
    value = microseconds / 1e3
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def format_percent(share: float) -> str:
    """A fraction of 1 in percent."""
    return f"{share * 100:.0f} %" if share >= 0.1 or not share else f"{share * 100:.1f} %"


def pluralize(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def format_bandwidth(mbits: float) -> str:
    """A bandwidth."""
    return f"{mbits / 1e3:.1f} Gbit/s" if mbits >= 1000 else f"{mbits:.1f} Mbit/s"


def format_rank(share: RankShare) -> str:
    """A rank with its node."""
    return f"rank {share.rank}" + (f" on {share.node}" if share.node else "")


def format_slow_ranks(slow: SlowRanks) -> str:
    """Return the name of the ranks that slow down the others."""
    subject = f"rank {slow.ranks[0]}" if len(slow.ranks) == 1 else "all ranks"
    return subject + (f" on {slow.node}" if slow.node else "")


def format_headline(run: Analysis) -> str:
    """The run in a sentence."""
    step = f"A step takes {format_ms(run.mean('step'))}"
    if run.slow:
        name = format_slow_ranks(run.slow)
        verb = "is" if len(run.slow.ranks) == 1 else "are"
        return f"{step}, {format_ms(run.slow.cost)} of which are lost because {name} {verb} slower than the others"
    if run.slow_links:
        link = run.slow_links[0]
        return f"{step}, and the link from rank {link.source} to rank {link.target} is slow"
    warnings = find_warnings(run)
    return f"{step}, but {warnings[0].problem}" if warnings else f"{step}, and no rank slows down the others"


def find_warnings(run: Analysis) -> List[AnalysisWarning]:
    """Return warnings about the traces, most important first: with any, it is unproven that the run is in order."""
    return [*_missing_traces(run), *_clock_warnings(run), *_unmatched_exchanges(run), *_skipped_events(run)]


def _missing_traces(run: Analysis) -> List[AnalysisWarning]:
    if not run.missing_ranks:
        return []
    rank_list = join_names(run.missing_ranks)
    return [
        AnalysisWarning(
            f"{pluralize(len(run.missing_ranks), 'rank')} {'has' if len(run.missing_ranks) == 1 else 'have'} no trace",
            f"These are missing: rank {rank_list}. Time in which others wait for them counts as communication.",
            "See the log of the rank, where gpumesh_profile says why.",
        )
    ]


def max_clock_error(run: Analysis) -> float:
    """The largest of the known errors."""
    return max((clock.error for clock in run.clocks.values() if clock.error is not None), default=0.0)


def _clock_warnings(run: Analysis) -> List[AnalysisWarning]:
    remedy = "Record the profile with gpumesh-train or gpumesh-trace record, which compare the clocks."
    unknown_count = sum(clock.error is None for clock in run.clocks.values())
    warnings = []
    if unknown_count:
        clock_subject = "clock of 1 rank is" if unknown_count == 1 else f"clocks of {unknown_count} ranks are"
        reason = "Neither replies from rank 0 nor collectives determine them, so times of ranks cannot be compared."
        warnings.append(AnalysisWarning(f"the {clock_subject} unknown", reason, remedy))
    if run.clock_contradiction > max(max_clock_error(run), 1.0):
        reason = "So times of ranks are wrong by at least that much, or their traces belong to different recordings."
        warnings.append(
            AnalysisWarning(
                f"a collective ends {format_ms(run.clock_contradiction)} before a rank begins it", reason, remedy
            )
        )
    return warnings


def _unmatched_exchanges(run: Analysis) -> List[AnalysisWarning]:
    waiting_note = "Their time counts as communication, none of it as waiting."
    warnings = []
    if run.unmatched_count:
        reason = f"The ranks have different numbers of collectives in a step. {waiting_note}"
        warnings.append(
            AnalysisWarning(f"{pluralize(run.unmatched_count, 'collective')} could not be compared", reason)
        )
    if run.ungrouped_count:
        reason = f"Ranks are in several process groups, and the traces do not say which one runs a collective. {waiting_note}"
        warnings.append(
            AnalysisWarning(
                f"{pluralize(run.ungrouped_count, 'collective')} could not be assigned to a process group", reason
            )
        )
    return warnings


def _skipped_events(run: Analysis) -> List[AnalysisWarning]:
    if not run.skipped_count:
        return []
    return [
        AnalysisWarning(
            f"{pluralize(run.skipped_count, 'event')} could not be read",
            "PyTorch does not escape the names of events. Their time is missing.",
            "Do not use quotation marks or backslashes in the names for record_function.",
        )
    ]


def explain_slow_ranks(run: Analysis) -> Tuple[str, str]:
    """Return the findings about the ranks that slow down the others, and the remedy. There must be some."""
    slow = run.slow
    if slow is None:
        raise ValueError("no rank is slow")
    slow_shares = [share for share in run.shares if share.rank in slow.ranks]
    local_time = median(share.local_time for share in slow_shares)
    waiting_time = median(share.waiting for share in run.shares if share not in slow_shares)
    is_single = len(slow_shares) == 1
    parts = [(slow.other, "other work (Python, data loading) takes"), (slow.computing, "computation takes")]
    differences = join_names(
        f"{description} {format_ms(abs(time))} {'longer' if time > 0 else 'less'}"
        for time, description in sorted(parts, reverse=True)
        if abs(time) > _MIN_SHARE * slow.cost
    )
    reason = (
        f"Without communication, {'its' if is_single else 'their'} step takes {format_ms(local_time)}, "
        f"{format_ms(slow.cost)} more than that of most others: {differences}. "
        f"That is {format_percent(slow.cost / run.mean('step'))} of the time of all ranks. The others wait {format_ms(waiting_time)} in each step."
    )
    if slow.other > slow.computing:
        return reason, (
            "Check what happens there besides computation: data loading, a slow disk, a busy CPU, logging. The "
            "timeline shows what surrounds the gap."
        )
    return (
        reason,
        "Check the GPU (clock, temperature, other processes), and whether there is more work than elsewhere.",
    )


def format_clocks(run: Analysis) -> List[Tuple[str, str, str, str]]:
    """Return, for each rank, the lead of its clock over that of rank 0, the error, and how this was measured."""
    rows = []
    for share in run.shares:
        clock = run.clocks[share.rank]
        is_unknown = clock.method == "none"
        ahead = "unknown" if is_unknown else f"{clock.ahead / 1e3:.3f} ms"
        error = "unknown" if clock.error is None else f"{clock.error / 1e3:.3f} ms"
        rows.append((format_rank(share), ahead, error, _METHOD_NAMES[clock.method]))
    return rows


def format_summary(run: Analysis) -> str:
    """A few lines for the terminal."""
    mean_step = run.mean("step")
    parts = ", ".join(f"{label.lower()} {format_ms(run.mean(part))}" for part, label in STEP_PARTS)
    lines = [
        f"{run.name}: {pluralize(len(run.shares), 'rank')}, steps {run.steps[0]} to {run.steps[-1]}",
        f"  a step takes {format_ms(mean_step)}: {parts}",
    ]
    if run.slow:
        lines.append(f"  {format_headline(run).partition(', ')[2]}")
    lines += [
        f"  slow link: rank {link.source} → rank {link.target}, {format_bandwidth(link.mbits)}, round trip {link.ms:.2f} ms"
        for link in run.slow_links
    ]
    if not _clock_warnings(run):
        lines.append(f"  clocks agree within {format_ms(max_clock_error(run))}")
    lines += [f"  {warning.problem}" for warning in find_warnings(run)]
    return "\n".join(lines) + "\n"


def build_figures(run: Analysis) -> Dict[str, Any]:
    """Return the results for programs, with times in milliseconds."""

    def scale_fields(source: Any, field_names: Tuple[str, ...]) -> Dict[str, Any]:
        return {f"{name}_ms": round(getattr(source, name) / 1e3, 4) for name in field_names}

    time_fields = ("step", *(part for part, _label in STEP_PARTS), "hidden", "awaited")
    return {
        "name": run.name,
        "steps": run.steps,
        "ranks": [
            {
                "rank": share.rank,
                "node": share.node,
                **scale_fields(share, time_fields),
                "steps_ms": [round(step / 1e3, 4) for step in share.steps],
            }
            for share in run.shares
        ],
        "slowest": run.slow
        and {
            "ranks": list(run.slow.ranks),
            "node": run.slow.node,
            **scale_fields(run.slow, ("cost", "computing", "other")),
        },
        "links": [dict(link._asdict(), slow=link in run.slow_links) for link in run.links],
        "operations": [
            {
                "name": operation.name,
                "calls": round(operation.calls, 3),
                "slowest": operation.slowest_rank,
                **scale_fields(operation, ("time", "slowest_time")),
            }
            for operation in run.operations
        ],
        "clocks": [
            {
                "rank": rank,
                "ahead_ms": round(clock.ahead / 1e3, 6),
                "error_ms": None if clock.error is None else round(clock.error / 1e3, 6),
                "method": clock.method,
            }
            for rank, clock in sorted(run.clocks.items())
        ],
        "missing": run.missing_ranks,
        "unmatched": run.unmatched_count + run.ungrouped_count,
        "ungrouped": run.ungrouped_count,
        "late_ms": round(run.clock_contradiction / 1e3, 6),
        "skipped": run.skipped_count,
    }
