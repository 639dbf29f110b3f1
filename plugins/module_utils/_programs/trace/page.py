# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One run, or two side by side, as one self-contained HTML file. Pure.

Everything from a trace is escaped: names of operations and nodes come from users' programs.
"""

from __future__ import annotations

from html import escape
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.page_style import (
    PAGE_STYLE,
    THEME_BUTTON,
    THEME_SCRIPT,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import join_names
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import drawing
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.messages import (
    STEP_PARTS,
    explain_slow_ranks,
    find_warnings,
    format_bandwidth,
    format_clocks,
    format_headline,
    format_ms,
    format_percent,
    format_rank,
    format_slow_ranks,
    pluralize,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import (
    Analysis,
    RankLink,
    RankShare,
)

_PAGE_STYLE = """\
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
.plain td.num { white-space: nowrap; }
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
_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
#: Smaller changes are not shown.
_MIN_CHANGE = 0.02
TableCell = Tuple[str, str]


def render_page(runs: Sequence[Analysis], created_at: str, timeline_files: Sequence[str], figures_file: str) -> str:
    """The HTML page.

    ``timeline_files``: the files for Perfetto, one per run; ``figures_file``: the JSON file.
    """
    title = join_names(run.name for run in runs)
    nav = [("findings", "What to do"), ("steps", "A step"), ("timeline", "Timeline"), ("ranks", "Ranks")]
    if any(run.links for run in runs):
        nav.append(("links", "Links"))
    nav += [("operations", "Operations"), ("clocks", "Clocks")]
    sections = [
        _render_lead(runs, created_at),
        _render_findings(runs),
        _render_steps(runs),
        _render_typical_step(runs, timeline_files),
        _render_ranks(runs),
        _render_links(runs),
        _render_operations(runs),
        _render_clocks(runs),
    ]
    links = "".join(f'<a href="#{name}">{label}</a>\n' for name, label in nav)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_SECURITY_POLICY}">
<title>{escape(title)}: where the time goes</title>
<style>
{PAGE_STYLE}{_PAGE_STYLE}</style>
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
<footer><p>Created by <code>gpumesh-trace</code>. The same figures in JSON are in <code>{escape(figures_file)}</code>, next
to this file.</p></footer>
<script>
{THEME_SCRIPT}</script>
</body>
</html>
"""


def _render_section(name: str, title: str, intro: str, body: str) -> str:
    return f'<section id="{name}">\n<h2>{title}</h2>\n<p class="intro">{intro}</p>\n{body}</section>\n'


def _render_mark(kind: str) -> str:
    sign = {"pass": "✓", "fail": "✕", "error": "!"}[kind]
    return f'<span class="mark {kind}" aria-hidden="true">{sign}</span>'


def _render_table(columns: Sequence[TableCell], rows: Iterable[Sequence[TableCell]]) -> str:
    """A table. Cells are text with a class; the first cell of a row is its header. Texts are escaped here."""
    header_cells = "".join(f'<th scope="col" class="{css_class}">{escape(text)}</th>' for text, css_class in columns)
    lines = []
    for row in rows:
        row_header, *row_cells = row
        cells = f'<th scope="row" class="{row_header[1]}">{escape(row_header[0])}</th>'
        cells += "".join(f'<td class="{css_class}">{escape(text)}</td>' for text, css_class in row_cells)
        lines.append(f"<tr>{cells}</tr>\n")
    return (
        f'<div class="scroll tall"><table class="plain">\n<thead><tr>{header_cells}</tr></thead>\n'
        f"<tbody>\n{''.join(lines)}</tbody>\n</table></div>\n"
    )


def _render_lead(runs: Sequence[Analysis], created_at: str) -> str:
    first_run = runs[0]
    has_problem = any(run.slow or run.slow_links for run in runs)
    mark_kind = "fail" if has_problem else "error" if any(find_warnings(run) for run in runs) else "pass"
    run_names = join_names(f"run {escape(run.name)}" for run in runs)
    run_summaries = " · ".join(
        f"{escape(run.name)}: {pluralize(len(run.shares), 'rank')} on {pluralize(len(run.nodes), 'node')}, "
        f"steps {run.steps[0]} to {run.steps[-1]}"
        for run in runs
    )
    return f"""<section class="lead">
