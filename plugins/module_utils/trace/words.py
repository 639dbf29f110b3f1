# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The results of a run as text, for the page and for the terminal. Pure."""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, NamedTuple, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, RankShare, Slow

#: The parts of a step.
PARTS = (
    ("computing", "Computing"),
    ("communicating", "Communicating"),
    ("waiting", "Waiting"),
    ("other", "The program's own"),
)
#: Ranks that are listed by number.
_LISTED = 8
#: Parts of a rank's additional time below this share are not mentioned.
_LITTLE = 0.02
_METHODS = {
    "reference": "the reference",
    "probes": "time queries",
    "collectives": "ends of collectives",
    "none": "nothing",
}


class Doubt(NamedTuple):
    """Why the figures of a run may be wrong. ``what``: a clause for a sentence; the others are sentences."""

    what: str
    reason: str
    remedy: str = ""


def ms(microseconds: float) -> str:
    """A time with its unit."""
    value = microseconds / 1e3
    return f"{value:.0f} ms" if value >= 1000 else f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"


def percent(share: float) -> str:
    """A fraction of 1 in percent."""
    return f"{share * 100:.0f} %" if share >= 0.1 or not share else f"{share * 100:.1f} %"


def plural(number: int, word: str) -> str:
    """A number with its noun."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def speed(mbits: float) -> str:
    """A bandwidth."""
    return f"{mbits / 1e3:.1f} Gbit/s" if mbits >= 1000 else f"{mbits:.1f} Mbit/s"


def rank_name(share: RankShare) -> str:
    """A rank with its node."""
    return f"rank {share.rank}" + (f" on {share.node}" if share.node else "")


def slow_name(slow: Slow) -> str:
    """What slows down the others."""
    who = f"rank {slow.ranks[0]}" if len(slow.ranks) == 1 else "all ranks"
    return who + (f" on {slow.node}" if slow.node else "")


def headline(run: Analysis) -> str:
    """The run in a sentence."""
    step = f"A step takes {ms(run.mean('step'))}"
    if run.slow:
        name = slow_name(run.slow)
        verb = "is" if len(run.slow.ranks) == 1 else "are"
        return f"{step}, {ms(run.slow.cost)} of which are lost because {name} {verb} slower than the others"
    if run.slow_links:
        link = run.slow_links[0]
        return f"{step}, and the link from rank {link.source} to rank {link.target} is slow"
    doubtful = doubts(run)
    return f"{step}, but {doubtful[0].what}" if doubtful else f"{step}, and no rank holds the others up"


def doubts(run: Analysis) -> List[Doubt]:
    """What the traces do not tell, most important first: with any, nothing proves that a run is well."""
    return [*_missing(run), *_clock_doubts(run), *_unmatched(run), *_skipped(run)]


def _missing(run: Analysis) -> List[Doubt]:
    if not run.missing:
        return []
    listed = ", ".join(map(str, run.missing[:_LISTED])) + (" and others" if len(run.missing) > _LISTED else "")
    return [
        Doubt(
            f"{plural(len(run.missing), 'rank')} {'has' if len(run.missing) == 1 else 'have'} no trace",
            f"These are missing: rank {listed}. Time in which others wait for them counts as communication.",
            "See the log of the rank, where gpumesh_profile says why.",
        )
    ]


def clock_error(run: Analysis) -> float:
    """The largest of the known errors."""
    return max((clock.error for clock in run.clocks.values() if clock.error is not None), default=0.0)


def _clock_doubts(run: Analysis) -> List[Doubt]:
    remedy = "Record the profile with gpumesh-train or gpumesh-trace record, which compare the clocks."
    unknown = sum(clock.error is None for clock in run.clocks.values())
    made = []
    if unknown:
        whose = "clock of 1 rank is" if unknown == 1 else f"clocks of {unknown} ranks are"
        reason = "Neither replies from rank 0 nor collectives determine them, so times of ranks cannot be compared."
        made.append(Doubt(f"the {whose} unknown", reason, remedy))
    if run.late > max(clock_error(run), 1.0):
        reason = "So times of ranks are wrong by at least that much, or their traces belong to different recordings."
        made.append(Doubt(f"a collective ends {ms(run.late)} before a rank begins it", reason, remedy))
    return made


def _unmatched(run: Analysis) -> List[Doubt]:
    counts = "Their time counts as communication, none of it as waiting."
    made = []
    if run.unmatched:
        reason = f"The ranks have different numbers of exchanges in a step. {counts}"
        made.append(Doubt(f"{plural(run.unmatched, 'exchange')} could not be compared", reason))
    if run.ungrouped:
        reason = f"Ranks are in several process groups, and the traces do not say which one exchanges data. {counts}"
        made.append(Doubt(f"{plural(run.ungrouped, 'exchange')} could not be assigned to a process group", reason))
    return made


def _skipped(run: Analysis) -> List[Doubt]:
    if not run.skipped:
        return []
    return [
        Doubt(
            f"{plural(run.skipped, 'event')} could not be read",
            "PyTorch does not escape the names of events. Their time is missing.",
            "Do not use quotation marks or backslashes in the names for record_function.",
        )
    ]


def slow_words(run: Analysis) -> Tuple[str, str]:
    """The findings about the rank that slows down the others, and the remedy. There must be one."""
    slow = run.slow
    if slow is None:
        raise ValueError("no rank is slow")
    shares = [share for share in run.shares if share.rank in slow.ranks]
    own = median(share.own for share in shares)
    lost = median(share.waiting for share in run.shares if share not in shares)
    one = len(shares) == 1
    parts = [(slow.other, "the program's own time is"), (slow.computing, "computing takes")]
    more = " and ".join(
        f"{words} {ms(abs(time))} {'longer' if time > 0 else 'less'}"
        for time, words in sorted(parts, reverse=True)
        if abs(time) > _LITTLE * slow.cost
    )
    reason = (
        f"Without the exchange of data {'it needs' if one else 'they need'} {ms(own)} for a step, {ms(slow.cost)} more than most "
        f"of the others: {more}. "
        f"That is {percent(slow.cost / run.mean('step'))} of the time of all ranks. The others wait {ms(lost)} in each step."
    )
    if slow.other > slow.computing:
        return reason, (
            "Check what happens there besides computing: reading data, a slow disk, a busy processor, logging. The "
            "timeline shows what surrounds the gap."
        )
    return (
        reason,
        "Check the GPU (clock, temperature, other processes), and whether there is more work than elsewhere.",
    )


def clock_words(run: Analysis) -> List[Tuple[str, str, str, str]]:
    """For each rank: by how much its clock is ahead of that of rank 0, the error, and how this was measured."""
    made = []
    for share in run.shares:
        clock = run.clocks[share.rank]
        unknown = clock.method == "none"
        ahead = "unknown" if unknown else f"{clock.ahead / 1e3:.3f} ms"
        error = "unknown" if clock.error is None else f"{clock.error / 1e3:.3f} ms"
        made.append((rank_name(share), ahead, error, _METHODS[clock.method]))
    return made


def summary(run: Analysis) -> str:
    """A few lines for the terminal."""
    whole = run.mean("step")
    parts = ", ".join(f"{words.lower()} {ms(run.mean(part))}" for part, words in PARTS)
    lines = [
        f"{run.name}: {plural(len(run.shares), 'rank')}, steps {run.steps[0]} to {run.steps[-1]}",
        f"  a step takes {ms(whole)}: {parts}",
    ]
    if run.slow:
        lines.append(f"  {headline(run).partition(', ')[2]}")
    lines += [
        f"  slow link: rank {link.source} → rank {link.target}, {speed(link.mbits)}, round trip {link.ms:.2f} ms"
        for link in run.slow_links
    ]
    if not _clock_doubts(run):
        lines.append(f"  clocks agree within {ms(clock_error(run))}")
    lines += [f"  {doubt.what}" for doubt in doubts(run)]
    return "\n".join(lines) + "\n"


def values(run: Analysis) -> Dict[str, Any]:
    """The same as values for programs, with times in milliseconds."""

    def scaled(one: Any, names: Tuple[str, ...]) -> Dict[str, Any]:
        return {f"{name}_ms": round(getattr(one, name) / 1e3, 4) for name in names}

    times = ("step", *(part for part, _words in PARTS), "hidden", "awaited")
    return {
        "name": run.name,
        "steps": run.steps,
        "ranks": [
            {
                "rank": share.rank,
                "node": share.node,
                **scaled(share, times),
                "steps_ms": [round(step / 1e3, 4) for step in share.steps],
            }
            for share in run.shares
        ],
        "slowest": run.slow
        and {"ranks": list(run.slow.ranks), "node": run.slow.node, **scaled(run.slow, ("cost", "computing", "other"))},
        "links": [dict(link._asdict(), slow=link in run.slow_links) for link in run.links],
        "operations": [
            {
                "name": one.name,
                "calls": round(one.calls, 3),
                "slowest": one.slowest,
                **scaled(one, ("time", "slowest_time")),
            }
            for one in run.operations
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
        "missing": run.missing,
        "unmatched": run.unmatched + run.ungrouped,
        "ungrouped": run.ungrouped,
        "late_ms": round(run.late / 1e3, 6),
        "skipped": run.skipped,
    }
