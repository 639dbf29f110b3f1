# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run, or two side by side, as one self-contained HTML file. Pure.

Everything from a trace is escaped: names of operations and nodes come from users' programs.
"""

from __future__ import annotations

from html import escape
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.page_style import STYLE, THEME_BUTTON, THEME_SCRIPT
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import drawing
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, Link, RankShare
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.words import (
    PARTS,
    clock_words,
    doubts,
    headline,
    ms,
    percent,
    plural,
    rank_name,
    slow_name,
    slow_words,
    speed,
)

_OWN_STYLE = """\
.computing { fill: var(--c0); background: var(--c0); }
.communicating { fill: var(--c1); background: var(--c1); }
.waiting { fill: var(--bad); background: var(--bad); opacity: .55; }
.other { fill: var(--none); background: var(--none); opacity: .4; }
.drawing svg { display: block; width: 100%; min-width: 34rem; height: auto; }
.drawing text { fill: var(--soft); font-size: 12px; }
.drawing text.name { fill: var(--ink); }
.drawing text.slow { fill: var(--bad); font-weight: 600; }
.drawing figcaption { margin-top: .6rem; }
.drawing + .drawing { margin-top: 1.6rem; }
.legend .swatch { border-radius: 3px; }
.plain td.slow, .plain th.slow { color: var(--bad); font-weight: 600; }
.plain td.name { overflow-wrap: anywhere; max-width: 30rem; }
.plain th.run { color: var(--ink); font-weight: 550; border-bottom: none; padding-bottom: 0; }
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 2rem; }
.two .drawing svg { min-width: 24rem; }
.facts { grid-template-columns: repeat(6, 1fr); } .facts.both { grid-template-columns: repeat(3, 1fr); }
.bar nav a { white-space: nowrap; }
.tall .plain tr > :last-child { padding-right: .9rem; }
@media (max-width: 1040px) { .facts, .facts.both { grid-template-columns: repeat(3, 1fr); } }
@media (max-width: 760px) { .facts, .facts.both { grid-template-columns: 1fr 1fr; } .two { grid-template-columns: minmax(0, 1fr); } }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
#: Smaller changes are not shown.
_NOTHING = 0.02
Cell = Tuple[str, str]


def render(runs: Sequence[Analysis], moment: str, timelines: Sequence[str], figures: str) -> str:
    """The HTML page.

    ``moment``: when it was created; ``timelines``: the files for Perfetto, one per run; ``figures``: the JSON file.
    """
    title = " and ".join(run.name for run in runs)
    nav = [("findings", "What to do"), ("steps", "A step"), ("timeline", "Time line"), ("ranks", "Ranks")]
    if any(run.links for run in runs):
        nav.append(("links", "Links"))
    nav += [("operations", "Operations"), ("clocks", "Clocks")]
    sections = [
        _lead(runs, moment),
        _findings(runs),
        _steps(runs),
        _moment(runs, timelines),
        _ranks(runs),
        _links(runs),
        _operations(runs),
        _clocks(runs),
    ]
    links = "".join(f'<a href="#{name}">{words}</a>\n' for name, words in nav)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(title)}: where the time goes</title>
