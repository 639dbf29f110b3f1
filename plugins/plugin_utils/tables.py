# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tables for people in a terminal: pure text in, pure text out.

Widths are in terminal columns, not characters: a CJK character takes two, a combining mark none. Cells come from remote
hosts, so control characters are removed.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ansible_collections.gpumesh.cluster.plugins.module_utils.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils.text import printable

ALIGNMENTS = ("auto", "left", "right", "center")

#: The minimum width of a column, however narrow the terminal: a table that overflows can still be read.
_NARROWEST = 4


class Column(NamedTuple):
    """One column. ``align`` is one of ALIGNMENTS; ``auto`` aligns numbers to the right and text to the left."""

    key: str
    title: str
    align: str = "auto"


class _Rule(NamedTuple):
    """A horizontal line of the frame."""

    left: str
    fill: str
    crossing: str
    right: str

    def drawn(self, widths: Sequence[int]) -> str:
        return self.left + self.crossing.join(self.fill * (width + 2) for width in widths) + self.right


class _Border(NamedTuple):
    """The characters of a frame."""

    top: _Rule
    middle: _Rule
    bottom: _Rule
    vertical: str


_ASCII_RULE = _Rule("+", "-", "+", "+")
_BORDERS = {
    "unicode": _Border(_Rule("┌", "─", "┬", "┐"), _Rule("├", "─", "┼", "┤"), _Rule("└", "─", "┴", "┘"), "│"),
    "ascii": _Border(_ASCII_RULE, _ASCII_RULE, _ASCII_RULE, "|"),
}
STYLES = tuple(_BORDERS)


def display_width(text: str) -> int:
    """The number of terminal columns that ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cell_text(value: Any) -> str:
    """A value for people: None is ``-``, booleans are yes or no, a list is joined by commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{cell_text(key)}={cell_text(item)}" for key, item in value.items()) or "-"
    if isinstance(value, Sequence):
        return ", ".join(cell_text(item) for item in value) or "-"
    return printable(str(value))


def parse_columns(columns: Sequence[Any] | None, rows: Sequence[Any]) -> list[Column]:
    """Columns as given by a playbook: keys, or mappings with ``key``, ``title`` and ``align``.

    Without columns, the rows' keys in the order of their appearance. Raises InputError.
    """
    if columns is None:
        keys = dict.fromkeys(str(key) for row in rows if isinstance(row, Mapping) for key in row)
        columns = list(keys)
    parsed = [_parse_column(column) for column in columns]
    if not parsed:
        raise InputError(
            "A table needs at least one column, but there is neither a row with keys nor a list of columns.",
            "Give `columns`.",
        )
    return parsed


def _parse_column(column: Any) -> Column:
    if isinstance(column, str):
        return Column(column, column.replace("_", " "))
    if isinstance(column, Mapping) and "key" in column and set(column) <= {"key", "title", "align"}:
        key = str(column["key"])
        align = str(column.get("align", "auto"))
        if align in ALIGNMENTS:
            return Column(key, str(column.get("title", key.replace("_", " "))), align)
        raise InputError(
            f"The column {key!r} has the invalid align={align!r}.",
            f"Choose one of {', '.join(ALIGNMENTS)}.",
        )
    raise InputError(
        f"{column!r} is not a column.", "Use a key, or a mapping with `key` and optionally `title` and `align`."
    )


