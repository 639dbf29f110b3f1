# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.errors import InputError
from ansible_collections.gpumesh.cluster.plugins.plugin_utils._core.tables import (
    display_width,
    render_table,
    wrap_text,
)

ROWS = [
    {"host": "n1", "interface": "eno1", "mtu": 9000},
    {"host": "n1", "interface": "docker0", "mtu": 1500},
    {"host": "n2", "interface": "eno1", "mtu": None},
]


def test_small_table() -> None:
    assert render_table(ROWS, group="host") == (
        "┌──────┬───────────┬──────┐\n"
        "│ host │ interface │  mtu │\n"
        "├──────┼───────────┼──────┤\n"
        "│ n1   │ eno1      │ 9000 │\n"
        "│      │ docker0   │ 1500 │\n"
        "├──────┼───────────┼──────┤\n"
        "│ n2   │ eno1      │    - │\n"
        "└──────┴───────────┴──────┘"
    )


def test_titles_alignment_and_positions() -> None:
    columns = [{"key": "a", "title": "Name", "align": "center"}, {"key": "b", "align": "right"}]
    assert render_table([["n", True], ["long", [1, 2]]], columns) == (
        "┌──────┬──────┐\n│ Name │    b │\n├──────┼──────┤\n│  n   │  yes │\n│ long │ 1, 2 │\n└──────┴──────┘"
    )


def test_widest_column_wraps_between_words() -> None:
    assert render_table([{"host": "n1", "why": "it has no address in this subnet"}], width=32) == (
        "┌──────┬───────────────────────┐\n"
        "│ host │ why                   │\n"
        "├──────┼───────────────────────┤\n"
        "│ n1   │ it has no address in  │\n"
        "│      │ this subnet           │\n"
        "└──────┴───────────────────────┘"
    )


def test_titles_are_shown_without_rows() -> None:
    assert "host" in render_table([], ["host"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rows": [], "columns": None}, "at least one column"),
        ({"rows": ROWS, "group": "site"}, "no column 'site'"),
        ({"rows": [["a"]], "columns": ["x", "y"]}, "not a row of a table with 2 columns"),
        ({"rows": ROWS, "columns": [{"key": "x", "align": "up"}]}, "align='up'"),
        ({"rows": ROWS, "columns": [{"title": "x"}]}, "is not a column"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        render_table(**arguments)


def test_control_characters_are_removed() -> None:
    text = render_table([{"name": "\x1b[31mred\x07\u202eevil\tend"}])
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text and "\t" not in text
    assert "red" in text


@given(
    rows=st.lists(
        st.lists(st.one_of(st.text(), st.integers(), st.none(), st.booleans()), min_size=3, max_size=3), max_size=6
    ),
    width=st.integers(min_value=22, max_value=120),
)
def test_lines_have_equal_width_and_fit(rows: list[list[object]], width: int) -> None:
    widths = {display_width(line) for line in render_table(rows, ["a", "b", "c"], width=width).split("\n")}
    assert len(widths) == 1
    assert widths.pop() <= width


@given(text=st.text(alphabet="ab \n", max_size=60), width=st.integers(min_value=1, max_value=20))
def test_wrapping_keeps_all_characters_within_the_width(text: str, width: int) -> None:
    lines = wrap_text(text, width)
    assert all(len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