<style>
{STYLE}{_OWN_STYLE}</style>
</head>
<body>
<a class="jump" href="#main">Skip to the content</a>
<header class="bar">
<div class="inner">
<span class="brand">{escape(title)}</span>
<nav aria-label="Sections">
{links}</nav>
{THEME_BUTTON}
</div>
</header>
<main id="main">
{"".join(sections)}</main>
<footer><p>Created by <code>gpumesh-trace</code>. The same figures for programs are in <code>{escape(figures)}</code>, next
to this file.</p></footer>
<script>
{THEME_SCRIPT}</script>
</body>
</html>
"""


def _section(name: str, title: str, intro: str, body: str) -> str:
    return f'<section id="{name}">\n<h2>{title}</h2>\n<p class="intro">{intro}</p>\n{body}</section>\n'


def _mark(kind: str) -> str:
    sign = {"pass": "✓", "fail": "✕", "error": "!"}[kind]
    return f'<span class="mark {kind}" aria-hidden="true">{sign}</span>'


def _table(head: Sequence[Cell], rows: Iterable[Sequence[Cell]]) -> str:
    """A table. Cells are text with a class; the first cell of a row is its header. Texts are escaped here."""
    made = "".join(f'<th scope="col" class="{kind}">{escape(text)}</th>' for text, kind in head)
    lines = []
    for row in rows:
        first, *others = row
        cells = f'<th scope="row" class="{first[1]}">{escape(first[0])}</th>'
        cells += "".join(f'<td class="{kind}">{escape(text)}</td>' for text, kind in others)
        lines.append(f"<tr>{cells}</tr>\n")
    return (
        f'<div class="scroll tall"><table class="plain">\n<thead><tr>{made}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def _lead(runs: Sequence[Analysis], moment: str) -> str:
    first = runs[0]
    bad = any(run.slow or run.slow_links for run in runs)
    mark = "fail" if bad else "error" if any(doubts(run) for run in runs) else "pass"
    names = " and ".join(f"run {escape(run.name)}" for run in runs)
    about = " · ".join(
        f"{escape(run.name)}: {plural(len(run.shares), 'rank')} on {plural(len(run.nodes), 'node')}, "
        f"steps {run.steps[0]} to {run.steps[-1]}"
        for run in runs
    )
    return f"""<section class="lead">
