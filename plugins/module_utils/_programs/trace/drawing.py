# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures of a run: the mean step of each rank as a bar, and one step of all ranks on a timeline. Pure."""

from __future__ import annotations

from html import escape
from typing import Dict, Iterator, List, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.messages import (
    STEP_PARTS,
    format_ms,
    format_rank,
)
from ansible_collections.gpumesh.cluster.plugins.module_utils._programs.trace.models import Analysis, RankShare

DRAWING_WIDTH = 1000
_TICK_COUNT = 5
#: The height of a rank: with few ranks, and with many.
_ROW_HEIGHT, _THIN_ROW_HEIGHT = 26, 13
_MANY_RANKS = 24
_AXIS_HEIGHT = 46
#: The approximate width of a character.
_LETTER_WIDTH = 7.4
_MAX_LETTERS = 26


def _row_layout(run: Analysis) -> Tuple[int, float]:
    """The height of a rank, and the position of its name."""
    row_height = _THIN_ROW_HEIGHT if len(run.shares) > _MANY_RANKS else _ROW_HEIGHT
    longest_name = max(len(_short_name(share)) for share in run.shares)
    return row_height, longest_name * _LETTER_WIDTH + 14


def _short_name(share: RankShare) -> str:
    name = format_rank(share)
    return name if len(name) <= _MAX_LETTERS else f"{name[: _MAX_LETTERS - 1]}…"


def _round_up(value: float) -> float:
    """A number for a tick: 1, 2, 2.5 or 5 times a power of ten."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value:
        scale /= 10
    return next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= value)


def _format_tick(time: float) -> str:
    return f"{time / 1e3:g} ms" if time else "0"


def _draw_frame(
    run: Analysis, longest_time: float, width: int, label: str, axis_title: str, row_drawings: Iterator[str]
) -> str:
    """Names on the left, milliseconds and the title of their axis below, and the drawing of each rank between them."""
    row_height, left_margin = _row_layout(run)
    height = row_height * len(run.shares)
    spacing = _round_up(longest_time / _TICK_COUNT)
    scale = (width - left_margin - 10) / longest_time
    svg_parts = [f'<svg viewBox="0 0 {width} {height + _AXIS_HEIGHT}" role="img" aria-label="{escape(label)}">\n']
    for tick_index in range(int(longest_time / spacing) + 1):
        x = left_margin + tick_index * spacing * scale
        svg_parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        text_anchor = "end" if x > width - 30 else "middle"
        svg_parts.append(
            f'<text x="{x:.1f}" y="{height + 18}" text-anchor="{text_anchor}">{_format_tick(tick_index * spacing)}</text>\n'
        )
    svg_parts.append(
        f'<text class="axis" x="{(left_margin + width - 10) / 2:.1f}" y="{height + 39}" text-anchor="middle">'
        f"{escape(axis_title)}</text>\n"
    )
    slow_rows = [row_index for row_index, share in enumerate(run.shares) if run.slow and share.rank in run.slow.ranks]
    only_slow_row = slow_rows[0] if len(slow_rows) == 1 else -2
    for row_index, share in enumerate(run.shares):
        slow_class = " slow" if row_index in slow_rows else ""
        size_attribute = ' font-size="10"' if row_height == _THIN_ROW_HEIGHT else ""
        if (
            row_height == _ROW_HEIGHT
            or row_index == only_slow_row
            or (row_index % 2 == 0 and abs(row_index - only_slow_row) > 1)
        ):
            baseline = row_index * row_height + row_height / 2 + 4
            svg_parts.append(
                f'<text class="name{slow_class}" x="{left_margin - 8:.0f}" y="{baseline:.0f}" text-anchor="end"{size_attribute}>'
                f"{escape(_short_name(share))}</text>\n"
            )
    return "".join([*svg_parts, *row_drawings, "</svg>\n"])


def draw_bars(run: Analysis, longest_time: float, width: int) -> str:
    """The mean step of each rank. ``longest_time``: the microseconds that correspond to the width of the drawing."""
    row_height, left_margin = _row_layout(run)
    scale = (width - left_margin - 10) / longest_time

    def draw_rows() -> Iterator[str]:
        for row_index, share in enumerate(run.shares):
            title = ", ".join(f"{label.lower()} {format_ms(getattr(share, part))}" for part, label in STEP_PARTS)
            yield f"<g><title>{escape(format_rank(share))}: {escape(title)}</title>"
            x = left_margin
            for part, _label in STEP_PARTS:
                bar_width = getattr(share, part) * scale
                if bar_width >= 0.05:
                    yield (
                        f'<rect class="{part}" x="{x:.1f}" y="{row_index * row_height + row_height * 0.14:.1f}" width="{bar_width:.1f}" '
                        f'height="{row_height * 0.72:.1f}"/>'
                    )
                x += bar_width
            yield "</g>\n"

    return _draw_frame(run, longest_time, width, "The mean step of each rank", "time per step", draw_rows())


def draw_lanes(run: Analysis, longest_time: float, width: int) -> str:
    """One step of all ranks at the same time."""
    row_height, left_margin = _row_layout(run)
    scale = (width - left_margin - 10) / longest_time

    def draw_rows() -> Iterator[str]:
        for row_index, share in enumerate(run.shares):
            paths_by_activity: Dict[str, List[str]] = {}
            top, height = row_index * row_height + row_height * 0.1, row_height * 0.8
            parts = ((start, end, activity) for start, end, activity, _rank in run.states[share.rank])
            for start, end, activity in spans.merge_short_parts(parts, 1 / scale):
                x, span_width = left_margin + (start - run.typical_step.start) * scale, (end - start) * scale
                paths_by_activity.setdefault(activity, []).append(
                    f"M{x:.1f} {top:.1f}h{span_width:.1f}v{height:.1f}h-{span_width:.1f}z"
                )
            for activity, path in sorted(paths_by_activity.items()):
                yield f'<path class="{activity}" d="{"".join(path)}"/>'
            yield "\n"

    step = f"step {run.typical_step.number}"
    return _draw_frame(run, longest_time, width, f"All ranks in {step}", f"time since the start of {step}", draw_rows())
