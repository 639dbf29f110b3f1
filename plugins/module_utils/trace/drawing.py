# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures of a run: the mean step of each rank as a bar, and one step of all ranks on a timeline. Pure."""

from __future__ import annotations

from html import escape
from typing import Dict, Iterator, List, Tuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.trace import spans
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.shapes import Analysis, RankShare
from ansible_collections.gpumesh.cluster.plugins.module_utils.trace.words import PARTS, ms, rank_name

WIDTH = 1000
_TICKS = 5
#: The height of a rank: with few ranks, and with many.
_ROW, _THIN = 26, 13
_MANY = 24
_BASE = 26
#: The approximate width of a character.
_LETTER = 7.4
_MOST_LETTERS = 26


def _rows(run: Analysis) -> Tuple[int, float]:
    """The height of a rank, and the position of its name."""
    row = _THIN if len(run.shares) > _MANY else _ROW
    names = max(len(_short(share)) for share in run.shares)
    return row, names * _LETTER + 14


def _short(share: RankShare) -> str:
    name = rank_name(share)
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"


def _round_up(value: float) -> float:
    """A number for a tick: 1, 2, 2.5 or 5 times a power of ten."""
    scale = 1.0
    while scale * 10 <= value:
        scale *= 10
    while scale > value:
        scale /= 10
    return next(scale * factor for factor in (1, 2, 2.5, 5, 10) if scale * factor >= value)


def _tick(time: float) -> str:
    return f"{time / 1e3:g} ms" if time else "0"


def _frame(run: Analysis, longest: float, width: int, label: str, rows: Iterator[str]) -> str:
    """Names on the left, milliseconds below, and the drawing of each rank between them."""
    row, left = _rows(run)
    height = row * len(run.shares)
    spacing = _round_up(longest / _TICKS)
    scale = (width - left - 10) / longest
    parts = [f'<svg viewBox="0 0 {width} {height + _BASE}" role="img" aria-label="{escape(label)}">\n']
    for number in range(int(longest / spacing) + 1):
        x = left + number * spacing * scale
        parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>')
        anchor = "end" if x > width - 30 else "middle"
        parts.append(f'<text x="{x:.1f}" y="{height + 18}" text-anchor="{anchor}">{_tick(number * spacing)}</text>\n')
    red = [place for place, share in enumerate(run.shares) if run.slow and share.rank in run.slow.ranks]
    alone = red[0] if len(red) == 1 else -2
    for place, share in enumerate(run.shares):
        slow = " slow" if place in red else ""
        size = ' font-size="10"' if row == _THIN else ""
        if row == _ROW or place == alone or (place % 2 == 0 and abs(place - alone) > 1):
            parts.append(
                f'<text class="name{slow}" x="{left - 8:.0f}" y="{place * row + row / 2 + 4:.0f}" text-anchor="end"{size}>'
                f"{escape(_short(share))}</text>\n"
            )
    return "".join([*parts, *rows, "</svg>\n"])


def bars(run: Analysis, longest: float, width: int) -> str:
    """The mean step of each rank. ``longest``: the microseconds that correspond to the width of the drawing."""
    row, left = _rows(run)
    scale = (width - left - 10) / longest

    def rows() -> Iterator[str]:
        for place, share in enumerate(run.shares):
            title = ", ".join(f"{words.lower()} {ms(getattr(share, part))}" for part, words in PARTS)
            yield f"<g><title>{escape(rank_name(share))}: {escape(title)}</title>"
            x = left
            for part, _words in PARTS:
                wide = getattr(share, part) * scale
                if wide >= 0.05:
                    yield (
                        f'<rect class="{part}" x="{x:.1f}" y="{place * row + row * 0.14:.1f}" width="{wide:.1f}" '
                        f'height="{row * 0.72:.1f}"/>'
                    )
                x += wide
            yield "</g>\n"

    return _frame(run, longest, width, "The mean step of each rank", rows())


def lanes(run: Analysis, longest: float, width: int) -> str:
    """One step of all ranks at the same time."""
    row, left = _rows(run)
    scale = (width - left - 10) / longest

    def rows() -> Iterator[str]:
        for place, share in enumerate(run.shares):
            paths: Dict[str, List[str]] = {}
            top, height = place * row + row * 0.1, row * 0.8
            parts = ((begin, end, what) for begin, end, what, _rank in run.states[share.rank])
            for begin, end, what in spans.predominant(parts, 1 / scale):
                x, wide = left + (begin - run.moment.begin) * scale, (end - begin) * scale
                paths.setdefault(what, []).append(f"M{x:.1f} {top:.1f}h{wide:.1f}v{height:.1f}h-{wide:.1f}z")
            for what, path in sorted(paths.items()):
                yield f'<path class="{what}" d="{"".join(path)}"/>'
            yield "\n"

    return _frame(run, longest, width, f"All ranks in step {run.moment.number}", rows())
