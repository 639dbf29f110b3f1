# Copyright (c) 2026, the gpumesh authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The width of the terminal for which a filter draws, and text that is wrapped to it."""

from __future__ import annotations

import os
import textwrap

from ansible.utils.display import Display

from ansible_collections.gpumesh.cluster.plugins.module_utils._core.text import printable

_DEFAULT_WIDTH = 80


def available_width(width: int = 0) -> int:
    """Return the width for tables.render_table: ``width``, 0 for the terminal's, below 0 for no limit (which is 0).

    COLUMNS takes precedence if it is set; otherwise, the width is what Ansible measured before it detached its workers
    from the terminal.
    """
    if width:
        return max(0, width)
    environment_width = os.environ.get("COLUMNS", "")
    return (
        int(environment_width)
        if environment_width.isdecimal() and int(environment_width)
        else int(Display().columns or _DEFAULT_WIDTH)
    )


def wrap_text(text: str, width: int, indent: str = "") -> list[str]:
    """Return the lines of a text, of which those that are longer than the width are wrapped between words.

    ``width``: in columns, with the indent that all lines get; 0 for no limit.
    """
    wrapped_lines: list[str] = []
    for line in printable(text).rstrip().splitlines():
        # A line that is already indented was formatted by its writer: a table, or a command's output.
        if not width or line.startswith((" ", "\t")) or not line.strip() or len(line) <= width - len(indent):
            wrapped_lines.append(f"{indent}{line}".rstrip())
        else:
            wrapped_lines += textwrap.wrap(
                line,
                width,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return wrapped_lines