def render(
    rows: Sequence[Any],
    columns: Sequence[Any] | None = None,
    style: str = "unicode",
    width: int = 0,
    group: str | None = None,
) -> str:
    """The table as text without a final newline.

    ``rows`` are mappings (by column key) or sequences (by position). ``width`` is the room in terminal columns, 0 for
    no limit; wide columns wrap first. ``group`` is the key of a column whose repeated values are shown once, with a
    rule between the groups. A cell may contain newlines. Raises InputError.
    """
    border = _BORDERS.get(style)
    if border is None:
        raise InputError(f"{style!r} is not a table style.", f"Choose one of {', '.join(STYLES)}.")
    layout = parse_columns(columns, rows)
    values = [_row_values(row, layout) for row in rows]
    texts = [[cell_text(value) for value in row] for row in values]
    aligns = [_alignment(column, [row[place] for row in values]) for place, column in enumerate(layout)]
    titles = [printable(column.title) for column in layout]
    group_place = _group_place(group, layout)

    room = width - 3 * len(layout) - 1 if width else 0
    widths = fit_widths([[title, *(row[place] for row in texts)] for place, title in enumerate(titles)], room)

    lines = [border.top.drawn(widths), *_row_lines(titles, widths, aligns, border.vertical)]
    rule = border.middle.drawn(widths)
    lines.append(rule)
    previous: str | None = None
    for number, row in enumerate(texts):
        shown = row
        if group_place is not None:
            if row[group_place] == previous:
                shown = [*row[:group_place], "", *row[group_place + 1 :]]
            elif number:
                lines.append(rule)
            previous = row[group_place]
        lines.extend(_row_lines(shown, widths, aligns, border.vertical))
    lines.append(border.bottom.drawn(widths))
    return "\n".join(lines)


def _group_place(group: str | None, layout: Sequence[Column]) -> int | None:
    if group is None:
        return None
    keys = [column.key for column in layout]
    if group not in keys:
        raise InputError(f"The table has no column {group!r} to group by.", f"Choose one of {', '.join(keys)}.")
    return keys.index(group)


def _row_values(row: Any, layout: Sequence[Column]) -> list[Any]:
    if isinstance(row, Mapping):
        return [row.get(column.key) for column in layout]
    if isinstance(row, Sequence) and not isinstance(row, str) and len(row) == len(layout):
        return list(row)
    raise InputError(
        f"{row!r} is not a row of a table with {len(layout)} columns.",
        "Use a mapping, or a list with one value for each column.",
    )


def _alignment(column: Column, values: Sequence[Any]) -> str:
    if column.align != "auto":
        return column.align
    known = [value for value in values if value is not None and value != ""]
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in known)
    return "right" if known and numeric else "left"


def fit_widths(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """The width of each column, given its texts, so that together they take at most ``room`` (0: no limit).

    First, the widest columns are reduced to their longest word; then, words are broken.
    """
    natural = [max(display_width(line) for text in texts for line in text.split("\n")) for texts in columns]
    words = [max((display_width(word) for text in texts for word in text.split()), default=1) for texts in columns]
    widths = natural
    for floors in (words, [_NARROWEST] * len(columns)):
        if room and sum(widths) > room:
            widths = _squeeze(widths, floors, sum(widths) - room)
    return widths


def _squeeze(widths: Sequence[int], floors: Sequence[int], excess: int) -> list[int]:
    squeezed = list(widths)
    for _step in range(excess):
        candidates = [place for place, width in enumerate(squeezed) if width > floors[place]]
        if not candidates:
            break
        squeezed[max(candidates, key=lambda place: squeezed[place])] -= 1
    return squeezed


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken between words where that is possible."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if display_width(paragraph) <= width:
            lines.append(paragraph)
            continue
        line = ""
        for word in paragraph.split():
            joined = f"{line} {word}" if line else word
            if display_width(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            *full, line = _pieces(word, width)
            lines.extend(full)
        lines.append(line)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    pieces = [""]
    for letter in word:
        if pieces[-1] and display_width(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def _row_lines(texts: Sequence[str], widths: Sequence[int], aligns: Sequence[str], vertical: str) -> list[str]:
    wrapped = [wrap(text, width) for text, width in zip(texts, widths)]
    return [
        vertical
        + vertical.join(f" {_pad(text, width, align)} " for text, width, align in zip(line, widths, aligns))
        + vertical
        for line in zip_longest(*wrapped, fillvalue="")
    ]


def _pad(text: str, width: int, align: str) -> str:
    missing = max(0, width - display_width(text))
    left = missing if align == "right" else missing // 2 if align == "center" else 0
    return " " * left + text + " " * (missing - left)