<p class="eyebrow">Profile of {names}</p>
<h1>{_mark(mark)}<span>{escape(headline(first) if len(runs) == 1 else _comparison(runs))}</span></h1>
<p class="meta">{about} · made {escape(moment)}</p>
{_facts(runs)}</section>
"""


def _comparison(runs: Sequence[Analysis]) -> str:
    before, after = runs[0].mean("step"), runs[1].mean("step")
    change = after / before - 1 if before else 0.0
    if abs(change) < _NOTHING:
        return f"A step of {runs[1].name} takes as long as one of {runs[0].name}"
    word = "longer" if change > 0 else "less time"
    return f"A step of {runs[1].name} takes {percent(abs(change))} {word} than a step of {runs[0].name}"


def _facts(runs: Sequence[Analysis]) -> str:
    made = []
    for part, words in (("step", "A step"), *PARTS, ("hidden", "Hidden exchange")):
        values = [run.mean(part) for run in runs]
        if len(runs) == 1:
            whole = runs[0].mean("step")
            note = (
                "mean of all ranks" if part == "step" else f"{percent(values[0] / whole if whole else 0.0)} of a step"
            )
            if part == "hidden":
                total = values[0] + runs[0].mean("communicating") + runs[0].mean("waiting")
                note = f"{percent(values[0] / total if total else 0.0)} of all exchange"
            shown = ms(values[0])
        else:
            shown = f"{ms(values[0])} → {ms(values[1])}"
            note = _change(*values)
        made.append(f'<div><dt>{words}</dt><dd>{shown}</dd><dd class="note">{note}</dd></div>\n')
    return f'<dl class="facts{" both" if len(runs) > 1 else ""}">\n{"".join(made)}</dl>\n'


def _change(before: float, after: float) -> str:
    if not before or abs(after / before - 1) < _NOTHING:
        return "no change" if before or not after else "new"
    return f"{'+' if after > before else '−'}{percent(abs(after / before - 1))}"


def _finding(kind: str, title: str, reason: str, remedy: str = "") -> str:
    advice = f'<p class="remedy">{escape(remedy)}</p>' if remedy else ""
    return (
        f'<li class="{kind}">{_mark(kind)}<div><h3>{escape(title)}</h3>'
        f'<p class="reason">{escape(reason)}</p>{advice}</div></li>\n'
    )


def _findings(runs: Sequence[Analysis]) -> str:
    made: List[str] = []
    for run in runs:
        of = f"{run.name}: " if len(runs) > 1 else ""
        if run.slow:
            name = slow_name(run.slow)
            verb = "holds" if len(run.slow.ranks) == 1 else "hold"
            made.append(_finding("fail", f"{of}{name[0].upper()}{name[1:]} {verb} the others up", *slow_words(run)))
        if run.slow_links:
            made.append(_slow_links(run, of))
        for doubt in doubts(run):
            title = of + doubt.what if of else doubt.what[0].upper() + doubt.what[1:]
            made.append(_finding("error", title, doubt.reason, doubt.remedy))
    if not made:
        made.append(
            _finding(
                "pass", "No rank and no link is clearly slower than the others", "Ranks wait no longer than they must."
            )
        )
    return _section(
        "findings",
        "What to do",
        "What costs time, and what the figures below cannot tell.",
        f'<ul class="findings">\n{"".join(made)}</ul>\n',
    )


def _slow_links(run: Analysis, of: str) -> str:
    worst = run.slow_links[0]
    others = sorted(link.mbits for link in run.links if link not in run.slow_links)
    usual = f" The others carry about {speed(others[len(others) // 2])}." if others else ""
    reason = (
        f"It carries {speed(worst.mbits)}, with a round trip of {worst.ms:.2f} ms.{usual} "
        f"Ranks exchange data for {ms(run.mean('communicating'))} of a step of {ms(run.mean('step'))}."
    )
    more = f" and {len(run.slow_links) - 1} more" if len(run.slow_links) > 1 else ""
    return _finding(
        "fail",
        f"{of}The link {' → '.join(_ends(_names(run), worst))}{more} is slow",
        reason,
        "Measure it without the training: ansible-playbook gpumesh.cluster.check -e check_level=full. Check cables, "
        "ports and other traffic.",
    )


def _names(run: Analysis) -> Dict[int, str]:
    return {share.rank: rank_name(share) for share in run.shares}


def _ends(names: Mapping[int, str], link: Link) -> List[str]:
    """The names of both ranks."""
    return [names.get(rank, f"rank {rank}") for rank in (link.source, link.target)]


def _caption(run: Analysis, runs: Sequence[Analysis]) -> str:
    return f'<h3 class="sub">{escape(run.name)}</h3>\n' if len(runs) > 1 else ""


def _figures(runs: Sequence[Analysis], draw: Callable[[Analysis, float, int], str], longest: float) -> str:
    """A drawing of each run, side by side."""
    items = "".join(f'<li><i class="swatch {part}"></i>{words}</li>\n' for part, words in PARTS)
    legend = f'<figcaption><ul class="legend">\n{items}</ul></figcaption>\n'
    parts = [
        f'{_caption(run, runs)}<figure class="drawing"><div class="scroll">\n'
        f"{draw(run, longest, drawing.WIDTH // len(runs))}</div>\n{legend}</figure>\n"
        for run in runs
    ]
    if len(parts) == 1:
        return parts[0]
    return f'<div class="two">\n{"".join(f"<div>{part}</div>" for part in parts)}</div>\n'


def _steps(runs: Sequence[Analysis]) -> str:
    longest = max(share.step for run in runs for share in run.shares)
    intro = (
        "The mean step of each rank. Communicating is data exchange that no computation hides; waiting is the time until "
        "the last rank joins an exchange; the program's own is everything else: Python, reading data, starting kernels."
    )
    return _section("steps", "A step, rank by rank", intro, _figures(runs, drawing.bars, longest))


def _moment(runs: Sequence[Analysis], timelines: Sequence[str]) -> str:
    longest = max(run.moment.end - run.moment.begin for run in runs)
    steps = " and ".join(dict.fromkeys(f"step {run.moment.number}" for run in runs))
    files = " and ".join(f"<code>{escape(path)}</code>" for path in timelines)
    intro = (
        f"All ranks in {steps}, whose duration is typical, by the clock of rank 0. All steps and operations are in "
        f"{files}: open it at https://ui.perfetto.dev, which does not upload it."
    )
    return _section("timeline", "All ranks at the same time", intro, _figures(runs, drawing.lanes, longest))


def _ranks(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        head: List[Cell] = [("Rank", ""), ("A step", "num"), ("Longest", "num")]
        head += [(words, "num") for _part, words in PARTS]
        head += [("Hidden", "num"), ("Others wait for it", "num")]
        parts.append(_caption(run, runs) + _table(head, (_rank_row(run, share) for share in run.shares)))
    intro = (
        "In milliseconds, as the mean of all steps, except for the longest. Hidden is communication during computing."
    )
    return _section("ranks", "Ranks", intro, "".join(parts))


def _rank_row(run: Analysis, share: RankShare) -> List[Cell]:
    slow = " slow" if run.slow and share.rank in run.slow.ranks else ""
    values = [share.step, max(share.steps), *(getattr(share, part) for part, _words in PARTS), share.hidden]
    row: List[Cell] = [(rank_name(share), slow.strip())]
    row += [(f"{value / 1e3:.2f}", "num") for value in values]
    return [*row, (f"{share.awaited / 1e3:.2f}", f"num{slow}")]


def _links(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        if run.links:
            head: List[Cell] = [("From", ""), ("To", ""), ("Round trip", "num"), ("Bandwidth", "num")]
            names, rows = _names(run), []
            for link in run.links:
                slow = "slow" if link in run.slow_links else ""
                ends = _ends(names, link)
                rows.append(
                    [
                        (ends[0], slow),
                        (ends[1], ""),
                        (f"{link.ms:.2f} ms", f"num {slow}"),
                        (speed(link.mbits), f"num {slow}"),
                    ]
                )
            parts.append(_caption(run, runs) + _table(head, rows))
    if not parts:
        return ""
    intro = (
        "Before the profiled steps, each rank sent data to the next one over TCP, all at the same time. RDMA and NVLink "
        "are faster."
    )
    return _section("links", "Links between ranks", intro, "".join(parts))


def _operations(runs: Sequence[Analysis]) -> str:
    if len(runs) == 1:
        run = runs[0]
        names = _names(run)
        head: List[Cell] = [
            ("Operation", ""),
            ("Calls", "num"),
            ("Time", "num"),
            ("Share of a step", "num"),
            ("Slowest", ""),
        ]
        rows: List[List[Cell]] = [
            [
                (one.name, "name"),
                (f"{one.calls:.1f}", "num"),
                (ms(one.time), "num"),
                (percent(one.time / run.mean("step")), "num"),
                (f"{names.get(one.slowest, one.slowest)}: {ms(one.slowest_time)}", ""),
            ]
            for one in run.operations
        ]
    else:
        head = [("Operation", ""), *((run.name, "num") for run in runs), ("Change", "num")]
        rows = [_operation_row(runs, name) for name in _operation_names(runs)]
    kind = "Kernels" if runs[0].gpu else "Operators of PyTorch, without those that they call,"
    intro = f"{kind} and collectives, per step, as the mean of all ranks. The time of collectives includes waiting."
    return _section("operations", "The longest operations", intro, _table(head, rows))


def _operation_names(runs: Sequence[Analysis]) -> List[str]:
    longest: Dict[str, float] = {}
    for run in runs:
        for one in run.operations:
            longest[one.name] = max(one.time, longest.get(one.name, 0.0))
    return sorted(longest, key=lambda name: -longest[name])[: max(len(run.operations) for run in runs)]


def _operation_row(runs: Sequence[Analysis], name: str) -> List[Cell]:
    times: List[Optional[float]] = [
        next((one.time for one in run.operations if one.name == name), None) for run in runs
    ]
    row: List[Cell] = [(name, "name")]
    row += [("–" if time is None else ms(time), "num") for time in times]
    before, after = times
    return [*row, ("–" if before is None or after is None else _change(before, after), "num")]


def _clocks(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        head: List[Cell] = [("Rank", ""), ("Ahead of rank 0", "num"), ("Maximum error", "num"), ("Measured by", "")]
        parts.append(
            _caption(run, runs)
            + _table(
                head,
                (
                    [(name, ""), (ahead, "num"), (error, "num"), (how, "")]
                    for name, ahead, error, how in clock_words(run)
                ),
            )
        )
    late = max(run.late for run in runs)
    proof = (
        "No collective ends on a rank before all others have begun it."
        if late <= 1.0
        else f"A collective seems to end {ms(late)} before another rank has begun it."
    )
    shortest = max(run.shortest for run in runs)
    left_out = f" Events shorter than {shortest:.1f} µs are left out of the timeline." if shortest else ""
    intro = f"How the times of all ranks were converted to the clock of rank 0. {proof}{left_out}"
    return _section("clocks", "Clocks", intro, "".join(parts))
