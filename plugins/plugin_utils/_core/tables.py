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

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

ALIGNMENTS = ("auto", "left", "right", "center")

#: The width of text that is wrapped wherever it is shown: the progress callback indents an error by 4 of 80 columns.
TEXT_WIDTH = 76
#: The minimum width of a column, however narrow the terminal: a table that overflows can still be read.
_MIN_COLUMN_WIDTH = 4


class TableColumn(NamedTuple):
    """One column. ``align`` is one of ALIGNMENTS; ``auto`` aligns numbers to the right and text to the left."""

    key: str
    title: str
    align: str = "auto"


class _FrameRule(NamedTuple):
    """A horizontal line of the frame."""

    left_corner: str
    fill: str
    crossing: str
    right_corner: str

    def draw(self, column_widths: Sequence[int]) -> str:
        return (
            self.left_corner
            + self.crossing.join(self.fill * (width + 2) for width in column_widths)
            + self.right_corner
        )


_TOP_RULE = _FrameRule("┌", "─", "┬", "┐")
_MIDDLE_RULE = _FrameRule("├", "─", "┼", "┤")
_BOTTOM_RULE = _FrameRule("└", "─", "┴", "┘")
_VERTICAL_LINE = "│"


def display_width(text: str) -> int:
    """The number of terminal columns that ``text`` takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def cell_text(value: Any) -> str:
    """Format a value for people: None is ``-``, booleans are yes or no, a list is joined by commas."""
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


def parse_columns(columns: Sequence[Any] | None, rows: Sequence[Any]) -> list[TableColumn]:
    """Parse columns given by a playbook: keys, or mappings with ``key``, ``title`` and ``align``.

    Without columns, the rows' keys in the order of their appearance are used. Raises InputError.
    """
    if columns is None:
        column_keys = dict.fromkeys(str(key) for row in rows if isinstance(row, Mapping) for key in row)
        columns = list(column_keys)
    parsed_columns = [_parse_column(column) for column in columns]
    if not parsed_columns:
        raise InputError(
            "A table needs at least one column, but there is neither a row with keys nor a list of columns.",
            "Give `columns`.",
        )
    return parsed_columns


def _parse_column(column: Any) -> TableColumn:
    if isinstance(column, str):
        return TableColumn(column, column.replace("_", " "))
    if isinstance(column, Mapping) and "key" in column and set(column) <= {"key", "title", "align"}:
        key = str(column["key"])
        align = str(column.get("align", "auto"))
        if align in ALIGNMENTS:
            return TableColumn(key, str(column.get("title", key.replace("_", " "))), align)
        raise InputError(
            f"The column {key!r} has the invalid align={align!r}.",
            f"Choose one of {', '.join(ALIGNMENTS)}.",
        )
    raise InputError(
        f"{column!r} is not a column.", "Use a key, or a mapping with `key` and optionally `title` and `align`."
    )


def render_table(
    rows: Sequence[Any],
    columns: Sequence[Any] | None = None,
    width: int = 0,
    group: str | None = None,
) -> str:
    """The table as text without a final newline.

    ``rows`` are mappings (by column key) or sequences (by position). ``width`` is the room in terminal columns, 0 for
    no limit; wide columns wrap first. ``group`` is the key of a column whose repeated values are shown once, with a
    rule between the groups. A cell may contain newlines. Raises InputError.
    """
    layout = parse_columns(columns, rows)
    cells_by_row = [_row_values(row, layout) for row in rows]
    cell_texts = [[cell_text(value) for value in row] for row in cells_by_row]
    alignments = [
        _choose_alignment(column, [row[column_index] for row in cells_by_row])
        for column_index, column in enumerate(layout)
    ]
    column_titles = [printable(column.title) for column in layout]
    group_index = _find_group_index(group, layout)

    available_width = width - 3 * len(layout) - 1 if width else 0
    column_widths = fit_column_widths(
        [[title, *(row[column_index] for row in cell_texts)] for column_index, title in enumerate(column_titles)],
        available_width,
    )

    lines = [
        _TOP_RULE.draw(column_widths),
        *_format_row(column_titles, column_widths, alignments),
    ]
    separator = _MIDDLE_RULE.draw(column_widths)
    lines.append(separator)
    previous_group: str | None = None
    for row_index, row in enumerate(cell_texts):
        visible_cells = row
        if group_index is not None:
            if row[group_index] == previous_group:
                visible_cells = [*row[:group_index], "", *row[group_index + 1 :]]
            elif row_index:
                lines.append(separator)
            previous_group = row[group_index]
        lines.extend(_format_row(visible_cells, column_widths, alignments))
    lines.append(_BOTTOM_RULE.draw(column_widths))
    return "\n".join(lines)


def _find_group_index(group_key: str | None, layout: Sequence[TableColumn]) -> int | None:
    if group_key is None:
        return None
    column_keys = [column.key for column in layout]
    if group_key not in column_keys:
        raise InputError(
            f"The table has no column {group_key!r} to group by.", f"Choose one of {', '.join(column_keys)}."
        )
    return column_keys.index(group_key)


def _row_values(row: Any, layout: Sequence[TableColumn]) -> list[Any]:
    if isinstance(row, Mapping):
        return [row.get(column.key) for column in layout]
    if isinstance(row, Sequence) and not isinstance(row, str) and len(row) == len(layout):
        return list(row)
    raise InputError(
        f"{row!r} is not a row of a table with {len(layout)} columns.",
        "Use a mapping, or a list with one value for each column.",
    )


def _choose_alignment(column: TableColumn, column_cells: Sequence[Any]) -> str:
    if column.align != "auto":
        return column.align
    present_cells = [value for value in column_cells if value is not None and value != ""]
    all_numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present_cells)
    return "right" if present_cells and all_numeric else "left"


def fit_column_widths(texts_by_column: Sequence[Sequence[str]], available_width: int) -> list[int]:
    """Return the width of each column, so that together they take at most ``available_width`` (0: no limit).

    First, the widest columns are reduced to their longest word; then, words are broken.
    """
    natural_widths = [
        max(display_width(line) for text in texts for line in text.split("\n")) for texts in texts_by_column
    ]
    longest_words = [
        max((display_width(token) for text in texts for token in text.split()), default=1) for texts in texts_by_column
    ]
    column_widths = natural_widths
    for minimum_widths in (longest_words, [_MIN_COLUMN_WIDTH] * len(texts_by_column)):
        if available_width and sum(column_widths) > available_width:
            column_widths = _reduce_widths(column_widths, minimum_widths, sum(column_widths) - available_width)
    return column_widths


def _reduce_widths(column_widths: Sequence[int], minimum_widths: Sequence[int], excess_columns: int) -> list[int]:
    reduced_widths = list(column_widths)
    for _step in range(excess_columns):
        reducible_columns = [
            column_index for column_index, width in enumerate(reduced_widths) if width > minimum_widths[column_index]
        ]
        if not reducible_columns:
            break
        reduced_widths[max(reducible_columns, key=lambda column_index: reduced_widths[column_index])] -= 1
    return reduced_widths


def wrap_text(text: str, width: int) -> list[str]:
    """Split ``text`` into lines of at most ``width`` columns, broken between words where that is possible."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        if display_width(paragraph) <= width:
            lines.append(paragraph)
            continue
        line = ""
        for next_word in paragraph.split():
            extended_line = f"{line} {next_word}" if line else next_word
            if display_width(extended_line) <= width:
                line = extended_line
                continue
            if line:
                lines.append(line)
            *full_pieces, line = _split_word(next_word, width)
            lines.extend(full_pieces)
        lines.append(line)
    return lines


def _split_word(long_word: str, width: int) -> list[str]:
    pieces = [""]
    for character in long_word:
        if pieces[-1] and display_width(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def _format_row(cell_texts: Sequence[str], column_widths: Sequence[int], alignments: Sequence[str]) -> list[str]:
    wrapped_cells = [wrap_text(text, width) for text, width in zip(cell_texts, column_widths)]
    return [
        _VERTICAL_LINE
        + _VERTICAL_LINE.join(
            f" {_pad_cell(text, width, align)} " for text, width, align in zip(line, column_widths, alignments)
        )
        + _VERTICAL_LINE
        for line in zip_longest(*wrapped_cells, fillvalue="")
    ]


def _pad_cell(text: str, width: int, align: str) -> str:
    padding_width = max(0, width - display_width(text))
    left_padding = padding_width if align == "right" else padding_width // 2 if align == "center" else 0
    return " " * left_padding + text + " " * (padding_width - left_padding)