<p class="eyebrow">Profile of {run_names}</p>
<h1>{_render_mark(mark_kind)}<span>{escape(format_headline(first_run) if len(runs) == 1 else _compare_steps(runs))}</span></h1>
<p class="meta">{run_summaries} · created {escape(created_at)}</p>
{_render_facts(runs)}</section>
"""


def _compare_steps(runs: Sequence[Analysis]) -> str:
    before, after = runs[0].mean("step"), runs[1].mean("step")
    change = after / before - 1 if before else 0.0
    if abs(change) < _MIN_CHANGE:
        return f"A step of {runs[1].name} takes as long as one of {runs[0].name}"
    comparative = "longer" if change > 0 else "less time"
    return f"A step of {runs[1].name} takes {format_percent(abs(change))} {comparative} than a step of {runs[0].name}"


def _render_facts(runs: Sequence[Analysis]) -> str:
    facts = []
    for part, label in (("step", "Step time"), *STEP_PARTS, ("hidden", "Overlapped communication")):
        values = [run.mean(part) for run in runs]
        if len(runs) == 1:
            mean_step = runs[0].mean("step")
            note = (
                "mean of all ranks"
                if part == "step"
                else f"{format_percent(values[0] / mean_step if mean_step else 0.0)} of a step"
            )
            if part == "hidden":
                total_exchange = values[0] + runs[0].mean("communicating") + runs[0].mean("waiting")
                note = f"{format_percent(values[0] / total_exchange if total_exchange else 0.0)} of all communication"
            figure_text = format_ms(values[0])
        else:
            figure_text = f"{format_ms(values[0])} → {format_ms(values[1])}"
            note = _format_change(*values)
        facts.append(f'<div><dt>{label}</dt><dd>{figure_text}</dd><dd class="note">{note}</dd></div>\n')
    return f'<dl class="facts{" both" if len(runs) > 1 else ""}">\n{"".join(facts)}</dl>\n'


def _format_change(before: float, after: float) -> str:
    if not before or abs(after / before - 1) < _MIN_CHANGE:
        return "no change" if before or not after else "new"
    return f"{'+' if after > before else '−'}{format_percent(abs(after / before - 1))}"


def _render_finding(kind: str, title: str, reason: str, remedy: str = "") -> str:
    advice = f'<p class="remedy">{escape(remedy)}</p>' if remedy else ""
    return (
        f'<li class="{kind}">{_render_mark(kind)}<div><h3>{escape(title)}</h3>'
        f'<p class="reason">{escape(reason)}</p>{advice}</div></li>\n'
    )


def _render_findings(runs: Sequence[Analysis]) -> str:
    findings: List[str] = []
    for run in runs:
        run_prefix = f"{run.name}: " if len(runs) > 1 else ""
        if run.slow:
            name = format_slow_ranks(run.slow)
            verb = "slows down" if len(run.slow.ranks) == 1 else "slow down"
            findings.append(
                _render_finding(
                    "fail", f"{run_prefix}{name[0].upper()}{name[1:]} {verb} the others", *explain_slow_ranks(run)
                )
            )
        if run.slow_links:
            findings.append(_render_slow_links(run, run_prefix))
        for warning in find_warnings(run):
            title = run_prefix + warning.problem if run_prefix else warning.problem[0].upper() + warning.problem[1:]
            findings.append(_render_finding("error", title, warning.reason, warning.remedy))
    if not findings:
        findings.append(
            _render_finding(
                "pass", "No rank and no link is clearly slower than the others", "Ranks wait no longer than necessary."
            )
        )
    return _render_section(
        "findings",
        "What to do",
        "What costs time, and what limits the accuracy of the figures below.",
        f'<ul class="findings">\n{"".join(findings)}</ul>\n',
    )


def _render_slow_links(run: Analysis, run_prefix: str) -> str:
    slowest_link = run.slow_links[0]
    other_speeds = sorted(link.mbits for link in run.links if link not in run.slow_links)
    usual_note = (
        f" The others carry about {format_bandwidth(other_speeds[len(other_speeds) // 2])}." if other_speeds else ""
    )
    reason = (
        f"It carries {format_bandwidth(slowest_link.mbits)}, with a round trip of {slowest_link.ms:.2f} ms.{usual_note} "
        f"Exposed communication takes {format_ms(run.mean('communicating'))} of a step of {format_ms(run.mean('step'))}."
    )
    more_note = f" and {len(run.slow_links) - 1} more" if len(run.slow_links) > 1 else ""
    return _render_finding(
        "fail",
        f"{run_prefix}The link {' → '.join(_link_ends(_rank_names(run), slowest_link))}{more_note} is slow",
        reason,
        "Measure it without training: ansible-playbook gpumesh.cluster.check -e check_level=full. Check cables, "
        "ports and other traffic.",
    )


def _rank_names(run: Analysis) -> Dict[int, str]:
    return {share.rank: format_rank(share) for share in run.shares}


def _link_ends(names: Mapping[int, str], link: RankLink) -> List[str]:
    """The names of both ranks."""
    return [names.get(rank, f"rank {rank}") for rank in (link.source, link.target)]


def _render_caption(run: Analysis, runs: Sequence[Analysis]) -> str:
    return f'<h3 class="sub">{escape(run.name)}</h3>\n' if len(runs) > 1 else ""


def _render_drawings(
    runs: Sequence[Analysis], draw_run: Callable[[Analysis, float, int], str], longest_time: float
) -> str:
    """A drawing of each run, side by side."""
    legend_entries = "".join(f'<li><i class="swatch {part}"></i>{label}</li>\n' for part, label in STEP_PARTS)
    legend = f'<figcaption><ul class="legend">\n{legend_entries}</ul></figcaption>\n'
    parts = [
        f'{_render_caption(run, runs)}<figure class="drawing"><div class="scroll">\n'
        f"{draw_run(run, longest_time, drawing.DRAWING_WIDTH // len(runs))}</div>\n{legend}</figure>\n"
        for run in runs
    ]
    if len(parts) == 1:
        return parts[0]
    return f'<div class="two">\n{"".join(f"<div>{part}</div>" for part in parts)}</div>\n'


def _render_steps(runs: Sequence[Analysis]) -> str:
    longest_step = max(share.step for run in runs for share in run.shares)
    intro = (
        "The mean step of each rank. Exposed communication is not overlapped by computation; waiting is the time until the last rank "
        "joins a collective; other is everything else: Python, data loading, launching kernels."
    )
    return _render_section(
        "steps", "A step, rank by rank", intro, _render_drawings(runs, drawing.draw_bars, longest_step)
    )


def _render_typical_step(runs: Sequence[Analysis], timeline_files: Sequence[str]) -> str:
    longest_step = max(run.typical_step.end - run.typical_step.start for run in runs)
    steps = join_names(dict.fromkeys(f"step {run.typical_step.number}" for run in runs))
    file_links = join_names(f"<code>{escape(path)}</code>" for path in timeline_files)
    intro = (
        f"All ranks in {steps}, whose duration is typical, by the clock of rank 0. All steps and operations are in "
        f"{file_links}: open it at https://ui.perfetto.dev, which does not upload it."
    )
    return _render_section(
        "timeline", "All ranks at the same time", intro, _render_drawings(runs, drawing.draw_lanes, longest_step)
    )


def _render_ranks(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        columns: List[TableCell] = [("Rank", ""), ("Step time", "num"), ("Longest", "num")]
        columns += [(label, "num") for _part, label in STEP_PARTS]
        columns += [("Overlapped", "num"), ("Others wait for it", "num")]
        parts.append(
            _render_caption(run, runs) + _render_table(columns, (_rank_row(run, share) for share in run.shares))
        )
    intro = "In milliseconds, as the mean of all steps, except for the longest. Overlapped is communication and waiting during computation."
    return _render_section("ranks", "Ranks", intro, "".join(parts))


def _rank_row(run: Analysis, share: RankShare) -> List[TableCell]:
    slow_class = " slow" if run.slow and share.rank in run.slow.ranks else ""
    values = [share.step, max(share.steps), *(getattr(share, part) for part, _label in STEP_PARTS), share.hidden]
    row: List[TableCell] = [(format_rank(share), slow_class.strip())]
    row += [(f"{value / 1e3:.2f}", "num") for value in values]
    return [*row, (f"{share.awaited / 1e3:.2f}", f"num{slow_class}")]


def _render_links(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        if run.links:
            columns: List[TableCell] = [("From", ""), ("To", ""), ("Round trip", "num"), ("Bandwidth", "num")]
            rank_names, rows = _rank_names(run), []
            for link in run.links:
                slow_class = "slow" if link in run.slow_links else ""
                end_names = _link_ends(rank_names, link)
                rows.append(
                    [
                        (end_names[0], slow_class),
                        (end_names[1], ""),
                        (f"{link.ms:.2f} ms", f"num {slow_class}"),
                        (format_bandwidth(link.mbits), f"num {slow_class}"),
                    ]
                )
            parts.append(_render_caption(run, runs) + _render_table(columns, rows))
    if not parts:
        return ""
    intro = (
        "Before the profiled steps, each rank sent data to the next one over TCP, all at the same time. RDMA and NVLink "
        "are faster."
    )
    return _render_section("links", "Links between ranks", intro, "".join(parts))


def _render_operations(runs: Sequence[Analysis]) -> str:
    if len(runs) == 1:
        run = runs[0]
        rank_names = _rank_names(run)
        columns: List[TableCell] = [
            ("Operation", ""),
            ("Calls", "num"),
            ("Time", "num"),
            ("Share of a step", "num"),
            ("Slowest", ""),
        ]
        rows: List[List[TableCell]] = [
            [
                (operation.name, "name"),
                (f"{operation.calls:.1f}", "num"),
                (format_ms(operation.time), "num"),
                (format_percent(operation.time / run.mean("step")), "num"),
                (
                    f"{rank_names.get(operation.slowest_rank, operation.slowest_rank)}: {format_ms(operation.slowest_time)}",
                    "",
                ),
            ]
            for operation in run.operations
        ]
    else:
        columns = [("Operation", ""), *((run.name, "num") for run in runs), ("Change", "num")]
        rows = [_operation_row(runs, name) for name in _operation_names(runs)]
    operation_kind = "Kernels" if runs[0].uses_gpu else "Operators of PyTorch, without those that they call,"
    intro = f"{operation_kind} and collectives, per step, as the mean of all ranks. The time of collectives includes waiting."
    return _render_section("operations", "The longest operations", intro, _render_table(columns, rows))


def _operation_names(runs: Sequence[Analysis]) -> List[str]:
    time_by_name: Dict[str, float] = {}
    for run in runs:
        for operation in run.operations:
            time_by_name[operation.name] = max(operation.time, time_by_name.get(operation.name, 0.0))
    return sorted(time_by_name, key=lambda name: -time_by_name[name])[: max(len(run.operations) for run in runs)]


def _operation_row(runs: Sequence[Analysis], name: str) -> List[TableCell]:
    times: List[Optional[float]] = [
        next((operation.time for operation in run.operations if operation.name == name), None) for run in runs
    ]
    row: List[TableCell] = [(name, "name")]
    row += [("–" if time is None else format_ms(time), "num") for time in times]
    before, after = times
    return [*row, ("–" if before is None or after is None else _format_change(before, after), "num")]


def _render_clocks(runs: Sequence[Analysis]) -> str:
    parts = []
    for run in runs:
        columns: List[TableCell] = [
            ("Rank", ""),
            ("Ahead of rank 0", "num"),
            ("Maximum error", "num"),
            ("Measured by", ""),
        ]
        parts.append(
            _render_caption(run, runs)
            + _render_table(
                columns,
                (
                    [(name, ""), (ahead, "num"), (error, "num"), (method, "")]
                    for name, ahead, error, method in format_clocks(run)
                ),
            )
        )
    contradiction = max(run.clock_contradiction for run in runs)
    clock_check = (
        "No collective ends on a rank before all others have begun it."
        if contradiction <= 1.0
        else f"A collective seems to end {format_ms(contradiction)} before another rank has begun it."
    )
    shortest_event = max(run.shortest_kept for run in runs)
    omission_note = (
        f" Events shorter than {shortest_event:.1f} µs are left out of the timeline." if shortest_event else ""
    )
    intro = f"How the times of all ranks were converted to the clock of rank 0. {clock_check}{omission_note}"
    return _render_section("clocks", "Clocks", intro, "".join(parts))
